"""Throughput and latency of pipelines, with a coordinator on a store in memory."""

import asyncio
from dataclasses import replace

from penstock.coordinator.flow import BUCKETS, Distribution, PipelineFlow
from tests.coordinator.scene import Scene, stored

OUTPUT = stored(1, 1, 1) + stored(1, 2, 2)


def flow(scene: Scene, name: str = "p") -> PipelineFlow:
    return scene.coordinator.flow.pipelines[name]


class Clock:
    """Stands still until a test sets it."""

    def __init__(self, scene: Scene) -> None:
        self.now = 100.0
        scene.coordinator.flow.clock = lambda: self.now
        scene.coordinator.flow._unsampled_since = None


async def stage(scene: Scene, batch: int, name: str = "p", rows: int = 2):  # type: ignore[no-untyped-def]
    return replace(await scene.stage(OUTPUT, batch, name), rows=rows)


async def test_rows_and_bytes_are_counted_once(scene: Scene) -> None:
    end = await scene.ingest("connector/s/0", {1: 10, 2: 20}, count=25)
    await scene.start()
    offset = (await scene.cut(await scene.initial())).offset
    staged = await stage(scene, 0)
    await scene.merge(0, staged)
    await scene.merge(0, staged)
    found = flow(scene)
    assert (found.rows_in, found.bytes_in, found.rows_out) == (25, end, {"out": 2})
    await scene.cut(offset)
    assert flow(scene).rows_in == 25, "nothing new"


async def test_an_epoch_is_measured_when_it_is_complete(scene: Scene) -> None:
    clock = Clock(scene)
    await scene.start()
    await scene.ingest("connector/s/0", {1: 10})
    clock.now = 101.0
    await scene.cut(await scene.initial())
    await scene.durable()
    assert sum(flow(scene).duration.counts) == 0
    clock.now = 105.0
    staged = await stage(scene, 0)
    scene.paused = True
    merging = asyncio.create_task(scene.merge(0, staged))
    await scene.until(lambda: flow(scene).rows_out)
    clock.now = 107.0
    scene.paused = False
    await merging
    await scene.durable()
    found = flow(scene)
    assert (found.duration.last, found.processing.last, found.delivering.last, found.latency.last) == (6, 4, 2, 7)


async def test_the_latency_of_a_pipeline_that_reads_another_counts_from_the_first_arrival(scene: Scene) -> None:
    clock = Clock(scene)
    await scene.start("first", "s")
    await scene.start("second", "pipeline:first/out")
    await scene.ingest("connector/s/0", {1: 10})
    await scene.cut(await scene.initial("first"), "first")
    clock.now = 107.0
    await scene.merge(0, await stage(scene, 0, "first"), name="first")
    await scene.durable()
    await scene.cut(await scene.initial("second"), "second")
    clock.now = 110.0
    await scene.merge(0, name="second")
    await scene.durable()
    assert flow(scene, "first").latency.last == 7.0
    assert flow(scene, "second").latency.last == 10.0
    assert flow(scene, "second").duration.last == 3.0
    assert flow(scene, "second").rows_in == 2


async def test_latency_includes_the_time_waited_while_the_pipeline_was_busy(scene: Scene) -> None:
    clock = Clock(scene)
    await scene.start()
    await scene.ingest("connector/s/0", {1: 10})
    offset = (await scene.cut(await scene.initial())).offset
    await scene.durable()
    scene.coordinator._sample()
    clock.now = 101.0
    await scene.ingest("connector/s/0", {1: 20})
    scene.coordinator._sample()
    clock.now = 130.0
    await scene.merge(0)
    await scene.durable()
    await scene.cut(offset)
    clock.now = 131.0
    await scene.merge(1)
    await scene.durable()
    assert flow(scene).latency.last == 30.0
    assert flow(scene).duration.last == 1.0


async def test_the_flow_of_a_dropped_pipeline_is_forgotten(scene: Scene) -> None:
    await scene.start()
    await scene.ingest("connector/s/0", {1: 10})
    await scene.cut(await scene.initial())
    await scene.coordinator.lifecycle.drop("p")
    await scene.until(lambda: "p" not in scene.coordinator.flow.pipelines)


async def test_after_a_reset_epochs_are_measured_from_scratch(scene: Scene) -> None:
    await scene.start()
    await scene.ingest("connector/s/0", {1: 10})
    await scene.cut(await scene.initial())
    await scene.coordinator.lifecycle.reset("p")
    await scene.start()
    await scene.ingest("connector/s/0", {1: 20})
    await scene.cut(await scene.initial())
    assert [epoch.number for epoch in flow(scene).open] == [0]


def test_a_distribution_counts_each_value_in_its_bucket() -> None:
    distribution = Distribution()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] + 0.001, BUCKETS[-1] + 1):
        distribution.observe(seconds)
    assert distribution.counts[:2] == [2, 1]
    assert distribution.counts[-1] == 1
    assert distribution.last == BUCKETS[-1] + 1
