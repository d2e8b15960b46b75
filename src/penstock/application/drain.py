"""How an application comes to rest: sources read no more, what is inside finishes, is delivered and acknowledged."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.application.instance import Instance
from penstock.delivery.breakers.signals import ApplicationGate
from penstock.ingest.sessions.gateway import Gateway
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus

LOOK_SECONDS = 0.1
"""Between two looks at what is still inside."""

_QUIET_LOOKS = 2
"""In a row that find nothing: what is read by a look may just be becoming durable."""


_STANDS = {
    "STARTING": ", and is STARTING",
    "STOPPED": ", and is STOPPED: start it with penstock run, or drop it with penstock pipeline drop {name}",
    "FAILING": ", and is FAILING: see why where penstock run has it. Correct it and use penstock apply, drop it with "
    "penstock pipeline drop {name}, or end penstock run with Ctrl-C: its events stay stored",
}
"""What to do about a pipeline that does not complete what is stored."""


class ComingToRest:
    """One drain of the whole application; `run` it once. `waits_for` says how far it is."""

    def __init__(
        self,
        instances: Mapping[str, Instance],
        gateway: Gateway,
        guard: ApplicationGate,
        pipelines: Callable[[], Sequence[PipelineStatus]],
        sinks: Callable[[], Sequence[SinkStatus]],
    ) -> None:
        self._instances = instances
        self._gateway = gateway
        self._guard = guard
        self._pipelines = pipelines
        self._sinks = sinks
        self._reading: set[str] = set()
        self.waits_for: list[str] = []
        """Sentences; empty when nothing is left."""

    async def run(self) -> None:
        """Return when all has left. What is stored of streams that a sink has closed stays held for it."""
        self._guard.shut()
        self._reading = {*self._instances}
        self.waits_for = [*self._left()]
        await asyncio.gather(*(self._drain(instance) for instance in self._instances.values()))
        await self._emptied()
        self._gateway.end_sessions()
        await self._emptied()  # with what came until then
        self.waits_for = []

    async def _drain(self, instance: Instance) -> None:
        await instance.drain()
        self._reading.discard(instance.name)
        self.waits_for = [*self._left()]

    async def _emptied(self) -> None:
        quiet = 0
        while quiet < _QUIET_LOOKS:
            for instance in self._instances.values():
                if instance.sink is not None and instance.sink.buffered:
                    await instance.sink.flush()
            self.waits_for = [*self._left()]
            quiet = 0 if self.waits_for else quiet + 1
            await asyncio.sleep(LOOK_SECONDS)

    def _left(self) -> Iterator[str]:
        for name in sorted(self._reading):
            yield f"connector {name} stores what it has read"
        waited = {pipeline.name: pipeline for pipeline in self._pipelines()}
        for pipeline in waited.values():
            if pipeline.lag_bytes:
                stands = _STANDS.get(pipeline.state, "").format(name=pipeline.name)
                yield f"pipeline {pipeline.name} has {pipeline.lag_bytes} bytes to complete{stands}"
        for sink in self._sinks():
            if sink.lacking and sink.pipeline in waited:
                reason = f": {sink.reason}" if sink.reason else ""
                yield f"sink {sink.sink} of pipeline {sink.pipeline} has {sink.lacking} epochs to take{reason}"
        for name, instance in self._instances.items():
            if instance.sink is not None and not instance.sink.is_idle:
                yield f"connector {name} holds events that can leave"
