"""The Spark stages of a window operator: partials before the shuffle, a bucket's state after it, then result rows."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PenstockError, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import BucketNumbers
from penstock.spark.dead_letters.column import ERR, LETTER, LETTER_FIELDS, NO_EVENT_TIME, letter_arrow
from penstock.spark.dead_letters.column import LATE as LATE_PORT
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.windows.engine import TIME, advance, prepare
from penstock.windows.operator import CARRIED, PLACE, Kind, Operator, as_batch, distinct, parts_by_event, read, written

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
    passing: list[tuple[Kind, bytes]] = field(default_factory=list)
    """Dead letters and rows without an event time, which pass through unchanged."""
    control: tuple[int, int | None, int | None] | None = None
    """The last epoch of the batch, and the watermarks at its start and end."""
    judged: set[int | None] = field(default_factory=set)
    """The start watermarks that the tasks before the shuffle have used."""


class WindowProcessor(StatefulProcessor):
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
        """Apply the batch's partials, then fire and purge by its watermarks; returns rows for `unpack`."""
        with hinted():
            bucket, received = self._numbers[int(key[0])], _read(rows)
            epoch, before, after = _checked(received)
            advanced = advance(self._operator.plan, bucket, self._state, received.partials, before, after)
            self._epoch = max(self._epoch, epoch)
            self._reported.append(BucketNumbers(bucket=bucket, **asdict(advanced.stats)))
        yield from (_leaving(kind, data, bucket) for kind, data in received.passing)
        yield from (_leaving(Kind.PANES, data, bucket) for data in written(advanced.panes))
        for part, table in parts_by_event(self._operator, advanced.late, bucket):
            yield from (_leaving(Kind.LATE, data, part) for data in written(table))

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
    try:
        worker = _reporter(operator.worker)
        worker.report_windows(operator.pipeline, operator.name, epoch, buckets, generation=operator.generation)
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
                received.passing.append((kind, row["data"]))
    return received


def _checked(received: _Received) -> tuple[int, int | None, int | None]:
    """The batch's epoch and watermarks. Raises PipelineError unless all of its tasks used the same ones."""
    if received.control is None:
        raise PipelineError("a batch without control rows", _TWO_QUERIES)
    _, before, _ = received.control
    if received.judged - {before}:
        raise PipelineError(f"the batch starts at watermark {before}, its tasks used {received.judged}", _TWO_QUERIES)
    return received.control


def _leaving(kind: Kind, data: bytes, part: int) -> Row:
    return Row(kind=int(kind), data=data, part=part)


# The stage before the shuffle: rows are reduced to partials, one per key and slice of time.

ROWS_AT_ONCE = 1 << 20
"""Rows that are reduced to partials together: the more of them, the fewer partials per key."""

BYTES_AT_ONCE = 128 << 20
"""The same limit for wide rows: a task has a few copies of them in memory."""

_ENTERING = pa.schema(
    [
        ("bucket", pa.int32()),
        ("kind", pa.int32()),
        ("data", pa.binary()),
        ("epoch", pa.int64()),
        ("before", pa.int64()),
        ("watermark", pa.int64()),
    ]
)


