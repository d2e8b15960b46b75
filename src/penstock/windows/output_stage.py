"""The stage behind the state: what it emits, as rows of the result; late rows become dead letters."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.client.segments.range_reader import Connected, read_range
from penstock.core.errors import Damaged, SegmentTruncated
from penstock.protocol.api.pipelines import Range
from penstock.spark.dead_letters.column import ERR, LETTER, LETTER_FIELDS, NO_EVENT_TIME, letter_arrow
from penstock.spark.dead_letters.column import LATE as LATE_PORT
from penstock.spark.python_worker import freeze, hinted, link
from penstock.spark.source.arrow import SegmentBatches
from penstock.spark.source.partitions import lost, read_events, stream_names
from penstock.windows.engine import TIME
from penstock.windows.operator import CARRIED, PLACE, Kind, Operator, distinct, read, written

# Late events as they are stored, read again from their place in the journal.

COLUMNS = ("source", "stream", "stream_id", "message_id", "event_time", "key", "value", "offset")
"""The columns of an event that a letter has."""

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
        raise Damaged(f"segment {segment!r} has no events at some of the offsets that rows refer to")
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


_TIMESTAMP = pa.timestamp("us", "UTC")


def unpack(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task's rows from the state, as rows of the operator's result."""
    freeze()
    with hinted():
        for kind, table in _once(operator, _tables(batches)):
            yield from _unpacked(operator, kind, table).combine_chunks().to_batches()


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Kind, pa.Table]]:
    for batch in batches:
        for kind, data in zip(batch.column("kind").to_pylist(), batch.column("data"), strict=True):
            yield Kind(kind), read(data.as_buffer())


def _once(operator: Operator, tables: Iterator[tuple[Kind, pa.Table]]) -> Iterator[tuple[Kind, pa.Table]]:
    """Late and timeless events once each, at the end, if an event may have several rows: all are in this task."""
    waiting: dict[Kind, list[pa.Table]] = {}
    for kind, table in tables:
        if operator.repeats and kind in (Kind.LATE, Kind.TIMELESS):
            waiting.setdefault(kind, []).append(table)
        else:
            yield kind, table
    for kind, repeated in waiting.items():
        yield from ((kind, read(data)) for data in written(distinct(repeated, operator.carried)))


def _unpacked(operator: Operator, kind: Kind, table: pa.Table) -> pa.Table:
    match kind:
        case Kind.PANES:
            return _panes(operator, table)
        case Kind.LETTERS:
            return _lettered(operator, table.column(LETTER).combine_chunks())
        case Kind.LATE:
            return _lettered(operator, _late(operator, table))
        case Kind.TIMELESS:
            return _lettered(operator, _letters(table.num_rows, _carried(operator, table), ERR, NO_EVENT_TIME))
    raise AssertionError(f"the state emits no rows of kind {kind.name}")


def _panes(operator: Operator, table: pa.Table) -> pa.Table:
    """The engine's panes: keys, bounds, pane, revision, results, replaced panes; times as timestamps from here on."""
    ends = table.column("window_end")
    columns = [_cast(column, field.type) for column, field in zip(table.columns, operator.output, strict=False)]
    columns.append(pc.subtract(ends, 1).cast(_TIMESTAMP))
    columns.append(pa.nulls(table.num_rows, letter_arrow()))
    return pa.Table.from_arrays(columns, schema=operator.output)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)


def _lettered(operator: Operator, letters: pa.StructArray) -> pa.Table:
    """Rows that are nothing else."""
    *others, _ = operator.output
    columns = [pa.nulls(len(letters), field.type) for field in others]
    return pa.Table.from_arrays([*columns, letters], schema=operator.output)


def _late(operator: Operator, table: pa.Table) -> pa.StructArray:
    missed = {
        "event_time": table.column(TIME).cast(_TIMESTAMP),
        "watermark": table.column("watermark").cast(_TIMESTAMP),
        "behind_us": table.column("behind"),
    }
    reason = "event time is behind the watermark, and its windows are closed"
    if operator.plan.late_rule == "strict":
        reason = "event time is behind the watermark"
    carried = _carried(operator, table)
    if "event_time" in carried:
        carried["event_time"] = pc.coalesce(carried["event_time"], missed["event_time"])
    return _letters(table.num_rows, missed | carried, LATE_PORT, reason)


def _carried(operator: Operator, table: pa.Table) -> dict[str, Any]:
    """Fields of letters: those that the rows have brought along, or what is stored where they say."""
    fields = {name: table.column(f"{CARRIED}{number}") for number, name in enumerate(operator.carried)}
    if not set(PLACE) <= fields.keys():
        return fields
    found = _stored(operator, pa.table({name: fields[name] for name in PLACE}))
    return {name: found.column(name) for name in found.column_names} | {
        name: pc.coalesce(found.column(name), column) if name in found.column_names else column
        for name, column in fields.items()
    }


def _stored(operator: Operator, places: pa.Table) -> pa.Table:
    """The events at these places; nulls where a row names none."""
    known = pc.and_(*(column.is_valid() for column in places.columns)).to_numpy()
    if not known.any():
        return pa.table({})
    found = originals(operator.worker, link(operator.worker, *operator.tls), places.filter(pa.array(known)))
    return found if known.all() else found.take(pa.array(np.cumsum(known) - 1, mask=~known))


def _letters(count: int, fields: dict[str, Any], port: str, reason: str) -> pa.StructArray:
    given = fields | {"port": pa.repeat(port, count), "reason": pa.repeat(reason, count)}
    kinds = letter_arrow()
    columns = [
        _one(given[name]).cast(kinds.field(name).type) if name in given else pa.nulls(count, kinds.field(name).type)
        for name in LETTER_FIELDS
    ]
    return pa.StructArray.from_arrays(columns, fields=[*kinds])


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
