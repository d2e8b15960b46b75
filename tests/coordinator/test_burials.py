"""A buried event is left out of the epoch that reads it, and leaves through `err` in the epoch's merge, once."""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random

import pytest

from penstock.coordinator.ledger import stored_version
from penstock.core.errors import Outdated, PipelineError, RequestError
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.pipelines import InputOffset, Range, Staged
from penstock.protocol.api.side_outputs import REGISTRATION_FORMAT, MissingPart, Registration
from penstock.protocol.stored.dead_letters import dead_letters_in
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.scene import Scene, opened, raw
from tests.protocol.stored.events import stored

A = "connector/s/0"
SIZE = 37
"""Of an event that `ingest` writes."""


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with opened() as running:
        await running.ingest(A, {1: 5, 2: 6, 3: 7})
        yield running


async def bury(
    scene: Scene, *offsets: int, undo: bool = False, reason: str = "broken", segment: str = A
) -> tuple[int, bool]:
    places = [EventPlace(segment, offset) for offset in offsets]
    done = await scene.coordinator.burials.bury("p", places, reason, undo=undo)
    return done.changed, done.waits


async def register(scene: Scene, part: MissingPart) -> None:
    """As the commit of the sink does for a part that no task has finished."""
    prefix = f"staging/p/{scene.generation()}/{part.epoch}/side/data/{Random().randrange(2**60)}"
    reasons = json.loads(part.decoding)["reasons"]
    events = [
        stored(7, 1, 5, b"", b"v", {"reason": reason, "segment": one.segment, "offset": one.start})
        for one, reason in zip(part.ranges, reasons, strict=True)
    ]
    staged = Staged("err", f"{prefix}/err", await scene.append(f"{prefix}/err", b"".join(events)), len(events))
    given = Registration(part.key, (staged,), 7, REGISTRATION_FORMAT)
    await scene.coordinator.sides.register("p", scene.generation(), part.epoch, given, part.prefix)


async def commit(scene: Scene, epoch: int, *staged: Staged) -> None:
    merged = await scene.merge(epoch, *staged)
    for part in merged.missing:
        await register(scene, part)
    if merged.missing:
        assert (await scene.merge(epoch, *staged)).merged


def dead_letters(scene: Scene) -> list[tuple[int | None, str]]:
    if not scene.store.exists("pipeline/p/err"):
        return []
    return [(one.offset, one.reason) for one in dead_letters_in(scene.output(port="err"), 0)]


async def begun(scene: Scene, outputs: tuple[str, ...] = ("out",)) -> InputOffset:
    await scene.start(outputs=outputs)
    return await scene.initial()


async def test_an_epoch_leaves_it_out_and_cannot_be_merged_before_it_is_in_err(scene: Scene) -> None:
    start = await begun(scene)
    assert await bury(scene, SIZE) == (1, False)
    cut = await scene.cut(start)
    assert cut.left_out == [Range(A, SIZE, 2 * SIZE)]
    staged = await scene.stage(b"rows", 0)
    (part,) = (await scene.merge(0, staged)).missing
    assert part.ranges == (Range(A, SIZE, 2 * SIZE),)
    assert scene.output() == b""
    await commit(scene, 0, staged)
    assert (scene.output(), dead_letters(scene)) == (b"rows", [(SIZE, "buried by an operator: broken")])
    assert not (await scene.merge(0, staged)).merged
    assert len(dead_letters(scene)) == 1
    assert scene.names("staging/") == []


async def test_the_epoch_that_fails_on_it_leaves_it_out_when_it_is_planned_again(scene: Scene) -> None:
    start = await begun(scene)
    failed = await scene.cut(start)
    assert await bury(scene, SIZE, 2 * SIZE) == (2, True), "both belong to the planned epoch"
    assert await bury(scene, SIZE) == (0, True)
    with pytest.raises(Outdated, match="was buried"):
        await scene.merge(0)
    await scene.reopen()
    await scene.start(request="again")
    again = await scene.coordinator.cuts.reading("p", scene.generation(), "in", start, failed.offset)
    assert again.left_out == [Range(A, SIZE, 2 * SIZE), Range(A, 2 * SIZE, 3 * SIZE)]
    await commit(scene, 0)
    assert [offset for offset, _ in dead_letters(scene)] == [SIZE, 2 * SIZE]


async def test_a_batch_that_was_merged_and_runs_again_leaves_it_out_again(scene: Scene) -> None:
    start = await begun(scene)
    await bury(scene, 0)
    cut = await scene.cut(start)
    await commit(scene, 0)
    await scene.reopen()
    await scene.start(request="again")
    again = await scene.coordinator.cuts.reading("p", scene.generation(), "in", start, cut.offset)
    assert again.left_out == [Range(A, 0, SIZE)]
    assert not (await scene.merge(0)).merged
    assert len(dead_letters(scene)) == 1


async def test_with_a_sink_of_spark_it_is_in_err_when_the_epoch_is_proved(scene: Scene) -> None:
    start = await begun(scene, ())
    await bury(scene, SIZE)
    cut = await scene.cut(start)
    assert cut.left_out == [Range(A, SIZE, 2 * SIZE)]
    asked = await scene.cut(cut.offset)
    assert asked.is_lacking
    for part in await scene.coordinator.sides.missing("p", scene.generation(), 0):
        await register(scene, part)
    assert not (await scene.cut(cut.offset)).is_lacking
    assert dead_letters(scene) == [(SIZE, "buried by an operator: broken")]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (9, 10), (2, 11)])
