"""The ledger names the mirrored checkpoint that counts; what nobody needs any more is deleted from the bucket."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bucket.checkpoints import Manifest, named
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.coordinator.ledger import stored_version
from penstock.core.errors import BucketUnreachable, Fenced, PipelineError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import InputOffset, MirroredCheckpoint
from tests.coordinator.scene import SETTINGS, Scene

SWEPT = replace(SETTINGS, checkpoint_sweep_seconds=0.01)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket((tmp_path / "bucket").as_uri())


@pytest.fixture
async def scene(bucket: Bucket) -> AsyncIterator[Scene]:
    running = Scene(settings=SWEPT, bucket=bucket)
    await running.open()
    yield running
    await running.close()


class Driver:
    """Of one generation: it mirrors, and merges epochs without output."""

    def __init__(self, scene: Scene, bucket: Bucket, name: str = "p") -> None:
        self._scene = scene
        self._bucket = bucket
        self.name = name
        self.at: InputOffset | None = None

    async def start(self) -> None:
        self.generation = (await self._scene.start(self.name)).generation

    def mirrored(self, epoch: int) -> str:
        """A manifest with one object."""
        content = b"%d %d" % (self.generation, epoch)
        data = named(self.name, self.generation, epoch, "data", content)
        self._bucket.create(data, [content])
        manifest = Manifest(pipeline=self.name, generation=self.generation, epoch=epoch, objects=(data,), files=())
        key = named(self.name, self.generation, epoch, "manifest", manifest.encode())
        self._bucket.create(key, [manifest.encode()])
        return key

    async def epoch(self, number: int, manifest: str | None = None) -> str:
        """Returns the manifest that the merge names."""
        manifest = self.mirrored(number) if manifest is None else manifest
        await self._scene.ingest("connector/s/0", {1: 10 + number})
        self.at = (await self._scene.cut(self.at or await self._scene.initial(self.name), self.name)).offset
        await self._scene.merge(number, name=self.name, manifest=manifest)
        return manifest

    async def known(self) -> MirroredCheckpoint:
        return await self._scene.coordinator.mirrored.known(self.name, self.generation)


@pytest.fixture
async def driver(scene: Scene, bucket: Bucket) -> Driver:
    driver = Driver(scene, bucket)
    await driver.start()
    return driver


def keys(bucket: Bucket, *containing: str) -> set[str]:
    return {one.key for one in bucket.list("") if all(text in one.key for text in containing)}


async def test_a_start_gets_the_bucket_and_the_manifest_of_the_last_merge(scene: Scene, driver: Driver) -> None:
    assert scene.bucket is not None
    begun = await scene.start()
    assert (begun.store, begun.manifest) == (scene.bucket.url, "")
    await driver.start()
    assert await driver.known() == MirroredCheckpoint("", NO_EPOCH)
    await driver.epoch(0)
    last = await driver.epoch(1)
    assert await driver.known() == MirroredCheckpoint(last, 1)
    assert await scene.coordinator.mirrored.known("p", None) == MirroredCheckpoint(last, 1)
    assert await scene.coordinator.mirrored.known("unknown", None) == MirroredCheckpoint("", NO_EPOCH)
    await scene.reopen()
    again = await scene.start(fresh=True)
    assert again.manifest == last, "and it is not refused: the driver restores its checkpoint"


async def test_a_merge_that_is_repeated_keeps_the_manifest_of_the_first(scene: Scene, driver: Driver) -> None:
    first = await driver.epoch(0)
    await scene.merge(0, manifest="another")
    assert (await driver.known()).manifest == first


async def test_an_epoch_that_is_not_mirrored_leaves_nothing_to_restore(scene: Scene, driver: Driver) -> None:
    await driver.epoch(0)
    await driver.epoch(1, "")
    assert (await driver.known()).manifest == ""
    with pytest.raises(PipelineError, match="has no checkpoint"):
        await scene.start(fresh=True)


async def test_a_worker_without_a_bucket_restores_nothing(scene: Scene, driver: Driver) -> None:
    await driver.epoch(0)
    scene.bucket = None
    await scene.reopen()
    assert (await scene.start()).store is None
    with pytest.raises(PipelineError, match="has no checkpoint"):
        await scene.start(fresh=True)


async def test_drivers_do_not_mirror_into_the_memory_of_a_worker() -> None:
    scene = Scene(settings=SWEPT, bucket=open_bucket("memory://only-here"))
    await scene.open()
    assert (await scene.start()).store is None
    await scene.close()


async def test_an_older_generation_is_refused_because_it_was_replaced(scene: Scene, driver: Driver) -> None:
    await scene.start()
    with pytest.raises(Fenced):
        await driver.known()
    with pytest.raises(Fenced):
        await scene.coordinator.mirrored.record("p", driver.generation, "", "m")


async def test_after_a_reset_and_for_a_fork_no_older_checkpoint_is_restored(scene: Scene, driver: Driver) -> None:
    await driver.epoch(0)
    await scene.coordinator.lifecycle.fork("q", "p")
    assert (await scene.start("q", fresh=True)).manifest == ""
    await scene.coordinator.lifecycle.reset("p", accept_partial=True)
    assert (await scene.start(fresh=True)).manifest == ""


async def test_a_checkpoint_of_sparks_own_sinks_is_recorded_if_it_is_based_on_the_last_one(
    scene: Scene, driver: Driver
) -> None:
    record, generation = scene.coordinator.mirrored.record, driver.generation
    await record("p", generation, "", "first")
    await record("p", generation, "", "first")  # sent again
    await record("p", generation, "first", "second")
    with pytest.raises(PipelineError, match="is based on 'first'"):
        await record("p", generation, "first", "third")
    await scene.reopen()
    assert (await driver.known()).manifest == "second"


async def test_older_versions_read_the_ledger_until_a_checkpoint_is_mirrored(scene: Scene, driver: Driver) -> None:
    await driver.epoch(0, "")
    assert stored_version(scene.files) == 1
    await driver.epoch(1)
    assert stored_version(scene.files) == 3
    for _ in range(2):
        keeper = scene.coordinator._shared.keeper
        keeper._ledger.compact(keeper.state)
        await scene.durable()
        assert stored_version(scene.files) == 3
        await scene.reopen()
        assert (await driver.known()).manifest != ""
    await driver.epoch(2, "")
    keeper = scene.coordinator._shared.keeper
    keeper._ledger.compact(keeper.state)
    await scene.durable()
    assert stored_version(scene.files) == 1


# Sweeps.


async def test_what_a_merge_has_released_is_deleted(scene: Scene, driver: Driver, bucket: Bucket) -> None:
    for number in range(3):
        await driver.epoch(number)
    unmerged = driver.mirrored(3)
    await scene.until(lambda: len(keys(bucket)) == 4)
    assert {*keys(bucket, "/1-2-"), *keys(bucket, "/1-3-")} == keys(bucket)
    await driver.start()
    await scene.until(lambda: keys(bucket) == keys(bucket, "/1-2-"))
    assert unmerged not in keys(bucket), "the next generation does not use what was not merged"


async def test_everything_of_a_pipeline_is_deleted_when_it_is_reset_or_dropped(
    scene: Scene, driver: Driver, bucket: Bucket
) -> None:
    other = Driver(scene, bucket, "q")
    await other.start()
    for each in (driver, other):
        await each.epoch(0)
    await scene.until(lambda: len(keys(bucket)) == 4)
    await scene.coordinator.lifecycle.reset("q", accept_partial=True)
    await scene.until(lambda: keys(bucket) == keys(bucket, "/p/"))
    await scene.coordinator.lifecycle.drop("p")
    await scene.until(lambda: not keys(bucket))


async def test_what_was_left_before_a_start_is_deleted(scene: Scene, driver: Driver, bucket: Bucket) -> None:
    await driver.epoch(0)
    await scene.coordinator.lifecycle.drop("p")
    await scene.close()
    driver.mirrored(1)  # a driver that did not know
    assert keys(bucket)
    await scene.open()
    await scene.until(lambda: not keys(bucket))


async def test_nothing_is_deleted_by_a_merge_that_is_not_durable(scene: Scene, driver: Driver, bucket: Bucket) -> None:
    first = await driver.epoch(0)
    second = driver.mirrored(1)
    await scene.ingest("connector/s/0", {1: 20})
    await scene.cut(driver.at or await scene.initial())
    scene.paused = True
    merging = asyncio.create_task(scene.merge(1, manifest=second))
    await scene.until(lambda: scene.coordinator._shared.state.pipelines["p"].manifest == second)
    for _ in range(20):
        await asyncio.sleep(SWEPT.checkpoint_sweep_seconds)
    assert first in keys(bucket), "another worker may take over, and restore it"
    scene.paused = False
    await merging
    await scene.until(lambda: first not in keys(bucket))


async def test_a_bucket_that_was_unavailable_is_swept_later(
    scene: Scene, driver: Driver, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def fail(*_: object) -> None:
        nonlocal failures
        failures += 1
        raise BucketUnreachable("no route")

    with monkeypatch.context() as patched:
        patched.setattr(type(bucket), "delete", fail)
        first = await driver.epoch(0)
        await driver.epoch(1)
        await scene.until(lambda: failures > 1)
        assert first in keys(bucket)
    await scene.until(lambda: first not in keys(bucket))
