"""Runs pipelines in one Spark session: starts their queries, restarts them when they fail, stops them cleanly."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import CheckpointFailed, PenstockError, RequestError
from penstock.spark.pipelines import Pipeline, check_ports
from penstock.spark.run.attempt import (
    Attempt,
    Planned,
    Restarts,
    RunSettings,
    check_state,
    keep_state_plan,
    plan_of,
    start_attempt,
)
from penstock.spark.run.failures import Failure, failure_of, ranges_text
from penstock.spark.run.progress import Listener, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.2


def carry_by_value(pipelines: Sequence[Pipeline]) -> None:
    """Pickle functions of the users' files by value: the Python workers need not have the files."""
    from pyspark.cloudpickle import register_pickle_by_value

    for pipeline in pipelines:
        register_pickle_by_value(sys.modules[pipeline.function.__module__])  # type: ignore[no-untyped-call]


class RunningPipeline:
    """One pipeline, across all its attempts. The attributes that a view shows are public."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, settings: RunSettings, before: Pipeline | None = None
    ) -> None:
        """`before`: the pipeline of the same name that ran until now, and runs again if this one cannot."""
        self.pipeline = pipeline
        self.before = before
        self.planned: Planned | None = None
        self.progress: Progress | None = None
        self.last_failure: Failure | None = None
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
        self._attempt: Attempt | None = None
        self._is_bound = self._is_kept = False
        self._start_at = self._started_at = self._progress_at = 0.0

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
        return self.planned

    def turn(self, now: float) -> None:
        """Start it if it is due, or check that it still runs. Raises RequestError when it has failed for good."""
        if self._attempt is not None:
            self._look(self._attempt, now)
        elif not self.is_done and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._started_at = self._progress_at = now
        self._is_kept = False
        planned = self.plan()
        try:
            check_state(self._spark, self.pipeline.name, planned.state, self._settings)
            # Bound once: afterwards an operator may have changed the sinks.
            bind = not self._is_bound
            self._attempt = start_attempt(self._spark, self.pipeline, planned, self._settings, bind=bind)
            self._is_bound, self.moved_aside = True, self._attempt.moved_aside or self.moved_aside
        except RequestError:
            raise
        except PenstockError as error:  # no worker answers, it has no room, or the checkpoint cannot be used
            self._fail(Failure(str(error), error.hint), now)

    @property
    def _has_progress(self) -> bool:
        """Whether this attempt has made progress."""
        return self._progress_at > self._started_at

    def _look(self, attempt: Attempt, now: float) -> None:
        if attempt.generation.fenced is not None:
            raise attempt.generation.fenced
        if attempt.query.isActive:
            if self._has_progress:
                self._keep_state_plan()
            return
        error = attempt.query.exception()
        exception = None if error is None else str(error)  # asks the JVM
        if exception is None:
            self._keep_state_plan()
        self.stop(failed=exception is not None)
        if exception is None:
            self.is_done = True
        else:
            self._fail(failure_of(exception), now)

    def _keep_state_plan(self) -> None:
        """Once per attempt. The query runs without a stored plan too, but then only Spark notices an incompatible
        change, and too late.
        """
        if self._is_kept or self.planned is None:
            return
        self._is_kept = True
        try:
            keep_state_plan(self._spark, self.pipeline.name, self.planned.state, self._settings)
        except Exception as error:  # Hadoop raises any type of exception through Py4J
            log.warning("the plan of %s is not in its checkpoint: %s", self.pipeline.name, error)

    def _fail(self, failure: Failure, now: float) -> None:
        """Schedule a restart. Raises RequestError if that would not help. An error in the user's code gets a second
        chance, because something that it depends on may have been unavailable.
        """
        is_again = failure.cause is not None and not self._has_progress and failure.cause == self._last_cause
        self.last_failure = failure
        self.restarts, pause = self.restarts.after_failure(
            self._progress_at - self._started_at, self._settings.restarts
        )
        if failure.is_final or is_again:
            raise self._failed("has failed", failure)
        if pause is None:
            raise self._failed(f"was restarted {self._settings.restarts.restarts_max} times, and still fails", failure)
        self._start_at = now + pause

    @property
    def _last_cause(self) -> str | None:
        return None if self.last_failure is None else self.last_failure.cause

    def _failed(self, how: str, failure: Failure) -> RequestError:
        name = self.pipeline.name
        where = f"\n{text}" if failure.cause is not None and (text := self._events_text()) else ""
        return RequestError(f"the pipeline {name!r} {how}\n{failure.text}{where}", failure.hint)

    def _events_text(self) -> str:
        """Which events the failed batch reads."""
        with suppress(PenstockError), CoordinatorClient(self._settings.worker, 0) as coordinator:
            batch = coordinator.batch(self.pipeline.name)
            return ranges_text(batch)
        return ""

    def give_up(self, error: RequestError) -> None:
        self.given_up, self.is_done = error, True
        self.stop(failed=True)

    def take(self, query_id: str, progress: Progress, now: float) -> None:
        """Called by Spark's listener for each batch, on a thread of its own."""
        attempt = self._attempt
        if attempt is None or attempt.query_id != query_id:
            return
        self.progress, self._progress_at = progress, now
        self.rows += progress.rows
        _report_committed(attempt, progress)

    def stop(self, *, failed: bool = False) -> None:
        """Stop the query, then the heartbeat. Does nothing if it has already ended."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            with suppress(Exception):  # the JVM may be gone, or busy beyond the time limit
                attempt.query.stop()
                if (last := attempt.query.lastProgress) is not None:  # the listener may not have reported it yet
                    _report_committed(attempt, Progress.of(last))
            attempt.generation.stop(failed=failed)


def _report_committed(attempt: Attempt, progress: Progress) -> None:
    """Only for Spark's own sinks: with ports, the merge has already committed the epoch."""
    if not attempt.ports and progress.cut is not None:
        attempt.generation.committed(progress.cut)


