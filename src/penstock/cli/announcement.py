"""While `penstock run` starts Spark, the worker knows for which pipelines: whoever sends to them can be told."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.runner import RunningPipeline

_AGAIN_SECONDS = 3.0
"""A few may be lost before the worker takes the start for given up."""

_ANSWER_SECONDS_MAX = 5.0


class Announcement:
    """Until `stop`, the worker hears again and again that Spark is being started for these pipelines."""

    def __init__(self, worker: str, pipelines: Mapping[str, Sequence[str]]) -> None:
        self._worker = worker
        self._pipelines = pipelines
        self._over = threading.Event()
        self._say()  # at once: a program that is started right behind us finds it said
        self._thread = threading.Thread(target=self._go_on, name="announcement of pipelines", daemon=True)
        self._thread.start()

    def look(self, pipelines: "Sequence[RunningPipeline]") -> None:
        """Stop when all of them have been started."""
        if all(one.is_running or one.is_done for one in pipelines):
            self.stop()

    def stop(self) -> None:
        """The pipelines speak for themselves now, or will never. Idempotent."""
        self._over.set()

    def _go_on(self) -> None:
        while not self._over.wait(_AGAIN_SECONDS):
            self._say()

    def _say(self) -> None:
        """A worker that is away is told the next time."""
        with (
            suppress(PenstockError),
            CoordinatorClient(self._worker, 0, timeout_seconds=_ANSWER_SECONDS_MAX) as coordinator,
        ):
            coordinator.announce(self._pipelines)


@contextmanager
def announced(worker: str, pipelines: "Sequence[Pipeline]") -> Iterator[Announcement]:
    announcement = Announcement(worker, {one.name: _sources(one) for one in pipelines})
    try:
        yield announcement
    finally:
        announcement.stop()


def _sources(pipeline: "Pipeline") -> list[str]:
    return list(dict.fromkeys(source for sources in pipeline.inputs.values() for source in sources))
