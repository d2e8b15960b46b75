"""The end of a stream passes through a chain of pipelines before sinks are notified of it."""

import asyncio

from penstock.delivery.breakers.signals import PipelineChains
from tests.coordinator.scene import opened, raw, stored
from tests.delivery.outbox.scene import A, B, SinkScene
from tests.support.waiting import SECONDS_MAX


async def test_output_of_the_first_pipeline_has_passed_when_the_second_has_completed_it() -> None:
    async with opened() as scene:
        await scene.append("raw", raw(b"1"))
        await scene.start("first", "segment:raw", ["out"])
        await scene.start("second", "pipeline:first/out", ["out"])
        await scene.epoch(await scene.initial("first"), 0, stored(1, 1, 5), name="first")
        passing = asyncio.create_task(PipelineChains(scene.coordinator.deliveries).passed("segment:raw"))
        await scene.durable()
        assert not passing.done()
        await scene.epoch(await scene.initial("second"), 0, stored(1, 1, 5), name="second")
        await asyncio.wait_for(passing, SECONDS_MAX)


async def test_unread_output_of_a_pipeline_has_passed_at_once() -> None:
    async with opened() as scene:
        await scene.append("raw", raw(b"1"))
        await scene.start("first", "segment:raw", ["out"])
        await asyncio.wait_for(PipelineChains(scene.coordinator.deliveries).passed("segment:raw"), SECONDS_MAX)
        await asyncio.wait_for(PipelineChains(scene.coordinator.deliveries).passed("unheard"), SECONDS_MAX)


async def test_closed_is_sent_after_the_end_of_the_stream_and_not_if_it_has_started_again(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    scene.known = set()
    has_passed = asyncio.Event()

    async def passed(source: str) -> None:
        assert source == "src"
        await has_passed.wait()

    scene.signals.passed = passed
    scene.signals.relink("src", ["x"])
    for stream in (A, B):
        scene.signals.started(stream)
    await scene.until(lambda: scene.signals.may_send(A) and scene.signals.may_send(B))
    for stream in (A, B):
        scene.signals.ended(stream)
        scene.signals.completed(stream)
    await scene.put_out((A, b"a1"))
    await scene.delivered()
    scene.signals.started(B)
    assert "closed" not in x.what(A)
    has_passed.set()
    await scene.until(lambda: "closed" in x.what(A))
    assert x.what(A) == ["started", "event", "closed"]
    assert x.what(B) == ["started"]
    await scene.signals.stop()
