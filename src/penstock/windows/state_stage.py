"""The stateful stage: one group for each bucket, visited once in every batch."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PenstockError, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import BucketNumbers
from penstock.spark.python_worker import freeze, hinted
from penstock.windows.engine import advance
from penstock.windows.operator import Kind, Operator, parted, written

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        MapState,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

# A bucket's state in Spark's state store: blobs in parts that it can bear.

PART_BYTES = 4 << 20
"""Of a blob in one value: the state server and RocksDB hold several copies of a value, each in one piece."""

_PARTS = struct.Struct("<I")


class SparkState:
    """The state of whichever bucket is being handled: Spark knows which."""

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
        """What a longer blob has left."""
        while self._blobs.containsKey((window, part)):
            self._blobs.removeKey((window, part))
            part += 1


log = logging.getLogger(__name__)

_REPORT_SECONDS_MAX = 2.0
"""How long a task waits for a worker that does not accept its numbers: the next epoch reports them again."""

_RETRY_SECONDS = 1.0
"""A connection that was closed because it was not used for long is made again."""

_TWO_QUERIES = "Only one query of a pipeline may run at a time: stop the others, and start it again."


@dataclass(slots=True)
class _Received:
    """A bucket's rows of one batch."""

    partials: list[bytes] = field(default_factory=list)
    passing: list[tuple[Kind, bytes]] = field(default_factory=list)
    """Letters and rows without an event time, which leave as they came."""
    control: tuple[int, int | None, int | None] | None = None
    """The last epoch of the batch, and the watermarks at its two ends."""
    judged: set[int | None] = field(default_factory=set)
    """The watermarks that the tasks before the shuffle have taken for the first of them."""


class WindowProcessor(StatefulProcessor):
    """Spark makes one for each task; groups come one after the other."""

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
        """Applies the batch's partials, fires and purges by its watermarks; returns rows for `unpack`."""
        with hinted():
            bucket, received = self._numbers[int(key[0])], _read(rows)
            epoch, before, after = _checked(received)
            advanced = advance(self._operator.plan, bucket, self._state, received.partials, before, after)
            self._epoch = max(self._epoch, epoch)
            self._reported.append(BucketNumbers(bucket=bucket, **asdict(advanced.stats)))
        yield from (_leaving(kind, data, bucket) for kind, data in received.passing)
        yield from (_leaving(Kind.PANES, data, bucket) for data in written(advanced.panes))
        for part, table in parted(self._operator, advanced.late, bucket):
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
    """Once for each task. A report that fails is logged: it is not worth failing the batch."""
    try:
        worker = _reporter(operator.worker)
        worker.report_windows(operator.pipeline, operator.name, epoch, buckets, generation=operator.generation)
    except PenstockError as error:
        log.warning("the numbers of the windows %s were not reported: %s", operator.name, error)


@cache
def _reporter(worker: str) -> CoordinatorClient:
    """A client of its own, since it gives up sooner than others; its connection is kept."""
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
    """The batch's epoch and watermarks. Raises PipelineError unless all of its tasks go by the same ones."""
    if received.control is None:
        raise PipelineError("a batch without control rows", _TWO_QUERIES)
    _, before, _ = received.control
    if received.judged - {before}:
        raise PipelineError(f"the batch starts at watermark {before}, its tasks used {received.judged}", _TWO_QUERIES)
    return received.control


def _leaving(kind: Kind, data: bytes, part: int) -> Row:
    return Row(kind=int(kind), data=data, part=part)
