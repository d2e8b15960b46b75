"""What completed epochs release: acknowledgements, the producer of an output, old data."""

import asyncio
from typing import Any

import pytest

from penstock.coordinator.machine.state import Retention
from penstock.core.errors import DataLoss, PipelineError
from penstock.protocol.api.pipelines import InputOffset, Limits, Range, StoredInput
from penstock.worker.blockages import Facts, FullSource, blockages
from tests.coordinator.scene import Scene, opened, raw
from tests.support.waiting import SECONDS_MAX

A, B = "connector/s/0", "connector/s/1"


class TestAcknowledgements:
    async def test_acknowledgements_follow_what_every_registered_pipeline_has_completed(self, scene: Scene) -> None:
        ends = [await scene.ingest(A, {1: 5})]
        await scene.start("p")
        await scene.start("q")
        p, q = await scene.initial("p"), await scene.initial("q")
        p = await scene.epoch(p, 0, name="p")
        await scene.durable()
        calls = scene.completions["s"].calls
        assert calls == [("hold", {A: 0})]
        q = await scene.epoch(q, 0, name="q")
        await scene.durable()
        assert calls[1:] == [("advance", {A: ends[0]})]
        ends.append(await scene.ingest(A, {1: 6}))
        await scene.epoch(q, 1, name="q")
        await scene.coordinator.lifecycle.drop("p")
        await scene.durable()
        assert calls[2:] == [("advance", {A: ends[1]})]
        await scene.coordinator.lifecycle.drop("q")
        await scene.durable()
        assert calls[3:] == [("let go", {})]

    async def test_acknowledgements_wait_until_the_merge_is_durable(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        await scene.cut(await scene.initial())
        calls = scene.completions["s"].calls
        scene.paused = True
        merging = asyncio.create_task(scene.merge(0))
        await asyncio.sleep(0.02)
        assert calls == [("hold", {A: 0})]
        scene.paused = False
        await merging
        await scene.until(lambda: len(calls) == 2)

    async def test_with_sparks_own_sinks_acknowledgements_come_with_the_next_offset_or_the_listener(
        self, scene: Scene
    ) -> None:
        ends = [await scene.ingest(A, {1: 5})]
        await scene.start(outputs=[])
        cut = (await scene.cut(await scene.initial())).offset
        await scene.durable()
        calls = scene.completions["s"].calls
        assert calls == [("hold", {A: 0})]
        await scene.cut(cut)
        await scene.durable()
        assert calls[-1] == ("advance", {A: ends[0]})
        ends.append(await scene.ingest(A, {1: 6}))
        await scene.cut(cut)
        await scene.coordinator.lifecycle.complete("p", 1, 1)
        await scene.durable()
        assert calls[-1] == ("advance", {A: ends[1]})

    async def test_after_a_restart_sources_are_held_before_anything_else(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start()
        await scene.epoch(await scene.initial(), 0)
        await scene.reopen()
        assert scene.completions["s"].calls == [("hold", {A: end})]

    async def test_acknowledgements_of_a_later_segment_wait_from_its_beginning(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start()
        at = await scene.epoch(await scene.initial(), 0)
        await scene.ingest(B, {2: 5})
        cut = await scene.cut(at)
        await scene.durable()
        assert scene.completions["s"].calls[-1] == ("advance", {A: end})
        await scene.merge(1)
        await scene.durable()
        assert scene.completions["s"].calls[-1] == ("advance", dict(cut.offset.segments))


def blocked(scene: Scene, **more: Any) -> list[str]:
    return [one.text for one in blockages(Facts(pipelines=scene.coordinator.pipelines(), **more))]


class TestBackpressure:
    async def test_output_that_its_reader_has_not_completed_blocks_the_cut(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start("p", limits=Limits(undelivered_bytes=100))
        await scene.start("reader", "pipeline:p/out")
        at = await scene.epoch(await scene.initial(), 0, raw(b"x" * 200))
        await scene.ingest(A, {1: 6})
        cut = await scene.cut(at)
        assert cut.offset == at
        assert cut.blocked is not None
        assert "blocked by reader (STARTING): 208 bytes of its output wait, and the limit is 100" in cut.blocked
        assert scene.status("p").undelivered_bytes == 208
        assert blocked(scene)[0].startswith("pipeline p is blocked by reader")
        waiting = asyncio.create_task(scene.cut(at, wait_seconds=30))
        await asyncio.sleep(0.01)
        reading = await scene.initial("reader")
        await scene.epoch(reading, 0, name="reader")
        assert (await asyncio.wait_for(waiting, SECONDS_MAX)).offset.epoch == 1

    async def test_unread_output_does_not_block_the_cut(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start("p", limits=Limits(undelivered_bytes=1))
        at = await scene.epoch(await scene.initial(), 0, raw(b"x" * 200))
        await scene.ingest(A, {1: 6})
        assert (await scene.cut(at)).blocked is None


class TestHolds:
    async def test_a_pipeline_that_is_not_running_is_named_with_the_bytes_it_blocks(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start()
        assert blocked(scene) == [f"pipeline p waits for Spark to start: {end} B behind"]
        await scene.cut(await scene.initial())
        assert blocked(scene) == [], "it has asked for them"
        scene.coordinator.lifecycle.heartbeat("p", 1, stopped=True)
        assert blocked(scene) == [f"pipeline p is STOPPED: {end} B behind"]
        await scene.reopen(heartbeat_lapse_seconds=0.05)
        assert scene.status().state == "STOPPED"
        scene.coordinator.lifecycle.heartbeat("p", 1, stopped=False)
        await scene.until(lambda: scene.status().state == "FAILING")
        assert blocked(scene) == [f"pipeline p is FAILING ({end} B behind): its Spark query failed"]
        await scene.reopen()
        assert scene.status().state == "STOPPED"

    async def test_a_source_at_its_quota_names_the_pipelines_that_block_it(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        await scene.cut(await scene.initial())
        (line,) = blocked(scene, full_sources={"s": FullSource(42, scene.coordinator.slowest("s"))})
        assert line == "source s is blocked by p (RUNNING): it is at its quota with 42 B, and gets no credits"


async def epochs(scene: Scene, count: int) -> list[InputOffset]:
    """This many epochs of one record each; the last one is proved."""
    at = [await scene.initial()]
    for number in range(count):
        await scene.ingest(A, {1: number})
        at.append(await scene.epoch(at[-1], number))
    await scene.cut(at[-1])
    return at


class TestRetention:
    async def test_complete_keeps_what_spark_may_read_again(self, scene: Scene) -> None:
        scene.create(A)
        await scene.start()
        at = await epochs(scene, 6)
        await scene.until(lambda: scene.store.info(A).start >= at[3].segments[A])
        await asyncio.sleep(0.03)
        assert scene.store.info(A).start == at[3].segments[A]

    async def test_complete_keeps_what_a_later_pipeline_needs_even_if_removal_was_already_allowed(self) -> None:
        async with opened(truncate_seconds=1000) as scene:
            truncated_at = scene.coordinator._retention._truncated_at
            scene.create(A)
            await scene.start()
            at = await epochs(scene, 6)
            await scene.until(lambda: A in truncated_at)
            await scene.start("late", fresh=True)
            start = await scene.initial("late")
            truncated_at[A] = -10_000  # its time has come
            await asyncio.sleep(0.05)
            assert scene.store.info(A).start == start.segments[A] == 0
            await scene.coordinator.lifecycle.drop("late")
            await scene.ingest(A, {1: 7})
            await scene.cut(await scene.epoch(at[-1], 6))
            await scene.until(lambda: scene.store.info(A).start > 0)

    async def test_complete_keeps_what_another_pipeline_has_not_read(self, scene: Scene) -> None:
        scene.create(A)
        await scene.start()
        await scene.start("slow")
        await epochs(scene, 6)
        await asyncio.sleep(0.03)
        assert scene.store.info(A).start == 0
        await scene.coordinator.lifecycle.drop("slow")
        await scene.until(lambda: scene.store.info(A).start > 0)

    async def test_complete_continues_after_a_restart(self) -> None:
        async with opened(retention_seconds=1000) as slow:
            slow.create(A)
            await slow.start()
            at = await epochs(slow, 6)
            await slow.reopen(retention_seconds=0.01)
            await slow.until(lambda: slow.store.info(A).start == at[3].segments[A])

    async def test_complete_does_not_truncate_segments_written_by_others(self, scene: Scene) -> None:
        scene.create("raw")
        await scene.start(source="segment:raw")
        at = await scene.initial()
        for number in range(6):
            await scene.append("raw", raw(b"1"))
            at = await scene.epoch(at, number)
        await scene.cut(at)
        await asyncio.sleep(0.03)
        assert scene.store.info("raw").start == 0

    async def test_small_truncations_are_batched(self) -> None:
        async with opened(truncate_seconds=1000, truncate_bytes=140) as patient:
            patient.create(A)
            await patient.start()
            at = await epochs(patient, 5)
            await asyncio.sleep(0.03)
            assert patient.store.info(A).start == 0
            for number in range(5, 8):
                await patient.ingest(A, {1: number})
                at.append(await patient.epoch(at[-1], number))
            await patient.until(lambda: patient.store.info(A).start >= 140)

    async def test_keep_truncates_nothing(self) -> None:
        async with opened(retention=Retention("keep")) as scene:
            scene.create(A)
            await scene.start()
            await epochs(scene, 6)
            await asyncio.sleep(0.03)
            assert scene.store.info(A).start == 0

    async def test_keep_also_keeps_what_was_completed_before_the_restart(self) -> None:
        async with opened(retention_seconds=1000) as slow:
            slow.create(A)
            await slow.start()
            await epochs(slow, 6)
            await slow.reopen(retention_seconds=0.01, retention=Retention("keep"))
            await asyncio.sleep(0.03)
            assert slow.store.info(A).start == 0

    async def test_nothing_is_truncated_while_a_backup_is_taken_and_everything_afterwards(self) -> None:
        async with opened(retention_seconds=1000) as scene:
            is_paused = True
            scene.coordinator.pause_retention_while(lambda: is_paused)
            scene.create(A)
            await scene.start()
            at = await epochs(scene, 6)
            await scene.durable()
            scene.coordinator._retain()
            assert scene.store.info(A).start == 0
            is_paused = False
            scene.coordinator._retain()
            assert scene.store.info(A).start == at[3].segments[A]

    async def test_retention_by_size_applies_to_each_segment_whoever_reads_it(self) -> None:
        async with opened(retention=Retention("size", 100)) as scene:
            scene.create(A)
            await scene.start()
            for number in range(10):
                end = await scene.ingest(A, {1: number})
            start = end - 3 * (end // 10)  # as many records as are 100 bytes
            await scene.until(lambda: scene.store.info(A).start == start)
            cut = await scene.cut(await scene.initial())
            with pytest.raises(DataLoss, match=f"the bytes 0 to {start} of segment '{A}' were removed"):
                await scene.coordinator.readers.splits([Range(A, 0, cut.offset.segments[A])], 4, 0, skip_lost=False)

    async def test_retention_by_time_continues_across_a_restart(self) -> None:
        async with opened(retention=Retention("time", 50_000_000)) as scene:
            # Both in one turn of the loop, so that one mark has both.
            end, _ = await asyncio.gather(scene.ingest(A, {1: 1}), scene.append("pipeline/p/out", raw(b"old")))
            ends = [end]
            await scene.until(lambda: len(scene.coordinator._shared.state.marks) == 1)
            await scene.reopen()
            scene.now_us += 30_000_000
            ends.append(await scene.ingest(A, {1: 2}))
            scene.coordinator._retention._marked_at = -1000
            await scene.until(lambda: len(scene.coordinator._shared.state.marks) == 2)
            assert scene.store.info(A).start == 0
            scene.now_us += 30_000_000
            scene.coordinator._retention._marked_at = -1000
            await scene.until(lambda: scene.store.info(A).start == ends[0])
            assert scene.store.info("pipeline/p/out").start == 11


class TestReset:
    async def test_a_reset_is_refused_if_retention_has_removed_input_unless_that_is_accepted(
        self, scene: Scene
    ) -> None:
        scene.create(A)
        await scene.start()
        await epochs(scene, 6)
        await scene.until(lambda: scene.store.info(A).start > 0)
        info = scene.store.info(A)
        lifecycle = scene.coordinator.lifecycle
        assert lifecycle.stored_input("p") == StoredInput(info.length - info.start, info.length)
        with pytest.raises(
            PipelineError, match=r"of \d+ bytes of the input of pipeline 'p' are still stored"
        ) as caught:
            await lifecycle.reset("p")
        assert "--accept-partial" in caught.value.hint
        assert scene.status().incarnation == 1
        await lifecycle.reset("p", accept_partial=True)
        assert (scene.status().incarnation, scene.status().is_reset) == (2, True)
        await scene.start(fresh=True)
        assert not scene.status().is_reset

    async def test_a_reset_keeps_what_is_stored_until_the_next_start(self) -> None:
        """Even what retention was about to remove."""
        async with opened(truncate_seconds=1000) as scene:
            truncated_at = scene.coordinator._retention._truncated_at
            scene.create(A)
            await scene.start()
            await epochs(scene, 6)
            await scene.until(lambda: A in truncated_at)
            await scene.coordinator.lifecycle.reset("p")
            truncated_at[A] = -10_000  # its time has come
            await asyncio.sleep(0.05)
            assert scene.store.info(A).start == 0
            await scene.start(fresh=True)
            assert (await scene.initial()).segments == {A: 0}

    async def test_stored_input_counts_from_where_the_pipeline_first_started(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start(starting="latest")
        begun = scene.store.info(A).length
        end = await scene.ingest(A, {1: 6})
        assert scene.coordinator.lifecycle.stored_input("p") == StoredInput(end - begun, end - begun)
