"""Records cut into pieces of a fixed size, and pieces collected into records."""

from collections.abc import Sequence
from itertools import chain

from pydantic import Field

from penstock.connectors.api import Options
from penstock.connectors.interceptors.api import (
    RECORD_BYTES_LIMIT,
    RECORD_BYTES_MAX,
    AboutInterceptor,
    AnyDelimiter,
    BadBytes,
    Incoming,
    Interceptor,
    OutgoingInterceptor,
    delimiter_bytes,
)
from penstock.connectors.interceptors.join import Joining, JoinOptions


class ChunkOptions(Options):
    bytes: int = Field(ge=1, le=RECORD_BYTES_LIMIT)
    """The size of a piece. The last one of a stream, a record or a value may be shorter."""


class Chunk(Interceptor[ChunkOptions]):
    """Behind an interceptor that cuts records, each record is cut alone."""

    about = AboutInterceptor(
        "chunk",
        "Cuts what arrives into records of a fixed size, and each value that leaves into pieces.",
        ChunkOptions,
    )
    cuts = True

    def incoming(self, *, framed: bool = False) -> Incoming:
        return RecordChunks(self.options.bytes) if framed else StreamChunks(self.options.bytes)

    def outgoing(self) -> OutgoingInterceptor:
        return ValueChunks(self.options.bytes)


def _cut(data: bytes, size: int) -> list[bytes]:
    """An empty record is one empty piece."""
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]


class RecordChunks(Incoming):
    """Of each record alone."""

    buffered = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def feed(self, data: bytes) -> list[bytes]:
        return _cut(data, self._size)

    def finish(self) -> list[bytes]:
        return []


class StreamChunks(Incoming):
    """Of a stream of bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        if len(self._buffer) + len(data) < self._size:
            self._buffer += data
            return []
        whole = b"".join((self._buffer, data))
        end = len(whole) // self._size * self._size
        self._buffer = bytearray(whole[end:])
        return _cut(whole[:end], self._size)

    def finish(self) -> list[bytes]:
        rest, self._buffer = bytes(self._buffer), bytearray()
        return [rest] if rest else []


class ValueChunks:
    """Outgoing: a value ends in the last of its pieces."""

    buffered = 0
    wait_seconds = None

    def __init__(self, size: int) -> None:
        self._size = size
        self.counts: Sequence[int] | None = None

    def feed(self, values: Sequence[bytes]) -> list[bytes]:
        pieces = [_cut(value, self._size) for value in values]
        ends = {count: [0] * (count - 1) + [1] for count in {*map(len, pieces)}}
        self.counts = [*chain.from_iterable(ends[len(of)] for of in pieces)]
        return [*chain.from_iterable(pieces)]

    def flush(self) -> list[bytes]:
        self.counts = []
        return []


_ELEMENTS_MAX = 1_000_000
"""Records that wait to be collected: empty ones have no bytes, but take memory, too."""


class CollectOptions(Options):
    max_elements: int | None = Field(default=None, ge=1, le=_ELEMENTS_MAX)
    """How many records are collected into one. Without it, all of the stream, or of the request, are: more than a
    million are a dead letter, and end the stream."""
    delimiter: AnyDelimiter = ""
    r"""Stands between them. It can contain the escapes \n \r \t \0 \\ and \xNN."""
    record_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A longer result is a dead letter, and ends the stream."""


class Collect(Interceptor[CollectOptions]):
    about = AboutInterceptor(
        "collect",
        "Collects a number of records, or all of a stream, into one event. The last one may have fewer.",
        CollectOptions,
    )
    cuts = True

    def __init__(self, options: CollectOptions) -> None:
        super().__init__(options)
        self.needs_records = bool(options.delimiter) or options.max_elements is not None

    def incoming(self, *, framed: bool = False) -> Incoming:  # noqa: ARG002
        return Collecting(self.options)

    def outgoing(self) -> OutgoingInterceptor:
        options = self.options
        joined = JoinOptions.model_construct(
            delimiter=options.delimiter,
            max_elements=options.max_elements or _ELEMENTS_MAX,
            terminate=False,
            record_bytes_max=options.record_bytes_max,
        )
        return Joining(joined)


class Collecting(Incoming):
    """For one stream. What it has collected is whole when the stream ends, also by a drain."""

    def __init__(self, options: CollectOptions, elements_max: int = _ELEMENTS_MAX) -> None:
        self._options = options
        self._elements_max = elements_max
        self._delimiter = delimiter_bytes(options.delimiter)
        self._waiting: list[bytes] = []
        self._bytes = 0

    @property
    def buffered(self) -> int:
        return max(self._bytes, len(self._waiting))

    def feed(self, data: bytes) -> list[bytes]:
        self._bytes += len(data) + (len(self._delimiter) if self._waiting else 0)
        self._waiting.append(data)
        if self._bytes > self._options.record_bytes_max:
            (collected,) = self.finish()
            raise BadBytes(f"more than {self._options.record_bytes_max} bytes (record_bytes_max)", collected)
        if len(self._waiting) == self._options.max_elements:
            return self.finish()
        if len(self._waiting) > self._elements_max:
            (collected,) = self.finish()
            raise BadBytes(f"more than {self._elements_max:,} records (set max_elements)", collected)
        return []

    def feed_whole(self, records: Sequence[bytes]) -> list[bytes] | None:
        """If all of them fit into one event, whatever `max_elements` is."""
        size = sum(map(len, records)) + len(records) * len(self._delimiter)
        if self._bytes + size > self._options.record_bytes_max:
            return None
        if len(self._waiting) + len(records) > self._elements_max and self._options.max_elements is None:
            return None
        step = self._options.max_elements or len(self._waiting) + len(records) + 1
        waiting = [*self._waiting, *records]
        results = [self._delimiter.join(waiting[at : at + step]) for at in range(0, len(waiting) - step + 1, step)]
        if results:
            waiting = waiting[len(results) * step :]
            size, self._bytes = sum(map(len, waiting)) + len(waiting) * len(self._delimiter), 0
        if waiting and not self._bytes:
            size -= len(self._delimiter)
        self._waiting, self._bytes = waiting, self._bytes + size
        return results

    def finish(self) -> list[bytes]:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return [self._delimiter.join(waiting)] if waiting else []

    def cut_off(self) -> tuple[list[bytes], bytes]:
        return self.finish(), b""
