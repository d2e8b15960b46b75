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
    """Of rows that enter the state, or leave it."""

    PARTIALS = 0
    """Enter: what a task has made of its rows, for one bucket."""
    CONTROL = 1
    """Enter: the epoch and its watermarks."""
    LETTERS = 2
    """Pass through: of an earlier stage."""
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
"""Which event of its source it is."""

BLOB_BYTES = 8 << 20
"""Tables travel in pieces of about so much: Spark makes several copies of a row, each in one piece of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    plan: Plan
    worker: str
    """Its HTTP address."""
    pipeline: str
    generation: int | None
    tls: tuple[str | None, str | None, str | None]
    carried: tuple[str, ...]
    """Which field of a letter each of the columns c0, c1, … is."""
    repeats: bool
    """Whether an event may have several rows: if it is late, it is still emitted once."""
    output: pa.Schema
    """Of the result, dead letters included."""

    @property
    def ids(self) -> tuple[int, ...]:
        return bucket_ids(self.plan.buckets)


def written(table: pa.Table) -> Iterator[bytes]:
    """As Arrow IPC streams, in pieces; nothing of an empty table."""
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


# Frames that may have several rows of one event, such as those of an `explode`: late, it leaves once all the same.
#
# Its rows have keys, so they are in several buckets. What is late of them is sent once more through a shuffle, by the
# place of the event, and one row of each is kept. Other frames do without.


_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Odd: offsets and ids lie at regular distances, and must not all fall into the same part."""


def tells_events_apart(carried: Sequence[str]) -> bool:
    """Whether rows say which event they are of: by its place, or by its ids."""
    return set(PLACE) <= set(carried) or set(TIES) <= set(carried)


def parted(operator: Operator, table: pa.Table, bucket: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows in parts, all of an event in the part of one number; the bucket's own where events have one row each."""
    if operator.repeats:
        return pieces_of(table, _parts(table, operator.carried, operator.plan.buckets))
    return iter([(bucket, table)])


def distinct(tables: Iterable[pa.Table], carried: Sequence[str]) -> pa.Table:
    """One row of each event: the earliest, where rows have times. Rows that name no event are all kept."""
    table = pa.concat_tables(tables).combine_chunks()
    if TIME in table.column_names:
        table = table.sort_by([(TIME, "descending")])
    columns = [one_array(table.column(f"{CARRIED}{number}")) for number in range(len(carried))]
    kept = np.asarray(_numbers(table, carried).is_null())
    kept[grouped(codes_of(columns, table.num_rows)).example] = True
    return table.filter(pa.array(kept))


def _parts(table: pa.Table, carried: Sequence[str], count: int) -> NDArray[np.int64]:
    """A number below `count` for each row: the same for all rows of an event."""
    numbers = _numbers(table, carried).fill_null(0).to_numpy()
    mixed: NDArray[np.uint64] = (numbers.view(np.uint64) * _SPREAD) >> np.uint64(32)
    return (mixed % np.uint64(count)).astype(np.int64)


def _numbers(table: pa.Table, carried: Sequence[str]) -> pa.Array:
    """Of each row's event, in its segment or stream; null where the row names none."""
    name = PLACE[1] if PLACE[1] in carried else TIES[1]
    return one_array(table.column(f"{CARRIED}{carried.index(name)}"))
