"""Runs pipelines in one Spark session: starts their queries, starts them again when they fail, stops them in order."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from penstock.core.errors import PenstockError, RequestError
from penstock.spark.attempt import Attempt, RunSettings, ports_of, start_attempt
from penstock.spark.declared_sinks import check_ports
from penstock.spark.failures import Failure, failure_of
from penstock.spark.pipelines import Pipeline
from penstock.spark.progress import Listener, Progress
from penstock.spark.restarts import Restarts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TURN_SECONDS = 0.2


def carry_by_value(pipelines: Sequence[Pipeline]) -> None:
    """Functions of the users' files travel to the Python workers whole: the files need not be there."""
    from pyspark.cloudpickle import register_pickle_by_value

    for pipeline in pipelines:
        register_pickle_by_value(sys.modules[pipeline.function.__module__])  # type: ignore[no-untyped-call]


class RunningPipeline:
    """One pipeline, over all its attempts. What a view shows of it is public."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, settings: RunSettings) -> None:
        self.pipeline = pipeline
        self.progress: Progress | None = None
        self.last_failure: Failure | None = None
        self.ports: tuple[str, ...] | None = None
        self.is_done = False
        self.given_up: RequestError | None = None
        """Why it stays stopped while others run."""
        self.restarts = Restarts()
        self.rows = 0
        self._spark = spark
        self._settings = settings
        self._attempt: Attempt | None = None
        self._is_bound = False
        self._start_at = self._started_at = self._progress_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._attempt is not None

    def plan(self) -> None:
        """Find out what leaves it, once. Raises RequestError at the user's line."""
        if self.ports is None and not self.is_done:
            ports = ports_of(self._spark, self.pipeline)
            check_ports(self.pipeline.sinks, ports)
            self.ports = ports

    def turn(self, now: float) -> None:
        """Start it if it is due, see whether it still runs. Raises RequestError when it has failed for good."""
        if self._attempt is not None:
            self._look(self._attempt, now)
        elif not self.is_done and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._started_at = self._progress_at = now
        self.plan()
        assert self.ports is not None
        try:
            # Bound once: afterwards an operator may have changed the sinks.
            bind = not self._is_bound
            self._attempt = start_attempt(self._spark, self.pipeline, self.ports, self._settings, bind=bind)
            self._is_bound = True
        except RequestError:
            raise
        except PenstockError as error:  # no worker answers, or it has no room
            self._fail(Failure(str(error), error.hint), now)

    def _look(self, attempt: Attempt, now: float) -> None:
        if attempt.generation.fenced is not None:
            raise attempt.generation.fenced
        if attempt.query.isActive:
            return
        error = attempt.query.exception()
        told = None if error is None else str(error)  # asks the JVM
        self.stop(failed=told is not None)
        if told is None:
            self.is_done = True
        else:
            self._fail(failure_of(told), now)

    def _fail(self, failure: Failure, now: float) -> None:
        self.last_failure = failure
        self.restarts, pause = self.restarts.after_failure(
            self._progress_at - self._started_at, self._settings.restarts
        )
        if failure.is_final:
            raise RequestError(f"the pipeline {self.pipeline.name!r} has failed\n{failure.text}", failure.hint)
        if pause is None:
            times = self._settings.restarts.restarts_max
            raise RequestError(
                f"the pipeline {self.pipeline.name!r} was started again {times} times, and fails\n{failure.text}",
                failure.hint,
            )
        self._start_at = now + pause

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
    if not attempt.ports and progress.epoch is not None:
        attempt.generation.committed(progress.epoch)


class Runner:
    """`run` until all pipelines have ended or `stop` is called. When one fails for good, all are stopped; `each_alone`:
    the others run on as long as there are any, and what it was is raised at the end. None starts before all are
    planned.
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
        each_alone: bool = False,
    ) -> None:
        """`change` is called before every turn, and may add, replace and remove pipelines. `until_stopped`: also when
        there is none that runs.
        """
        self.pipelines: list[RunningPipeline] = []
        self._spark = spark
        self._settings = settings
        self._show = show
        self._change = change
        self._until_stopped = until_stopped
        self._each_alone = each_alone
        self._is_planned = False
        self._stopping = threading.Event()
        for pipeline in pipelines:
            self.put(pipeline)

    def put(self, pipeline: Pipeline) -> None:
        """Run this one too, or in the place of the one of its name: that is stopped first, and it goes on where that
        was. All others run on untouched.
        """
        self.remove(pipeline.name)
        self.pipelines = [*self.pipelines, RunningPipeline(self._spark, pipeline, self._settings)]

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
            self._is_planned = True
            self._for_each(lambda running: running.turn(time.monotonic()))
        except (Py4JError, OSError, RequestError) as error:
            if self._stopping.is_set():  # a JVM that was told to stop together with us is no failure, nor its queries
                return
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"Spark's JVM is gone: {error}", "Its log says why.") from None
        self._show(self.pipelines)
        self._stopping.wait(_TURN_SECONDS)

    def _for_each(self, act: Callable[[RunningPipeline], None]) -> None:
        for running in self.pipelines:
            if self._stopping.is_set():
                return
            try:
                act(running)
            except RequestError as error:
                if not self._each_alone or not self._is_planned:
                    raise
                running.give_up(error)

    def _check(self) -> None:
        """Raises what a pipeline was given up for, unless people have ended all."""
        for running in self.pipelines:
            if running.given_up is not None and not self._stopping.is_set():
                raise running.given_up

    def _is_over(self, deadline: float | None) -> bool:
        late = deadline is not None and time.monotonic() >= deadline
        is_done = not self._until_stopped and all(pipeline.is_done for pipeline in self.pipelines)
        is_lost = self.pipelines and all(pipeline.given_up is not None for pipeline in self.pipelines)
        return late or self._stopping.is_set() or is_done or bool(is_lost)

    def _on_progress(self, query_id: str, progress: Progress) -> None:
        for pipeline in self.pipelines:
            pipeline.take(query_id, progress, time.monotonic())
