"""An operator as its stages see it: picklable, and the same in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.spark.side_outputs import Origin
from penstock.spark.source.schema import STATE_COLUMNS, arrow_schema, spark_schema
from penstock.windows.buckets import bucket_ids
from penstock.windows.engine import BUCKET, BucketState, Plan, Stats, advance, prepare


class Kind(IntEnum):
    """The kinds of rows that enter or leave the state."""

    PARTIALS = 0
    """Enter: a task's partials for one bucket."""
    CONTROL = 1
    """Enter: the epoch and its watermarks."""
    RESULTS = 2
    """Leave: panes, or events in order."""
    LATE = 3
    """Leave."""


ENTERING = spark_schema(tuple(STATE_COLUMNS))
LEAVING = "kind int, data binary"

CARRIED = "c"
"""Prefix of the columns that late rows keep."""

TIES = ("stream_id", "message_id")
"""Columns that identify an event within its source."""

BLOB_BYTES = 8 << 20
"""Tables are sent in pieces of about this size: Spark makes several contiguous copies of a row."""

TIMESTAMP = pa.timestamp("us", "UTC")

Leaving: TypeAlias = Generator[tuple[Kind, pa.Table], None, Stats]
"""What a bucket emits in a batch, and at last what it has then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(ABC):
    """One that keeps state in buckets, and follows the watermark of its pipeline by control rows."""

    name: str
    side: str
    """Its name for side outputs, which no other operator of the pipeline has."""
    origin: Origin
    carried: Mapping[str, str]
    """Column of an event → the column of a row that contains it, for events that leave beside the result."""
    output: pa.Schema
    """The schema of the result."""

    compression: ClassVar[str | None] = None
    """Of what leaves the state: Spark has all that a bucket emits in memory at once."""

    @property
    @abstractmethod
    def buckets(self) -> int: ...

    @property
    @abstractmethod
    def late_reason(self) -> str:
        """Why an event is late, for people."""

    @abstractmethod
    def prepared(self, table: pa.Table, before: int | None, number: int) -> Mapping[int, bytes]:
        """Where rows are read: blobs for the buckets. `before` is the watermark at which the batch starts, `number`
        that of the first row: numbers grow with partitions and rows.
        """

    @abstractmethod
    def advanced(
        self, bucket: int, state: BucketState, blobs: list[bytes], before: int | None, after: int | None
    ) -> Leaving:
        """Where the state is: apply the blobs of a batch, then its watermark."""

    @abstractmethod
    def result(self, table: pa.Table) -> pa.Table:
        """Rows of the result, as `output`, from a table of `advanced`."""

    @property
    def ids(self) -> tuple[int, ...]:
        return bucket_ids(self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOperator(Operator):
    plan: Plan

    @property
    def buckets(self) -> int:
        return self.plan.buckets

    @property
    def late_reason(self) -> str:
        if self.plan.late_rule == "strict":
            return "event time is behind the watermark"
        return "event time is behind the watermark, and its windows are closed"

    def prepared(self, table: pa.Table, before: int | None, number: int) -> Mapping[int, bytes]:  # noqa: ARG002
        """Spark has computed the bucket of each row; for readers it is computed here."""
        return prepare(self.plan, table, before, None if BUCKET in table.column_names else self._buckets_of).partials

    def _buckets_of(self, keys: Sequence[pa.Array], rows: int) -> NDArray[np.int32]:
        from penstock.windows.hashing import buckets_of  # here: kernels take a second to import

        return buckets_of(keys, rows, self.buckets)

    def advanced(
        self, bucket: int, state: BucketState, blobs: list[bytes], before: int | None, after: int | None
    ) -> Leaving:
        found = advance(self.plan, bucket, state, blobs, before, after)
        yield Kind.RESULTS, found.panes
        yield Kind.LATE, found.late
        return found.stats

    def result(self, table: pa.Table) -> pa.Table:
        """Panes: keys, bounds, pane, revision, results, replaced panes; times as timestamps from here on."""
        columns = [_cast(column, field.type) for column, field in zip(table.columns, self.output, strict=False)]
        columns.append(pc.subtract(table.column("window_end"), 1).cast(TIMESTAMP))
        return pa.Table.from_arrays(columns, schema=self.output)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)


_Given = TypeVar("_Given")
_Made = TypeVar("_Made")
_Returned = TypeVar("_Returned")


def converted(
    given: Generator[_Given, None, _Returned], convert: Callable[[_Given], Iterable[_Made]]
) -> Generator[_Made, None, _Returned]:
    """What the function makes of each thing that the generator yields; returns what the generator returns."""
    while True:
        try:
            one = next(given)
        except StopIteration as end:
            returned: _Returned = end.value
            return returned
        yield from convert(one)


def written(table: pa.Table, compression: str | None = None) -> Iterator[bytes]:
    """The table as Arrow IPC streams, in pieces; none for an empty table."""
    rows = max(1, int(table.num_rows * BLOB_BYTES / max(table.nbytes, 1)))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for start in range(0, table.num_rows, rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table.slice(start, rows))
        yield sink.getvalue().to_pybytes()


def read(data: bytes | pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def entering_schema() -> pa.Schema:
    """Of rows that enter the state."""
    return arrow_schema(tuple(STATE_COLUMNS))


def as_batch(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
