"""The coordinator as delivery uses it: which epochs wait for which sinks, and durable decisions about them."""

import logging
from collections.abc import Mapping, Sequence
from uuid import uuid4

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.apply import known
from penstock.coordinator.machine.commands import Adopt, Attempt, Bind, Decide, Follow, Park, Unbind
from penstock.coordinator.machine.delivery import check_park
from penstock.coordinator.machine.state import Pipeline, Sink, State
from penstock.coordinator.records import Records
from penstock.coordinator.shared import News, Shared
from penstock.coordinator.traces import Traces
from penstock.core.errors import PipelineError
from penstock.protocol.stored.names import COORDINATOR_PREFIX, check_pipeline_name, output_segment

log = logging.getLogger(__name__)

_PARKING_PREFIX = f"{COORDINATOR_PREFIX}parking/"
_COPY_BYTES = 4 << 20
"""Bytes to copy per step, unless a single record is longer."""
_UNWRITTEN_BYTES_MAX = 16 << 20
"""Limit for a copy that is not durable yet: it is in memory."""


def parked_port(sink: str) -> str:
    """The port with the epochs that were parked for a sink. It can be read like any other port of the pipeline."""
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

    @property
    def traces(self) -> Traces:
        return self._shared.traces

    async def settled(self) -> None:
        """Return when the state, as it is now, is durable."""
        await self._shared.keeper.settled()

    async def bind(self, name: str, sinks: Mapping[str, tuple[str, str, bool]]) -> None:
        """`sinks`: name → port, URL, whether it votes. A new sink starts with the next merged epoch."""
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

    async def adopt(self, command: Adopt) -> None:
        """Let a sink continue from the data it has. Raises PipelineError if the sink has changed since it was compared,
        or if output that it must receive again was removed.
        """
        sink = known(self.state, command.pipeline).sinks.get(command.sink)
        if sink is not None and command.at < min(
            sink.at, self.records.begin(output_segment(command.pipeline, sink.port))
        ):
            raise PipelineError(f"the output that sink {command.sink!r} lacks was removed in the meantime")
        self._shared.keeper.commit(command)
        await self.settled()

    def attempt(self, name: str, seen: Pipeline) -> int:
        """The number of a new round, for the pipeline state that the caller has `seen`; durable after `settled`. Raises
        PipelineError if the voting sinks have changed since: the caller must read the state again.
        """
        now = known(self.state, name)
        if (now.incarnation, _voting(now)) != (seen.incarnation, _voting(seen)):
            raise PipelineError(f"the sinks of pipeline {name!r} have changed in the meantime")
        self._shared.keeper.commit(Attempt(name))
        return self.state.attempts

    async def decide(self, name: str, attempt: int, epoch: int, sent: Mapping[str, int]) -> None:
        """The commit point. Raises PipelineError if the round can no longer be decided and must be aborted. After any
        other error the outcome is unknown: then nothing may be reported to the sinks.
        """
        self._shared.keeper.commit(Decide(name, attempt, epoch, sent))
        self.traces.decided(name, epoch)
        await self.settled()

    async def follow(
        self, name: str, seen: Pipeline, sink: str, epoch: int, sent: int, dead_letters: Sequence[bytes] = ()
    ) -> None:
        """A non-voting sink has accepted an epoch of the pipeline state that the caller has `seen`, except for these
        rows, which go to its `parked` port in the same journal record. Raises PipelineError if the pipeline has changed
        since: in another incarnation the same number means other bytes, and the sink may have another position or URL.
        """
        now = known(self.state, name)
        if now.incarnation != seen.incarnation or now.sinks.get(sink) != seen.sinks[sink]:
            raise PipelineError(f"sink {sink!r} of pipeline {name!r} has changed in the meantime")
        command = Follow(name, sink, epoch, sent)
        if not dead_letters:
            self._shared.keeper.commit(command)
        else:
            copy = f"{_PARKING_PREFIX}{uuid4()}"
            self._shared.store.create(copy, NO_QUOTA, draining=True)
            try:
                for data in dead_letters:
                    self._shared.store.append(copy, [data], draining=True)
                self._shared.keeper.commit(command, ((self._output(name, parked_port(sink)), copy),))
            except BaseException:
                self._shared.store.delete(copy)
                raise
        self.traces.decided(name, epoch)
        await self.settled()

    def delivered(self, name: str, rows: Mapping[str, int]) -> None:
        """Count an epoch, with its rows, for each of these sinks."""
        self._shared.flow.delivered(name, rows)

    async def park(self, name: str, sink: str, epoch: int) -> None:
        """Park an epoch for a sink, which never receives it: its bytes are copied to the sink's `parked` port, in the
        journal record of the ledger entry.
        """
        async with self._shared.lock(name):
            pipeline = known(self.state, name)
            check_park(pipeline, Park(name, sink, epoch))
            await self.settled()  # only durable output can be read
            copy = f"{_PARKING_PREFIX}{uuid4()}"
            self._shared.store.create(copy, NO_QUOTA, draining=True)
            try:
                await self._copy(name, pipeline, sink, epoch, copy)
                target = self._output(name, parked_port(sink))
                self._shared.keeper.commit(Park(name, sink, epoch, ((target, copy),)))
                self.traces.decided(name, epoch)
            except BaseException:
                self._shared.store.delete(copy)
                raise
            await self.settled()

    async def _copy(self, name: str, pipeline: Pipeline, sink: str, epoch: int, copy: str) -> None:
        """Copies whole records, because the cuts of readers are at record ends. Skips what retention by time or size
        has removed: that must not block the sink forever.
        """
        bound, records = pipeline.sinks[sink], self._shared.records
        segment, end = output_segment(name, bound.port), pipeline.epochs[epoch].ends[bound.port]
        at = max(bound.at, min(records.begin(segment), end))
        if at > bound.at:
            log.warning("%d bytes to be parked for sink %s were already removed by retention", at - bound.at, sink)
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
        """Delete unfinished copies that a crash has left."""
        for info in self._shared.store.segments(_PARKING_PREFIX):
            self._shared.store.delete(info.name)


def _voting(pipeline: Pipeline) -> dict[str, Sink]:
    return {name: sink for name, sink in pipeline.sinks.items() if sink.votes}
