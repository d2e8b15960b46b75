"""Delivers to a sink that does not vote: each epoch after its decision, in order, until the sink has accepted it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from penstock.connectors.sink_api import NonVotingSink, Settling
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivery import next_to_follow
from penstock.coordinator.machine.state import Pipeline
from penstock.core.errors import NoRoom, PipelineError, RequestError
from penstock.delivery.backoff import Backoff
from penstock.delivery.epoch_data import EpochData
from penstock.delivery.sink_slot import SlotState, SlotStatus, close, reason_of

LOOK_SECONDS = 60.0
"""A safeguard: changes wake it, so nothing should ever wait this long without looking again."""

UNSETTLED_EPOCHS_MAX = 64
"""Epochs that a sink may receive before the oldest is settled; if it fails, all of them are delivered again."""

UNSETTLED_BYTES_MAX = 64 << 20
"""Bytes of these epochs, which a sink may buffer in memory. A single epoch is always delivered, however large."""


@dataclass(frozen=True, slots=True)
class UnsettledEpoch:
    seen: Pipeline
    """The pipeline's state once the sink has accepted all epochs before this one."""
    batch: int
    epoch: EpochData
    settling: Settling | None
    """None: the sink has accepted it, and it only waits for earlier ones."""
    began_ns: int
    at: float = field(default_factory=time.monotonic)
    """When the sink received it."""

    @property
    def is_done(self) -> bool:
        return self.settling is None or self.settling.is_done


