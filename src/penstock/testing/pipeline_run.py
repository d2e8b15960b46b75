"""Runs a pipeline in a test: with a worker, the source, the sink and the codecs of production, all in this process and
Spark's, in epochs that the test decides.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from penstock.client.segments import SegmentClient
from penstock.core.durations import Duration, parse_duration_us
from penstock.core.errors import NoSuchSegment, RequestError, Unavailable
from penstock.core.sizes import MIB
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.dead_letters import DeadLetter
from penstock.protocol.stored import parse_event
from penstock.protocol.stored.dead_letters import DEAD_LETTER_PORTS, ERR, LATE, dead_letter_of
from penstock.protocol.stored.event import StoredEvent
from penstock.protocol.stored.names import DEAD_LETTERS_SUFFIX, output_segment, source_dead_letters
from penstock.segment_server.settings import ServerSettings
from penstock.store.settings import StoreSettings
from penstock.testing.events import DEFAULT_STREAM, Event, Time, datetime_of, epochs_of, stored_form, time_us
from penstock.testing.given_source import GivenSource
from penstock.testing.memory_files import MemoryFiles
from penstock.testing.pipeline_under_test import PerInput, PipelineUnderTest, under_test
from penstock.testing.results import EpochOutputs, Result, Row
from penstock.testing.running_worker import RunningWorker
from penstock.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.coordinator.service import Coordinator
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.run.attempt import Attempt

EPOCH_SECONDS_MAX = 120.0
"""For one epoch, unless the test sets another limit: Spark's first one takes seconds, on a busy machine many."""

_LOOK_SECONDS = 0.02
_NEVER_US = 10_000 * 365 * 86_400_000_000
"""A disorder that no event reaches: only declared watermarks count."""

_STORE = StoreSettings(chapter_bytes=4 * MIB, reserve_bytes=4 * MIB)
"""Small: it is in memory."""


def run_pipeline(
    function: Pipeline | Callable[..., Any] | str | Path,
    inputs: Mapping[str, Sequence[Any]],
    *,
    watermark: Time | Sequence[Time | None] | None = None,
    max_disorder: Duration = "0 seconds",
    end: bool | None = None,
    codec: PerInput = None,
    schema: PerInput = None,
    outputs: Sequence[str] = (),
    pipeline: str | None = None,
    spark: SparkSession | None = None,
    seconds_max: float = EPOCH_SECONDS_MAX,
) -> Result:
    """Run a pipeline on these events and return what leaves it.

    `function` is a `@pipeline`, the function of an application's pipeline, or an application's YAML file (`pipeline`
    names one of its pipelines). For a function, `codec`, `schema` and `outputs` are what the YAML file would declare.

    `inputs`: by input, or by source, a list of events, which are one epoch; or a list of such lists, one for each
    epoch. An event is a dict, text, bytes or an `Event`.

    `watermark`: None if it follows from the events, as in production, with `max_disorder` in each stream. Otherwise it
    is exactly this at the end of the epoch: one value for each epoch, None where it stays. `end`: whether the sources
    end after the last epoch, so that all windows close; by default they do, unless `watermark` is given.

    An exception of the function itself is raised as it is. Raises RequestError, with the user's lines, for an error in
    a task of Spark's, and Unavailable for an epoch that takes longer than `seconds_max`.
    """
    found = under_test(function, name=pipeline, codec=codec, schema=schema, outputs=outputs)
    epochs = [{found.source(key): events for key, events in epoch.items()} for epoch in epochs_of(inputs)]
    marks = _watermarks(watermark, len(epochs))
    disorder_us = parse_duration_us("max_disorder", max_disorder) if marks is None else _NEVER_US
    with _running(found, disorder_us) as run:
        planned_marks = marks or [None] * len(epochs)
        if marks is not None:
            run.open_streams()
        plan = [_Planned(events, mark) for events, mark in zip(epochs, planned_marks, strict=True)]
        if end if end is not None else marks is None:
            plan.append(_Planned({}, ends=True))
        return run.run(plan, spark or _session(), seconds_max)


def _session() -> SparkSession:
    from penstock.testing.spark_session import spark_session

    return spark_session()


