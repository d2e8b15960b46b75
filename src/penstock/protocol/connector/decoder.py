"""Bytes in, frames out: one decoder for each connection, at either end of it. The gateway's is `bulk.Receiver`."""

from collections.abc import Iterator

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.connector.batch import Received, decode_messages
from penstock.protocol.connector.codec import FRAME_SIZE_MAX, decode, read_length, unwrap
from penstock.protocol.connector.fields import U32
from penstock.protocol.connector.frames import Frame, Message
from penstock.protocol.connector.hello import HelloCheck
from penstock.protocol.connector.roles import Use
from penstock.protocol.connector.two_phase import TWO_PHASE_STREAM


class Decoder:
    """Feed it what was received, in pieces of any size.

    In a sink's session the two-phase messages come out unwrapped. An acceptor gives a `hello` check. Frames own their
    bytes. At most one frame, and the piece that was fed last, are held: a length is checked as soon as it is there.

    A ProtocolError comes after everything that was well before it, and is final: it is raised again ever after.
    """

    def __init__(self, use: Use, *, hello: HelloCheck | None = None, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._use = use
        self._hello = hello
        self._frame_size_max = frame_size_max
        self._held = bytearray()
        self._at = 0
        self._failure: str | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._held) - self._at

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """The frames that these bytes complete, in order; what is not taken from the iterator comes the next time."""
        self._check_usable()
        self._held += data
        return iter(self._next, None)

    def take_messages(self, stream_id: int) -> list[Received]:
        """Those of this stream that are there already and come next, all at once: many times faster than one by one."""
        found, self._at = decode_messages(self._held, self._at, stream_id, frame_size_max=self._frame_size_max)
        return found

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ProtocolError(self._failure)

    def _next(self) -> Frame | None:
        self._check_usable()
        try:
            return self._read()
        except ProtocolError as error:
            self._failure = str(error)
            self._held, self._at = bytearray(), 0
            raise

    def _read(self) -> Frame | None:
        start = self._at + U32.size
        if start <= len(self._held):
            end = start + read_length(self._held, self._at, self._frame_size_max)
            if end <= len(self._held):
                with memoryview(self._held) as view:
                    body = bytes(view[start + 1 : end])
                tag, self._at = self._held[start], end
                return self._decode(tag, body)
        del self._held[: self._at]
        self._at = 0
        return None

    def _decode(self, tag: int, body: bytes) -> Frame:
        frame = decode(tag, body, hello=self._hello)
        if self._use is Use.SINK and isinstance(frame, Message) and frame.stream_id == TWO_PHASE_STREAM:
            return unwrap(frame)
        return frame
