"""What tasks stage beside their query is merged with the epoch: each event of an operator once."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from penstock.coordinator import distinct_events, repeated_events
from penstock.coordinator.repeated_events import EVENTS_AT_ONCE
from penstock.core.errors import DataLoss, Fenced, PipelineError, RequestError, UnreadableFormat
from penstock.protocol.api.pipelines import InputOffset, Range, Staged
from penstock.protocol.api.side_outputs import REGISTRATION_FORMAT, ReaderPlan, Registration, SideKey
from penstock.protocol.stored.dead_letters import dead_letters_in
from penstock.store.files import RealFiles
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.scene import Scene, opened
from tests.protocol.stored.events import stored

A = "connector/s/0"
EVENTS_A_RECORD = 200
"""Of what a task stages."""
PLAN = ReaderPlan("in/json", '{"codec": "json"}', ((Range(A, 0, 10),), (Range(A, 10, 30),)))


def dead_letter(offset: int | None, port: str = "err") -> bytes:
    place = {} if offset is None else {"segment": A, "offset": offset}
    return stored(7, offset or 0, 5, b"", b"value", {"source": "s", "reason": f"{port}: bad", **place})


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened() as running:
        await running.ingest(A, {1: 5})
        yield running


async def begun(scene: Scene, outputs: tuple[str, ...] = ("out",), generation: int = 1) -> InputOffset:
    await scene.start_as(generation, outputs=outputs)
    return (await scene.cut(await scene.initial())).offset


async def register(
    scene: Scene,
    *offsets: int | None,
    operator: str = "apply",
    partition: int = 0,
    epoch: int = 0,
    port: str = "err",
    reader: bool = False,
    digest: int | None = None,
    generation: int | None = None,
    attempt: str = "",
    token: str = "",
    prefix: str = "",
) -> Registration:
    """As a task does: stage, then register. Returns the registration that it is compared with."""
    generation = generation or scene.generation()
    segment = f"staging/p/{generation}/{epoch}/side/data/{Random().randrange(2**60)}/{port}"
    length = 0
    for start in range(0, len(offsets), EVENTS_A_RECORD):
        data = b"".join(dead_letter(one, port) for one in offsets[start : start + EVENTS_A_RECORD])
        length = await scene.append(segment, data)
    staged = (Staged(port, segment, length, len(offsets)),) if offsets else ()
    known = sum(one or 0 for one in offsets) if digest is None else digest
    token = token or str(Random().randrange(2**60))
    given = Registration(
        SideKey(not reader, operator, partition), staged, known, REGISTRATION_FORMAT, attempt, token if attempt else ""
    )
    return await scene.coordinator.sides.register("p", generation, epoch, given, prefix)


def compare_at_once(events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (distinct_events, repeated_events):
        monkeypatch.setattr(module, "EVENTS_AT_ONCE", events)


def offsets(scene: Scene, port: str = "err") -> list[int | None]:
    if not scene.store.exists(f"pipeline/p/{port}"):
        return []
    return [one.offset for one in dead_letters_in(scene.output(port=port), 0)]


async def test_side_outputs_are_merged_in_the_record_of_the_epoch(scene: Scene) -> None:
    await begun(scene)
    await register(scene, 3, 4)
    await register(scene, 5, operator="window", port="late")
    merged = await scene.merge(0, await scene.stage(b"rows", 0))
    assert merged.merged
    assert (scene.output(), offsets(scene), offsets(scene, "late")) == (b"rows", [3, 4], [5])
    assert scene.names("staging/") == []
    assert not (await scene.merge(0)).merged
    assert offsets(scene) == [3, 4]


async def test_side_outputs_are_ordered_with_readers_first_then_operators_by_partition(scene: Scene) -> None:
    await begun(scene)
    await register(scene, 1, partition=1)
    await register(scene, 2, partition=0)
    await register(scene, 3, operator="in/json", partition=1, reader=True)
    await register(scene, 4, operator="in/json", partition=0, reader=True)
    await scene.merge(0)
    assert offsets(scene) == [4, 3, 2, 1]


@pytest.mark.parametrize("at_once", [EVENTS_AT_ONCE, 2, 1])
async def test_an_event_that_several_partitions_have_staged_leaves_once(
    scene: Scene, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few identities are compared at once."""
    compare_at_once(at_once, monkeypatch)
    await begun(scene)
    await register(scene, 1, 2, partition=0)
    await register(scene, 2, 3, None, partition=1)
    await register(scene, 3, 1, partition=2)
    await register(scene, 4, None, partition=3)
    await register(scene, 1, operator="another")
    await register(scene, 1, port="late", operator="late")
    await scene.merge(0)
    assert sorted(str(one) for one in offsets(scene)) == ["1", "1", "2", "3", "4", "None", "None"]
    assert offsets(scene, "late") == [1]
    assert scene.names("staging/") == []


