"""Draining an application: sources stop reading; what was read is processed, delivered and acknowledged."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.application.instance import Instance
from penstock.delivery.breakers.signals import ApplicationGate
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.protocol.api.delivery import SinkStatus
from penstock.protocol.api.pipelines import PipelineStatus

LOOK_SECONDS = 0.1
"""Between two polls of what is left."""

_QUIET_LOOKS = 2
"""Consecutive polls that must find nothing: what a source has read last may not be durable yet."""


_ADVICE = {
    "STARTING": ", and is STARTING",
    "STOPPED": ", and is STOPPED: start it with penstock run, or drop it with penstock pipeline drop {name}",
    "FAILING": ", and is FAILING: see the output of penstock run. Fix it and use penstock apply, drop it with "
    "penstock pipeline drop {name}, or stop penstock run with Ctrl-C: its events stay stored",
}
"""What an operator can do about a pipeline that does not make progress."""


class Drain:
    """One drain of the whole application; `run` it once. `waits_for` is what it still waits for."""

    def __init__(
        self,
        instances: Mapping[str, Instance],
        programs: ProgramServer,
        gate: ApplicationGate,
        pipelines: Callable[[], Sequence[PipelineStatus]],
        sinks: Callable[[], Sequence[SinkStatus]],
        elsewhere: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`elsewhere`: what instances of the connectors in other shards still have to do."""
        self._instances = instances
        self._programs = programs
        self._gate = gate
        self._pipelines = pipelines
        self._sinks = sinks
        self._elsewhere = elsewhere
        self._reading: set[str] = set()
        self.waits_for: list[str] = []
        """Sentences; empty when nothing is left."""

    async def run(self) -> None:
        """Returns when everything has left. The rows of tripped streams stay in the outbox."""
        self._gate.shut()
        self._reading = {*self._instances}
        self.waits_for = [*self._left()]
        await asyncio.gather(*(self._drain(instance) for instance in self._instances.values()))
        await self._emptied()
        self._programs.end_sessions()
        await self._emptied()  # including what programs sent until then
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
            yield f"connector {name} is storing what it has read"
        yield from self._elsewhere()
        waited = {pipeline.name: pipeline for pipeline in self._pipelines()}
        for pipeline in waited.values():
            if pipeline.lag_bytes:
                advice = _ADVICE.get(pipeline.state, "").format(name=pipeline.name)
                yield f"pipeline {pipeline.name} still has {pipeline.lag_bytes} bytes to complete{advice}"
        for sink in self._sinks():
            if sink.lacking and sink.pipeline in waited:
                reason = f": {sink.reason}" if sink.reason else ""
                yield f"sink {sink.sink} of pipeline {sink.pipeline} still lacks {sink.lacking} epochs{reason}"
        for name, instance in self._instances.items():
            if instance.sink is not None and not instance.sink.is_idle:
                yield f"connector {name} has buffered or retained events to send"
