"""The Spark stages of an operator: blobs before the shuffle, a bucket's state after it, then result rows."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PenstockError, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import BucketNumbers
from penstock.protocol.stored.dead_letters import ERR, LATE
from penstock.spark.python_worker import freeze, hinted
from penstock.spark.side_outputs import Rejected, SideOutputs, side_outputs
from penstock.windows.engine import TIME, Stats
from penstock.windows.operator import (
    TIMESTAMP,
    Kind,
    Leaving,
    Operator,
    as_batch,
    converted,
    entering_schema,
    read,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

# A bucket's state in Spark's state store: blobs, split into parts of limited size.

PART_BYTES = 4 << 20
"""Bytes of a blob in one value: the state server and RocksDB make several contiguous copies of a value."""

_PARTS = struct.Struct("<I")


class SparkState:
    """The state of the bucket that Spark is currently processing."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._index: ValueState = handle.getValueState("index", "data binary")
        self._blobs: MapState = handle.getMapState("blobs", "number bigint, part int", "data binary")

    def index(self) -> bytes | None:
        found = self._index.get()
        return None if found is None else bytes(found[0])

    def put_index(self, data: bytes) -> None:
        self._index.update((data,))

    def get(self, window: int) -> bytes | None:
        found = self._blobs.getValue((window, 0))
        if found is None:
            return None
        (parts,) = _PARTS.unpack_from(found[0])
        first = found[0][_PARTS.size :]
        if parts == 1:
            return bytes(first)
        rest = (self._blobs.getValue((window, part)) for part in range(1, parts))
        return b"".join((first, *(piece[0] for piece in rest if piece is not None)))

    def put(self, window: int, data: bytes) -> None:
        pieces = [data[start : start + PART_BYTES] for start in range(0, max(len(data), 1), PART_BYTES)]
        self._blobs.updateValue((window, 0), (_PARTS.pack(len(pieces)) + pieces[0],))
        for part, piece in enumerate(pieces[1:], 1):
            self._blobs.updateValue((window, part), (piece,))
        self._remove_from(window, len(pieces))

    def remove(self, window: int) -> None:
        self._blobs.removeKey((window, 0))
        self._remove_from(window, 1)

    def _remove_from(self, window: int, part: int) -> None:
        """Remove the remaining parts of a longer blob."""
        while self._blobs.containsKey((window, part)):
            self._blobs.removeKey((window, part))
            part += 1


log = logging.getLogger(__name__)

_REPORT_SECONDS_MAX = 2.0
"""How long a task tries to report its numbers to the worker. The next epoch reports them again."""

_RETRY_SECONDS = 1.0
"""For reconnecting after an idle connection was closed."""

_TWO_QUERIES = "Only one query of a pipeline may run at a time: stop the others, and start it again."


@dataclass(slots=True)
class _Received:
    """A bucket's rows of one batch."""

    partials: list[bytes] = field(default_factory=list)
    control: tuple[int, int | None, int | None] | None = None
    """The last epoch of the batch, and the watermarks at its start and end."""
    judged: set[int | None] = field(default_factory=set)
    """The start watermarks that the tasks before the shuffle have used."""


class BucketProcessor(StatefulProcessor):
    """Spark creates one per task and processes groups one after the other."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._numbers = {number: place for place, number in enumerate(operator.ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze()
        self._state = SparkState(handle)
        self._reported: list[BucketNumbers] = []
        self._epoch = NO_EPOCH

    def handleInputRows(  # noqa: N802  Spark's names, here and below
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Apply the batch's blobs, then its watermarks; returns rows for `unpack`."""
        with hinted():
            bucket, received = self._numbers[int(key[0])], _read(rows)
            epoch, before, after = _checked(received)
            tables = self._operator.advanced(bucket, self._state, received.partials, before, after)
            stats = yield from _leaving(tables, self._operator.compression)
            self._epoch = max(self._epoch, epoch)
            self._reported.append(BucketNumbers(bucket=bucket, **asdict(stats)))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,  # noqa: ARG002
        timerValues: TimerValues,  # noqa: ARG002, N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """There are no timers: control rows carry the time."""
        return iter(())

    def close(self) -> None:
        if getattr(self, "_reported", None):
            report(self._operator, self._epoch, self._reported)


def report(operator: Operator, epoch: int, buckets: list[BucketNumbers]) -> None:
    """Called once per task. A failed report is only logged: it is not worth failing the batch."""
    origin = operator.origin
    if origin.trial is not None:
        return
    try:
        worker = _reporter(origin.worker)
        worker.report_windows(origin.pipeline, operator.name, epoch, buckets, generation=origin.generation)
    except PenstockError as error:
        log.warning("the numbers of the windows %s were not reported: %s", operator.name, error)


@cache
def _reporter(worker: str) -> CoordinatorClient:
    """A separate client, since it times out sooner than others. Its connection stays open."""
    return CoordinatorClient(worker, _RETRY_SECONDS, timeout_seconds=_REPORT_SECONDS_MAX)


