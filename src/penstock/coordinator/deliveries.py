"""What delivery needs of the coordinator: which epochs wait for which sinks, and its decisions, durable."""

import logging
from collections.abc import Mapping
from uuid import uuid4

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.commands import Attempt, Bind, Decide, Follow, Park, Unbind
from penstock.coordinator.machine.delivery import check_park
from penstock.coordinator.machine.state import Pipeline, Sink, State
from penstock.coordinator.records import Records
from penstock.coordinator.shared import News, Shared
from penstock.core.errors import PipelineError
from penstock.protocol.stored.names import COORDINATOR_PREFIX, check_pipeline_name, output_segment

log = logging.getLogger(__name__)

_PARKING_PREFIX = f"{COORDINATOR_PREFIX}parking/"
_COPY_BYTES = 4 << 20
"""Copied at once, if no single record is longer."""
_UNWRITTEN_BYTES_MAX = 16 << 20
"""Of a copy: what waits for the disk is in memory."""


def parked_port(sink: str) -> str:
    """Where the dead letters of a sink are: a port of the pipeline like others, for whoever wants to read them."""
    return f"parked.{sink}"


class Deliveries:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    @property
    def state(self) -> State:
        return self._shared.state

    @property
    def records(self) -> Records:
        return self._shared.records

    @property
    def news(self) -> News:
        return self._shared.news

    async def settled(self) -> None:
        """Return when the state, as it is now, is durable."""
        await self._shared.keeper.settled()

    async def bind(self, name: str, sinks: Mapping[str, tuple[str, str, bool]]) -> None:
        """Sinks by name: port, URL, whether it votes. A new one begins with what is merged next."""
        check_pipeline_name(name)
        given, emptied = {}, set()
        for sink, (port, url, votes) in sinks.items():
            check_pipeline_name(parked_port(check_pipeline_name(sink, "sink")), "port")
            segment = output_segment(name, check_pipeline_name(port, "port"))
            at = int(self._shared.store.length(segment)) if self._shared.store.exists(segment) else 0
            if self.records.begin(segment) == at:
                emptied.add(port)
            given[sink] = port, url, votes, at
        self._shared.keeper.commit(Bind(name, given, tuple(sorted(emptied))))
        await self.settled()

    async def unbind(self, name: str, sink: str) -> None:
        self._shared.keeper.commit(Unbind(name, sink))
        await self.settled()

    def attempt(self, name: str, seen: Pipeline) -> int:
        """The number of a new round of the pipeline as it was `seen`; durable after `settled`. Raises PipelineError if
        something about its sinks has changed since: whoever looked must look again.
        """
        now = known(self.state, name)
        if (now.incarnation, _voting(now)) != (seen.incarnation, _voting(seen)):
            raise PipelineError(f"the sinks of pipeline {name!r} have changed meanwhile")
        self._shared.keeper.commit(Attempt(name))
        return self.state.attempts

    async def decide(self, name: str, attempt: int, batch: int, sent: Mapping[str, int]) -> None:
        """The commit point. Raises PipelineError if the round can no longer be decided, so that it must be aborted.
        After any other error nobody knows: then nothing may be said to the sinks.
        """
        self._shared.keeper.commit(Decide(name, attempt, batch, sent))
        await self.settled()

    async def follow(self, name: str, seen: Pipeline, sink: str, batch: int, sent: int) -> None:
        """It has taken what it lacked of the pipeline as it was `seen`. Raises PipelineError if that is no longer so: a
        batch of another incarnation has the same number and other bytes, and the sink may be elsewhere by now.
        """
        now = known(self.state, name)
        if now.incarnation != seen.incarnation or now.sinks.get(sink) != seen.sinks[sink]:
            raise PipelineError(f"sink {sink!r} of pipeline {name!r} has changed meanwhile")
        self._shared.keeper.commit(Follow(name, sink, batch, sent))
        await self.settled()

    def delivered(self, name: str, rows: Mapping[str, int]) -> None:
        """Count an epoch, with its rows, for each of these sinks."""
        self._shared.flow.delivered(name, rows)

    async def park(self, name: str, sink: str, batch: int) -> None:
        """The sink never gets the batch: its bytes are copied to the sink's dead letters in the step that says so."""
        async with self._shared.lock(name):
            pipeline = known(self.state, name)
            check_park(pipeline, Park(name, sink, batch))
            await self.settled()  # what was merged can be read now
            copy = f"{_PARKING_PREFIX}{uuid4()}"
            self._shared.store.create(copy, NO_QUOTA, draining=True)
            try:
                await self._copy(name, pipeline, sink, batch, copy)
                target = self._output(name, parked_port(sink))
                self._shared.keeper.commit(Park(name, sink, batch, ((target, copy),)))
            except BaseException:
                self._shared.store.delete(copy)
                raise
            await self.settled()

    async def _copy(self, name: str, pipeline: Pipeline, sink: str, batch: int, copy: str) -> None:
        """In whole records, for cuts of whoever reads it will lie on their ends. What retention by time or by size has
        taken is not there: it must not keep the sink waiting for ever.
        """
        bound, records = pipeline.sinks[sink], self._shared.records
        segment, end = output_segment(name, bound.port), pipeline.batches[batch].ends[bound.port]
        at = max(bound.at, min(records.begin(segment), end))
        if at > bound.at:
            log.warning("%d bytes that were to be parked for sink %s are truncated", at - bound.at, sink)
        unwritten = 0
        while at < end:
            length = max(_COPY_BYTES, self._shared.store.record(segment, at).end - at)
            data = (await records.data(segment, at, length))[: end - at]
            self._shared.store.append(copy, [data], draining=True)
            at += len(data)
            unwritten += len(data)
            if unwritten >= _UNWRITTEN_BYTES_MAX:
                self._shared.keeper.cover()
                await self.settled()
                unwritten = 0

    def _output(self, name: str, port: str) -> str:
        segment = output_segment(name, port)
        if not self._shared.store.exists(segment):
            self._shared.store.create(segment, NO_QUOTA, draining=True)
        return segment

    def sweep(self) -> None:
        """Remove what a crash has left of a copy."""
        for info in self._shared.store.segments(_PARKING_PREFIX):
            self._shared.store.delete(info.name)


def _voting(pipeline: Pipeline) -> dict[str, Sink]:
    return {name: sink for name, sink in pipeline.sinks.items() if sink.votes}
