"""Dead letters and late events in their stored form, read again from their position in the journal."""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.client.segments.connections import Connected
from penstock.client.segments.range_reader import read_range
from penstock.core.errors import Damaged, NoSuchSegment, SegmentTruncated
from penstock.protocol.api.pipelines import Range
from penstock.spark import python_worker
from penstock.spark.source.arrow import LostBytes, SegmentBatches, read_events, stream_names

_COLUMNS = ("source", "stream", "stream_id", "message_id", "event_time", "key", "value", "metadata", "offset")
"""The columns of an event that a dead letter contains."""

_GAP_BYTES = 64 << 10
"""Gaps up to this size between wanted events are read too: a separate request would cost more than these bytes."""

_HEADER = struct.Struct(">ii")


def originals(worker: str, link: Callable[[str], Connected], places: pa.Table) -> pa.Table:
    """_COLUMNS of the events at `segment` and `offset`, row by row. Raises DataLoss for one that no longer exists.
    `link`: to the worker with this address; that of a segment in another shard is not `worker`.
    """
    segments = places.column("segment").combine_chunks().dictionary_encode()
    offsets = places.column("offset").to_numpy()
    numbers = segments.indices.to_numpy()
    rows: list[NDArray[np.int64]] = []
    tables: list[pa.Table] = []
    at = python_worker.places_of(worker, segments.dictionary.to_pylist())
    for number, segment in enumerate(segments.dictionary.to_pylist()):
        mine = np.flatnonzero(numbers == number)
        mine = mine[np.argsort(offsets[mine], kind="stable")]
        rows.append(mine)
        there = at.get(segment, worker)
        batches = SegmentBatches(segment, _COLUMNS, partial(stream_names, there, home=worker, segment=segment))
        tables.append(_of_segment(batches, link(there), segment, offsets[mine]))
    found = pa.concat_tables(tables)
    back = np.empty(len(offsets), np.int64)
    back[np.concatenate(rows)] = np.arange(len(offsets))
    return found.take(pa.array(back))


def _of_segment(batches: SegmentBatches, link: Connected, segment: str, offsets: NDArray[np.int64]) -> pa.Table:
    """`offsets` are ascending and may repeat."""
    wanted = np.unique(offsets)
    found = []
    for start, last in _stretches(wanted):
        piece = Range(segment, start, _end_of(link, segment, last))
        for events in read_events(link, piece, batches, fail_on_data_loss=True):
            batch = batches.batch(events)
            found.append(batch.filter(pc.is_in(batch.column("offset"), pa.array(wanted))))
    table = pa.Table.from_batches(found)
    if not np.array_equal(table.column("offset").to_numpy(), wanted):
        raise Damaged(f"segment {segment!r} has no events at some of the offsets that rows refer to")
    return table.take(pa.array(np.searchsorted(wanted, offsets)))


def _stretches(wanted: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The ranges to read, from one event to another, without long gaps between wanted events."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(wanted) > _GAP_BYTES)))
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
        raise LostBytes(segment, offset, error.start) from error
    except NoSuchSegment as error:
        raise LostBytes(segment, offset, offset + 1, is_removed=False) from error
    _, length = _HEADER.unpack(data)
    return offset + _HEADER.size + int(length)