def _watermarks(given: Time | Sequence[Time | None] | None, epochs: int) -> list[int | None] | None:
    if given is None:
        return None
    listed = [*given] if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if len(listed) != epochs:
        raise RequestError(
            f"{len(listed)} watermarks for {epochs} epochs", "Pass one for each epoch; None where it stays."
        )
    return [None if one is None else time_us(one) for one in listed]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a test wants to happen in an epoch."""

    events: Mapping[str, Sequence[Event]]
    """By source."""
    watermark_us: int | None = None
    ends: bool = False

    @property
    def is_empty(self) -> bool:
        return self.watermark_us is None and not self.ends and not any(self.events.values())


@dataclass(slots=True)
class _Run:
    """A pipeline and its worker."""

    found: PipelineUnderTest
    worker: RunningWorker
    folder: Path
    sources: Mapping[str, GivenSource]
    read: dict[str, int] = field(default_factory=dict)
    """Segment → up to where it was read."""

    @property
    def pipeline(self) -> Pipeline:
        return self.found.pipeline

    def open_streams(self) -> None:
        """A watermark can only be declared for streams that are open."""
        for source in self.sources.values():
            self.worker.call(source.open(DEFAULT_STREAM))

    def run(self, plan: Sequence[_Planned], spark: SparkSession, seconds_max: float) -> Result:
        with self._query(spark) as attempt:
            return Result.of([self._epoch(attempt, epoch, seconds_max) for epoch in plan])

    @contextmanager
    def _query(self, spark: SparkSession) -> Iterator[Attempt]:
        """The pipeline's query, as `penstock run` starts it. It plans no epoch yet."""
        from pyspark.cloudpickle import register_pickle_by_value

        from penstock.spark.run.attempt import RunSettings, begin_attempt, start_query
        from penstock.spark.run.runner import planned_of

        register_pickle_by_value(self.found.module)  # type: ignore[no-untyped-call]
        spark.createDataFrame([], "any int")  # sets this thread's session, without which Spark finds no sink
        # One task reads an epoch: its rows keep the order of the events.
        settings = RunSettings(worker=self.worker.http, checkpoints=str(self.folder / "checkpoints"), cores=1)
        with _raised_as_it_is():
            planned = planned_of(spark, self.pipeline)
            generation, _ = begin_attempt(self.pipeline, planned, settings)
        try:
            with _raised_as_it_is():
                attempt = start_query(spark, self.pipeline, planned, settings, generation, bind=False)
            try:
                yield attempt
            finally:
                attempt.query.stop()
        finally:
            generation.stop()

    def _epoch(self, attempt: Attempt, epoch: _Planned, seconds_max: float) -> EpochOutputs:
        if not epoch.is_empty:
            self.worker.call(self._feed(epoch))
            self._process(attempt.query, seconds_max)
        return self._outputs(attempt.ports)

    async def _feed(self, epoch: _Planned) -> None:
        """Everything that belongs to the epoch is stored before it may be planned."""
        for name, events in epoch.events.items():
            coding = self.found.codings.get(name)
            await self.sources[name].send([stored_form(event, coding) for event in events])
        for source in self.sources.values():
            if epoch.watermark_us is not None:
                await source.declare_watermark(epoch.watermark_us)
            if epoch.ends:
                await source.end()
        self._coordinator.allow_epochs(1)

    @property
    def _coordinator(self) -> Coordinator:
        """Only for the worker's own thread."""
        return self.worker.worker.coordinator()

    def _process(self, query: StreamingQuery, seconds_max: float) -> None:
        """Until the epoch is committed, with the batches that Spark runs by itself after it to let go of state."""
        from pyspark.errors import StreamingQueryException

        deadline = time.monotonic() + seconds_max
        while self.worker.call(self._is_unplanned()) and query.isActive and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), query.stop)
        watchdog.start()
        try:
            query.processAllAvailable()
        except StreamingQueryException:
            raise self._failed(query) from None
        finally:
            watchdog.cancel()
        if not query.isActive:
            raise self._failed(query) if query.exception() else _too_slow(seconds_max)

    async def _is_unplanned(self) -> bool:
        return bool(self._coordinator.cuts.epochs_left)

    def _failed(self, query: StreamingQuery) -> RequestError:
        from penstock.spark.run.failures import exception_text, failure_of

        failure = failure_of(exception_text(query) or "")
        return RequestError(f"the pipeline {self.pipeline.name!r} has failed\n{failure.text}", failure.hint)

    def _outputs(self, ports: Sequence[str]) -> EpochOutputs:
        name = self.pipeline.name
        fields, mark = self.worker.call(self._known())
        rows: dict[str, list[Row]] = {port: [] for port in ports if port not in DEAD_LETTER_PORTS}
        dead_letters: dict[str, list[DeadLetter]] = {port: [] for port in DEAD_LETTER_PORTS}
        with SegmentClient(self.worker.address) as client:
            dead_letters[ERR] += self._dead_letters_of_sources(client)
            for port in dict.fromkeys((*ports, *DEAD_LETTER_PORTS)):
                for start, end, event in self._new_events(client, output_segment(name, port)):
                    if port in DEAD_LETTER_PORTS:
                        dead_letter = dead_letter_of(start, end, event)
                        dead_letters[port].append(DeadLetter.of(port, dead_letter, replayed=False, with_value=True))
                    else:
                        rows[port].append(Row(port, event, has_fields=port in fields))
        return EpochOutputs(rows, dead_letters[ERR], dead_letters[LATE], datetime_of(mark))

    def _dead_letters_of_sources(self, client: SegmentClient) -> Iterator[DeadLetter]:
        """What never became an event, as it has no event time."""
        for source in self.sources:
            if source + DEAD_LETTERS_SUFFIX not in self.sources:  # else it is an input, whose events the test provides
                for start, end, event in self._new_events(client, source_dead_letters(source)):
                    yield DeadLetter.of_source(dead_letter_of(start, end, event), with_value=True)

    def _new_events(self, client: SegmentClient, segment: str) -> Iterator[tuple[int, int, StoredEvent]]:
        try:
            for stored in client.events(segment, self.read.get(segment, 0)):
                self.read[segment] = stored.end
                if (event := parse_event(stored.data)) is not None:
                    yield stored.offset, stored.end, event
        except NoSuchSegment:
            return

    async def _known(self) -> tuple[Mapping[str, object], int | None]:
        """The ports whose rows are made of columns, and the watermark."""
        pipeline = self._coordinator.deliveries.state.pipelines[self.pipeline.name]
        return pipeline.schemas, pipeline.watermark


