"""Fused reading: the readers of a load run an operator of the pipeline on the events that they read. What enters the
JVM is what the operator makes of them.

The load is the operator's control load: its tasks also return the control rows. So a query has the same loads, in the
same order, whether it reads fused or not, and its checkpoint fits both.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from penstock.spark.carried import shown
from penstock.spark.python_worker import freeze, hinted
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.partitions import ControlRows, FusedRanges
from penstock.spark.source.schema import FUSED_COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

EVENTS_READ = "penstock.events_read "
"""The prefix of the metric of a query that counts the events of a fused load; after it comes the operator."""

OPERATORS_MAX = 8
"""Operators that a Python worker keeps between tasks. A query has few, and their users' classes are small."""


class FusedOperator(Protocol):
    """What a load's readers run. It is pickled, with users' classes by value."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The events' own columns that it needs, at least one. Decoded ones are always there."""

    def control(self, rows: ControlRows) -> pa.RecordBatch:
        """The control rows of a batch, as STATE_COLUMNS."""

    def entering(self, events: Iterator[pa.RecordBatch], read: FusedRanges) -> Iterator[pa.RecordBatch]:
        """What it makes of the events that a task reads, as STATE_COLUMNS. It ends when all of them were read."""


def as_option(operator: FusedOperator) -> str:
    """The option `fused`."""
    from pyspark import cloudpickle

    with shown():
        return b64encode(cloudpickle.dumps(operator)).decode()  # type: ignore[no-untyped-call]


@lru_cache(OPERATORS_MAX)
def operator_of(option: str) -> FusedOperator:
    from pyspark import cloudpickle

    found: FusedOperator = cloudpickle.loads(b64decode(option))
    return found


def read_fused(options: SourceOptions, read: FusedRanges) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    from penstock.spark.source.arrow import read_partition  # here: kernels take a second to import
    from penstock.spark.source.decoding import decode_partition

    freeze()
    with hinted():
        assert options.fused is not None
        operator = operator_of(options.fused)
        if not read.number:
            yield _row(operator.control(read.control))
        if read.events.placed:
            reader = decode_partition if options.branches else read_partition
            events = _Counted(reader(options, operator.columns, read.events))
            yield from map(_row, operator.entering(events, read))
            yield _count_row(events.count)


class _Counted:
    """The batches, and how many rows they had so far."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.count += batch.num_rows
        return batch


def _row(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of the operator, without a count."""
    import pyarrow as pa

    schema = arrow_schema(tuple(FUSED_COLUMNS))
    return pa.RecordBatch.from_arrays([*batch.columns, pa.nulls(batch.num_rows, schema.field(-1).type)], schema=schema)


def _count_row(count: int) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(tuple(FUSED_COLUMNS))
    *others, events = schema
    return pa.RecordBatch.from_arrays(
        [*(pa.nulls(1, field.type) for field in others), pa.array([count], events.type)], schema=schema
    )
