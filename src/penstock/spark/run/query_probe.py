"""Asks Spark's JVM how a query gets on: proof of life that the driver's own process cannot give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.api.pipelines import QueryReport
from penstock.spark.run.session import is_remote

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ASK_SECONDS = 2.0
"""Between two questions. The worker's status names a silent JVM after 10 s, so a few may take long."""

_DOING_CHARACTERS_MAX = 200
"""Of Spark's words: some contain the plan of a source."""


class Answer(NamedTuple):
    """Of the JVM, at one moment."""

    doing: str
    tasks_done: int
    tasks: int


Ask = Callable[[], Answer]
"""Blocks for as long as the JVM does not answer, and raises when it is gone."""


class QueryProbe:
    """Asks in a thread of its own, because a question to a stopped JVM does not return; `report` never waits."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._answer = Answer("", 0, 0)
        self._answered_at = self._moved_at = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="query probe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns at once: the thread may be waiting for the JVM."""
        self._over.set()

    def report(self) -> QueryReport:
        now, answer = self._clock(), self._answer
        return QueryReport(
            jvm_silent_seconds=now - self._answered_at,
            doing=answer.doing[:_DOING_CHARACTERS_MAX],
            tasks_done=answer.tasks_done,
            tasks=answer.tasks,
            unmoved_seconds=now - self._moved_at,
        )

    def _run(self) -> None:
        """Until it is stopped. A request that fails counts as no answer: if the JVM is gone, the runner notices."""
        while not self._over.is_set():
            with suppress(Exception):  # of Py4J or Java: one may fail because a job ends at that moment
                self._note(self._ask())
            self._over.wait(ASK_SECONDS)

    def _note(self, answer: Answer) -> None:
        self._answered_at = self._clock()
        if answer != self._answer:
            self._answer, self._moved_at = answer, self._answered_at


class QueryQuestion:
    """Asks what a query does, and how many tasks of its current jobs are done."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._query = query
        self._group = str(query.runId)
        self._tracker = None if is_remote(spark) else spark.sparkContext.statusTracker()
        """With Spark Connect, nothing is known about tasks."""
        self._active: list[int] = []
        self._own: list[int] = []

    def __call__(self) -> Answer:
        """Tasks are counted only of jobs that ran at the last call, too: to find out which jobs are the query's takes
        a call for every job that Spark remembers.
        """
        if self._tracker is None:
            return Answer(self._query.status["message"], 0, 0)
        active = self._tracker.getActiveJobsIds()
        if not active or active != self._active:
            self._active, self._own = active, []
        elif not self._own:
            self._own = sorted({*active}.intersection(self._tracker.getJobIdsForGroup(self._group)))
        tasks = (_tasks(self._tracker, job) for job in self._own)
        done, total = map(sum, zip((0, 0), *tasks, strict=True))
        return Answer(self._query.status["message"], done, total)


def _tasks(tracker: StatusTracker, job: int) -> tuple[int, int]:
    """Done, and all."""
    info = tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(stage) for stage in ([] if info is None else info.stageIds)]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
