"""A shard leaves this worker for another one: the effects of a ShardMove."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.core.address import Address
from penstock.core.errors import PenstockError
from penstock.ingest.sessions.migration import ShardEvent, ShardMove, ShardStep
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.protocol.api.cluster import Move
from penstock.worker.bucket_shard import BucketShard
from penstock.worker.directory import CONNECTOR

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02
"""Between two looks at the sources that still have to leave."""


class Departure:
    """The shard's move away from this worker: the effects of a ShardMove."""

    def __init__(self, shard: BucketShard, programs: ProgramServer) -> None:
        self.move = ShardMove()
        self._shard = shard
        self._programs = programs
        self._to = Address("", 0)
        self._failure = ""

    @property
    def is_leaving(self) -> bool:
        """Whether a successor waits for the shard: from then on it continues."""
        return self.move.step not in (ShardStep.ASKING, ShardStep.ABANDONED)

    def begin(self, workers: Sequence[str], on_ready: Callable[[], None]) -> None:
        """Ask one standby after the other, until one answers; then call `on_ready`."""
        self._asking = asyncio.create_task(self._ask(workers, on_ready))

    async def _ask(self, workers: Sequence[str], on_ready: Callable[[], None]) -> None:
        try:
            for worker in workers:
                self.move.target = worker
                addresses = await asyncio.to_thread(self._shard.make_ready, worker)
                if addresses is not None:
                    self._to = Address.parse(addresses[CONNECTOR])
                    self._on(ShardEvent.READY)
                    log.info("the shard moves to worker %s", worker)
                    on_ready()
                    return
            self._stay(f"no answer from {', '.join(workers)}")
        except PenstockError as error:
            self._stay(str(error))

    def _stay(self, why: str) -> None:
        self._failure = f"{why}: the shard stays here"
        log.error("the shard does not move: %s", self._failure)
        self._on(ShardEvent.TIMEOUT)

    async def send_sources_away(self) -> None:
        """Everything else has stopped."""
        self.move.on(ShardEvent.STOPPED)
        assert self.move.seconds_max is not None
        await self._programs.send_away(self._to, self.move.seconds_max)
        self._on(ShardEvent.ENDED)
        await self._programs.seal()

    def release(self) -> None:
        """The journal is closed."""
        self._shard.close_for(self.move.target)
        self._on(ShardEvent.CLOSED)

    def seen(self, owner: str) -> None:
        """The shard has this owner now."""
        if owner != self._shard.member.worker:
            self._on(ShardEvent.TAKEN)

    async def watch(self) -> None:
        """From the release on: time-outs, until no source is connected here any more."""
        loop = asyncio.get_running_loop()
        step, began = self.move.step, loop.time()
        while not self.move.is_over:
            if self.move.step is not step:
                step, began = self.move.step, loop.time()
            if step is ShardStep.TAKEN and not len(self._programs.sessions):
                self._on(ShardEvent.LEFT)
            elif self.move.seconds_max is not None and loop.time() - began > self.move.seconds_max:
                self._on(ShardEvent.TIMEOUT)
            await asyncio.sleep(_LOOK_SECONDS)

    def end(self) -> None:
        """The worker stops, or owns the shard again: close what is open. Programs know both addresses."""
        self._on(ShardEvent.TAKEN_BACK)
        for session in self._programs.sessions:
            session.close()

    def status(self) -> Move:
        move, sessions = self.move, len(self._programs.sessions)
        return Move(
            shard=self._shard.number,
            to=move.target,
            step=move.step.value,
            is_over=move.is_over,
            sessions=sessions,
            failure=self._failure,
        )

    def _on(self, event: ShardEvent) -> None:
        told = self.move.on(event)
        if told is not None:
            self._programs.tell(told)
