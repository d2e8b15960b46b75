"""Runs pipelines in one Spark session: starts their queries, starts them again when they fail, stops them in order."""

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
    """Functions of the users' files travel to the Python workers whole: the files need not be there."""
    from pyspark.cloudpickle import register_pickle_by_value

    for pipeline in pipelines:
        register_pickle_by_value(sys.modules[pipeline.function.__module__])  # type: ignore[no-untyped-call]


class RunningPipeline:
    """One pipeline, over all its attempts. What a view shows of it is public."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, settings: RunSettings, before: Pipeline | None = None
    ) -> None:
        """`before`: the one of its name that ran until now, and runs again if this one cannot."""
        self.pipeline = pipeline
        self.before = before
        self.planned: Planned | None = None
        self.progress: Progress | None = None
        self.last_failure: Failure | None = None
        self.is_done = False
        self.given_up: RequestError | None = None
        """Why it stays stopped while others run."""
        self.replaced: RequestError | None = None
        """Why a changed one was stopped again before its first epoch, and this one runs in its place."""
        self.moved_aside: str | None = None
        """Where the checkpoint is that it had before a reset."""
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
        """Find out what leaves it, once. Raises RequestError at the user's line."""
        if self.planned is None:
            self.planned = planned_of(self._spark, self.pipeline)
        return self.planned

    def turn(self, now: float) -> None:
        """Start it if it is due, see whether it still runs. Raises RequestError when it has failed for good."""
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
        """In this attempt."""
        return self._progress_at > self._started_at

    def _look(self, attempt: Attempt, now: float) -> None:
        if attempt.generation.fenced is not None:
            raise attempt.generation.fenced
        if attempt.query.isActive:
            if self._has_progress:
                self._keep_state_plan()
            return
        error = attempt.query.exception()
        told = None if error is None else str(error)  # asks the JVM
        if told is None:
            self._keep_state_plan()
        self.stop(failed=told is not None)
        if told is None:
            self.is_done = True
        else:
            self._fail(failure_of(told), now)

    def _keep_state_plan(self) -> None:
        """Once in each attempt. A query runs without it: then a changed one is compared by Spark, and too late."""
        if self._is_kept or self.planned is None:
            return
        self._is_kept = True
        try:
            keep_state_plan(self._spark, self.pipeline.name, self.planned.state, self._settings)
        except Exception as error:  # Hadoop's, through Py4J, are of any kind
            log.warning("the plan of %s is not in its checkpoint: %s", self.pipeline.name, error)

    def _fail(self, failure: Failure, now: float) -> None:
        """Start it again later. Raises RequestError if that would not help: a mistake in the user's code is given a
        second chance, for what it depends on may have been away.
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
        """Spark's listener tells of a batch, in a thread of its own."""
        attempt = self._attempt
        if attempt is None or attempt.query_id != query_id:
            return
        self.progress, self._progress_at = progress, now
        self.rows += progress.rows
        _tell(attempt, progress)

    def stop(self, *, failed: bool = False) -> None:
        """The query, then the sign of life. It is well if it has ended before."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            with suppress(Exception):  # the JVM may be gone, or busy for longer than it may be
                attempt.query.stop()
                if (last := attempt.query.lastProgress) is not None:  # the listener may not have told it yet
                    _tell(attempt, Progress.of(last))
            attempt.generation.stop(failed=failed)


def _tell(attempt: Attempt, progress: Progress) -> None:
    """Spark's own sinks: the batch is committed. With ports, the merge has said so."""
    if not attempt.ports and progress.cut is not None:
        attempt.generation.committed(progress.cut)


def planned_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """Raises RequestError at the user's line, and for sinks of ports that it does not have."""
    planned = plan_of(spark, pipeline)
    check_ports(pipeline.sinks, planned.ports)
    return planned


def _is_of_the_connection(error: Exception) -> bool:
    """Whether it is the connection to the JVM that failed. Py4J raises a plain Py4JError for a call that got no answer,
    Py4JJavaError for what Java has thrown.
    """
    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


class Runner:
    """`run` until all pipelines have ended or `stop` is called. One that fails for good is given up and the others run
    on; why is raised at the end. None starts before all are planned.
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
        """`change` is called before every turn, and may add, replace and remove pipelines. `until_stopped`: also when
        none runs any more, but for pipelines of which none was ever started.
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
        """Whether this one could be put in the place of the one of its name. Nothing is started or stopped. Raises
        RequestError where it cannot be built, does not fit the stored state, or where that cannot be read.
        """
        planned = planned_of(self._spark, pipeline)
        try:
            check_state(self._spark, pipeline.name, planned.state, self._settings)
        except CheckpointFailed as error:
            raise RequestError(
                f"the pipeline {pipeline.name!r} cannot be compared with its stored state: {error}", error.hint
            ) from error

    def put(self, pipeline: Pipeline) -> None:
        """Run this one too, or in the place of the one of its name: that is stopped first, and it goes on where that
        was. If it fails before its first epoch, the one before it runs again. All others run on untouched.
        """
        before = next((one for one in self.pipelines if one.pipeline.name == pipeline.name), None)
        has_run = before is not None and before.given_up is None and before.progress is not None
        last = before.pipeline if before is not None and has_run else None
        self._replace(RunningPipeline(self._spark, pipeline, self._settings, last))

    def _replace(self, running: RunningPipeline) -> None:
        self.remove(running.pipeline.name)
        self.pipelines = [*self.pipelines, running]

    def remove(self, name: str) -> None:
        """Stop it, in order. It is well if there is none."""
        for running in self.pipelines:
            if running.pipeline.name == name:
                running.stop()
        self.pipelines = [running for running in self.pipelines if running.pipeline.name != name]

    def stop(self) -> None:
        """Returns at once; may be called from a signal handler."""
        self._stopping.set()

    def run(self, seconds_max: float | None = None) -> None:
        """Raises RequestError when a pipeline has failed for good, Unavailable when no worker answers."""
        self._spark.createDataFrame([], "any int")  # makes it this thread's session: Spark finds no sink without one
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
            if self._stopping.is_set():  # a JVM that was told to stop together with us is no failure, nor its queries
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
        """One that has taken the place of another before, and never ended an epoch, makes way for it again."""
        running.give_up(error)
        if running.before is not None and running.progress is None:
            again = RunningPipeline(self._spark, running.before, self._settings)
            again.replaced = error
            self._replace(again)

    def _check(self) -> None:
        """Raises what a pipeline was given up for, unless people have ended all."""
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
