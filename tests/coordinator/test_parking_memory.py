"""Memory while an epoch is parked: bounded by its limit, whatever the size of the epoch."""

import asyncio

import pytest

from penstock.coordinator import deliveries as service
from tests.coordinator.scene import Scene
from tests.coordinator.test_deliveries import A, X, copying, service_of


async def test_copying_a_parked_epoch_waits_for_the_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_COPY_BYTES", 1)
    monkeypatch.setattr(service, "_UNWRITTEN_BYTES_MAX", 1)
    await service_of(scene).bind("p", X)
    await scene.start()
    await scene.ingest(A, {1: 1})
    await scene.cut(await scene.initial())
    await scene.merge(0, *[await scene.stage(b"%d" % part, 0, part=f"{part}-0") for part in range(5)])
    await scene.durable()
    scene.paused = True
    parking = asyncio.create_task(service_of(scene).park("p", "x", 0))
    await copying(scene)
    await asyncio.sleep(0.05)
    (name,) = scene.names("coordinator/parking/")
    assert scene.store.length(name) == 1
    scene.paused = False
    await parking
    assert scene.output(port="parked.x") == b"01234"
