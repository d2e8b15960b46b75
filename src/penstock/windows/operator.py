"""A window operator as its stages see it: picklable, and the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.windows.buckets import bucket_ids
from penstock.windows.engine import TIME, Plan
from penstock.windows.engine.plan import codes_of, grouped
from penstock.windows.engine.tables import one_array, pieces_of


class Kind(IntEnum):
    """The kinds of rows that enter or leave the state."""

    PARTIALS = 0
    """Enter: a task's partials for one bucket."""
    CONTROL = 1
    """Enter: the epoch and its watermarks."""
    DEAD_LETTERS = 2
    """Pass through: dead letters of an earlier stage."""
    TIMELESS = 3
    """Pass through: rows without an event time."""
    PANES = 4
    """Leave."""
    LATE = 5
    """Leave."""


ENTERING = "bucket int, kind int, data binary, epoch bigint, before bigint, watermark bigint"
LEAVING = "kind int, data binary, part int"

CARRIED = "c"
"""Prefix of the columns that late rows keep."""

PLACE = ("segment", "offset")
"""Where an event is stored: a row with these columns need not carry the event's bytes."""

TIES = ("stream_id", "message_id")
"""Columns that identify an event within its source."""

BLOB_BYTES = 8 << 20
"""Tables are sent in pieces of about this size: Spark makes several contiguous copies of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    plan: Plan
    worker: str
    """The worker's HTTP address."""
    pipeline: str
    generation: int | None
    tls: tuple[str | None, str | None, str | None]
    carried: tuple[str, ...]
    """The field of a dead letter that each of the columns c0, c1, … contains."""
    repeats: bool
    """Whether an event may have several rows; a late one is still emitted once."""
    output: pa.Schema
    """The schema of the result, dead letters included."""

    @property
    def ids(self) -> tuple[int, ...]:
        return bucket_ids(self.plan.buckets)


def written(table: pa.Table) -> Iterator[bytes]:
    """The table as Arrow IPC streams, in pieces; none for an empty table."""
    rows = max(1, int(table.num_rows * BLOB_BYTES / max(table.nbytes, 1)))
    for start in range(0, table.num_rows, rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(start, rows))
        yield sink.getvalue().to_pybytes()


def read(data: bytes | pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def as_batch(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# Frames that may have several rows per event, such as the result of an `explode`: a late event is still emitted once.
#
# The rows of an event have different keys, so they are in several buckets. The late ones are shuffled once more, by the
# position of the event, and one row of each event is kept. Other frames do without this shuffle.


_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd multiplier: offsets and ids are often evenly spaced, and must not all fall into the same part."""


def identifies_events(carried: Sequence[str]) -> bool:
    """Whether rows identify their event, by its position or by its ids."""
    return set(PLACE) <= set(carried) or set(TIES) <= set(carried)


def parts_by_event(operator: Operator, table: pa.Table, bucket: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows in numbered parts, all rows of an event in the same one; where events have one row each, the part is the
    bucket.
    """
    if operator.repeats:
        return pieces_of(table, _parts(table, operator.carried, operator.plan.buckets))
    return iter([(bucket, table)])


def distinct(tables: Iterable[pa.Table], carried: Sequence[str]) -> pa.Table:
    """One row per event: the earliest, where rows have times. Rows that identify no event are all kept."""
    table = pa.concat_tables(tables).combine_chunks()
    if TIME in table.column_names:
        table = table.sort_by([(TIME, "descending")])
    columns = [one_array(table.column(f"{CARRIED}{number}")) for number in range(len(carried))]
    kept = np.asarray(_numbers(table, carried).is_null())
    kept[grouped(codes_of(columns, table.num_rows)).example] = True
    return table.filter(pa.array(kept))


def _parts(table: pa.Table, carried: Sequence[str], count: int) -> NDArray[np.int64]:
    """A number below `count` for each row, the same for all rows of an event."""
    numbers = _numbers(table, carried).fill_null(0).to_numpy()
    mixed: NDArray[np.uint64] = (numbers.view(np.uint64) * _SPREAD) >> np.uint64(32)
    return (mixed % np.uint64(count)).astype(np.int64)


def _numbers(table: pa.Table, carried: Sequence[str]) -> pa.Array:
    """The number of each row's event in its segment or stream; null where the row identifies none."""
    name = PLACE[1] if PLACE[1] in carried else TIES[1]
    return one_array(table.column(f"{CARRIED}{carried.index(name)}"))
