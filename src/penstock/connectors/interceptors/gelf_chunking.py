"""Messages in several datagrams, as GELF over UDP sends them: they arrive in any order, and some never do.

0x1e 0x0f · 8 bytes message id · number of the chunk · number of chunks · data
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    BadBytes,
    BadRecord,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    RecordStage,
    Rejected,
)
from penstock.connectors.values import SomeSeconds

_MAGIC = b"\x1e\x0f"
_HEADER = 12
_CHUNKS_MAX = 128

_WAITING_BYTES_MAX = 64 << 20
"""Of all messages of a stream that wait for chunks: anyone can send first chunks."""


class GelfChunkingOptions(Options):
    timeout: SomeSeconds = 5.0
    """How long chunks wait for the others. Then they are a dead letter."""
    messages_max: int = Field(default=1000, ge=1, le=100_000)
    """The most messages that wait for chunks at once. Beyond it the oldest is a dead letter."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer message is a dead letter."""
    chunk_bytes: int = Field(default=1420, ge=64, le=65_507)
    """Longer values leave in datagrams of at most this size, with their headers: 1420 for the Internet, 8154 for a
    local network."""


class GelfChunking(Interceptor[GelfChunkingOptions]):
    about = AboutInterceptor(
        "gelf-chunking",
        "Puts the chunks of GELF messages together, in any order, and sends long values in chunks.",
        GelfChunkingOptions,
    )
    needs_records = True

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        return Unchunking(self.options)

    def outgoing(self) -> OutgoingInterceptor:
        return Chunking(self.options)


@dataclass(slots=True, eq=False)
class _Message:
    since: float
    count: int
    chunks: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    """Bytes of its chunks, without their headers."""

    @property
    def buffered(self) -> int:
        return self.size + _HEADER * len(self.chunks)

    def data(self) -> bytes:
        """The chunks that are there, in order."""
        return b"".join(self.chunks[number] for number in sorted(self.chunks))


class Unchunking(RecordStage):
    """For one stream of datagrams. Others than chunks pass as they are."""

    is_timed = True

    def __init__(
        self,
        options: GelfChunkingOptions,
        clock: Callable[[], float] = time.monotonic,
        waiting_bytes_max: int = _WAITING_BYTES_MAX,
    ) -> None:
        super().__init__(self._unchunked)
        self._options = options
        self._clock = clock
        self._waiting_bytes_max = waiting_bytes_max
        self._buffered = 0
        self._messages: dict[bytes, _Message] = {}
        """By id, the oldest first."""

    @property
    def buffered(self) -> int:  # type: ignore[override]
        return self._buffered

    def _unchunked(self, datagram: bytes) -> bytes | None:
        now = self._clock()
        if self._messages:
            self._expire(now)
        if not datagram.startswith(_MAGIC):
            return datagram
        if len(datagram) < _HEADER:
            raise BadRecord("a GELF chunk without a whole header")
        number, count = datagram[10], datagram[11]
        if not 0 < count <= _CHUNKS_MAX or number >= count:
            raise BadRecord(f"GELF chunk {number} of {count}; there are at most {_CHUNKS_MAX}")
        return self._added(datagram[2:10], number, count, datagram[_HEADER:], now)

    def _added(self, key: bytes, number: int, count: int, data: bytes, now: float) -> bytes | None:
        message = self._messages.get(key)
        if message is None:
            message = self._messages[key] = _Message(now, count)
        if message.count != count:
            raise BadRecord(f"a GELF chunk of {count}, whose message has {message.count}")
        chunks = message.chunks
        if number in chunks:
            return None  # it came twice
        chunks[number] = data
        message.size += len(data)
        if len(chunks) == count and message.size <= self._options.record_bytes_max:  # most are whole before long
            del self._messages[key]
            self._buffered -= message.size - len(data) + _HEADER * (count - 1)
            return b"".join([chunks[one] for one in range(count)])
        self._buffered += len(data) + _HEADER
        if message.size > self._options.record_bytes_max:
            self._give_up(key, f"a GELF message of more than {self._options.record_bytes_max} bytes")
        if len(self._messages) > self._options.messages_max or self._buffered > self._waiting_bytes_max:
            self._make_room()
        return None

    def _make_room(self) -> None:
        while len(self._messages) > self._options.messages_max:
            self._give_up(next(iter(self._messages)), f"more than {self._options.messages_max} GELF messages wait")
        while self._buffered > self._waiting_bytes_max:
            self._give_up(next(iter(self._messages)), f"{self._waiting_bytes_max:,} bytes of GELF messages wait")

    def _removed(self, key: bytes) -> _Message:
        message = self._messages.pop(key)
        self._buffered -= message.buffered
        return message

    def _expire(self, now: float) -> None:
        due = now - self._options.timeout
        while self._messages:
            key, oldest = next(iter(self._messages.items()))
            if oldest.since > due:
                return
            self._give_up(key, f"incomplete after {self._options.timeout:g} s")

    def wait_seconds(self) -> float | None:
        oldest = next(iter(self._messages.values()), None)
        return None if oldest is None else max(0.0, oldest.since + self._options.timeout - self._clock())

    def expire(self) -> None:
        self._expire(self._clock())

    def _give_up(self, key: bytes, reason: str) -> None:
        message = self._removed(key)
        shown = f"{reason}: {len(message.chunks)} of {message.count} chunks of a GELF message"
        self._rejected.append(Rejected(message.data(), shown))

    def finish(self) -> list[bytes]:
        for key in [*self._messages]:
            self._give_up(key, "the stream has ended")
        return []

    def cut_off(self) -> tuple[list[bytes], bytes]:
        return self.finish(), b""


class Chunking:
    """Outgoing: a value ends in the last of its datagrams."""

    buffered = 0
    wait_seconds = None

    def __init__(self, options: GelfChunkingOptions, new_id: Callable[[], bytes] = lambda: os.urandom(8)) -> None:
        self._whole = options.chunk_bytes
        self._room = options.chunk_bytes - _HEADER
        self._new_id = new_id
        self.counts: Sequence[int] | None = None

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        results: list[bytes] = []
        counts: list[int] = []
        for value in values:
            datagrams = self._datagrams(value)
            results += datagrams
            counts += (*[0] * (len(datagrams) - 1), 1)
        self.counts = counts
        return results

    def flush(self) -> list[bytes]:
        self.counts = []
        return []

    def _datagrams(self, value: bytes) -> list[bytes]:
        if len(value) <= self._whole and not value.startswith(_MAGIC):  # as it is, it would be taken for a chunk
            return [value]
        pieces = [value[start : start + self._room] for start in range(0, len(value), self._room)]
        if len(pieces) > _CHUNKS_MAX:
            raise BadBytes(f"a value of {len(value)} bytes does not fit into {_CHUNKS_MAX} GELF chunks", value)
        head = _MAGIC + self._new_id()
        return [head + bytes((number, len(pieces))) + piece for number, piece in enumerate(pieces)]