async def peak_of(measured: Callable[[], Awaitable[Any]]) -> int:
    """The bytes that Python and NumPy have allocated at most while it ran."""
    gc.collect()
    tracemalloc.start()
    try:
        await measured()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_the_memory_of_a_merge_does_not_grow_with_the_events_that_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times as many, half of them in two partitions: on a disk, as memory is what is measured."""
    compare_at_once(2000, monkeypatch)
    monkeypatch.setattr(distinct_events, "_STEP_BYTES", 64 * 1024)
    monkeypatch.setattr(distinct_events, "_UNWRITTEN_BYTES_MAX", 128 * 1024)
    peaks = []
    for number, events in enumerate((1500, 4000, 20_000)):  # the first one loads what it needs
        scene = Scene(RealFiles(tmp_path / str(number)))
        await scene.open()
        await scene.ingest(A, {1: 5})
        await begun(scene)
        for partition, start in enumerate((0, events // 2)):
            await register(scene, *range(start + 1, start + events + 1), partition=partition)
        peaks.append(await peak_of(partial(scene.merge, 0)))
        assert offsets(scene) == [*range(1, events + events // 2 + 1)]
        assert scene.names("staging/") == []
        await scene.close()
    assert peaks[2] < 1.5 * peaks[1], peaks


async def test_the_first_registration_of_a_key_counts_and_later_attempts_can_compare(scene: Scene) -> None:
    await begun(scene)
    first = await register(scene, 1, 2)
    assert (await register(scene, 2, 1)) == first
    different = await register(scene, 1, digest=99)
    assert different == first, "the task sees that it has decided otherwise"
    await scene.merge(0)
    assert offsets(scene) == [1, 2]
    assert scene.names("staging/") == []


class TestTasksThatRegisterTwice:
    """`coalesce` computes several partitions of a frame in one task, with an operator in each."""

    async def test_each_registration_counts(self, scene: Scene) -> None:
        await begun(scene)
        await register(scene, 1, 2, attempt="7")
        second = await register(scene, 3, attempt="7")
        assert [one.rows for one in second.staged] == [1], "it is not compared with the first"
        await register(scene, attempt="7")
        await register(scene, 2, 4, attempt="7")
        await scene.merge(0)
        assert offsets(scene) == [1, 2, 3, 4]
        assert scene.names("staging/") == []

    async def test_another_attempt_is_compared_one_by_one(self, scene: Scene) -> None:
        await begun(scene)
        first, second = await register(scene, 1, attempt="7"), await register(scene, 2, attempt="7")
        assert await register(scene, 1, attempt="8") == first
        assert await register(scene, 2, attempt="8") == second
        third = await register(scene, 3, attempt="8")
        assert await register(scene, 3, attempt="7") == third, "the first attempt may be the slower one"
        assert await register(scene, 1, attempt="9") == first
        assert (await register(scene, 9, attempt="9")).digest == second.digest, "it sees that it has decided otherwise"
        await scene.merge(0)
        assert offsets(scene) == [1, 2, 3]

    async def test_a_request_that_is_repeated_registers_once(self, scene: Scene) -> None:
        await begun(scene)
        for _ in range(2):
            assert (await register(scene, attempt="7", token="a")).token == "a"
        assert (await register(scene, 1, attempt="7", token="b")).token == "b"
        for attempt in ("8", "8"):
            assert (await register(scene, attempt=attempt, token="c")).token == "a"
        assert (await register(scene, 1, attempt="8", token="d")).token == "b"
        await scene.merge(0)
        assert offsets(scene) == [1]

    async def test_it_is_known_after_a_crash_of_the_worker(self, scene: Scene) -> None:
        await begun(scene)
        await register(scene, 1, attempt="7")
        await register(scene, 1, attempt="8")
        await scene.reopen()
        assert (await register(scene, 2, attempt="8")).digest == 2
        await scene.reopen()
        assert (await register(scene, 2, attempt="7")).attempt == "8"
        await scene.merge(0)
        assert offsets(scene) == [1, 2]


async def test_registrations_of_format_1_are_read_and_those_of_a_later_format_refused(scene: Scene) -> None:
    """Format 1 is a list of three; nothing says then which of them are merged."""
    end = await begun(scene, outputs=())
    data, done = "staging/p/1/0/side/data/1/err", "staging/p/1/0/side/done/o-old-0-0"
    length = await scene.append(data, dead_letter(1))
    await scene.append(
        done, msgpack.packb([[True, "old", 0, 0], [{"port": "err", "segment": data, "length": length}], 1])
    )
    gone = [[True, "old", 1, 0], [{"port": "err", "segment": "staging/p/1/0/side/data/2/err", "length": 1}], 1]
    await scene.append(f"{done[:-1]}1", msgpack.packb(gone))
    await scene.cut(end)
    assert offsets(scene) == [1]
    await scene.append(f"{done[:-1]}2", msgpack.packb([[True, "old", 2, 0], [], 0, REGISTRATION_FORMAT + 1]))
    with pytest.raises(UnreadableFormat, match="newer version"):
        await scene.cut(end)


async def test_an_empty_registration_counts_as_the_first_too(scene: Scene) -> None:
    await begun(scene)
    assert (await register(scene)).staged == ()
    assert (await register(scene, 1)).staged == ()
    await scene.merge(0)
    assert offsets(scene) == []


async def test_parts_that_no_task_has_finished_are_named_before_anything_is_merged(scene: Scene) -> None:
    await begun(scene)
    sides = scene.coordinator.sides
    assert await sides.plan("p", 1, 0, PLAN) == PLAN
    other = ReaderPlan("in/json", PLAN.decoding, ((Range(A, 0, 30),),))
    assert await sides.plan("p", 1, 0, other) == PLAN, "a second load of the same input reads the same parts"
    await register(scene, 1, operator="in/json", partition=0, reader=True)
    staged = await scene.stage(b"rows", 0)
    refused = await scene.merge(0, staged)
    assert not refused.merged
    assert [(one.epoch, one.key.partition, one.ranges, one.decoding) for one in refused.missing] == [
        (0, 1, (Range(A, 10, 30),), PLAN.decoding)
    ]
    assert scene.status().merged == -1
    await register(scene, operator="in/json", partition=1, reader=True)
    assert (await scene.merge(0, staged)).merged
    assert (scene.output(), offsets(scene)) == (b"rows", [1])


async def test_a_new_generation_drops_what_an_older_one_registered(scene: Scene) -> None:
    end = await begun(scene)
    start = await scene.initial()
    await scene.coordinator.sides.plan("p", 1, 0, PLAN)
    await register(scene, 1)
    await scene.start(outputs=("out",))
    with pytest.raises(Fenced):
        await register(scene, 2, generation=1)
    await scene.coordinator.cuts.reading("p", 2, "in", start, end)
    await register(scene, 7)
    assert (await scene.merge(0)).merged
    assert offsets(scene) == [7]
    await scene.durable()
    scene.coordinator._sweep()
    assert scene.names("staging/") == []


async def test_a_second_query_of_the_same_generation_registers_again(scene: Scene) -> None:
    await scene.start(outputs=("out",))
    start = await scene.initial()
    await scene.attach("first")
    end = (await scene.cut(start, load="first")).offset
    await register(scene, 1)
    await scene.attach("second")
    await scene.coordinator.cuts.reading("p", 1, "in", start, end)
    assert (await register(scene, 2)).digest == 2
    await scene.coordinator.cuts.reading("p", 1, "in", start, end)
    await scene.merge(0)
    assert offsets(scene) == [2]


async def test_a_query_that_is_older_than_the_worker_keeps_what_it_has_registered_in_its_epoch() -> None:
    """As with a second job in `foreachBatch`, which plans the epoch once more after a restart of the worker."""
    files = FaultyFiles(Random(1))
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5})
    await begun(scene)
    await register(scene, 7)
    await scene.start(outputs=("out",))
    start = await scene.initial()
    await scene.attach("first")
    end = (await scene.cut(start, load="first")).offset
    await scene.coordinator.sides.plan("p", 2, 0, PLAN)
    await register(scene, 1)
    await scene.durable()
    assert scene.names("staging/p/1/") == []
    await scene.close()
    again = Scene(files)
    await again.open()
    await again.coordinator.cuts.reading("p", 2, "in", start, end)
    assert [one.key.partition for one in await again.coordinator.sides.missing("p", 2, 0)] == [0, 1]
    for part in (0, 1):
        await register(again, operator="in/json", partition=part, reader=True, generation=2)
    await register(again, 2, operator="another", generation=2)
    await again.merge(0)
    assert sorted(map(str, offsets(again))) == ["1", "2"]
    await again.close()


async def test_a_query_that_begins_after_a_restart_of_the_worker_counts_alone() -> None:
    files = FaultyFiles(Random(1))
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5})
    end = await begun(scene)
    start = await scene.initial()
    await register(scene, 1)
    await scene.start(outputs=("out",))
    await scene.attach("first")
    await scene.durable()
    await scene.close()
    again = Scene(files)
    await again.open()
    await again.coordinator.cuts.reading("p", 2, "in", start, end)
    assert again.names("staging/p/1/") == []
    await again.close()


async def test_a_task_of_an_epoch_that_is_over_registers_nothing(scene: Scene) -> None:
    end = await scene.epoch((await begun(scene), await scene.initial())[1], 0, b"a")
    await scene.ingest(A, {1: 6})
    await scene.cut(end)
    for generation in (1, None):
        given = Registration(SideKey(True, "apply", 0), (), 0)
        with pytest.raises(PipelineError, match="epoch 0 of pipeline 'p' is over: epoch 1 is running"):
            await scene.coordinator.sides.register("p", generation, 0, given)


async def test_only_side_outputs_of_the_pipeline_can_be_registered(scene: Scene) -> None:
    await begun(scene)
    for staged in (Staged("err", "staging/q/1/0/side/data/1/err", 1, 1), Staged("out", "staging/p/1/0/x/out", 1, 1)):
        given = Registration(SideKey(True, "apply", 0), (staged,), 0)
        with pytest.raises(RequestError, match="not a side output"):
            await scene.coordinator.sides.register("p", 1, 0, given)


async def test_registering_a_deleted_segment_is_refused(scene: Scene) -> None:
    await begun(scene)
    gone = "staging/p/1/0/side/data/1/err"
    given = Registration(SideKey(True, "apply", 0), (Staged("err", gone, 9, 1),), 1)
    with pytest.raises(PipelineError, match="was deleted before it was registered"):
        await scene.coordinator.sides.register("p", 1, 0, given)
    await register(scene, 1)
    await scene.merge(0)
    assert offsets(scene) == [1]


async def test_a_query_without_a_generation_merges_its_side_outputs(scene: Scene) -> None:
    segment = "staging/alone/-/0/side/data/1/err"
    length = await scene.append(segment, dead_letter(1))
    given = Registration(SideKey(True, "apply", 0), (Staged("err", segment, length, 1),), 1)
    await scene.coordinator.sides.register("alone", None, 0, given)
    await scene.coordinator.merger.merge("alone", None, 0, [])
    assert [one.offset for one in dead_letters_in(scene.output("alone", "err"), 0)] == [1]
    assert scene.names("staging/") == []


class TestSparksOwnSinks:
    """Nothing merges their epochs: side outputs are merged when Spark has certainly committed an epoch."""

    async def test_the_next_offset_proves_the_epoch(self, scene: Scene) -> None:
        end = await begun(scene, outputs=())
        await register(scene, 1)
        assert offsets(scene) == []
        await scene.cut(end)
        assert offsets(scene) == [1]
        await register(scene, 1)
        await scene.cut(end)
        assert offsets(scene) == [1], "a late attempt of the same task adds nothing"

    async def test_the_listener_proves_the_epoch(self, scene: Scene) -> None:
        await begun(scene, outputs=())
        await register(scene, 1, partition=0)
        await register(scene, 1, 2, partition=1)
        await scene.coordinator.lifecycle.complete("p", 1, 0)
        await scene.coordinator.lifecycle.complete("p", 1, 0)
        assert offsets(scene) == [1, 2]

    async def test_a_later_generation_that_did_not_run_the_epoch_proves_it(self, scene: Scene) -> None:
        end = await begun(scene, outputs=())
        await register(scene, 1)
        await scene.reopen()
        await scene.start(outputs=())
        scene.coordinator._sweep()
        await scene.cut(end)
        assert offsets(scene) == [1]
        await scene.ingest(A, {1: 6})
        await scene.cut((await scene.cut(end)).offset)
        assert scene.names("staging/") == []

    async def test_an_epoch_that_a_later_generation_plans_again_takes_that_generations_registrations(
        self, scene: Scene
    ) -> None:
        end = await begun(scene, outputs=())
        start = await scene.initial()
        await register(scene, 1)
        await scene.start(outputs=())
        await scene.coordinator.cuts.reading("p", 2, "in", start, end)
        await register(scene, 2)
        await scene.cut(end)
        assert offsets(scene) == [2]

    async def test_a_pipeline_that_had_another_sink_before_loses_nothing(self, scene: Scene) -> None:
        end = await scene.epoch((await begun(scene), await scene.initial())[1], 0, b"rows")
        await scene.ingest(A, {1: 6})
        await scene.start(outputs=())
        end = (await scene.cut(end)).offset
        await register(scene, 1, epoch=1)
        await scene.durable()
        scene.coordinator._sweep()
        await scene.start(outputs=())
        await scene.cut(end)
        assert offsets(scene) == [1]

    async def test_an_epoch_waits_for_its_missing_parts(self, scene: Scene) -> None:
        end = await begun(scene, outputs=())
        sides = scene.coordinator.sides
        await sides.plan("p", 1, 0, PLAN)
        await register(scene, 1, operator="in/json", partition=0, reader=True)
        await scene.cut(end)
        assert offsets(scene) == []
        (missing,) = await sides.missing("p", 1, 0)
        assert (missing.epoch, missing.key) == (0, SideKey(False, "in/json", 1))
        await register(scene, 2, operator="in/json", partition=1, reader=True)
        await scene.cut(end)
        assert offsets(scene) == [1, 2]
        assert await sides.missing("p", 1, 0) == []

    @pytest.mark.parametrize(("before", "after"), [(1, 2), (9, 10), (2, 11)])
    async def test_a_later_generation_decodes_the_missing_parts_of_an_earlier_one(
        self, scene: Scene, before: int, after: int
    ) -> None:
        """It stages them under its own number, and plans the next epoch meanwhile."""
        end = await begun(scene, (), before)
        sides = scene.coordinator.sides
        await sides.plan("p", before, 0, PLAN)
        await register(scene, 1, operator="in/json", partition=0, reader=True)
        await scene.reopen()
        await scene.start_as(after, outputs=())
        await scene.ingest(A, {1: 6})
        asked = await scene.cut(end)
        assert asked.is_lacking
        assert asked.offset.epoch == 1
        (missing,) = await scene.coordinator.sides.missing("p", after, 0)
        await register(scene, 2, operator="in/json", partition=1, reader=True, prefix=missing.prefix)
        assert not (await scene.cut(end)).is_lacking
        assert offsets(scene) == [1, 2]
        assert scene.names("staging/") == []

    async def test_a_registration_whose_events_are_gone_is_noticed(self, scene: Scene) -> None:
        end = await begun(scene, outputs=())
        await register(scene, 1)
        await register(scene, 2, partition=1)
        scene.store.delete(scene.names("staging/p/1/0/side/data/")[0])
        with pytest.raises(DataLoss, match=r"events of epoch 0 that 'apply' has rejected are lost"):
            await scene.cut(end)
        assert offsets(scene) == []

    async def test_rows_of_a_batch_without_new_input_leave_with_the_next_proof(self, scene: Scene) -> None:
        end = await begun(scene, outputs=())
        await scene.cut(end)
        await register(scene, 9, epoch=1)
        await scene.cut(end)
        assert offsets(scene) == [9]
        await register(scene, 8, epoch=2, operator="another")
        await scene.ingest(A, {1: 6})
        await scene.start(outputs=())
        later = (await scene.cut(end)).offset
        assert later.epoch == 1, "Spark's batch 3"
        assert offsets(scene) == [9, 8], "a later generation proves it"
        await register(scene, 7, epoch=3)
        await scene.cut(later)
        assert offsets(scene) == [9, 8, 7]


async def test_an_empty_registration_of_an_operator_is_durable() -> None:
    """After a crash of the worker, an attempt that decides otherwise would be the first one."""
    random = Random(1)
    files = FaultyFiles(random)
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5})
    await begun(scene)
    await scene.durable()
    scene.paused = True
    registering = asyncio.create_task(register(scene))
    await asyncio.wait([registering], timeout=0.1)
    assert not registering.done(), "it waits for the journal"
    scene.paused = False
    await registering
    scene.paused = True
    files = await scene.crash(files, random, registering)  # type: ignore[assignment]  # those of the next life
    again = Scene(files)
    await again.open()
    assert (await register(again, 1, generation=1)).staged == ()
    await again.close()


@pytest.mark.parametrize("outputs", [("out",), ()])
async def test_a_crash_in_any_write_of_a_merge_loses_and_repeats_nothing(outputs: tuple[str, ...]) -> None:
    found = {await crashed(seed, outputs) for seed in range(15)}
    assert found == {True, False}, "crashes come before the merge is durable, and after it"


async def crashed(seed: int, outputs: tuple[str, ...]) -> bool:
    """Whether the side outputs were merged at the crash. Merged again, they are there once."""
    random = Random(seed)
    files = FaultyFiles(random)
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5})
    end = await begun(scene, outputs)
    await register(scene, 1, 2, partition=0)
    await register(scene, 2, 3, partition=1)
    await scene.durable()
    scene.paused = True
    committing = asyncio.create_task(committed(scene, end, outputs))
    await scene.until(lambda: scene.store.exists("pipeline/p/err") and scene.store.length("pipeline/p/err"))
    again = Scene(await scene.crash(files, random, committing))
    await again.open()
    was_merged = offsets(again) == [1, 2, 3]
    assert was_merged or offsets(again) == []
    await committed(again, end, outputs)
    assert offsets(again) == [1, 2, 3]
    await again.close()
    return was_merged


async def committed(scene: Scene, end: InputOffset, outputs: tuple[str, ...]) -> None:
    """Commit the epoch, by a merge or by the request for the next offset."""
    await (scene.merge(0) if outputs else scene.cut(end))
