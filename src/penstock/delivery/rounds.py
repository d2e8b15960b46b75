"""Two-phase commit for one pipeline: one epoch after the other, at all its voting sinks or at none."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivery import next_round, transaction_id, voters
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.core.errors import NoRoom, PipelineError
from penstock.delivery.backing_off import BackingOff
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.seat import Seat, Shown
from penstock.delivery.sink import SinkLost, VotingSink
from penstock.protocol.stored.names import output_segment

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often an idle pipeline looks whether its sinks are still there."""

MakeSink = Callable[[str, str, Sink], VotingSink]
"""From the pipeline's name, the sink's, and what the ledger says of it."""


class Rounds:
    """`run` goes on until `stop`, or until the pipeline has no voting sinks any more."""

    def __init__(
        self, name: str, deliveries: Deliveries, make: MakeSink, stands: Callable[[str, Shown], None] | None = None
    ) -> None:
        """`stands` is told whenever a sink stands otherwise."""
        self.seats: dict[str, Seat] = {}
        self.backing_off = BackingOff()
        self._name = name
        self._deliveries = deliveries
        self._make = make
        self._stands = stands
        self._stopping = False

    def stop(self) -> None:
        """When the round that is open has ended."""
        self._stopping = True
        self.backing_off.retry()

    async def run(self) -> None:
        try:
            # One before it may have been cut off at its decision: nothing is told that is not durable.
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
                        self.backing_off.succeeded()
                    else:
                        await self._round(pipeline, batch)
                except (SinkLost, NoRoom) as error:
                    if isinstance(error, NoRoom):
                        log.warning("pipeline %s: no round can begin: %s", self._name, error)
                    await self.backing_off.wait()
                    continue
                if batch is None and not self._stopping:
                    await self._deliveries.news.wait(seen, LOOK_SECONDS)
            await asyncio.gather(*(seat.end() for seat in self.seats.values()))
        finally:
            await asyncio.gather(*(seat.close() for seat in self.seats.values()))

    async def _match(self, bound: Mapping[str, Sink]) -> None:
        """A seat for every sink that is bound now, and for no other."""
        for name in [name for name, seat in self.seats.items() if name not in bound or bound[name].url != seat.url]:
            await self.seats.pop(name).end()
        for name, sink in bound.items():
            if name not in self.seats:
                made = self._make(self._name, name, sink)
                seat = self.seats[name] = Seat(f"sink {name} of pipeline {self._name}", sink.url, made)
                if self._stands is not None:
                    seat.shown.watcher = partial(self._stands, name)

    async def _open(self, bound: Mapping[str, Sink]) -> None:
        """All of them: what is in doubt at one does not wait for the next epoch. Raises SinkLost."""
        opening = (self.seats[name].open(sink.decided.encode()) for name, sink in bound.items())
        for failure in await asyncio.gather(*opening, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _round(self, pipeline: Pipeline, batch: int) -> None:
        asked = voters(pipeline, pipeline.batches[batch])
        await self._open(asked)
        await self._deliveries.settled()  # what was merged can be read now
        try:
            attempt = self._deliveries.attempt(self._name, pipeline)
        except PipelineError:  # bound, parked, reset or dropped while the sinks were opened: it looks again
            return
        journalled = asyncio.ensure_future(self._deliveries.settled())
        txn = transaction_id(self._name, batch, attempt).encode()
        epochs = {
            name: self._epoch(pipeline, batch, sink, txn, lambda: asyncio.shield(journalled))
            for name, sink in asked.items()
        }
        try:
            agreed = await self._ask(epochs)
        finally:
            if not journalled.cancel():
                journalled.exception()  # whoever waited for it knows
        if agreed and await self._decided(attempt, batch, epochs):
            await asyncio.gather(*(self.seats[name].commit(epoch.transaction) for name, epoch in epochs.items()))
            self.backing_off.succeeded()
            return
        await asyncio.gather(*(self.seats[name].abort(txn) for name in epochs))
        if not agreed:
            await self.backing_off.wait()

    def _epoch(
        self, pipeline: Pipeline, batch: int, sink: Sink, txn: bytes, journalled: "Callable[[], asyncio.Future[None]]"
    ) -> EpochData:
        return EpochData(
            records=self._deliveries.records,
            segment=output_segment(self._name, sink.port),
            offset=sink.at,
            end=pipeline.batches[batch].ends[sink.port],
            name=f"{self._name}:{pipeline.incarnation}:{batch + 1}",
            number=batch + 1,
            transaction_id=txn,
            start=sink.sent,
            when_journalled=journalled,
        )

    async def _ask(self, epochs: Mapping[str, EpochData]) -> bool:
        """Phase 1. The first no, or the first sink that is lost, ends it for all."""
        asking = {asyncio.ensure_future(self._vote(name, epoch)): name for name, epoch in epochs.items()}
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

    async def _vote(self, name: str, epoch: EpochData) -> bool:
        seat = self.seats[name]
        try:
            vote = await seat.prepare(epoch)
        except SinkLost:
            return False
        if vote.yes:
            seat.agrees()
        else:
            seat.refuses(vote.reason)
        return vote.yes

    def is_bound(self, pipeline: Pipeline | None) -> bool:
        """Whether all to whom it speaks at the moment are bound, and where they are."""
        bound = _voting(pipeline)
        return all(name in bound and bound[name].url == seat.url for name, seat in self.seats.items())

    async def _decided(self, attempt: int, batch: int, epochs: Mapping[str, EpochData]) -> bool:
        """False if something about the round has changed meanwhile, so that it must be aborted."""
        sent = {name: epoch.transaction.end for name, epoch in epochs.items()}
        try:
            await self._deliveries.decide(self._name, attempt, batch, sent)
        except (PipelineError, NoRoom) as error:
            log.info("pipeline %s: the round of epoch %d begins anew: %s", self._name, batch + 1, error)
            return False
        self._deliveries.delivered(self._name, {name: epoch.rows for name, epoch in epochs.items()})
        return True


def _voting(pipeline: Pipeline | None) -> dict[str, Sink]:
    return {} if pipeline is None else {name: sink for name, sink in pipeline.sinks.items() if sink.votes}