def _too_slow(seconds_max: float) -> Unavailable:
    return Unavailable(
        f"the epoch took longer than {seconds_max:g} s", "Raise the limit: run_pipeline(…, seconds_max=…)"
    )


@contextmanager
def _raised_as_it_is() -> Iterator[None]:
    """The runner wraps what the user's function raises into a message: a test wants the exception itself."""
    try:
        yield
    except RequestError as error:
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


@contextmanager
def _running(found: PipelineUnderTest, disorder_us: int) -> Iterator[_Run]:
    """A worker on free ports of the loopback interface, with a journal in memory, and the pipeline's sources."""
    with tempfile.TemporaryDirectory(prefix="penstock-testing-") as folder:
        settings = WorkerSettings(
            data=Path(folder),
            http_port=0,
            store=_STORE,
            segment=ServerSettings(port=0),
            programs=ProgramServerSettings(port=0, cookie=token_bytes(16)),  # no program connects
        )
        worker = RunningWorker(settings, MemoryFiles())
        worker.start()
        try:
            sources = worker.call(_sources(worker, found, disorder_us))
            yield _Run(found, worker, Path(folder), sources)
            worker.call(_stop(sources))
        finally:
            worker.stop()


async def _sources(worker: RunningWorker, found: PipelineUnderTest, disorder_us: int) -> dict[str, GivenSource]:
    worker.worker.coordinator().allow_epochs(0)
    names = dict.fromkeys(source for several in found.pipeline.inputs.values() for source in several)
    made = {name: GivenSource(worker.worker, name, disorder_us, found.connectors.get(name)) for name in names}
    for source in made.values():
        await source.start()
    return made


async def _stop(sources: Mapping[str, GivenSource]) -> None:
    for source in sources.values():
        await source.stop()