def map_rows(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that one task reads, as rows for the state."""
    freeze()
    with hinted():
        mapper = _Mapper(operator)
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
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @cached_property
    def _before(self) -> int | None:
        """The watermark that decides which of the batch's events are late: the same for all of its tasks."""
        worker = coordinator(self._operator.worker)
        return worker.running(self._operator.pipeline, self._operator.generation).before

    def entering(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if LETTER in table.column_names:
            dead_letters, table = _split(table, table.column(LETTER).is_valid())
            passing = dead_letters.column(LETTER).cast(letter_arrow())
            yield from self._passing(Kind.DEAD_LETTERS, pa.table({LETTER: passing}))
        if table.column(TIME).null_count:
            timeless, table = _split(table, table.column(TIME).is_null())
            names = [f"{CARRIED}{number}" for number in range(len(self._operator.carried))]
            yield from self._timeless(timeless.select(names))
        if table.num_rows:
            partials = prepare(self._operator.plan, table, self._before).partials
            for bucket, blob in partials.items():
                yield self._row(bucket, Kind.PARTIALS, blob)

    def _passing(self, kind: Kind, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows that pass through any bucket: so, like the state's rows, they are in the batch once, however often it
        runs.
        """
        for number, data in enumerate(written(table.combine_chunks())):
            yield self._row(number % self._operator.plan.buckets, kind, data)

    def _timeless(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not self._operator.repeats:
            yield from self._passing(Kind.TIMELESS, table)
            return
        for bucket, piece in parts_by_event(self._operator, table, 0):
            yield from (self._row(bucket, Kind.TIMELESS, data) for data in written(piece))

    def _row(self, bucket: int, kind: Kind, data: bytes) -> pa.RecordBatch:
        return as_batch(_ENTERING, [(self._operator.ids[bucket], int(kind), data, None, self._before, None)])


def _split(table: pa.Table, chosen: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """The chosen rows, and the others."""
    return table.filter(chosen), table.filter(pc.invert(chosen))


# The stage after the state: turns what the state emits into result rows; late rows become dead letters.

_TIMESTAMP = pa.timestamp("us", "UTC")


def unpack(operator: Operator, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn one task's rows from the state into rows of the operator's result."""
    freeze()
    with hinted():
        for kind, table in _once(operator, _tables(batches)):
            yield from _unpacked(operator, kind, table).combine_chunks().to_batches()


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Kind, pa.Table]]:
    for batch in batches:
        for kind, data in zip(batch.column("kind").to_pylist(), batch.column("data"), strict=True):
            yield Kind(kind), read(data.as_buffer())


def _once(operator: Operator, tables: Iterator[tuple[Kind, pa.Table]]) -> Iterator[tuple[Kind, pa.Table]]:
    """If an event may have several rows, emits late and timeless events at the end, once each: this task has all rows
    of an event.
    """
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
        case Kind.DEAD_LETTERS:
            return _dead_letter_rows(operator, table.column(LETTER).combine_chunks())
        case Kind.LATE:
            return _dead_letter_rows(operator, _late(operator, table))
        case Kind.TIMELESS:
            return _dead_letter_rows(
                operator, _dead_letters(table.num_rows, _carried(operator, table), ERR, NO_EVENT_TIME)
            )
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


def _dead_letter_rows(operator: Operator, dead_letters: pa.StructArray) -> pa.Table:
    """Rows with a dead letter and no other column set."""
    *others, _ = operator.output
    columns = [pa.nulls(len(dead_letters), field.type) for field in others]
    return pa.Table.from_arrays([*columns, dead_letters], schema=operator.output)


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
    return _dead_letters(table.num_rows, missed | carried, LATE_PORT, reason)


def _carried(operator: Operator, table: pa.Table) -> dict[str, Any]:
    """Fields of dead letters: carried by the rows themselves, or read from the stored event that they refer to."""
    fields = {name: table.column(f"{CARRIED}{number}") for number, name in enumerate(operator.carried)}
    if not set(PLACE) <= fields.keys():
        return fields
    found = _stored(operator, pa.table({name: fields[name] for name in PLACE}))
    return {name: found.column(name) for name in found.column_names} | {
        name: pc.coalesce(found.column(name), column) if name in found.column_names else column
        for name, column in fields.items()
    }


def _stored(operator: Operator, places: pa.Table) -> pa.Table:
    """The events at these positions; nulls where a row has none."""
    known = pc.and_(*(column.is_valid() for column in places.columns)).to_numpy()
    if not known.any():
        return pa.table({})
    from penstock.spark.source.originals import (
        originals,  # here: kernels take a second to import, and few rows are late
    )

    found = originals(operator.worker, link(operator.worker, *operator.tls), places.filter(pa.array(known)))
    return found if known.all() else found.take(pa.array(np.cumsum(known) - 1, mask=~known))


def _dead_letters(count: int, fields: dict[str, Any], port: str, reason: str) -> pa.StructArray:
    values = fields | {"port": pa.repeat(port, count), "reason": pa.repeat(reason, count)}
    kinds = letter_arrow()
    columns = [
        _one(values[name]).cast(kinds.field(name).type) if name in values else pa.nulls(count, kinds.field(name).type)
        for name in LETTER_FIELDS
    ]
    return pa.StructArray.from_arrays(columns, fields=[*kinds])


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
