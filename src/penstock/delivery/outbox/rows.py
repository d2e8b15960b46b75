"""Rows on their way from a pipeline to a connector: which stream they belong to, how the outbox stores them, and what
interceptors buffer and join before they leave.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar, overload

import msgpack

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.chain import OutgoingChain
from penstock.protocol.stored.bulk import Bytes, Events, Wanted, encode
from penstock.protocol.stored.dead_letters import REASON
from penstock.protocol.stored.event import KEY_START, NO_TIME, SHORT_MAX

WANTED = Wanted(metadata=True)

REASON_BYTES_MAX = 1000
"""Limit of a dead letter's reason: a connector's error message may be long, and metadata must stay short."""

_UNSIGNED = 2**64 - 1

_C = TypeVar("_C")


class Row(NamedTuple):
    number: int
    """Its position in the epoch."""
    stream_id: int
    event_id: int
    time: int
    """In microseconds, or NO_TIME."""
    key: bytes
    metadata: bytes
    value: bytes


def rows_of(events: Events, first: int) -> list[Row]:
    """In order, numbered from `first`. The events must be stored events, decoded with WANTED."""
    columns = (
        range(first, first + len(events)),
        (one & _UNSIGNED for one in _present(events.stream_ids).tolist()),
        (one & _UNSIGNED for one in _present(events.event_ids).tolist()),
        _present(events.event_times).tolist(),
        _present(events.keys).rows(),
        _present(events.metadata).rows(),
        _present(events.values).rows(),
    )
    return [*map(Row._make, zip(*columns, strict=True))]


def _present(column: _C | None) -> _C:
    assert column is not None, "not stored events, or not decoded with WANTED"
    return column


def by_stream(events: Events, first: int) -> dict[StreamRef | None, list[Row]]:
    """The rows of each stream, in order; None for rows that do not come from a single stream. Streams in order of their
    first rows.
    """
    rows = rows_of(events, first)
    if events.sources is None:
        return {None: rows}
    found: dict[StreamRef | None, list[Row]] = {}
    refs: dict[tuple[bytes, int], StreamRef | None] = {}
    for source, row in zip(events.sources.rows(), rows, strict=True):
        key = source, row.stream_id
        if key not in refs:
            refs[key] = StreamRef(source.decode(), row.stream_id) if source else None
        found.setdefault(refs[key], []).append(row)
    return found


# As stored events.


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The stored events that the rows were decoded from."""
    return _encoded(rows, [row.metadata for row in rows])


def encode_dead_letters(rows: Sequence[Row], reason: str) -> bytes:
    """Stored events with the reason in their metadata."""
    short = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    return _encoded(rows, [_with_reason(row.metadata, short) for row in rows])


def _with_reason(metadata: bytes, reason: str) -> bytes:
    packed: bytes = msgpack.packb({**_unpacked(metadata), REASON: reason})
    return packed if len(packed) <= SHORT_MAX else metadata


def _encoded(rows: Sequence[Row], metadata: Sequence[bytes]) -> bytes:
    encoded = encode(
        Bytes.of([row.value for row in rows]),
        keys=Bytes.of([row.key for row in rows]),
        event_times=array("q", [row.time for row in rows]),
        stream_ids=array("Q", [row.stream_id for row in rows]),
        event_ids=array("Q", [row.event_id for row in rows]),
        metadata=Bytes.of(metadata),
    )
    return bytes(encoded.data)


def size_of(rows: Iterable[Row]) -> int:
    """The size of `encode_rows(rows)`."""
    return sum(KEY_START + 2 + len(row.key) + len(row.metadata) + len(row.value) for row in rows)


# As a connector's `deliver` takes them.


