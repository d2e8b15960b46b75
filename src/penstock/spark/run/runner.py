"""Runs pipelines in one Spark session: starts their queries, restarts them when they fail, stops them cleanly."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import CheckpointFailed, PenstockError, RequestError
from penstock.spark.pipelines import Pipeline, check_ports
from penstock.spark.run.attempt import (
    Attempt,
    Planned,
    RestartPolicy,
    Restarts,
    RunSettings,
    begin_attempt,
    check_state,
    keep_state_plan,
    plan_of,
    start_query,
)
from penstock.spark.run.failures import Failure, command_name, exception_text, failure_of
from penstock.spark.run.generation import Generation
from penstock.spark.run.progress import Progress, ProgressReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.run.driver import SparkDriver

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.2

_END_SECONDS = 2.0
"""Between the end of a connection to the JVM and the end of its process, if that is why."""

_JVM_HINT = "Spark's log has the reason, unless the JVM was killed: then look for the out-of-memory killer (dmesg)."


def carry_by_value(pipelines: Sequence[Pipeline]) -> None:
    """Pickle functions of the users' files by value: the Python workers need not have the files."""
    from pyspark.cloudpickle import register_pickle_by_value

    for pipeline in pipelines:
        register_pickle_by_value(sys.modules[pipeline.function.__module__])  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a pipeline whose JVM has ended: what the process that runs it next continues with."""

    generation: int | None
    """The newest one, if it has been started."""
    inputs: Mapping[str, Sequence[str]]
    restarts: Restarts
    restart_at: float | None
    """By `time.monotonic`, which is the same clock in all processes of a machine. None: it stays stopped."""
    last_failure: Failure | None
    given_up: RequestError | None
    rows: int
    is_bound: bool

    def failed(self, failure: Failure, now: float, policy: RestartPolicy) -> Standing:
        """After another failure, of something outside, before it was started."""
        if self.restart_at is None:
            return self
        restarts, pause = self.restarts.after_failure(0.0, policy, is_outage=True)
        assert pause is not None  # outages have no limit
        return replace(self, restarts=restarts, restart_at=now + pause, last_failure=failure)

    def report(self, name: str, worker: str) -> Generation | None:
        """Heartbeats that report the last failure, until the generation is stopped or a newer one is started."""
        if self.generation is None or self.last_failure is None:
            return None
        generation = Generation(name, worker, self.generation, self.inputs)
        failure = self.last_failure
        generation.failed(failure.summary, self.restarts.in_a_row, self.restart_at, failure.advice)
        return generation


class RunningPipeline:
    """One pipeline, across all its attempts. The attributes that a view shows are public."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        settings: RunSettings,
        before: Pipeline | None = None,
        standing: Standing | None = None,
    ) -> None:
        """`before`: the pipeline of the same name that ran until now, and runs again if this one cannot. `standing`:
        as it was when the JVM of the previous process ended.
        """
        self.pipeline = pipeline
        self.before = before
        self.planned: Planned | None = None
        self.progress: Progress | None = None
        self.last_failure: Failure | None = None
        self.restart_at: float | None = None
        """When it is restarted after the last failure, by `time.monotonic`; None: no restart is due."""
        self.is_done = False
        self.given_up: RequestError | None = None
        """Why it remains stopped while others run."""
        self.replaced: RequestError | None = None
        """Why a changed version was stopped before its first epoch, so that this one runs in its place."""
        self.moved_aside: str | None = None
        """The location of its checkpoint from before a reset."""
        self.restarts = Restarts()
        self.rows = 0
        self._spark = spark
        self._settings = settings
        self._generation: Generation | None = None
        """The newest one. It outlives its query, to report why that has failed."""
        self._attempt: Attempt | None = None
        self._reader: ProgressReader | None = None
        self._is_bound = self._is_kept = False
        self._started_at = self._progress_at = 0.0
        if standing is not None:
            self._continue_from(standing)

    def _continue_from(self, standing: Standing) -> None:
        self.restarts, self.last_failure, self.rows = standing.restarts, standing.last_failure, standing.rows
        self.given_up, self._is_bound = standing.given_up, standing.is_bound
        self.is_done = standing.restart_at is None
        is_waiting = standing.restart_at is not None and standing.restart_at > time.monotonic()
        self.restart_at = standing.restart_at if is_waiting else None

    def hand_over(self) -> Standing:
        """To another process, after `lose_spark`. This one must not use the pipeline any more."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.abandon()
        error = self.given_up
        return Standing(
            generation=None if generation is None else generation.number,
            inputs=self.pipeline.inputs,
            restarts=self.restarts,
            restart_at=None if self.is_done else self.restart_at or time.monotonic(),
            last_failure=self.last_failure,
            given_up=None if error is None else RequestError(str(error), error.hint),  # which can be pickled
            rows=self.rows,
            is_bound=self._is_bound,
        )

    @property
    def is_running(self) -> bool:
        return self._attempt is not None

    @property
    def ports(self) -> tuple[str, ...] | None:
        """None until it is planned."""
        return None if self.planned is None else self.planned.ports

    def plan(self) -> Planned:
        """Find out what it writes, once. Raises RequestError at the user's line."""
        if self.planned is None:
            self.planned = planned_of(self._spark, self.pipeline)
            log.info("%s is planned", self.pipeline.name)
        return self.planned

    def turn(self, now: float) -> None:
        """Start it if it is due, or check that it still runs. Raises RequestError when it has failed for good."""
        if self._attempt is not None:
            self._look(self._attempt, now)
        elif self.is_due(now):
            self._start(now)

    def _start(self, now: float) -> None:
        self._started_at = self._progress_at = now
        self._is_kept, self.restart_at = False, None
        planned = self.plan()
        try:
            for change in check_state(self.pipeline.name, planned.state, self._settings):
                log.warning("%s: %s", self.pipeline.name, change)
            generation, moved = begin_attempt(self.pipeline, planned, self._settings)
            self._report_by(generation)
            self.moved_aside = moved or self.moved_aside
            # Bound once: afterwards an operator may have changed the sinks.
            bind = not self._is_bound
            attempt = start_query(self._spark, self.pipeline, planned, self._settings, generation, bind=bind)
            self._attempt, self._is_bound = attempt, True
            self._reader = ProgressReader(attempt.query, partial(self._take, attempt))
            log.info("%s: its query runs", self.pipeline.name)
        except RequestError:
            raise
        except PenstockError as error:  # no worker answers, it has no room, or the checkpoint cannot be used
            self._fail(Failure.of(error), now)

    def _report_by(self, generation: Generation) -> None:
        before, self._generation = self._generation, generation
        if before is not None:
            before.stop(failed=True)

    @property
    def _has_progress(self) -> bool:
        """Whether this attempt has made progress."""
        return self._progress_at > self._started_at

    def _look(self, attempt: Attempt, now: float) -> None:
        if attempt.generation.fenced is not None:
            raise attempt.generation.fenced
        if attempt.query.isActive:
            if self._has_progress:
                self._keep_state_plan(attempt)
            return
        if _is_stopped(self._spark):  # the JVM is ending: the query has not failed
            raise ConnectionError("its context was stopped")
        exception = exception_text(attempt.query)
        if exception is None:
            self._keep_state_plan(attempt)
            self.stop()
            self.is_done = True
        else:
            self._stop_query()
            self._fail(self._located(failure_of(exception)), now)

    def _keep_state_plan(self, attempt: Attempt) -> None:
        """Once per attempt. The query runs without a stored plan too, but then only Spark notices an incompatible
        change, and too late.
        """
        if self._is_kept:
            return
        self._is_kept = True
        try:
            keep_state_plan(self.pipeline.name, attempt.state, self._settings)
        except Exception as error:  # Hadoop raises any type of exception through Py4J
            log.warning("the plan of %s is not in its checkpoint: %s", self.pipeline.name, error)

    def _fail(self, failure: Failure, now: float) -> None:
        """Schedule a restart. Raises RequestError if that would not help. An error in the user's code gets a second
        chance, because something that it depends on may have been unavailable.
        """
        is_again = failure.cause is not None and not self._has_progress and failure.cause == self._last_cause
        self.last_failure = failure
        self.restarts, pause = self.restarts.after_failure(
            self._progress_at - self._started_at, self._settings.restarts, is_outage=failure.is_outage
        )
        if failure.is_final or is_again:
            raise self._failed("has failed", failure)
        if pause is None:
            raise self._failed(f"was restarted {self._settings.restarts.restarts_max} times, and still fails", failure)
        self.restart_at = now + pause
        if self._generation is not None:  # otherwise the worker does not know it yet
            self._generation.failed(failure.summary, self.restarts.in_a_row, self.restart_at, failure.advice)

    @property
    def _last_cause(self) -> str | None:
        return None if self.last_failure is None else self.last_failure.cause

    def _failed(self, how: str, failure: Failure) -> RequestError:
        return RequestError(f"the pipeline {self.pipeline.name!r} {how}\n{failure.message}", failure.hint)

    def _located(self, failure: Failure) -> Failure:
        """With the events that the failed batch reads, if one of them may be the reason."""
        if failure.is_of_a_batch and not failure.is_outage:
            with suppress(PenstockError), CoordinatorClient(self._settings.worker, 0) as coordinator:
                return failure.at(coordinator.batch(self.pipeline.name), command_name(self.pipeline))
        return failure

    def lose_spark(self, failure: Failure, now: float) -> None:
        """Spark's JVM has ended, and the query with it. It is restarted in the next JVM."""
        self._attempt = None
        if self._reader is not None:
            self._reader.stop()
        if self.restart_at is None or now >= self.restart_at:
            self._fail(failure, now)

    def is_due(self, now: float) -> bool:
        """Whether it wants to be started."""
        return not self.is_done and not self.is_running and (self.restart_at is None or now >= self.restart_at)

    def give_up(self, error: RequestError) -> None:
        """It stays stopped. Its generation keeps reporting why."""
        self.given_up, self.is_done, self.restart_at = error, True, None
        self._stop_query()
        if self._generation is not None:
            failure = self._last_of(error)
            self._generation.failed(failure.summary, 1, None, failure.advice)

    def _last_of(self, error: RequestError) -> Failure:
        """The failure that it was given up for: of its query, or of its start."""
        last = self.last_failure
        return last if last is not None and last.message in str(error) else Failure.of(error)

    def _take(self, attempt: Attempt, progress: Progress, rows: int) -> None:
        """Called on a thread of its own."""
        if not self._has_progress:
            log.info(
                "%s: its first epoch since the start, %d, is committed: %s",
                self.pipeline.name,
                progress.epoch,
                progress.stages_text,
            )
        self.progress, self._progress_at = progress, time.monotonic()
        self.rows += rows
        if not attempt.ports and progress.cut is not None:  # Spark's own sink: with ports, the merge has committed it
            attempt.generation.committed(progress.cut)

    def stop(self) -> None:
        """Stop the query, then the heartbeat. Does nothing if it has already ended."""
        has_failed = self.given_up is not None or self.restart_at is not None
        self._stop_query()
        generation, self._generation = self._generation, None
        self.restart_at = None
        if generation is not None:
            generation.stop(failed=has_failed)

    def _stop_query(self) -> None:
        attempt, self._attempt = self._attempt, None
        reader, self._reader = self._reader, None
        if attempt is not None and reader is not None:
            with suppress(Exception):  # the JVM may be gone, or busy beyond the time limit
                attempt.query.stop()
                reader.finish()
            reader.stop()


