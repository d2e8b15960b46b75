"""What a runner follows while it runs: a worker that is drained, and an application whose deployment changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.application.building import Coded
from penstock.application.pipelines import pipeline_of, plan_of
from penstock.client.coordinator.application import ApplicationClient, Deployed
from penstock.config.deployment import Deployment
from penstock.core.errors import PenstockError, RequestError, Unavailable

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.runner import Runner

LOOK_SECONDS = 0.5
"""Between two looks at what is deployed: `penstock apply` and `stop` are people's, and need be no faster."""

_ANSWER_SECONDS = 0.0
"""A worker that is away is asked again with the next look: pipelines wait for it by themselves."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What differs for a driver: pipelines to stop, and to start or to start anew. All others run on."""

    stop: tuple[str, ...]
    start: tuple[str, ...]


def changed(old: Deployment, new: Deployment) -> Changed:
    both = old.pipelines.keys() & new.pipelines.keys()
    same = {name for name in both if plan_of(old, name) == plan_of(new, name)}
    return Changed(
        tuple(name for name in old.pipelines if name not in new.pipelines),
        tuple(name for name in new.pipelines if name not in same),
    )


def carry_by_value(pipeline: Pipeline) -> None:
    """The user's module travels to the Python workers whole: the file need not be there."""
    from pyspark.cloudpickle import register_pickle_by_value

    if isinstance(pipeline.function, Coded):
        register_pickle_by_value(pipeline.function.function.module)  # type: ignore[no-untyped-call]


class Follower:
    """Ends a runner when `penstock stop` has drained its worker. The runner calls `follow` before every turn."""

    def __init__(self, worker: str, first: Deployed, say: Callable[[str], None]) -> None:
        """`first` is what is deployed when the runner begins."""
        self._client = ApplicationClient(worker, _ANSWER_SECONDS)
        self._now = first
        self._say = say
        self._looked = 0.0
        self.runner: Runner | None = None

    @property
    def is_drained(self) -> bool:
        return self._now.state == "drained"

    def follow(self) -> None:
        """Look at what is deployed, and change what runs; stop when all is drained."""
        assert self.runner is not None
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            new = self._client.application()
        except Unavailable:
            return
        old, self._now = self._now, new
        if old.revision != new.revision:
            self._change(self.runner, old.deployment, new.deployment)
        elif old.state == "running" and new.state == "draining":
            self._say("sources read no more; what is inside finishes …")
        if self.is_drained:
            self.runner.stop()

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        """Another deployment is none of a plain runner's business."""

    def close(self) -> None:
        self._client.close()


class Driver(Follower):
    """Gives a runner its pipelines, those of the application that is deployed. Users' mistakes are said, and the
    pipelines that have them stay stopped until the next change.
    """

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        todo = changed(old, new)
        for name in todo.stop:
            runner.remove(name)
            self._say(f"{name} is stopped: it is no longer deployed")
        for name in todo.start:
            self._start(runner, new, name, again=name in old.pipelines)

    def _start(self, runner: Runner, deployment: Deployment, name: str, *, again: bool) -> None:
        try:
            pipeline = pipeline_of(deployment, name)
            carry_by_value(pipeline)
        except RequestError as error:
            runner.remove(name)
            self._say(f"{name} cannot be started: {_told(error)}")
            return
        self._say(f"{name} is started{' anew: it has changed' if again else ''}")
        runner.put(pipeline)


def _told(error: PenstockError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)
