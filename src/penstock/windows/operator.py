"""A window operator as its stages see it: picklable, and the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from penstock.spark.side_outputs import Origin
from penstock.windows.buckets import bucket_ids
from penstock.windows.engine import Plan


class Kind(IntEnum):
    """The kinds of rows that enter or leave the state."""

    PARTIALS = 0
    """Enter: a task's partials for one bucket."""
    CONTROL = 1
    """Enter: the epoch and its watermarks."""
    PANES = 2
    """Leave."""
    LATE = 3
    """Leave."""


ENTERING = "bucket int, kind int, data binary, epoch bigint, before bigint, watermark bigint"
LEAVING = "kind int, data binary"

CARRIED = "c"
"""Prefix of the columns that late rows keep."""

TIES = ("stream_id", "message_id")
"""Columns that identify an event within its source."""

BLOB_BYTES = 8 << 20
"""Tables are sent in pieces of about this size: Spark makes several contiguous copies of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    side: str
    """Its name for side outputs, which no other operator of the pipeline has."""
    plan: Plan
    origin: Origin
    carried: tuple[str, ...]
    """The column of an event that each of the columns c0, c1, … contains."""
    output: pa.Schema
    """The schema of the result."""

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
