"""Where a gateway's session receives: bytes in, frames out, the messages among them as columns."""

from collections.abc import Iterator
from typing import TypeAlias

from penstock.core.errors import ProtocolError
from penstock.protocol.connector.bulk.columns import Columns, Stop, frame_error
from penstock.protocol.connector.bulk.implementation import scan
from penstock.protocol.connector.codec import FRAME_SIZE_CEILING, FRAME_SIZE_MAX, U32, HelloCheck, decode, read_length
from penstock.protocol.connector.frames import Frame

CHUNK_SIZE = 512 * 2**10
"""Bytes that are received at once, at most: a whole window of credits of small messages (2,048 of 250 bytes), which
then stay together all the way to the acknowledgement. At half of it every window was handled in two parts.
"""

CHUNK_SIZE_MIN = 64
"""There must be room to receive behind the longest part of a frame that says nothing about its length."""

Incoming: TypeAlias = Frame | Columns


class Receiver:
    """Receive into `get_buffer`, then say how much with `received`; the methods fit an asyncio.BufferedProtocol.

    Columns are views of the buffer: they hold until `get_buffer` is called again. Other frames own their bytes.
    The buffer has `chunk_size` bytes, or as many as the frame that is coming in needs, once its length is checked.

    A ProtocolError comes after everything that was well before it, and is final: it is raised again ever after.
    """

    def __init__(
        self,
        *,
        hello: HelloCheck | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        assert 0 < frame_size_max <= FRAME_SIZE_CEILING
        assert chunk_size >= CHUNK_SIZE_MIN
        self._stop: Stop | None = None
        self._hello = hello
        self._frame_size_max = frame_size_max
        self._chunk_size = chunk_size
        self._view = memoryview(bytearray(chunk_size))
        self._start = self._end = 0
        self._needed = 0
        self._failure: str | None = None

    @property
    def held_bytes(self) -> int:
        """Memory held, whether or not anything is in it."""
        return len(self._view)

    @property
    def unread_bytes(self) -> int:
        """Bytes of a frame that has begun to arrive."""
        return self._end - self._start

    def get_buffer(self, sizehint: int = -1) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Where to receive next; never empty. What `received` gave last has been used up before."""
        self._check_usable()
        size = max(self._needed, self._chunk_size)
        if self._start or len(self._view) != size:
            unread = self._view[self._start : self._end]
            self._view = self._view if len(self._view) == size else memoryview(bytearray(size))
            self._view[: len(unread)] = unread
            self._start, self._end = 0, len(unread)
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[Incoming]:
        """What the next `count` bytes, now at the start of `get_buffer`, complete, in order."""
        self._check_usable()
        assert 0 <= count <= len(self._view) - self._end
        self._end += count
        return iter(self._next, None)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ProtocolError(self._failure)

    def _next(self) -> Incoming | None:
        self._check_usable()
        try:
            return self._read()
        except ProtocolError as error:
            self._failure = str(error)
            raise

    def _read(self) -> Incoming | None:
        if self._stop is None:
            columns = scan(self._view, self._start, self._end, frame_size_max=self._frame_size_max)
            self._start, self._stop = columns.end, columns.stop
            if len(columns):
                return columns
        stop, self._stop = self._stop, None
        if stop in (Stop.MALFORMED, Stop.OVERSIZED):
            raise frame_error(self._view, self._start, self._frame_size_max)
        return self._read_other(stop)

    def _read_other(self, stop: Stop) -> Frame | None:
        """The frame that is no MESSAGE, or None while its end has not come; then how much room it needs is known."""
        self._needed = 0
        if self._end - self._start < U32.size:
            return None
        start = self._start + U32.size
        end = start + read_length(self._view, self._start, self._frame_size_max)
        if stop is Stop.INCOMPLETE or end > self._end:
            self._needed = end - self._start
            return None
        tag, body = self._view[start], bytes(self._view[start + 1 : end])
        self._start = end
        return decode(tag, body, hello=self._hello)
