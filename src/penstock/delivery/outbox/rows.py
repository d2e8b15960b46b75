"""Rows on their way from a pipeline to a connector: which stream they belong to, how the outbox stores them, and what
interceptors buffer and join before they leave.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple, TypeVar, overload

import msgpack
import numpy as np

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.chain import OutgoingChain
from penstock.protocol.stored.bulk import Bytes, Column, Events, Wanted, encode
from penstock.protocol.stored.dead_letters import REASON
from penstock.protocol.stored.event import KEY_START, NO_TIME, SHORT_MAX
from penstock.protocol.stored.metadata import known_metadata

WANTED = Wanted(metadata=True)

REASON_BYTES_MAX = 1000
"""Limit of a dead letter's reason: a connector's error message may be long, and metadata must stay short."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Sequence[Row]):
    """Rows of one epoch as columns: nearly all leave together, and no Row is made of them. Numbers increase."""

    numbers: Sequence[int]
    stream_ids: Sequence[int]
    event_ids: Sequence[int]
    times: Sequence[int]
    keys: Sequence[bytes]
    metadata: Sequence[bytes]
    values: Sequence[bytes]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Rows":
        if isinstance(rows, Rows):
            return rows
        return cls(*(list(column) for column in zip(*rows, strict=True))) if rows else cls(*([[]] * len(Row._fields)))

    @property
    def columns(self) -> tuple[Sequence[Any], ...]:
        """In the order of the fields of Row."""
        return (
            self.numbers,
            self.stream_ids,
            self.event_ids,
            self.times,
            self.keys,
            self.metadata,
            self.values,
        )

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "Rows": ...

    def __getitem__(self, index: int | slice) -> "Row | Rows":
        found = (column[index] for column in self.columns)
        return Rows(*found) if isinstance(index, slice) else Row._make(found)

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, zip(*self.columns, strict=True))

    def chosen(self, places: Sequence[int]) -> "Rows":
        return Rows(*([column[place] for place in places] for column in self.columns))

    def since(self, number: int) -> "Rows":
        """Those with this number or a higher one."""
        first = bisect_left(self.numbers, number)
        return self[first:] if first else self


def rows_of(events: Events, first: int) -> Rows:
    """In order, numbered from `first`. The events must be stored events, decoded with WANTED."""
    return Rows(
        range(first, first + len(events)),
        _unsigned(events.stream_ids),
        _unsigned(events.event_ids),
        _present(events.event_times).tolist(),
        _present(events.keys).rows(),
        _present(events.metadata).rows(),
        _present(events.values).rows(),
    )


def _unsigned(column: Column | None) -> list[int]:
    found: list[int] = np.asarray(_present(column), np.int64).view(np.uint64).tolist()
    return found


def _present(column: _C | None) -> _C:
    assert column is not None, "not stored events, or not decoded with WANTED"
    return column


def by_stream(events: Events, first: int) -> dict[StreamRef | None, Rows]:
    """The rows of each stream, in order; None for rows that do not come from a single stream. Streams in order of their
    first rows.
    """
    rows = rows_of(events, first)
    if events.sources is None:
        return {None: rows}
    sources = events.sources.rows()
    if len(set(sources)) == len(set(rows.stream_ids)) == 1:  # as in most blocks
        return {_stream(sources[0], rows.stream_ids[0]): rows}
    found: dict[StreamRef | None, list[int]] = {}
    places: dict[tuple[bytes, int], list[int]] = {}
    for place, key in enumerate(zip(sources, rows.stream_ids, strict=True)):
        if (own := places.get(key)) is None:  # rows without a source are all of no stream
            own = places[key] = found.setdefault(_stream(*key), [])
        own.append(place)
    return {stream: rows.chosen(own) for stream, own in found.items()}


def _stream(source: bytes, stream_id: int) -> StreamRef | None:
    return StreamRef(source.decode(), stream_id) if source else None


