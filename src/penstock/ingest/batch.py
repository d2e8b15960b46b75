"""Events on their way into one record of a segment: encoded in bulk, with the head that describes them. Pure."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from operator import add, lt
from struct import Struct
from typing import Any, NamedTuple

import msgpack
import numpy as np

from penstock.core.errors import LimitExceeded, RequestError
from penstock.core.types import Buffer, Offset, Position
from penstock.protocol.stored.bulk import Bytes, Column, encode
from penstock.protocol.stored.event import KEY_START, LENGTH_MAX, SHORT_MAX
from penstock.protocol.stored.head import NO_COLUMNS, Mark, StreamColumns

RECORD_BYTES = 8 << 20
"""Limit for the events in one record, unless a single one is larger: half of the largest append."""

VALUE_BYTES_MAX = LENGTH_MAX - 2 * SHORT_MAX - KEY_START
"""Limit for one event, whatever its key and its metadata."""

_EVENT_BYTES = KEY_START + 2
"""Bytes of every event besides key, metadata and value."""

# An event without data, which carries a mark if there is no message. Readers of streams skip it.
_EMPTY_EVENT = bytes(8)
_U64, _I64 = Struct("<Q"), Struct("<q")


class Batch(NamedTuple):
    """A number of `events` for the segment of one route: their bytes, and what the head of their record contains."""

    route: int
    marks: Sequence[Mark]
    events: int = 0
    data: Buffer = _EMPTY_EVENT
    streams: StreamColumns = NO_COLUMNS


class Placed(NamedTuple):
    """Where a record of a segment ends; it is durable once the journal is durable up to `position`."""

    position: Position
    end: Offset
    before: Offset
    """Where the events before it end. Records that contain only marks may lie in between: no stream waits for those."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Events to be stored, at least one."""

    values: Sequence[bytes] | Bytes
    ids: Sequence[int]
    """Strictly increasing."""
    times_us: Sequence[int] | int
    """Microseconds since 1970: one for each event, or one for all."""
    keys: Sequence[bytes] | None = None
    metadata: Sequence[bytes] | bytes = b""
    """MessagePack maps: one for each event, or one for all."""

    def __getitem__(self, rows: slice) -> "Values":
        times, metadata = self.times_us, self.metadata
        return Values(
            self.values[rows],
            self.ids[rows],
            times if isinstance(times, int) else times[rows],
            None if self.keys is None else self.keys[rows],
            metadata if isinstance(metadata, bytes) else metadata[rows],
        )

    def sizes(self) -> list[int]:
        """The sizes of each event's value, metadata and key."""
        metadata, values = self.metadata, self.values
        sizes: Iterable[int] = values.sizes().tolist() if isinstance(values, Bytes) else map(len, values)
        if not isinstance(metadata, bytes):
            sizes = map(add, sizes, map(len, metadata))
        elif metadata:
            sizes = map(add, sizes, repeat(len(metadata)))
        return [*(sizes if self.keys is None else map(add, sizes, map(len, self.keys)))]

    def stored_size(self) -> int:
        """What all of them take in a record, at most."""
        metadata, values, count = self.metadata, self.values, len(self.values)
        of_values = values.size if isinstance(values, Bytes) else sum(map(len, values))
        of_metadata = len(metadata) * count if isinstance(metadata, bytes) else sum(map(len, metadata))
        of_keys = 0 if self.keys is None else sum(map(len, self.keys))
        return of_values + of_metadata + of_keys + _EVENT_BYTES * count

    def slices(self) -> Iterator[slice]:
        """Like `record_slices`."""
        if self.stored_size() <= RECORD_BYTES:  # as nearly always
            yield slice(0, len(self.values))
        else:
            yield from record_slices(self.sizes())

    def rows(self, rows: Sequence[int]) -> "Values":
        """These of them."""
        times, metadata = self.times_us, self.metadata
        return Values(
            [self.values[row] for row in rows],
            [self.ids[row] for row in rows],
            times if isinstance(times, int) else [times[row] for row in rows],
            None if self.keys is None else [self.keys[row] for row in rows],
            metadata if isinstance(metadata, bytes) else [metadata[row] for row in rows],
        )

    def after(self, last_id: int) -> "Values":
        """The events with a higher id. Raises RequestError unless the ids increase."""
        ids = self.ids
        if not all(map(lt, ids, islice(ids, 1, None))) or ids[0] < 1:
            raise RequestError("event ids must be at least 1 and increase strictly")
        first = bisect_right(ids, last_id)
        return self[first:] if first else self


def columns_of(values: Sequence[bytes] | Bytes) -> Bytes:
    return values if isinstance(values, Bytes) else Bytes.of(values)


