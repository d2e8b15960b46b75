"""The output of an epoch is merged once, as a whole, by the newest generation."""

import asyncio

import pytest

from penstock.core.errors import Fenced, PipelineError, QuotaReached, RequestError, Unavailable
from penstock.core.types import QUOTA
from penstock.protocol.api.pipelines import Staged
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.scene import Scene, raw

A = "connector/s/0"


async def test_staged_segments_are_merged_in_order_and_removed(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start(outputs=["out", "late"])
    cut = await scene.cut(await scene.initial())
    staged = [
        await scene.stage(b"1", 0, part="0-7"),
        await scene.stage(b"late", 0, port="late", part="0-7"),
        await scene.stage(b"2", 0, part="1-3"),
    ]
    merged = await scene.merge(0, *staged)
    assert (merged.merged, merged.epoch) == (True, 0)
    assert (scene.output(), scene.output(port="late")) == (b"12", b"late")
    assert scene.names("staging/") == []
    assert (scene.status().merged, scene.status().complete) == (0, 0)
    assert cut.offset.epoch == 0


async def test_a_second_merge_changes_nothing_and_removes_what_was_staged_for_it(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    end = await scene.epoch(start, 0, b"once")
    await scene.start()
    await scene.coordinator.cuts.reading("p", 2, "in", start, end)
    again = await scene.stage(b"once", 0)
    merged = await scene.merge(0, again)
    assert (merged.merged, merged.epoch) == (False, 0)
    await scene.durable()
    assert scene.output() == b"once"
    assert scene.names("staging/") == []


async def test_losing_attempts_are_swept_with_the_merge(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.cut(await scene.initial())
    won, _ = await scene.stage(b"won", 0, part="0-1"), await scene.stage(b"lost", 0, part="0-2")
    other = await scene.stage(b"next", 1)
    await scene.merge(0, won)
    await scene.durable()
    assert scene.names("staging/") == [other.segment]


async def test_segments_staged_by_a_rerun_epoch_are_kept_until_the_next_epoch(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    first = await scene.epoch(start, 0, b"one")
    await scene.ingest(A, {1: 6})
    second = await scene.epoch(first, 1, b"two")
    await scene.start()
    await scene.coordinator.cuts.reading("p", scene.generation(), "in", start, first)
    again = await scene.stage(b"one", 0)
    scene.coordinator._sweep()
    assert scene.names("staging/") == [again.segment]
    assert not (await scene.merge(0, again)).merged
    left = await scene.stage(b"left by a task that was not stopped", 0)
    scene.coordinator._sweep()
    assert scene.names("staging/") == [left.segment]
    await scene.coordinator.cuts.reading("p", scene.generation(), "in", first, second)
    scene.coordinator._sweep()
    assert scene.names("staging/") == []


async def test_an_older_generation_merges_nothing(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.cut(await scene.initial())
    staged = await scene.stage(b"old", 0)
    await scene.start()
    with pytest.raises(Fenced):
        await scene.merge(0, staged, generation=1)
    assert scene.output() == b""


async def test_another_range_for_the_same_epoch_is_an_error(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    end = await scene.epoch(await scene.initial(), 0)
    await scene.ingest(A, {1: 6})
    await scene.cut(end)
    with pytest.raises(PipelineError, match="epoch 0 was merged with the input from cut -1 to 0"):
        await scene.merge(0)


async def test_an_epoch_must_follow_the_last_one(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    end = await scene.epoch(await scene.initial(), 7)
    await scene.ingest(A, {1: 6})
    await scene.cut(end)
    with pytest.raises(PipelineError, match="epoch 9 does not follow epoch 7"):
        await scene.merge(9)


async def test_the_epoch_after_one_without_new_input_has_the_number_of_sparks_next_batch(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    end = await scene.epoch(await scene.initial(), 0, b"a")
    assert (await scene.cut(end)).offset == end, "nothing is new: Spark may run a batch all the same"
    await scene.merge(1, await scene.stage(b"b", 1))
    status = scene.status()
    assert (status.planned, status.merged, status.delivered, status.complete, status.proved) == (1, 1, 1, 1, 0)
    await scene.ingest(A, {1: 6})
    cut = (await scene.cut(end)).offset
    assert cut.epoch == 2
    await scene.merge(2, await scene.stage(b"c", 2))
    assert (await scene.cut(cut)).offset == cut
    assert (scene.status().merged, scene.status().complete, scene.status().proved) == (2, 2, 2)
    await scene.reopen()
    await scene.start(fresh=False)
    assert (await scene.cut(end)).offset == cut, "the same start has the same end"


async def test_an_epoch_without_new_input_needs_no_cut(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    end = await scene.epoch(await scene.initial(), 0, b"a")
    await scene.cut(end)
    assert (await scene.merge(1, await scene.stage(b"b", 1))).epoch == 1
    await scene.start()
    assert not (await scene.merge(1, await scene.stage(b"b", 1))).merged
    assert scene.output() == b"ab"


async def test_a_merge_that_does_not_match_the_staged_segments_is_refused(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.cut(await scene.initial())
    staged = await scene.stage(b"123", 0)
    for wrong in (Staged("out", staged.segment, 4), Staged("out", "staging/p/1/0/9-9/out", 3)):
        with pytest.raises(PipelineError, match=r"has .* bytes, but its task has reported"):
            await scene.merge(0, wrong)
    for segment in ("staging/p/1/1/0-0/out", "staging/q/1/0/0-0/out", A, "pipeline/p/out"):
        with pytest.raises(RequestError, match="was not staged by this epoch"):
            await scene.merge(0, Staged("out", segment, 0))
    with pytest.raises(RequestError, match="listed twice"):
        await scene.merge(0, staged, staged)
    with pytest.raises(PipelineError, match="no output port 'other'"):
        await scene.merge(0, Staged("other", staged.segment, 3))
    assert not scene.store.exists("pipeline/p/other")
    assert (await scene.merge(0, staged)).merged


async def test_a_merge_is_never_refused_for_a_quota(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    scene.store.create("pipeline/p/out", {QUOTA: 2})
    await scene.start()
    await scene.cut(await scene.initial())
    scene.store.append("pipeline/p/out", [b"1"])
    with pytest.raises(QuotaReached):
        scene.store.append("pipeline/p/out", [b"23"])
    assert (await scene.merge(0, await scene.stage(b"234", 0))).merged


async def test_a_merge_without_a_start_registers_its_pipeline(scene: Scene) -> None:
    segment = "staging/alone/-/0/0-0/out"
    length = await scene.append(segment, raw(b"1"))
    merge = scene.coordinator.merger.merge
    assert (await merge("alone", None, 0, [Staged("out", segment, length)])).merged
    assert not (await merge("alone", None, 0, [])).merged
    assert scene.status("alone").outputs == ["out"]
    assert scene.status("alone").state == "RUNNING"
    with pytest.raises(PipelineError, match="does not follow"):
        await merge("alone", None, 5, [])


async def test_an_abort_leaves_nothing(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.stage(b"1", 3, part="0-0")
    await scene.stage(b"1", 3, part="1-0")
    other = await scene.stage(b"1", 33)
    await scene.coordinator.merger.abort("p", 1, 3)
    assert scene.names("staging/") == [other.segment]


async def test_after_a_journal_failure_no_merge_is_confirmed() -> None:
    files = FaultyFiles()
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.cut(await scene.initial())
    staged = await scene.stage(b"1", 0)
    files.fail_next_sync()
    merging = asyncio.create_task(scene.merge(0, staged))
    await scene.until(lambda: scene.journal.failed)
    assert not merging.done()
    await scene.coordinator.stop()
    for answer in (merging, scene.merge(0, staged)):
        with pytest.raises(Unavailable, match="the worker is stopping"):
            await answer