async def test_with_a_sink_of_spark_a_later_generation_finds_what_an_epoch_has_left_out(
    scene: Scene, before: int, after: int
) -> None:
    await scene.start_as(before, outputs=())
    start = await scene.initial()
    await bury(scene, SIZE)
    cut = await scene.cut(start)
    await scene.reopen()
    await scene.start_as(after, outputs=())
    await scene.ingest(A, {1: 8})
    assert (await scene.cut(cut.offset)).is_lacking
    for part in await scene.coordinator.sides.missing("p", scene.generation(), 0):
        await register(scene, part)
    assert not (await scene.cut(cut.offset)).is_lacking
    assert [offset for offset, _ in dead_letters(scene)] == [SIZE]
    assert scene.names("staging/") == []


async def test_what_is_buried_is_listed_and_can_be_undone_until_its_epoch_is_committed(scene: Scene) -> None:
    start = await begun(scene)
    await bury(scene, SIZE, reason="")
    (one,) = scene.coordinator.burials.listed("p")
    assert (str(one.place), one.end, one.reason) == (f"{A}@{SIZE}", 2 * SIZE, "buried by an operator")
    assert (one.is_committed, one.waits, one.is_undone) == (False, False, False)
    assert await bury(scene, SIZE, undo=True) == (1, False)
    assert scene.coordinator.burials.listed("p") == []
    await bury(scene, 0)
    await scene.cut(start)
    await commit(scene, 0)
    (one,) = scene.coordinator.burials.listed("p")
    assert one.is_committed
    with pytest.raises(PipelineError, match="is committed"):
        await bury(scene, 0, undo=True)


async def test_only_the_start_of_an_event_of_the_input_can_be_buried(scene: Scene) -> None:
    await scene.append("elsewhere", raw(b"x"))
    await scene.append("connector/s/1", bytes(8))
    await begun(scene)
    for place, why in {
        EventPlace(A, 1): f"no event starts at offset 1 of segment '{A}'",
        EventPlace(A, 3 * SIZE): f"segment '{A}' has no event at {3 * SIZE}: it has bytes from 0 to {3 * SIZE}",
        EventPlace("connector/s/1", 0): "no event starts at offset 0 of segment 'connector/s/1'",
        EventPlace("connector/s/7", 0): "segment 'connector/s/7' not found",
        EventPlace("elsewhere", 0): "segment 'elsewhere' is not an input of pipeline 'p'",
        EventPlace(
            "coordinator/ledger", 0
        ): "segment 'coordinator/ledger' belongs to the worker itself: it contains no events",
    }.items():
        with pytest.raises(RequestError) as refused:
            await scene.coordinator.burials.bury("p", [place], "", undo=False)
        assert str(refused.value) == why
    with pytest.raises(PipelineError, match="pipeline 'q' not found"):
        await scene.coordinator.burials.bury("q", [EventPlace(A, 0)], "", undo=False)
    with pytest.raises(RequestError, match="0 events"):
        await bury(scene)
    with pytest.raises(RequestError, match="more than 500 characters"):
        await bury(scene, 0, reason=501 * "x")
    assert scene.coordinator.burials.listed("p") == []


async def test_whatever_crashes_leave_an_event_that_is_buried_is_in_err_once() -> None:
    outcomes = {await crashed(seed) for seed in range(24)}
    assert {buried for buried, _ in outcomes} == {True, False}, "crashes come before it is durable, and after it"
    assert {merged for _, merged in outcomes} == {True, False}, "and before the merge is, and after it"


async def crashed(seed: int) -> tuple[bool, bool]:
    """Whether it was buried at the first crash of the worker, and its epoch merged at the second one."""
    random = Random(seed)
    files = FaultyFiles(random)
    scene = Scene(files)
    await scene.open()
    await scene.ingest(A, {1: 5, 2: 6})
    start = await begun(scene)
    scene.paused = True
    burying = asyncio.create_task(bury(scene, SIZE))
    await scene.until(lambda: scene.coordinator._shared.state.pipelines["p"].buried)
    files = await scene.crash(files, random, burying)  # type: ignore[assignment]  # those of the next life
    scene = Scene(files)
    await scene.open()
    buried = [one.offset for one in scene.coordinator.burials.listed("p")]
    await scene.start(request="second")
    assert [one.start for one in (await scene.cut(start)).left_out] == buried
    for part in (await scene.merge(0)).missing:
        await register(scene, part)
    await scene.durable()
    scene.paused = True
    merging = asyncio.create_task(scene.merge(0))
    await scene.until(lambda: scene.status().merged == 0)
    scene = Scene(await scene.crash(files, random, merging))
    await scene.open()
    was_merged = scene.status().merged == 0
    await scene.start(request="third")
    await scene.cut(start)
    await commit(scene, 0)
    assert [offset for offset, _ in dead_letters(scene)] == buried
    await scene.close()
    return bool(buried), was_merged


async def test_older_versions_read_the_ledger_while_nothing_is_buried(scene: Scene) -> None:
    def version() -> int:
        return stored_version(scene.files)

    start = await begun(scene)
    assert version() == 1
    await bury(scene, 0)
    await scene.durable()
    assert version() == 2
    keeper = scene.coordinator._shared.keeper
    keeper._ledger.compact(keeper.state)
    await scene.durable()
    assert version() == 2
    await scene.reopen()
    assert [one.offset for one in scene.coordinator.burials.listed("p")] == [0]
    await bury(scene, 0, undo=True)
    await scene.cut(start)
    keeper = scene.coordinator._shared.keeper
    keeper._ledger.compact(keeper.state)
    await scene.durable()
    assert version() == 1


async def test_an_event_of_a_raw_segment_may_be_empty() -> None:
    async with opened() as scene:
        await scene.append("raw", raw(b"x", b"", b"y"))
        await scene.start(source="segment:raw")
        assert await bury(scene, 9, segment="raw") == (1, False)
        assert (await scene.cut(await scene.initial())).left_out == [Range("raw", 9, 17)]
