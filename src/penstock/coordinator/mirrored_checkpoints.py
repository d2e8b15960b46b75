"""The checkpoints that drivers have mirrored into the worker's bucket: which one counts, and the removal of others."""

import asyncio
import logging
from dataclasses import dataclass

from penstock.bucket.checkpoints import Current, sweep
from penstock.bucket.objects import Bucket
from penstock.coordinator.machine.commands import Mirror
from penstock.coordinator.machine.state import Pipeline, State
from penstock.coordinator.shared import Shared
from penstock.core.errors import BucketFailed, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import MirroredCheckpoint

log = logging.getLogger(__name__)

_IN_MEMORY = "memory:"


@dataclass(frozen=True, slots=True)
class _Swept:
    """Decides what is garbage. While it is the same, there is nothing more to remove."""

    pipelines: dict[str, Current]
    generations: int


class MirroredCheckpoints:
    """Drivers write the objects, the ledger names the manifest that counts, and the worker deletes: by a state of the
    ledger that is durable, so that it may do so even after another worker has taken over.
    """

    def __init__(self, shared: Shared, bucket: Bucket | None, shard: int = 0) -> None:
        """Without a bucket nothing is mirrored, nor with one that drivers cannot open, as other processes."""
        self._shared = shared
        self._bucket = bucket
        self._shard = shard
        self._swept: _Swept | None = None
        self.store = None if bucket is None or bucket.url.startswith(_IN_MEMORY) else bucket.url
        """For drivers: the bucket's URL."""

    def is_restorable(self, pipeline: Pipeline) -> bool:
        """Whether a driver without a checkpoint gets one from the bucket."""
        return self.store is not None and bool(pipeline.manifest)

    async def known(self, name: str, generation: int | None) -> MirroredCheckpoint:
        """Raises Fenced if this generation is not the newest."""
        shared = self._shared
        async with shared.lock(name):
            pipeline = shared.state.pipelines.get(name) if generation is None else shared.living(name, generation)
            await shared.keeper.settled()
        if pipeline is None:
            return MirroredCheckpoint("", NO_EPOCH, self._shard)
        last = pipeline.last_epoch
        return MirroredCheckpoint(pipeline.manifest, NO_EPOCH if last is None else last, self._shard)

    async def record(self, name: str, generation: int, before: str, manifest: str) -> None:
        """Of a pipeline with Spark's own sinks. Raises Fenced, and PipelineError if it is not based on the last one."""
        shared = self._shared
        async with shared.lock(name):
            shared.living(name, generation)
            shared.keeper.commit(Mirror(name, generation, before, manifest))
            await shared.keeper.settled()

    async def sweep_again_and_again(self) -> None:
        """A bucket that is unavailable is swept the next time."""
        while self._bucket is not None:
            try:
                await self._sweep(self._bucket)
            except BucketFailed as error:
                log.warning("older checkpoints stay in the bucket for now: %s", error)
            except Unavailable:  # the worker is stopping
                return
            await asyncio.sleep(self._shared.settings.checkpoint_sweep_seconds)

    async def _sweep(self, bucket: Bucket) -> None:
        """What has changed since the last time; at first everything, for what was left before."""
        now, before = _swept(self._shared.state), self._swept
        if now == before:
            return
        await self._shared.keeper.settled()
        names = None if before is None else {name for name, _ in before.pipelines.items() ^ now.pipelines.items()}
        deleted = await asyncio.to_thread(sweep, bucket, names, now.pipelines, now.generations, self._shard)
        self._swept = now
        if deleted:
            log.debug("%d objects of older checkpoints are deleted", deleted)


def _swept(state: State) -> _Swept:
    pipelines = {name: Current(one.generation, one.manifest) for name, one in state.pipelines.items()}
    return _Swept(pipelines, state.generations)