# As stored events.


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The stored events that the rows were decoded from."""
    columns = Rows.of(rows)
    return _encoded(columns, columns.metadata)


def encode_dead_letters(rows: Sequence[Row], reason: str) -> bytes:
    """Stored events with the reason in their metadata."""
    short = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
    columns = Rows.of(rows)
    return _encoded(columns, [_with_reason(metadata, short) for metadata in columns.metadata])


def _with_reason(metadata: bytes, reason: str) -> bytes:
    packed: bytes = msgpack.packb({**known_metadata(metadata), REASON: reason})
    return packed if len(packed) <= SHORT_MAX else metadata


def _encoded(rows: Rows, metadata: Sequence[bytes]) -> bytes:
    encoded = encode(
        Bytes.of(rows.values),
        keys=Bytes.of(rows.keys),
        event_times=array("q", rows.times),
        stream_ids=array("Q", rows.stream_ids),
        event_ids=array("Q", rows.event_ids),
        metadata=Bytes.of(metadata),
    )
    return bytes(encoded.data)


def size_of(rows: Iterable[Row]) -> int:
    """The size of `encode_rows(rows)`."""
    return sum(KEY_START + 2 + len(row.key) + len(row.metadata) + len(row.value) for row in rows)


# As a connector's `deliver` takes them.


def metadata_of(rows: Rows) -> Sequence[Mapping[str, Any]]:
    """The metadata, unpacked on access: most connectors never use it."""
    return _LazyMetadata(rows.metadata, known_metadata)


def times_of(rows: Rows) -> Sequence[int | None]:
    return [None if time == NO_TIME else time for time in rows.times] if NO_TIME in rows.times else rows.times


class _LazyMetadata(Sequence[Mapping[str, Any]]):
    def __init__(self, data: Sequence[bytes], unpack: Callable[[bytes], dict[str, Any]]) -> None:
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


@dataclass(frozen=True, slots=True, eq=False)
class EpochRows(Sequence[EpochRow]):
    """Rows of one epoch."""

    epoch: str
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> EpochRow: ...

    @overload
    def __getitem__(self, index: slice) -> "EpochRows": ...

    def __getitem__(self, index: int | slice) -> "EpochRow | EpochRows":
        if isinstance(index, slice):
            return EpochRows(self.epoch, self.rows[index])
        return EpochRow(self.epoch, self.rows[index])


def by_epoch(rows: Sequence[EpochRow]) -> list[tuple[str, Rows]]:
    """Runs of rows of one epoch."""
    if isinstance(rows, EpochRows):
        return [(rows.epoch, rows.rows)]
    return [(epoch, Rows.of([one.row for one in run])) for epoch, run in groupby(rows, key=lambda one: one.epoch)]


class ReadyRows(NamedTuple):
    """Values ready for the connector, and the rows that went into them: `counts[i]` of them into `values[i]`; without
    counts, one into each.
    """

    values: Sequence[bytes]
    rows: Sequence[EpochRow]
    counts: Sequence[int] | None = None

    @property
    def last_rows(self) -> Rows:
        """The last row of each value; for a piece of a row, that row."""
        if self.counts is None and isinstance(self.rows, EpochRows):
            return self.rows.rows
        counts = self.every_count
        last = len(self.rows) - 1
        ends = zip(counts, accumulate(counts), strict=True)
        return Rows.of([self.rows[end - 1 if count else min(end, last)].row for count, end in ends])

    def rows_at(self, places: Sequence[int] | None) -> Sequence[EpochRow]:
        """The rows of the values at these places; None: all."""
        if places is None:
            return self.rows
        ends = [*accumulate(self.every_count, initial=0)]
        return [row for place in places for row in self.rows[ends[place] : ends[place + 1]]]

    @property
    def every_count(self) -> Sequence[int]:
        return [1] * len(self.rows) if self.counts is None else self.counts

    @property
    def is_joined(self) -> bool:
        return self.counts is not None and any(count != 1 for count in self.counts)

    @classmethod
    def concat(cls, parts: "Iterable[ReadyRows | None]") -> "ReadyRows | None":
        """None if there is nothing."""
        found = [part for part in parts if part is not None]
        if len(found) < 2:
            return found[0] if found else None
        columns = zip(*((part.values, part.rows, part.every_count) for part in found), strict=True)
        return cls(*(list(chain.from_iterable(column)) for column in columns))


class StreamBuffer:
    """The interceptors of one stream, with the rows that they buffer. What is buffered must leave at `due`, by the
    clock whose time is passed to `feed`.
    """

    def __init__(self, chain: OutgoingChain) -> None:
        self._chain = chain
        self.rows: deque[EpochRow] = deque()
        self.due: float | None = None

    def feed(self, epoch: str, rows: Rows, now: float) -> ReadyRows | None:
        """Add rows; returns what is ready now. After BadBytes the buffer must not be used again."""
        was_empty = not self.rows
        self.rows.extend(EpochRow(epoch, row) for row in rows)
        values = self._chain.feed(rows.values)
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


def unjoined(epoch: str, rows: Rows) -> ReadyRows:
    """The rows as they are, without interceptors."""
    return ReadyRows(rows.values, EpochRows(epoch, rows))


def flushed(make: MakeChain | None, epoch: str, rows: Rows) -> ReadyRows:
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