def planned_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """Raises RequestError at the user's line, and for sinks bound to ports that the pipeline does not have."""
    planned = plan_of(spark, pipeline)
    check_ports(pipeline.sinks, planned.ports)
    return planned


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
    ) -> None:
        """`change` is called before every turn, and may add, replace and remove pipelines. `until_stopped`: `run`
        continues when no pipeline runs any more, unless all were given up and none ever started.
        """
        self.pipelines: list[RunningPipeline] = []
        self._spark = spark
        self._settings = settings
        self._show = show
        self._change = change
        self._until_stopped = until_stopped
        self._has_run = False
        self._stopping = threading.Event()
        for pipeline in pipelines:
            self.put(pipeline)

    def check(self, pipeline: Pipeline) -> None:
        """Check that this pipeline could replace the one of the same name. Starts and stops nothing. Raises
        RequestError if it cannot be built, does not fit the stored state, or if that cannot be read.
        """
        planned = planned_of(self._spark, pipeline)
        try:
            check_state(self._spark, pipeline.name, planned.state, self._settings)
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
        """Raises RequestError when a pipeline has failed for good, Unavailable when no worker answers."""
        self._spark.createDataFrame([], "any int")  # sets this thread's session, without which Spark finds no sink
        listener = Listener(self._on_progress)
        self._spark.streams.addListener(listener)
        deadline = None if seconds_max is None else time.monotonic() + seconds_max
        try:
            while not self._is_over(deadline):
                self._turn()
            self._check()
        finally:
            for pipeline in self.pipelines:
                pipeline.stop()
            with suppress(Exception):  # the JVM may be gone
                self._spark.streams.removeListener(listener)
            self._show(self.pipelines)

    def _turn(self) -> None:
        try:
            self._change()
            self._for_each(RunningPipeline.plan)
            self._for_each(lambda running: running.turn(time.monotonic()))
        except (Py4JError, OSError) as error:
            if self._stopping.is_set():  # a JVM that was stopped together with us has not failed, nor have its queries
                return
            if not _is_of_the_connection(error):
                raise
            raise RequestError(f"Spark's JVM is gone: {error}", "See its log for the reason.") from None
        self._has_run = self._has_run or any(running.is_running for running in self.pipelines)
        self._show(self.pipelines)
        self._stopping.wait(_TURN_SECONDS)

    def _for_each(self, act: Callable[[RunningPipeline], object]) -> None:
        for running in self.pipelines:
            if self._stopping.is_set():
                return
            try:
                if not running.is_done:
                    act(running)
            except RequestError as error:
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
        return late or self._stopping.is_set() or is_done

    @property
    def _is_lost(self) -> bool:
        return bool(self.pipelines) and all(pipeline.given_up is not None for pipeline in self.pipelines)

    def _on_progress(self, query_id: str, progress: Progress) -> None:
        for pipeline in self.pipelines:
            pipeline.take(query_id, progress, time.monotonic())
