"""Two-phase commit of one pipeline: epoch by epoch, at all its voting sinks or at none."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock.connectors.sink_api import SinkLost, VotingSink
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivery import next_round, transaction_id, voters
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.coordinator.spans import Attributes
from penstock.coordinator.traces import Traces
from penstock.core.errors import NoRoom, PipelineError
from penstock.core.logs import one_line
from penstock.delivery.backoff import Backoff
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.positions import Decided
from penstock.delivery.sink_slot import SinkSlot, SlotStatus

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often an idle pipeline checks that its sinks are still there."""

MakeSink = Callable[[str, str, Sink], VotingSink]
"""From the pipeline's name, the sink's name, and its entry in the ledger."""


class Rounds:
    """`run` returns after `stop`, or when the pipeline has no voting sinks any more."""

    def __init__(
        self,
        name: str,
        deliveries: Deliveries,
        make: MakeSink,
        changed: Callable[[str, SlotStatus], None] | None = None,
    ) -> None:
        """`changed` is called with a sink's name and status whenever it changes."""
        self.slots: dict[str, SinkSlot] = {}
        self.backoff = Backoff()
        self._name = name
        self._deliveries = deliveries
        self._make = make
        self._changed = changed
        self._stopping = False

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopping = True
        self.backoff.retry()

    async def run(self) -> None:
        try:
            # Rounds that ran before may have been cancelled at their decision: sinks must get only durable decisions.
            await self._deliveries.settled()
            while not self._stopping:
                seen = self._deliveries.news.count
                pipeline = self._deliveries.state.pipelines.get(self._name)
                bound = _voting(pipeline)
                await self._match(bound)
                if pipeline is None or not bound:
                    return
                batch = next_round(pipeline)
                try:
                    if batch is None:
                        await self._open(bound)
                        self.backoff.succeeded()
                    else:
                        await self._round(pipeline, batch)
                except (SinkLost, NoRoom) as error:
                    if isinstance(error, NoRoom):
                        log.warning("pipeline %s: epochs cannot be delivered now: %s", self._name, error)
                    await self.backoff.wait()
                    continue
                if batch is None and not self._stopping:
                    await self._deliveries.news.wait(seen, LOOK_SECONDS)
            await asyncio.gather(*(slot.end() for slot in self.slots.values()))
        finally:
            await asyncio.gather(*(slot.close() for slot in self.slots.values()))

    async def _match(self, bound: Mapping[str, Sink]) -> None:
        """One slot for every sink that is bound now."""
        for name in [name for name, slot in self.slots.items() if name not in bound or bound[name].url != slot.url]:
            await self.slots.pop(name).end()
        for name, sink in bound.items():
            if name not in self.slots:
                voting_sink = self._make(self._name, name, sink)
                decided = partial(self._decided_for, name)
                slot = self.slots[name] = SinkSlot(self._name, name, sink.url, voting_sink, decided)
                if self._changed is not None:
                    slot.status.watcher = partial(self._changed, name)

    def _decided_for(self, name: str) -> Decided | None:
        """Also called from other threads: the state is immutable."""
        state = self._deliveries.state
        sink = _voting(state.pipelines.get(self._name)).get(name)
        return None if sink is None else Decided(sink.decided.encode(), sink.sent, state.attempts, sink.moved)

    async def _open(self, bound: Mapping[str, Sink]) -> None:
        """Open all of them, so that a transaction in doubt is resolved before the next epoch. Raises SinkLost."""
        opening = (self.slots[name].open(sink.decided.encode()) for name, sink in bound.items())
        for failure in await asyncio.gather(*opening, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _round(self, pipeline: Pipeline, batch: int) -> None:
        asked = voters(pipeline, pipeline.epochs[batch])
        await self._open(asked)
        await self._deliveries.settled()  # what was merged can be read now
        try:
            attempt = self._deliveries.attempt(self._name, pipeline)
        except PipelineError:  # bound, parked, reset or dropped while the sinks were opened: look again
            return
        trace = _RoundTrace(self._deliveries.traces, self._name, pipeline.incarnation, batch, attempt)
        journalled = asyncio.ensure_future(self._deliveries.settled())
        when_journalled = partial(asyncio.shield, journalled)
        txn = transaction_id(self._name, batch, attempt).encode()
        epochs = {
            name: EpochData.of(self._deliveries.records, self._name, pipeline, batch, sink, txn, when_journalled)
            for name, sink in asked.items()
        }
        for name, epoch in epochs.items():
            epoch.on_block = self.slots[name].status.asked
        try:
            agreed = await self._ask(epochs, trace)
        finally:
            if not journalled.cancel():
                journalled.exception()  # retrieved here; the sinks that waited for it have got it
        if agreed and await self._decided(attempt, batch, epochs):
            await asyncio.gather(*(self._commit(name, epoch, trace) for name, epoch in epochs.items()))
            self.backoff.succeeded()
            return
        await asyncio.gather(*(self._abort(name, txn, trace) for name in epochs))
        if not agreed:
            await self.backoff.wait()

    async def _commit(self, name: str, epoch: EpochData, trace: "_RoundTrace") -> None:
        await self.slots[name].commit(epoch.transaction)
        trace.end(name, "commit")

    async def _abort(self, name: str, txn: bytes, trace: "_RoundTrace") -> None:
        await self.slots[name].abort(txn)
        trace.end(name, "abort", self.slots[name].status.reason)

    async def _ask(self, epochs: Mapping[str, EpochData], trace: "_RoundTrace") -> bool:
        """Phase 1. The first no, or the first lost sink, ends it for all."""
        asking = {asyncio.ensure_future(self._vote(name, epoch, trace)): name for name, epoch in epochs.items()}
        waiting = set(asking)
        agreed = True
        try:
            while waiting and agreed:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                agreed = all(vote.result() for vote in done)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return agreed

    async def _vote(self, name: str, epoch: EpochData, trace: "_RoundTrace") -> bool:
        slot = self.slots[name]
        try:
            vote = await slot.prepare(epoch)
        except SinkLost:
            trace.votes[name] = "lost"
            return False
        trace.votes[name] = "yes" if vote.yes else "no"
        if vote.yes:
            slot.agrees()
        else:
            slot.refuses(vote.reason)
        return vote.yes

    def is_bound(self, pipeline: Pipeline | None) -> bool:
        """Whether all its slots are bound, to the same URLs."""
        bound = _voting(pipeline)
        return all(name in bound and bound[name].url == slot.url for name, slot in self.slots.items())

    async def _decided(self, attempt: int, batch: int, epochs: Mapping[str, EpochData]) -> bool:
        """Return False if the pipeline has changed meanwhile, so that the round must be aborted."""
        sent = {name: epoch.transaction.end for name, epoch in epochs.items()}
        try:
            await self._deliveries.decide(self._name, attempt, batch, sent)
        except (PipelineError, NoRoom) as error:
            log.info("pipeline %s: the round of epoch %d is repeated: %s", self._name, batch, one_line(error))
            return False
        self._deliveries.delivered(self._name, {name: epoch.rows for name, epoch in epochs.items()})
        return True


def _voting(pipeline: Pipeline | None) -> dict[str, Sink]:
    return {} if pipeline is None else {name: sink for name, sink in pipeline.sinks.items() if sink.votes}


class _RoundTrace:
    """What the trace of the epoch shows of one round: a span for each sink, when it has committed or aborted."""

    def __init__(self, traces: Traces, pipeline: str, incarnation: int, epoch: int, attempt: int) -> None:
        self.votes: dict[str, str] = {}
        """Sink → yes, no or lost; none while it has not voted."""
        self._traces = traces
        self._epoch = pipeline, incarnation, epoch
        self._attempt = attempt
        self._began_ns = traces.begin_attempt(pipeline, epoch)

    def end(self, sink: str, decision: str, reason: str = "") -> None:
        vote = self.votes.get(sink, "none")
        shown: Attributes = {
            "penstock.sink": sink,
            "penstock.attempt": self._attempt,
            "penstock.vote": vote,
            "penstock.decision": decision,
        }
        error = "" if decision == "commit" else reason or "another sink has not voted yes"
        self._traces.end_attempt(*self._epoch, self._began_ns, shown, error)