def planned_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """Raises RequestError at the user's line, and for sinks bound to ports that the pipeline does not have."""
    planned = plan_of(spark, pipeline)
    check_ports(pipeline.sinks, planned.ports)
    return planned


def _is_stopped(spark: SparkSession) -> bool:
    """Whether the session's context was stopped: its JVM refuses most questions then. Py4J's own errors are raised."""
    try:
        return not spark.sparkContext.defaultParallelism
    except Py4JJavaError:
        return True


def _is_of_the_connection(error: Exception) -> bool:
    """Whether the connection to the JVM failed. Py4J raises a plain Py4JError for a call that got no answer, and
    Py4JJavaError for an exception in Java.
    """
    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


class Runner:
    """`run` until all pipelines have ended or `stop` is called. A pipeline that fails for good is given up while the
    others continue; its error is raised at the end. No pipeline starts before all are planned.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Sequence[Pipeline],
        settings: RunSettings,
        show: Callable[[Sequence[RunningPipeline]], None] = lambda _: None,
        *,
        change: Callable[[], None] = lambda: None,
        until_stopped: bool = False,
        driver: SparkDriver | None = None,
        standings: Mapping[str, Standing] | None = None,
    ) -> None:
        """`change` is called before every turn, and may add, replace and remove pipelines. `until_stopped`: `run`
        continues when no pipeline runs any more, unless all were given up and none ever started. `driver`: owns the
        session; if its JVM ends, `run` returns as soon as a pipeline needs another one, with `standings`. Without a
        driver, it raises RequestError. `standings`: of the process that ran these pipelines before.
        """
        self.pipelines: list[RunningPipeline] = []
        self._spark = spark
        self._settings = settings
        self._show = show
        self._change = change
        self._until_stopped = until_stopped
        self._driver = driver
        self._has_spark = True
        self._has_run = standings is not None
        self._stopping = threading.Event()
        self.standings: dict[str, Standing] | None = None
        """Set when the JVM has ended and a pipeline needs another one: PySpark cannot use a second JVM in a process."""
        known = standings or {}
        for pipeline in pipelines:
            self._replace(RunningPipeline(spark, pipeline, settings, standing=known.get(pipeline.name)))

    def check(self, pipeline: Pipeline) -> None:
        """Check that this pipeline could replace the one of the same name. Starts and stops nothing. Raises
        RequestError if it cannot be built, does not fit the stored state, or if that cannot be read.
        """
        planned = planned_of(self._spark, pipeline)
        try:
            check_state(pipeline.name, planned.state, self._settings)
        except CheckpointFailed as error:
            raise RequestError(
                f"the pipeline {pipeline.name!r} cannot be compared with its stored state: {error}", error.hint
            ) from error

    def put(self, pipeline: Pipeline) -> None:
        """Add this pipeline, or replace the one of the same name: that is stopped first, and this one continues where
        it stopped. If this one fails before its first epoch, the previous one runs again. The others are not affected.
        """
        before = next((one for one in self.pipelines if one.pipeline.name == pipeline.name), None)
        has_run = before is not None and before.given_up is None and before.progress is not None
        last = before.pipeline if before is not None and has_run else None
        self._replace(RunningPipeline(self._spark, pipeline, self._settings, last))

    def _replace(self, running: RunningPipeline) -> None:
        self.remove(running.pipeline.name)
        self.pipelines = [*self.pipelines, running]

    def remove(self, name: str) -> None:
        """Stop it cleanly. Does nothing if there is none."""
        for running in self.pipelines:
            if running.pipeline.name == name:
                running.stop()
        self.pipelines = [running for running in self.pipelines if running.pipeline.name != name]

    def stop(self) -> None:
        """Returns at once; may be called from a signal handler."""
        self._stopping.set()

    def run(self, seconds_max: float | None = None) -> None:
        """Raises RequestError when a pipeline has failed for good, Unavailable when the worker has ended that was
        started with it.
        """
        self._spark.createDataFrame([], "any int")  # sets this thread's session, without which Spark finds no sink
        deadline = None if seconds_max is None else time.monotonic() + seconds_max
        try:
            while not self._is_over(deadline):
                self._turn()
            if self.standings is None:
                self._check()
        finally:
            for pipeline in self.pipelines:
                pipeline.stop()
            self._show(self.pipelines)

    def _turn(self) -> None:
        try:
            self._change()
            self._look_after_spark()
            if self._has_spark:
                self._for_each(RunningPipeline.plan)
                self._for_each(lambda running: running.turn(time.monotonic()))
        except (Py4JError, OSError) as error:
            if self._stopping.is_set():  # a JVM that was stopped together with us has not failed, nor have its queries
                return
            if not _is_of_the_connection(error):
                raise
            self._lose_spark(f"no longer answers: {error}")
        self._has_run = self._has_run or any(running.is_running for running in self.pipelines)
        self._show(self.pipelines)
        self._stopping.wait(_TURN_SECONDS)

    def _look_after_spark(self) -> None:
        """Notice that the JVM has ended, and hand the pipelines over as soon as one of them needs another. The pauses
        between two attempts are those of the pipelines.
        """
        if self._driver is None or self._stopping.is_set():
            return
        if self._has_spark and (how := self._driver.ended()) is not None:
            self._lose_spark(how)
        if not self._has_spark and any(running.is_due(time.monotonic()) for running in self.pipelines):
            self.standings = {running.pipeline.name: running.hand_over() for running in self.pipelines}

    def _lose_spark(self, how: str) -> None:
        """All queries have ended with the JVM. Raises RequestError if another one cannot be started."""
        if self._driver is None:
            raise RequestError(f"Spark's JVM is gone: it {how}", "See its log for the reason.") from None
        self._has_spark = False
        how = self._driver.ended(_END_SECONDS) or how
        self._fail_all(Failure(f"Spark's JVM {how}", _JVM_HINT, is_outage=True))

    def _fail_all(self, failure: Failure) -> None:
        for running in self.pipelines:
            if not running.is_done:
                running.lose_spark(failure, time.monotonic())

    def _for_each(self, act: Callable[[RunningPipeline], object]) -> None:
        for running in self.pipelines:
            if self._stopping.is_set():
                return
            try:
                if not running.is_done:
                    act(running)
            except RequestError as error:
                if isinstance(cause := error.__cause__, Exception) and _is_of_the_connection(cause):
                    raise cause from None  # the JVM has ended while the user's code used it
                if not self._stopping.is_set():
                    self._give_up(running, error)

    def _give_up(self, running: RunningPipeline, error: RequestError) -> None:
        """A pipeline that replaced another and never completed an epoch is replaced by the previous one again."""
        running.give_up(error)
        if running.before is not None and running.progress is None:
            again = RunningPipeline(self._spark, running.before, self._settings)
            again.replaced = error
            self._replace(again)

    def _check(self) -> None:
        """Raises the error for which a pipeline was given up, unless the run was stopped."""
        for running in self.pipelines:
            if running.given_up is not None and not self._stopping.is_set():
                raise running.given_up

    def _is_over(self, deadline: float | None) -> bool:
        late = deadline is not None and time.monotonic() >= deadline
        stays = self._until_stopped and (self._has_run or not self._is_lost)
        is_done = not stays and all(pipeline.is_done for pipeline in self.pipelines)
        return late or self._stopping.is_set() or is_done or self.standings is not None

    @property
    def _is_lost(self) -> bool:
        return bool(self.pipelines) and all(pipeline.given_up is not None for pipeline in self.pipelines)
