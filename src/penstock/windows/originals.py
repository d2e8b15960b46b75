"""Events as they are stored, found again by their place: for the few that came late."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.client.segments.range_reader import Connected, read_range
from penstock.coordinator.messages import Range
from penstock.core.errors import Damaged, SegmentTruncated
from penstock.spark.source_arrow import SegmentBatches
from penstock.spark.source_reading import lost, read_events, stream_names

COLUMNS = ("source", "stream", "stream_id", "message_id", "event_time", "key", "value", "offset")
"""What a letter tells of its event."""

GAP_BYTES = 64 << 10
"""What lies between two events that are wanted is read with them: a request costs more than so many bytes."""

_HEADER = struct.Struct(">ii")


def originals(worker: str, link: Connected, places: pa.Table) -> pa.Table:
    """COLUMNS of the events at `segment` and `offset`, row by row. Raises DataLoss for one that is gone."""
    segments = places.column("segment").combine_chunks().dictionary_encode()
    offsets = places.column("offset").to_numpy()
    numbers = segments.indices.to_numpy()
    rows: list[NDArray[np.int64]] = []
    tables: list[pa.Table] = []
    for number, segment in enumerate(segments.dictionary.to_pylist()):
        mine = np.flatnonzero(numbers == number)
        mine = mine[np.argsort(offsets[mine], kind="stable")]
        rows.append(mine)
        tables.append(_of_segment(worker, link, segment, offsets[mine]))
    found = pa.concat_tables(tables)
    back = np.empty(len(offsets), np.int64)
    back[np.concatenate(rows)] = np.arange(len(offsets))
    return found.take(pa.array(back))


def _of_segment(worker: str, link: Connected, segment: str, offsets: NDArray[np.int64]) -> pa.Table:
    """`offsets` ascend; one may be there several times."""
    batches = SegmentBatches(segment, COLUMNS, lambda name: stream_names(worker, name))
    wanted = np.unique(offsets)
    found = []
    for start, last in _stretches(wanted):
        piece = Range(segment, start, _end_of(link, segment, last))
        for events in read_events(link, piece, batches, fail_on_data_loss=True):
            batch = batches.batch(events)
            found.append(batch.filter(pc.is_in(batch.column("offset"), pa.array(wanted))))
    table = pa.Table.from_batches(found)
    if not np.array_equal(table.column("offset").to_numpy(), wanted):
        raise Damaged(f"segment {segment!r} has no events at some of the places that rows have named")
    return table.take(pa.array(np.searchsorted(wanted, offsets)))


def _stretches(wanted: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where to read: from one event to another, with no long gap between those that are wanted."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(wanted) > GAP_BYTES)))
    ends = [*(starts[1:] - 1), len(wanted) - 1]
    for start, end in zip(starts, ends, strict=True):
        yield int(wanted[start]), int(wanted[end])


def _end_of(link: Connected, segment: str, offset: int) -> int:
    data = bytearray()
    try:
        with closing(read_range(link, segment, offset, offset + _HEADER.size)) as pieces:
            for piece in pieces:
                data += piece.data
    except SegmentTruncated as error:
        raise lost(segment, offset, error.start) from error
    _, length = _HEADER.unpack(data)
    return offset + _HEADER.size + int(length)