def record_slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Split rows into records, in order; usually one. `sizes` is the result of `Values.sizes`."""
    if sum(sizes) + _EVENT_BYTES * len(sizes) <= RECORD_BYTES:
        yield slice(0, len(sizes))
        return
    first, size = 0, 0
    for row, each in enumerate(sizes):
        size += _EVENT_BYTES + each
        if size > RECORD_BYTES and row > first:
            yield slice(first, row)
            first, size = row, _EVENT_BYTES + each
    yield slice(first, len(sizes))


def packed(metadata: Mapping[str, Any] | None) -> bytes:
    """The metadata as a MessagePack map; empty bytes for an empty map. Raises RequestError, LimitExceeded."""
    if not metadata:
        return b""
    try:
        data: bytes = msgpack.packb(dict(metadata))
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"metadata cannot be stored: {error}", "Use strings, numbers, lists and maps.") from None
    if len(data) > SHORT_MAX:
        raise LimitExceeded(
            f"metadata of {len(data):,} bytes; the limit is {SHORT_MAX:,}", "Attach less metadata to an event."
        )
    return data


def stored_batch(
    route: int,
    stream_id: int,
    values: Values,
    marks: Sequence[Mark] = (),
    *,
    highest_us: int | None = None,
    stream_ids: Sequence[int] | None = None,
) -> Batch:
    """The stream's highest time is `highest_us`, or that of the events. With `stream_ids`, these are the events' own.
    Raises LimitExceeded for an event that is too large, RequestError for metadata that is not a map.
    """
    count, times = len(values.values), values.times_us
    encoded = encode(
        columns_of(values.values),
        keys=None if values.keys is None else Bytes.of(values.keys),
        event_times=array("q", [times]) * count if isinstance(times, int) else array("q", times),
        stream_ids=array("Q", [stream_id]) * count if stream_ids is None else array("Q", stream_ids),
        event_ids=_numbers(values.ids),
        metadata=values.metadata if isinstance(values.metadata, bytes) else Bytes.of(values.metadata),
    )
    if highest_us is None:
        highest_us = times if isinstance(times, int) else max(times)
    return Batch(route, marks, count, encoded.data, columns(stream_id, values.ids[-1], highest_us))


def _numbers(ids: Sequence[int]) -> Column:
    if isinstance(ids, range):  # as most are
        return np.arange(ids.start, ids.stop, dtype=np.uint64)
    return array("Q", ids)


def shared_batch(route: int, streams: Sequence[tuple[int, Values]], marks: Sequence[Mark], arrival_us: int) -> Batch:
    """Events of several streams. Those whose `times_us` is one number for all have arrived at `arrival_us`."""
    if len(streams) == 1:
        stream_id, values = streams[0]
        timed = replace(values, times_us=arrival_us) if isinstance(values.times_us, int) else values
        return stored_batch(route, stream_id, timed, marks)
    times = [[arrival_us] * len(one.values) if isinstance(one.times_us, int) else one.times_us for _, one in streams]
    together = Values(
        [value for _, one in streams for value in one.values],
        [event_id for _, one in streams for event_id in one.ids],
        [time for each in times for time in each],
        _together([one.keys for _, one in streams], [len(one.values) for _, one in streams]),
        [
            metadata
            for _, one in streams
            for metadata in ([one.metadata] * len(one.values) if isinstance(one.metadata, bytes) else one.metadata)
        ],
    )
    stream_ids = [stream_id for stream_id, one in streams for _ in one.values]
    batch = stored_batch(route, streams[0][0], together, marks, stream_ids=stream_ids)
    heads = [columns(stream_id, one.ids[-1], max(each)) for (stream_id, one), each in zip(streams, times, strict=True)]
    return batch._replace(streams=StreamColumns(*(b"".join(column) for column in zip(*heads, strict=True))))


def one_each(
    route: int,
    stream_ids: Sequence[int],
    ids: Sequence[int],
    events: Sequence[tuple[bytes, bytes]],
    marks: Sequence[Mark],
    arrival_us: int,
) -> Batch:
    """One event of each of several streams: its value and its metadata, with an id of each stream."""
    count, streams, numbers = len(events), array("Q", stream_ids), array("Q", ids)
    times = array("q", [arrival_us]) * count
    encoded = encode(
        Bytes.of([value for value, _ in events]),
        event_times=times,
        stream_ids=streams,
        event_ids=numbers,
        metadata=Bytes.of([metadata for _, metadata in events]),
    )
    head = StreamColumns(streams.tobytes(), numbers.tobytes(), times.tobytes())
    return Batch(route, marks, count, encoded.data, head)


def _together(keys: Sequence[Sequence[bytes] | None], counts: Sequence[int]) -> list[bytes] | None:
    if all(one is None for one in keys):
        return None
    return [key for one, count in zip(keys, counts, strict=True) for key in (one or [b""] * count)]


def columns(stream_id: int, last_id: int, highest_us: int) -> StreamColumns:
    """A stream's row in the head of a record."""
    return StreamColumns(_U64.pack(stream_id), _U64.pack(last_id), _I64.pack(highest_us))
