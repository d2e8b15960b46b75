"""`spark.readStream.format("penstock")`: the epochs of a query, as Spark requests them.

Spark creates two of these readers. One runs in its own process beside the driver for as long as the query runs, and
decides offsets and partitions; the other is pickled to the executors, where only `read` is called.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.coordinator import CoordinatorClient, Cut, InputOffset, InputSpec, Limits, LoadState, Segments
from penstock.core.errors import RequestError, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Range, Rereading
from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.names import Source
from penstock.spark.python_worker import freeze, hinted
from penstock.spark.run.generation import Generation
from penstock.spark.source.options import SourceOptions, Trial
from penstock.spark.source.partitions import (
    ControlRows,
    FusedRanges,
    SegmentRanges,
    control_partition,
    fused_partitions,
    plan_partitions,
    split_ranges,
)
from penstock.spark.source.schema import CONTROL_COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

# A task of a control-only load: it reads nothing, and returns the watermark.


def control_batches(options: SourceOptions, rows: ControlRows) -> Iterator[pa.RecordBatch]:
    """One batch, with a row per bucket, in order."""
    import pyarrow as pa

    freeze()
    assert options.buckets is not None
    count = len(options.buckets)
    columns = [options.buckets, [rows.epoch] * count, [rows.before] * count, [rows.watermark] * count]
    schema = arrow_schema(tuple(CONTROL_COLUMNS))
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


# Where a load's epochs start and end: the coordinator decides, for a pipeline or for an anonymous load.


class Load(Protocol):
    """One `readStream.…load()` of a running query, on the driver. Not thread-safe."""

    def initial(self) -> InputOffset:
        """Where the first epoch starts."""

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        """The end of the epoch that starts at `start`; `start` itself if nothing new arrived within `wait_ms`."""

    def reading(self, start: InputOffset, end: InputOffset) -> Rereading:
        """Called when Spark reads a range that it has not just requested, or that has segments which `start` does not
        name. Returns where the range starts in each of them, and which events in it no task may read.
        """

    def stop(self) -> None: ...


class AnonymousLoad:
    """Without a pipeline: nothing is registered, the load delays neither acknowledgements nor retention, and the same
    start may get a different end.
    """

    def __init__(self, options: SourceOptions, coordinator: CoordinatorClient) -> None:
        self._options = options
        self._coordinator = coordinator

    def initial(self) -> InputOffset:
        return InputOffset(self._coordinator.resolve(self._options.sources, self._options.starting))

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        sources = self._options.sources
        ends = self._coordinator.cut_sources(sources, start.segments, upto=upto, limits=limits, wait_ms=wait_ms)
        return Cut(start if ends == start.segments else InputOffset(ends))

    def reading(self, start: InputOffset, end: InputOffset) -> Rereading:  # noqa: ARG002  a Load
        return Rereading(start.segments)

    def stop(self) -> None:
        pass


class PipelineLoad:
    """An input of a pipeline, whose ledger contains the cuts. Without a generation in the options it starts one, and
    sends its heartbeats: all loads of this driver that name the same pipeline start the same generation.

    Spark reads a DataFrame that is joined with itself through two loads of the same input: `_load` distinguishes them.
    `upto`: where a query that ends by itself ends.
    """

    def __init__(
        self, options: SourceOptions, coordinator: CoordinatorClient, pipeline: str, upto: Segments | None
    ) -> None:
        self._coordinator = coordinator
        self.name = pipeline
        self._input = options.input
        self._state = _state(options)
        self._load = uuid4().hex
        self._own_generation: Generation | None = None
        if options.generation is None:
            self._own_generation = _begin(options, coordinator, pipeline)
            self.generation = self._own_generation.number
        else:
            self.generation = options.generation
        try:
            coordinator.attach(pipeline, self.generation, self._input, self._load, options.sources, upto=upto)
        except BaseException:
            self.stop()
            raise

    def initial(self) -> InputOffset:
        return self._coordinator.initial(self.name, self.generation, self._input)

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:
        return self._coordinator.cut(
            self.name,
            self.generation,
            self._input,
            start,
            load=self._load,
            upto=upto,
            limits=limits,
            wait_ms=wait_ms,
            state=self._state,
        )

    def reading(self, start: InputOffset, end: InputOffset) -> Rereading:
        return self._coordinator.reading(self.name, self.generation, self._input, start, end)

    def stop(self) -> None:
        if self._own_generation is not None:
            self._own_generation.stop()


class TrialLoad:
    """One epoch of given ranges: nothing is registered, and the worker is only read from."""

    def __init__(self, trial: Trial) -> None:
        self._start = InputOffset({}, NO_EPOCH, 0, trial.watermark)
        self._end = InputOffset({one.segment: one.end for one in trial.ranges}, 0, 0, END_OF_TIME)

    def initial(self) -> InputOffset:
        return self._start

    def cut(self, start: InputOffset, upto: Segments | None, limits: Limits | None, wait_ms: int) -> Cut:  # noqa: ARG002  a Load
        return Cut(self._end)

    def reading(self, start: InputOffset, end: InputOffset) -> Rereading:  # noqa: ARG002  a Load
        return Rereading(start.segments)

    def stop(self) -> None:
        pass


def _state(options: SourceOptions) -> LoadState | None:
    if options.buckets is None:
        return None
    return "reported" if options.reports else "unreported"


def begin_load(options: SourceOptions, coordinator: CoordinatorClient, upto: Segments | None) -> Load:
    if options.trial is not None:
        return TrialLoad(options.trial)
    if options.pipeline is None:
        return AnonymousLoad(options, coordinator)
    return PipelineLoad(options, coordinator, options.pipeline, upto)


def _begin(options: SourceOptions, coordinator: CoordinatorClient, pipeline: str) -> Generation:
    """The outputs are not known yet: the sink reports them when it merges."""
    request = f"{driver_identity()}/{pipeline}"
    inputs = {options.input: InputSpec(options.sources, options.starting)}
    started = coordinator.start(pipeline, inputs, None, request=request)
    return Generation(pipeline, options.worker, started.generation, {options.input: options.sources})


JVM_VARIABLE = "PENSTOCK_SPARK_JVM"
"""The process id of the JVM, in processes that the fork server has forked."""


def driver_identity() -> str:
    """The same in all source processes of one driver, different for any other driver and after a restart.

    They are processes of one JVM, which its id and its start time identify: their parent, unless a fork server has
    forked them.
    """
    parent = int(os.environ.get(JVM_VARIABLE) or os.getppid())
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # there is no /proc here, or the parent has ended
        started = "?"
    return f"{socket.gethostname()}/{parent}/{started}"


log = logging.getLogger(__name__)

WAIT_MS = 250
"""How long the worker waits for new events before it replies that there are none. Spark asks again at once; it cannot
stop a query while it waits."""

WAIT_MS_ANONYMOUS = 50
"""Loads without a pipeline wait one after another: the last of them must not be delayed for long."""

BLOCKED_SECONDS_MAX = 600.0
"""Trigger.AvailableNow takes an empty epoch for the end, so the reader waits while events are blocked: at most this
long."""

CONTROL = "control"
"""The key that marks an offset of a control-only load."""

REPORT_SECONDS = 1.0
"""The latest offset in a query's progress may be this old: it is not worth a request per batch."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def _on_driver(self) -> _Driver:
        """Created on first use: readers on executors never need it."""
        if self._driver is None:
            freeze()
            self._driver = _Driver(self._options)
        return self._driver

    def _json(self, offset: InputOffset) -> dict[str, Any]:
        """With sorted keys. Offsets of control rows are marked: a query's progress shows whose rows are events."""
        control = {} if self._options.buckets is None else {CONTROL: True}
        return control | offset.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's names, here and below
        """Spark calls this for all loads of a query before it requests the first offset: so all inputs of a pipeline
        are known when its first cut is decided.
        """
        with hinted():
            self._on_driver().begin()
        limits = self._options.limits
        if limits is not None and limits.bytes is not None:
            return ReadMaxBytes(limits.bytes)
        if limits is not None and limits.rows is not None:
            return ReadMaxRows(limits.rows)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with hinted():
            return self._json(self._on_driver().initial())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with hinted():
            self._on_driver().end_at_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with hinted():
            return self._json(self._on_driver().next_end(InputOffset.from_json(start), limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        with hinted():
            return self._json(self._on_driver().latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with hinted():
            return self._on_driver().partitions(InputOffset.from_json(start), InputOffset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ControlRows):
            return control_batches(self._options, partition)
        if isinstance(partition, FusedRanges):
            from penstock.spark.source.fused import read_fused  # here: as below

            return read_fused(self._options, partition)
        from penstock.spark.source.arrow import read_partition  # here: kernels and Arrow take a second to import

        assert isinstance(partition, SegmentRanges)
        if self._options.branches:
            from penstock.spark.source.decoding import decode_partition

            return decode_partition(self._options, self._columns, partition)
        return read_partition(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the request for the next offset informs the coordinator, and more reliably."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.stop()


class _Driver:
    """The state of the reader beside the driver: its load, and the last cut it received."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._coordinator = CoordinatorClient(options.worker)
        self._load: Load | None = None
        self._last_cut: tuple[InputOffset, InputOffset] | None = None
        self._left_out: Sequence[Range] = ()
        """What no task of the last cut may read."""
        self._workers: Mapping[str, str] = {}
        """Where tasks read the segments of other shards, at the last cut."""
        self._target: dict[str, int] | None = None
        self._latest: tuple[float, InputOffset] | None = None

    def begin(self) -> Load:
        """Starts the load at the first call: by then Spark has announced whether the query ends by itself."""
        if self._load is None:
            self._load = begin_load(self._options, self._coordinator, self._target)
        return self._load

    def initial(self) -> InputOffset:
        return self.begin().initial()

    def end_at_latest(self) -> None:
        self._target = self._coordinator.resolve(self._options.sources, "latest")

    def latest(self) -> InputOffset:
        now = time.monotonic()
        if self._latest is None or now - self._latest[0] > REPORT_SECONDS:
            self._latest = now, InputOffset(self._coordinator.resolve(self._options.sources, "latest"))
        return self._latest[1]

    def next_end(self, start: InputOffset, limit: ReadLimit) -> InputOffset:
        limits = _limits(self._options.limits, limit)
        cut = self._cut(start, limits) if self._target is None else self._cut_upto_target(start, limits)
        self._last_cut, self._left_out, self._workers = (start, cut.offset), cut.left_out, cut.workers
        return cut.offset

    def _decode_missing(self, load: PipelineLoad, start: InputOffset) -> None:
        """Spark has committed the epochs up to `start` with a sink of its own: no merge has looked for the parts that
        no task has finished.
        """
        from penstock.spark.side_outputs import Origin
        from penstock.spark.source.decoding import decode_missing  # here: few loads need codecs

        assert start.epoch is not None
        origin = Origin(self._options.worker, load.name, load.generation, self._options.tls)
        for part in self._coordinator.missing_parts(load.name, load.generation, start.epoch):
            decode_missing(origin, part)

    def _cut(self, start: InputOffset, limits: Limits | None) -> Cut:
        wait_ms = WAIT_MS_ANONYMOUS if self._options.pipeline is None else WAIT_MS
        load = self.begin()
        self._mirror(load)
        cut = load.cut(start, self._target, limits, wait_ms if self._target is None else 0)
        if not cut.is_lacking or not isinstance(load, PipelineLoad):
            return cut
        self._decode_missing(load, start)
        return load.cut(start, self._target, limits, 0)

    def _mirror(self, load: Load) -> None:
        """For Spark's own sinks, if the worker has a bucket; see `checkpoint_mirror`."""
        store, checkpoint = self._options.store, self._options.checkpoint
        if store is None or checkpoint is None or not isinstance(load, PipelineLoad):
            return
        from penstock.spark.run.checkpoint_mirror import mirror_unmerged  # here: other drivers do not need it

        mirror_unmerged(self._coordinator, store, checkpoint, load.name, load.generation)

    def _cut_upto_target(self, start: InputOffset, limits: Limits | None) -> Cut:
        """Spark takes an empty epoch for the end, so wait for events that are only blocked."""
        started = time.monotonic()
        while True:
            cut = self._cut(start, limits)
            if cut.offset != start or cut.blocked is None:
                return cut
            if time.monotonic() - started > BLOCKED_SECONDS_MAX:
                raise Unavailable(f"nothing has moved for {BLOCKED_SECONDS_MAX:g} s: {cut.blocked}", "penstock status")
            log.info("waiting: %s", cut.blocked)
            time.sleep(WAIT_MS / 1000)

    def partitions(self, start: InputOffset, end: InputOffset) -> Sequence[InputPartition]:
        """Spark replans a batch that it finds in its log without requesting its end: the worker must know. The worker
        replies where sources start that the last batch did not include.
        """
        starts = start.segments
        is_fresh = self._options.pipeline is not None and self._last_cut == (start, end)
        if self._last_cut != (start, end) or end.segments.keys() - starts.keys():
            again = self.begin().reading(start, end)
            starts = {**again.segments, **starts}
            self._last_cut, self._left_out = (start, end), again.left_out
        self._mirror(self.begin())
        if self._options.buckets is not None and self._options.fused is None:
            return [control_partition(start, end)]
        partitions = self._partitions(replace(start, segments=starts), end, is_fresh=is_fresh)
        if self._options.branches and end.epoch is not None and self._options.trial is None:
            from penstock.spark.source.decoding import planned  # here: other loads need no codecs

            partitions = planned(self._coordinator, self._options, end.epoch, partitions)
        if self._options.fused is None:
            return partitions
        return fused_partitions(control_partition(start, end), partitions)

    def _partitions(self, start: InputOffset, end: InputOffset, *, is_fresh: bool) -> list[SegmentRanges]:
        trial = self._options.trial
        if trial is not None:
            return split_ranges(self._coordinator, self._options, trial.ranges)
        return plan_partitions(
            self._coordinator,
            self._options,
            start,
            end,
            self._left_out,
            is_fresh=is_fresh,
            workers=self._workers,
        )

    def stop(self) -> None:
        if self._load is not None:
            self._load.stop()
        self._coordinator.close()


def _limits(given: Limits | None, limit: ReadLimit) -> Limits | None:
    """An epoch's limits: Spark's, then the load's own. None leaves them to the worker."""
    match limit:
        case ReadMaxBytes():
            return Limits(bytes=limit.max_bytes, rows=given.rows if given else None)
        case ReadMaxRows():
            return Limits(bytes=given.bytes if given else None, rows=limit.max_rows)
    return None if given is None else Limits()


# `spark.read.format("penstock")`: the events stored now, once.


class BatchReader(DataSourceReader):
    """The start and the end of the batch are fixed when Spark plans it; later events are not in it."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with hinted(), CoordinatorClient(options.worker) as coordinator:
            end = InputOffset(coordinator.resolve(options.sources, options.ending))
            _check_known(options.sources, end)
            start = InputOffset(coordinator.resolve(options.sources, options.starting))
            # For an empty list of partitions Spark would invent one of its own.
            return plan_partitions(coordinator, options, start, end) or [SegmentRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.source.arrow import read_partition  # here: kernels and Arrow take a second to import

        assert isinstance(partition, SegmentRanges)
        if self._options.branches:
            from penstock.spark.source.decoding import decode_partition

            return decode_partition(self._options, self._columns, partition)
        return read_partition(self._options, self._columns, partition)


def _check_known(sources: Sequence[str], end: InputOffset) -> None:
    """A stream waits for sources that do not exist yet; a batch that reads one is an error."""
    for source in map(Source.parse, sources):
        if not any(map(source.owns, end.segments)):
            raise RequestError(f"source {str(source)!r} not found", "List them: penstock status")