class UnsettledEpochs:
    """Epochs that a sink has received and not settled yet, in order."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._epochs: deque[UnsettledEpoch] = deque()

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def oldest_at(self) -> float | None:
        """When the sink got the oldest of them; None if there is none."""
        return self._epochs[0].at if self._epochs else None

    @property
    def has_room(self) -> bool:
        size = sum(one.epoch.end - one.epoch.offset for one in self._epochs)
        return not self._epochs or (len(self._epochs) < UNSETTLED_EPOCHS_MAX and size < UNSETTLED_BYTES_MAX)

    def add(self, unsettled: UnsettledEpoch) -> None:
        self._epochs.append(unsettled)

    def are_valid(self, pipeline: Pipeline) -> bool:
        """Whether the sink's position is still the start of the oldest of them."""
        if not self._epochs:
            return True
        seen = self._epochs[0].seen
        return (pipeline.incarnation, pipeline.sinks.get(self._sink)) == (seen.incarnation, seen.sinks[self._sink])

    def ahead(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline's state once all of them are settled."""
        if not self._epochs:
            return pipeline
        last = self._epochs[-1].epoch
        sink = replace(pipeline.sinks[self._sink], at=last.end, sent=last.transaction.end)
        return replace(pipeline, sinks={**pipeline.sinks, self._sink: sink})

    def take_done(self) -> UnsettledEpoch | None:
        """The oldest one, if it is settled or has failed."""
        return self._epochs.popleft() if self._epochs and self._epochs[0].is_done else None

    def flush(self) -> None:
        for one in self._epochs:
            if one.settling is not None:
                one.settling.flush()

    def void(self) -> None:
        for one in self._epochs:
            if one.settling is not None:
                one.settling.cancel()
        self._epochs.clear()


class NonVotingSlot:
    """`run` returns after `stop`, or when the sink is unbound or bound elsewhere. Each epoch is journalled when it is
    settled, in order; after a failure the sink gets all unsettled epochs again, from the oldest one.
    """

    def __init__(
        self,
        pipeline: str,
        name: str,
        url: str,
        deliveries: Deliveries,
        sink: NonVotingSink,
        backoff: Backoff | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_act` is asked before each epoch: a worker that another one has replaced must not send it, too."""
        self._may_act = may_act
        self.url = url
        self.status = SlotStatus(lambda: self._unsettled.oldest_at)
        self.status.set(SlotState.READY)
        self.backoff = backoff or Backoff()
        self._pipeline = pipeline
        self._name = name
        self._who = f"sink {name} of pipeline {pipeline}"
        self._deliveries = deliveries
        self._sink = sink
        self._unsettled = UnsettledEpochs(name)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self.backoff.retry()

    async def run(self) -> None:
        try:
            while not self._stopping or len(self._unsettled):
                seen = self._deliveries.news.count
                pipeline = self._deliveries.state.pipelines.get(self._pipeline)
                if pipeline is None or not self.is_bound(pipeline):
                    return
                if not self._unsettled.are_valid(pipeline):  # parked, reset or moved
                    self._unsettled.void()
                if not await self._step(pipeline, seen):
                    self._unsettled.void()
                    if not self._stopping:
                        await self.backoff.wait()
        finally:
            self._unsettled.void()
            await close(self._sink, self._who)

    def is_bound(self, pipeline: Pipeline | None) -> bool:
        sink = None if pipeline is None else pipeline.sinks.get(self._name)
        return sink is not None and sink.url == self.url and not sink.votes

    async def _step(self, pipeline: Pipeline, seen: int) -> bool:
        """Journal what is settled, or deliver the next epoch, or wait for either. Return False after a failure."""
        done = self._unsettled.take_done()
        if done is not None:
            return await self._journal(done)
        ahead = self._unsettled.ahead(pipeline)
        batch = next_to_follow(ahead, self._name) if self._unsettled.has_room and not self._stopping else None
        if batch is not None and self._may_act():
            return await self._deliver(ahead, batch)
        if self._stopping:
            self._unsettled.flush()
        await self._deliveries.news.wait(seen, LOOK_SECONDS)
        return True

    async def _deliver(self, pipeline: Pipeline, batch: int) -> bool:
        await self._deliveries.settled()  # the decision is durable
        epoch = EpochData.of(self._deliveries.records, self._pipeline, pipeline, batch, pipeline.sinks[self._name])
        epoch.on_block = self.status.asked
        self.status.set(SlotState.IN_ROUND, self.status.reason)
        began_ns = self._deliveries.traces.begin_attempt(self._pipeline, batch)
        self.status.asked()
        try:
            settling = await self._sink.deliver(epoch)
        except Exception as error:
            self._failed(pipeline, batch, began_ns, error)
            return False
        finally:
            self.status.answered()
        self.status.set(SlotState.READY)
        unsettled = UnsettledEpoch(pipeline, batch, epoch, settling, began_ns)
        if settling is None and not len(self._unsettled):
            return await self._journal(unsettled)
        self._unsettled.add(unsettled)
        if settling is not None:
            settling.when_done(self._deliveries.news.ring)
        return True

    async def _journal(self, done: UnsettledEpoch) -> bool:
        """Return False if it has failed, or cannot be journalled now: nothing of it is, and the sink gets it again."""
        try:
            if done.settling is not None:
                done.settling.result()
            dead_letters = await done.epoch.dead_letters()
        except Exception as error:
            self._failed(done.seen, done.batch, done.began_ns, error)
            return False
        try:
            end = done.epoch.transaction.end
            await self._deliveries.follow(self._pipeline, done.seen, self._name, done.batch, end, dead_letters)
        except PipelineError:  # parked, reset or bound elsewhere meanwhile: look again
            self._unsettled.void()
            await asyncio.sleep(0)
            return True
        except (NoRoom, RequestError) as error:
            self._failed(done.seen, done.batch, done.began_ns, error)
            return False
        self.status.succeeded()
        self.backoff.succeeded()
        self._deliveries.delivered(self._pipeline, {self._name: done.epoch.rows - len(done.epoch.refused)})
        self._trace(done.seen, done.batch, done.began_ns)
        return True

    def _failed(self, pipeline: Pipeline, batch: int, began_ns: int, error: Exception) -> None:
        self.status.failed(SlotState.WAITING, reason_of(error), self._who)
        self._trace(pipeline, batch, began_ns, self.status.reason)

    def _trace(self, pipeline: Pipeline, batch: int, began_ns: int, error: str = "") -> None:
        sink = {"penstock.sink": self._name}
        self._deliveries.traces.end_attempt(self._pipeline, pipeline.incarnation, batch, began_ns, sink, error)
