"""A sink that cannot vote: it is given each epoch after the decision, in order, until it has taken it."""

import asyncio
from collections.abc import Callable

from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivery import next_to_follow
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.core.errors import PipelineError
from penstock.delivery.backing_off import BackingOff
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.seat import Shown, Standing, close, reason_of
from penstock.delivery.sink import FollowingSink
from penstock.delivery.window import Unsettled, Window
from penstock.protocol.stored.names import output_segment

LOOK_SECONDS = 60.0
"""For nothing but news does it wait; this is only so that a mistake here would not be for ever."""

MakeFollower = Callable[[str, str, Sink], FollowingSink]


class Follower:
    """`run` goes on until `stop`, or until the sink is bound no more, or to another place. Epochs are journalled in
    their order, each when it is settled; a failure gives the sink again all that are not, from the oldest on.
    """

    def __init__(
        self,
        pipeline: str,
        name: str,
        url: str,
        deliveries: Deliveries,
        sink: FollowingSink,
        backing_off: BackingOff | None = None,
    ) -> None:
        self.url = url
        self.shown = Shown()
        self.shown.stands(Standing.READY)
        self.backing_off = backing_off or BackingOff()
        self._pipeline = pipeline
        self._name = name
        self._who = f"sink {name} of pipeline {pipeline}"
        self._deliveries = deliveries
        self._sink = sink
        self._window = Window(name)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self.backing_off.retry()

    async def run(self) -> None:
        try:
            while not self._stopping or len(self._window):
                seen = self._deliveries.news.count
                pipeline = self._deliveries.state.pipelines.get(self._pipeline)
                if pipeline is None or not self.is_bound(pipeline):
                    return
                if not self._window.fits(pipeline):  # parked, reset or moved: what was given is no longer asked for
                    self._window.void()
                if not await self._step(pipeline, seen):
                    self._window.void()
                    if not self._stopping:
                        await self.backing_off.wait()
        finally:
            self._window.void()
            await close(self._sink, self._who)

    def is_bound(self, pipeline: Pipeline | None) -> bool:
        sink = None if pipeline is None else pipeline.sinks.get(self._name)
        return sink is not None and sink.url == self.url and not sink.votes

    async def _step(self, pipeline: Pipeline, seen: int) -> bool:
        """Journal what is settled, or give it the next epoch, or wait for either. False when it has failed."""
        done = self._window.take_done()
        if done is not None:
            return await self._follow(done)
        ahead = self._window.ahead(pipeline)
        batch = next_to_follow(ahead, self._name) if self._window.has_room and not self._stopping else None
        if batch is not None:
            return await self._deliver(ahead, batch)
        if self._stopping:
            self._window.flush()
        await self._deliveries.news.wait(seen, LOOK_SECONDS)
        return True

    async def _deliver(self, pipeline: Pipeline, batch: int) -> bool:
        await self._deliveries.settled()  # the decision stands
        epoch = self._epoch(pipeline, batch)
        self.shown.stands(Standing.IN_ROUND, self.shown.reason)
        try:
            settling = await self._sink.deliver(epoch)
        except Exception as error:
            self.shown.fails(Standing.WAITING, reason_of(error), self._who)
            return False
        self.shown.succeeds()
        self.backing_off.succeeded()
        given = Unsettled(pipeline, batch, epoch, settling)
        if settling is None and not len(self._window):
            return await self._follow(given)
        self._window.add(given)
        if settling is not None:
            settling.when_done(self._deliveries.news.ring)
        return True

    async def _follow(self, done: Unsettled) -> bool:
        try:
            if done.settling is not None:
                done.settling.result()
        except Exception as error:
            self.shown.fails(Standing.WAITING, reason_of(error), self._who)
            return False
        try:
            end = done.epoch.transaction.end
            await self._deliveries.follow(self._pipeline, done.seen, self._name, done.batch, end)
            self._deliveries.delivered(self._pipeline, {self._name: done.epoch.rows})
        except PipelineError:  # parked, reset or bound elsewhere meanwhile: it looks again
            self._window.void()
            await asyncio.sleep(0)
        return True

    def _epoch(self, pipeline: Pipeline, batch: int) -> EpochData:
        sink = pipeline.sinks[self._name]
        name = f"{self._pipeline}:{pipeline.incarnation}:{batch + 1}"
        return EpochData(
            records=self._deliveries.records,
            segment=output_segment(self._pipeline, sink.port),
            offset=sink.at,
            end=pipeline.batches[batch].ends[sink.port],
            name=name,
            number=batch + 1,
            transaction_id=name.encode(),
            start=sink.sent,
        )