def _read(rows: Iterator[Row]) -> _Received:
    received = _Received()
    for row in rows:
        match Kind(row["kind"]):
            case Kind.CONTROL:
                if received.control is not None:
                    raise PipelineError("a bucket has two control rows in one batch", _TWO_QUERIES)
                received.control = row["epoch"], row["before"], row["watermark"]
            case Kind.PARTIALS:
                received.partials.append(row["data"])
                received.judged.add(row["before"])
            case kind:
                raise AssertionError(f"no row of kind {kind.name} enters the state")
    return received


def _checked(received: _Received) -> tuple[int, int | None, int | None]:
    """The batch's epoch and watermarks. Raises PipelineError unless all of its tasks used the same ones."""
    if received.control is None:
        raise PipelineError("a batch without control rows", _TWO_QUERIES)
    _, before, _ = received.control
    if received.judged - {before}:
        raise PipelineError(f"the batch starts at watermark {before}, its tasks used {received.judged}", _TWO_QUERIES)
    return received.control


def _leaving(tables: Leaving, compression: str | None) -> Generator[Row, None, Stats]:
    def rows(given: tuple[Kind, pa.Table]) -> Iterator[Row]:
        kind, table = given
        return (Row(kind=int(kind), data=data) for data in written(table, compression))

    return converted(tables, rows)


# The stage before the shuffle: rows are reduced to partials, one per key and slice of time.

ROWS_AT_ONCE = 1 << 20
"""Rows that are reduced to partials together: the more of them, the fewer partials per key."""

BYTES_AT_ONCE = 128 << 20
"""The same limit for wide rows: a task has a few copies of them in memory."""

ROWS_OF_TASK_MAX = 1 << 40
"""For numbers of rows that grow with partitions: more than a task can read in a batch."""


def map_rows(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that one task gets from Spark, as rows for the state."""
    origin = operator.origin
    freeze()
    with hinted(), side_outputs(origin, times_operator(operator)) as sides:
        yield from entering(operator, batches, sides, origin.watermark_before)


def times_operator(operator: Operator) -> str:
    """The operator's name for dead letters: rows without a time."""
    return f"{operator.side}, times"


def entering(
    operator: Operator, batches: Iterable[pa.RecordBatch], sides: SideOutputs, before: Callable[[], int | None]
) -> Iterator[pa.RecordBatch]:
    """The rows as rows for the state. Rows without an event time are dead letters. `before` returns the watermark that
    decides which of the batch's events are late: the same for all of its tasks.
    """
    mapper = _Mapper(operator, sides, before)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield from mapper.entering(pa.Table.from_batches(waiting))
            waiting, rows, size = [], 0, 0
    if rows:
        yield from mapper.entering(pa.Table.from_batches(waiting))


class _Mapper:
    def __init__(self, operator: Operator, sides: SideOutputs, before: Callable[[], int | None]) -> None:
        self._operator = operator
        self._sides = sides
        self._ask_before = before
        self._number = sides.partition * ROWS_OF_TASK_MAX

    @cached_property
    def _before(self) -> int | None:
        return self._ask_before()

    def entering(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if table.column(TIME).null_count:
            timeless, table = _split(table, table.column(TIME).is_null())
            self._sides.stage(_carried(self._operator, timeless), Rejected(ERR, [NO_EVENT_TIME] * timeless.num_rows))
        if table.num_rows:
            blobs = self._operator.prepared(table, self._before, self._number)
            self._number += table.num_rows
            for bucket, blob in blobs.items():
                yield self._row(bucket, Kind.PARTIALS, blob)

    def _row(self, bucket: int, kind: Kind, data: bytes) -> pa.RecordBatch:
        return as_batch(entering_schema(), [(self._operator.ids[bucket], int(kind), data, None, self._before, None)])


def _split(table: pa.Table, chosen: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """The chosen rows, and the others."""
    return table.filter(chosen), table.filter(pc.invert(chosen))


# The stage after the state: turns what the state emits into result rows; late events leave beside them.

NO_EVENT_TIME = "it has no event time between the years 1 and 9999"


def unpack(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn one task's rows from the state into rows of the operator's result."""
    freeze()
    with hinted(), side_outputs(operator.origin, operator.side) as sides:
        for kind, table in _tables(batches):
            if kind is Kind.LATE:
                _stage_late(operator, table, sides)
            else:
                yield from operator.result(table).combine_chunks().to_batches()


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Kind, pa.Table]]:
    for batch in batches:
        for kind, data in zip(batch.column("kind").to_pylist(), batch.column("data"), strict=True):
            yield Kind(kind), read(data.as_buffer())


def _stage_late(operator: Operator, table: pa.Table, sides: SideOutputs) -> None:
    rows = _carried(operator, table)
    if "event_time" not in rows.column_names:
        rows = rows.append_column("event_time", table.column(TIME).cast(TIMESTAMP))
    numbers = [table.column(name).cast(pa.int64()).to_pylist() for name in ("watermark", "behind")]
    sides.stage(rows, Rejected(LATE, [operator.late_reason] * table.num_rows, *numbers))


def _carried(operator: Operator, table: pa.Table) -> pa.Table:
    """The columns of the events that the rows have carried, by their names."""
    return pa.table({name: table.column(column) for name, column in operator.carried.items()})
