"""A runner of pipelines in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.waiting import SECONDS_MAX, until

if TYPE_CHECKING:
    from penstock.spark.run.runner import Runner, RunningPipeline


class RunnerThread(threading.Thread):
    def __init__(self, runner: Runner, seconds_max: float | None) -> None:
        super().__init__()
        self.runner = runner
        self._seconds_max = seconds_max
        self._raised: list[BaseException] = []

    @property
    def first(self) -> RunningPipeline:
        return self.runner.pipelines[0]

    def run(self) -> None:
        try:
            self.runner.run(self._seconds_max)
        except BaseException as error:
            self._raised.append(error)

    def check(self) -> None:
        """Raises what the runner has raised."""
        if self._raised:
            raise self._raised[0]

    def until(self, condition: Callable[[], object]) -> None:
        """As `until`, but fails at once when the runner has failed."""

        def is_so() -> object:
            self.check()
            return condition()

        until(is_so)


@contextmanager
def running(runner: Runner, seconds_max: float | None = None) -> Iterator[RunnerThread]:
    """Stopped at the end. What it has raised is for `check`: some tests are about a runner that gives up."""
    thread = RunnerThread(runner, seconds_max)
    thread.start()
    try:
        yield thread
    finally:
        runner.stop()
        thread.join(SECONDS_MAX)
