"""A sink that cannot vote: it is given each epoch after the decision, in order, until it has taken it."""

import asyncio
from collections.abc import Callable

from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivering import next_to_follow
from penstock.coordinator.machine.state import Pipeline, Sink
from penstock.core.errors import PipelineError
from penstock.delivery.backing_off import BackingOff
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.seat import Shown, Standing, close, reason_of
from penstock.delivery.sink import FollowingSink
from penstock.protocol.stored.names import output_segment

LOOK_SECONDS = 60.0
"""For nothing but news does it wait; this is only so that a mistake here would not be for ever."""

MakeFollower = Callable[[str, str, Sink], FollowingSink]


class Follower:
    """`run` goes on until `stop`, or until the sink is bound no more, or to another place."""

    def __init__(self, pipeline: str, name: str, url: str, deliveries: Deliveries, sink: FollowingSink) -> None:
        self.url = url
        self.shown = Shown()
        self.shown.stands(Standing.READY)
        self.backing_off = BackingOff()
        self._pipeline = pipeline
        self._name = name
        self._who = f"sink {name} of pipeline {pipeline}"
        self._deliveries = deliveries
        self._sink = sink
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self.backing_off.retry()

    async def run(self) -> None:
        try:
            while not self._stopping:
                seen = self._deliveries.news.count
                pipeline = self._deliveries.state.pipelines.get(self._pipeline)
                if pipeline is None or not self.is_bound(pipeline):
                    return
                batch = next_to_follow(pipeline, self._name)
                if batch is None:
                    await self._deliveries.news.wait(seen, LOOK_SECONDS)
                elif not await self._deliver(pipeline, batch):
                    await self.backing_off.wait()
        finally:
            await close(self._sink, self._who)

    def is_bound(self, pipeline: Pipeline | None) -> bool:
        sink = None if pipeline is None else pipeline.sinks.get(self._name)
        return sink is not None and sink.url == self.url and not sink.votes

    async def _deliver(self, pipeline: Pipeline, batch: int) -> bool:
        await self._deliveries.settled()  # the decision stands
        epoch = self._epoch(pipeline, batch)
        self.shown.stands(Standing.IN_ROUND, self.shown.reason)
        try:
            await self._sink.deliver(epoch)
        except Exception as error:
            self.shown.fails(Standing.WAITING, reason_of(error), self._who)
            return False
        self.shown.succeeds()
        self.backing_off.succeeded()
        try:
            await self._deliveries.follow(self._pipeline, pipeline, self._name, batch, epoch.transaction.end)
        except PipelineError:  # parked, reset or bound elsewhere meanwhile: it looks again
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
