"""A window operator as its stages know it: picklable, and the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from penstock.windows.buckets import bucket_ids
from penstock.windows.engine import Plan


class Kind(IntEnum):
    """Of rows that enter the state, or leave it."""

    PARTIALS = 0
    """Enter: what a task has made of its rows, for one bucket."""
    CONTROL = 1
    """Enter: the epoch's word."""
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

BLOB_BYTES = 8 << 20
"""Tables travel in pieces of about so much: Spark holds several copies of a row, each in one piece of memory."""


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
    """Whether several rows may be of one event: it leaves late once all the same."""
    output: pa.Schema
    """Of what leaves, letters among it."""

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
