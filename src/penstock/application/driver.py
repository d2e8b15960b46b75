"""The Spark driver of an application: it follows the worker's deployment, and stops when the worker is drained."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.application.deployments import pipeline_changes
from penstock.application.functions import Coded, pipeline_of
from penstock.client.coordinator.client import ApplicationClient
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.protocol.api.deployment import Deployed, Deployment

if TYPE_CHECKING:
    from penstock.spark.pipelines import Pipeline
    from penstock.spark.run.runner import Runner

LOOK_SECONDS = 0.5
"""Between two polls of the deployment: `penstock apply` and `stop` are for people, who notice no shorter delay."""

_ANSWER_SECONDS = 0.0
"""An unavailable worker is asked again at the next poll: pipelines wait for it themselves."""


def carry_by_value(pipeline: Pipeline) -> None:
    """Send the user's module to the Python workers by value: they need not have the file."""
    from pyspark.cloudpickle import register_pickle_by_value

    if isinstance(pipeline.function, Coded):
        register_pickle_by_value(pipeline.function.function.module)  # type: ignore[no-untyped-call]


class Follower:
    """Stops a runner when `penstock stop` has drained its worker. The runner calls `follow` before every turn."""

    def __init__(self, worker: str, first: Deployed, report: Callable[[str], None]) -> None:
        """`first` is the deployment at the start of the runner."""
        self._client = ApplicationClient(worker, _ANSWER_SECONDS)
        self._now = first
        self._report = report
        self._looked = 0.0
        self.runner: Runner | None = None

    @property
    def deployed(self) -> Deployed:
        """As it was seen last."""
        return self._now

    @property
    def is_drained(self) -> bool:
        return self._now.state == "drained"

    def follow(self) -> None:
        """Poll the deployment and change what runs; stop when everything is drained."""
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
            self._report("draining: sources have stopped, what they sent is processed and delivered …")
        self._start_again(self.runner, old, new)
        if self.is_drained:
            self.runner.stop()

    def _look(self, runner: Runner) -> Deployed:  # noqa: ARG002  a driver's
        return self._client.application()

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        """A plain runner has its own pipelines: a new deployment does not concern it."""

    def _start_again(self, runner: Runner, old: Deployed, new: Deployed) -> None:
        """Start a pipeline that failed and has been reset since, from scratch, or of which events were buried since."""
        for running in runner.pipelines:
            name = running.pipeline.name
            if running.given_up is None:
                continue
            before, now = old.incarnations.get(name), new.incarnations.get(name)
            if before is not None and before != now:
                self._report(f"{name} was reset and starts from scratch")
                runner.put(running.pipeline)
            elif new.buried.get(name, 0) > old.buried.get(name, 0):
                self._report(f"events of {name} were buried: it is restarted")
                runner.put(running.pipeline)

    def close(self) -> None:
        self._client.close()


class Driver(Follower):
    """Runs the pipelines of the deployed application in a runner. A change is checked before it is applied; users'
    mistakes are reported, and what ran before continues.
    """

    def _look(self, runner: Runner) -> Deployed:
        new = self._client.follow()
        if new.proposed is not None:
            self._client.answer(new.proposed.number, self._refusals(runner, new.proposed.deployment))
        return new

    def _refusals(self, runner: Runner, deployment: Deployment) -> list[str]:
        """For the pipelines that would start; nothing is started or stopped."""
        refusals = []
        for name in pipeline_changes(self._now.deployment, deployment).start:
            try:
                runner.check(_loaded(deployment, name))
            except RequestError as error:
                refusals.append(_message(error))
        return refusals

    def _change(self, runner: Runner, old: Deployment, new: Deployment) -> None:
        todo = pipeline_changes(old, new)
        for name in todo.stop:
            runner.remove(name)
            self._report(f"{name} is stopped: it is no longer deployed")
        for name in todo.start:
            self._start(runner, new, name, again=name in todo.restart)

    def _start(self, runner: Runner, deployment: Deployment, name: str, *, again: bool) -> None:
        try:
            pipeline = _loaded(deployment, name)
            with suppress(Unavailable):  # the runner checks it again when it starts it
                runner.check(pipeline)
        except RequestError as error:
            continues = f"\n{name} continues as it was" if again else ""
            self._report(f"{name} cannot be started: {_message(error)}{continues}")
            return
        self._report(f"{name} is {'restarted: it has changed' if again else 'started'}")
        runner.put(pipeline)

    def close(self) -> None:
        with suppress(PenstockError):  # a silent driver is considered gone anyway
            self._client.leave()
        super().close()


def _loaded(deployment: Deployment, name: str) -> Pipeline:
    pipeline = pipeline_of(deployment, name)
    carry_by_value(pipeline)
    return pipeline


def _message(error: PenstockError) -> str:
    return f"{error}\n{error.hint}" if error.hint else str(error)