def metadata_of(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
    """The metadata, unpacked on access: most connectors never use it."""
    return _LazyMetadata([row.metadata for row in rows], _unpacked)


def times_of(rows: Sequence[Row]) -> list[int | None]:
    return [None if row.time == NO_TIME else row.time for row in rows]


def _unpacked(metadata: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(metadata, unicode_errors="replace") if metadata else {}
    return found


class _LazyMetadata(Sequence[Mapping[str, Any]]):
    def __init__(self, data: list[bytes], unpack: Callable[[bytes], dict[str, Any]]) -> None:
        self._data = data
        self._unpack = unpack

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return _LazyMetadata(self._data[index], self._unpack)
        return self._unpack(self._data[index])


# Through interceptors.

MakeChain = Callable[[], OutgoingChain]
"""Creates the interceptors of one stream."""


class EpochRow(NamedTuple):
    """A row, and the name of its epoch."""

    epoch: str
    row: Row


class ReadyRows(NamedTuple):
    """Values ready for the connector, and the rows that went into them: `counts[i]` of them into `values[i]`."""

    values: list[bytes]
    rows: list[EpochRow]
    counts: Sequence[int]

    @property
    def last_rows(self) -> list[Row]:
        """The last row of each value; for a piece of a row, that row."""
        last = len(self.rows) - 1
        ends = zip(self.counts, accumulate(self.counts), strict=True)
        return [self.rows[end - 1 if count else min(end, last)].row for count, end in ends]

    def rows_at(self, places: Sequence[int] | None) -> list[EpochRow]:
        """The rows of the values at these places; None: all."""
        if places is None:
            return self.rows
        ends = [*accumulate(self.counts, initial=0)]
        return [row for place in places for row in self.rows[ends[place] : ends[place + 1]]]

    @property
    def is_joined(self) -> bool:
        return any(count != 1 for count in self.counts)

    @classmethod
    def concat(cls, parts: "Iterable[ReadyRows | None]") -> "ReadyRows | None":
        """None if there is nothing."""
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return cls(*(list(chain.from_iterable(column)) for column in zip(*found, strict=True)))


class StreamBuffer:
    """The interceptors of one stream, with the rows that they buffer. What is buffered must leave at `due`, by the
    clock whose time is passed to `feed`.
    """

    def __init__(self, chain: OutgoingChain) -> None:
        self._chain = chain
        self.rows: deque[EpochRow] = deque()
        self.due: float | None = None

    def feed(self, epoch: str, rows: Sequence[Row], now: float) -> ReadyRows | None:
        """Add rows; returns what is ready now. After BadBytes the buffer must not be used again."""
        was_empty = not self.rows
        self.rows.extend(EpochRow(epoch, row) for row in rows)
        values = self._chain.feed([row.value for row in rows])
        ready = self._ready(values)
        wait = self._chain.wait_seconds
        if self._chain.buffered and not wait:
            return ReadyRows.concat([ready, self.flush()])
        if wait and (was_empty or ready is not None):
            self.due = now + wait
        return ready

    def flush(self) -> ReadyRows | None:
        return self._ready(self._chain.flush())

    def _ready(self, values: list[bytes]) -> ReadyRows | None:
        counts = [*self._chain.counts]
        rows = [self.rows.popleft() for _ in range(sum(counts))]
        if not self.rows:
            self.due = None
        return ReadyRows(values, rows, counts) if values else None


def unjoined(epoch: str, rows: Sequence[Row]) -> ReadyRows:
    """The rows as they are, without interceptors."""
    return ReadyRows([row.value for row in rows], [EpochRow(epoch, row) for row in rows], [1] * len(rows))


def flushed(make: MakeChain | None, epoch: str, rows: Sequence[Row]) -> ReadyRows:
    """Pass all rows through separate interceptors. Raises BadBytes."""
    if make is None:
        return unjoined(epoch, rows)
    buffer = StreamBuffer(make())
    ready = ReadyRows.concat([buffer.feed(epoch, rows, 0.0), buffer.flush()])
    assert ready is not None, "interceptors drop nothing"
    return ready


def rejected_rows(make: MakeChain, rows: Sequence[EpochRow]) -> dict[EpochRow, str]:
    """The rows that these interceptors can never pass, and why. Each is tried alone."""
    found = {}
    for one in rows:
        try:
            make().feed([one.row.value])
        except BadBytes as error:
            found[one] = str(error)
    return found
