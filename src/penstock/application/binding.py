"""Registers the pipelines of a deployment at the coordinator, before connectors listen, so that what they will read is
retained for them from the first event on; and binds their sinks. A driver binds the sinks of a pipeline that it starts
for the first time.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from penstock.application.deployments import rebinding
from penstock.application.plan import starting_in
from penstock.coordinator.lifecycle import Lifecycle
from penstock.coordinator.machine.state import Pipeline
from penstock.core.errors import NoRoom, PenstockError
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.service import Delivery
from penstock.delivery.sink_slot import SlotState, SlotStatus
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import Deployment, End
from penstock.protocol.api.pipelines import InputSpec

log = logging.getLogger(__name__)

SETTLE_SECONDS = 10.0
"""The limit for a sink that moves to another port to receive what is merged in the old one: no more is merged there."""

_LOOK_SECONDS = 0.05

Votes = Callable[[str], bool | None]
"""Whether a connector votes; None if it could not be built."""


async def register(
    lifecycle: Lifecycle,
    known: Collection[str],
    deployment: Deployment,
    source: Callable[[End], str],
    revision: int,
) -> None:
    """Registers the pipelines that the coordinator does not know yet. The driver that starts one takes it over.
    `source` returns the name under which the end of a link is read.
    """
    for name, spec in deployment.pipelines.items():
        if name in known:
            continue
        starting = starting_in(spec.settings.get("starting", "earliest"))
        inputs = {
            port: InputSpec([*dict.fromkeys(map(source, ends))], starting)
            for port, ends in deployment.inputs(name).items()
        }
        try:
            await lifecycle.register(name, inputs, request=f"application, revision {revision}")
        except PenstockError as error:
            log.error("pipeline %s is not registered until its driver starts it: %s", name, error)


class Binding:
    """Also reports to the breakers when delivery waits for a sink that it serves by a URL."""

    def __init__(self, delivery: Delivery, pipelines: Callable[[], Mapping[str, Pipeline]], signals: Signals) -> None:
        self._delivery = delivery
        self._pipelines = pipelines
        self._signals = signals
        self._served: dict[tuple[str, str], str] = {}
        """By pipeline and sink: the connector, if delivery serves it by a URL."""
        delivery.watchers.append(self._changed)

    async def rebind(self, deployment: Deployment, given: Mapping[str, frozenset[str]], votes: Votes) -> None:
        """`given`: the sinks that pipelines had from earlier deployments."""
        for name in deployment.pipelines:
            if (pipeline := self._pipelines().get(name)) is not None:
                places = deployment.sink_names(name)
                wanted = {sink: SinkSpec(port, to) for sink, (port, to) in places.items() if votes(to) is not None}
                # A sink whose connector could not be built stays as it is.
                was_given = given.get(name, frozenset()) - (places.keys() - wanted.keys())
                await self._rebind(name, pipeline, wanted, was_given, votes)

    async def _rebind(
        self, name: str, pipeline: Pipeline, wanted: Mapping[str, SinkSpec], given: frozenset[str], votes: Votes
    ) -> None:
        # A sink whose connector's voting has changed is bound again.
        bound = {
            sink: SinkSpec(one.port, one.url if votes(one.url) in (None, one.votes) else "")
            for sink, one in pipeline.sinks.items()
        }
        todo = rebinding(wanted, given, bound)
        try:
            for sink in sorted(todo.unbind):
                await self._delivery.unbind(name, sink)
            if todo.bind:
                await self._delivery.bind(name, todo.bind)
        except PenstockError as error:
            # A port that the pipeline has not declared yet: its driver declares and binds it at the restart.
            log.info("the sinks of pipeline %s are left to its driver: %s", name, error)

    async def make_way(self, name: str, sinks: Mapping[str, SinkSpec], given: frozenset[str]) -> None:
        """Called when a pipeline restarts and is about to bind these sinks: those of the application that are bound to
        another port are unbound as soon as they have received everything that is merged. Raises NoRoom if that takes
        too long.
        """
        pipeline = self._pipelines().get(name)
        bound = {} if pipeline is None else {key: SinkSpec(one.port, one.url) for key, one in pipeline.sinks.items()}
        for sink in sorted(rebinding(sinks, given, bound).moved & given):
            await self._settled(name, sink)
            await self._delivery.unbind(name, sink)

    async def _settled(self, pipeline: str, sink: str) -> None:
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._lacks(pipeline, sink):  # noqa: ASYNC110  the ledger has no event for one sink
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise NoRoom(
                f"sink {sink} of pipeline {pipeline} has not received all output in its old codec",
                f"Make it available again, or give up that output: penstock sink remove {pipeline} {sink}",
            ) from None

    def _lacks(self, pipeline: str, sink: str) -> bool:
        found = [one for one in self._delivery.sinks() if (one.pipeline, one.sink) == (pipeline, sink)]
        return any(one.lacking for one in found)

    def serve(self, deployment: Deployment, is_served: Callable[[str], bool]) -> None:
        """From now on, reports these: sinks of connectors that delivery serves by a URL."""
        served = {
            (pipeline, sink): connector
            for pipeline in deployment.pipelines
            for sink, (_, connector) in deployment.sink_names(pipeline).items()
            if is_served(connector)
        }
        for (pipeline, sink), connector in self._served.items():
            if served.get((pipeline, sink)) != connector:
                self._signals.set_waiting(connector, pipeline, sink, None)
        self._served = served
        for pipeline in deployment.pipelines:
            self._delivery.retry(pipeline)

    def _changed(self, pipeline: str, sink: str, status: SlotStatus) -> None:
        connector = self._served.get((pipeline, sink))
        if connector is not None:
            is_lost = status.state in (SlotState.WAITING, SlotState.DIVERGED)
            reason = (status.reason or "it is lost") if is_lost else None
            self._signals.set_waiting(connector, pipeline, sink, reason)
