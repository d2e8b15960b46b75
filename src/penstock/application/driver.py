"""What a runner follows while it runs: a worker that is drained, and an application whose deployment changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.application.functions import Coded
from penstock.application.pipelines import pipeline_of, plan_of
from penstock.client.coordinator.application import ApplicationClient
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.protocol.api.deployment import Deployed, Deployment

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.run.runner import Runner

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
            new = self._look(self.runner)
        except Unavailable:
            return
        old, self._now = self._now, new
        if old.revision != new.revision:
            self._change(self.runner, old.deployment, new.deployment)
        elif old.state == "running" and new.state == "draining":
            self._say("sources read no more; what is inside finishes …")
        self._start_reset(self.runner, old, new)
        if self.is_drained:
            self.runner.stop()

    def _look(self, runner: Runner) -> Deployed:  # noqa: ARG002  a driver's
        return self._client.application()

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        """Another deployment is none of a plain runner's business."""

    def _start_reset(self, runner: Runner, old: Deployed, new: Deployed) -> None:
        """A pipeline that had failed, and was reset since, begins from scratch."""
        for running in runner.pipelines:
            name = running.pipeline.name
            before, now = old.incarnations.get(name), new.incarnations.get(name)
            if running.given_up is not None and before is not None and before != now:
                self._say(f"{name} was reset, and starts from scratch")
                runner.put(running.pipeline)

    def close(self) -> None:
        self._client.close()


class Driver(Follower):
    """Gives a runner its pipelines, those of the application that is deployed. A change is checked before it is made;
    users' mistakes are reported, and what ran before them runs on.
    """

    def _look(self, runner: Runner) -> Deployed:
        new = self._client.follow()
        if new.proposed is not None:
            self._client.answer(new.proposed.number, self._refusals(runner, new.proposed.deployment))
        return new

    def _refusals(self, runner: Runner, deployment: Deployment) -> list[str]:
        """Of the pipelines that would be started. Nothing is started or stopped."""
        refusals = []
        for name in changed(self._now.deployment, deployment).start:
            try:
                runner.check(_loaded(deployment, name))
            except RequestError as error:
                refusals.append(_told(error))
        return refusals

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        todo = changed(old, new)
        for name in todo.stop:
            runner.remove(name)
            self._say(f"{name} is stopped: it is no longer deployed")
        for name in todo.start:
            self._start(runner, new, name, again=name in old.pipelines)

    def _start(self, runner: Runner, deployment: Deployment, name: str, *, again: bool) -> None:
        try:
            pipeline = _loaded(deployment, name)
            with suppress(Unavailable):  # the runner compares it again when it starts it
                runner.check(pipeline)
        except RequestError as error:
            runs_on = f"\n{name} runs on as it was" if again else ""
            self._say(f"{name} cannot be started: {_told(error)}{runs_on}")
            return
        self._say(f"{name} is {'restarted: it has changed' if again else 'started'}")
        runner.put(pipeline)

    def close(self) -> None:
        with suppress(PenstockError):  # one that is silent is taken for gone
            self._client.leave()
        super().close()


def _loaded(deployment: Deployment, name: str) -> Pipeline:
    pipeline = pipeline_of(deployment, name)
    carry_by_value(pipeline)
    return pipeline


def _told(error: PenstockError) -> str:
    return f"{error}\n{error.hint}" if error.hint else str(error)
