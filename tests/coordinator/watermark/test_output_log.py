"""Output carries its pipeline's watermark: a reader inherits that of its own position, however far behind it is."""

import pytest

from penstock.coordinator.machine import epochs
from penstock.coordinator.machine.state import MergedEpoch, Pipeline
from penstock.coordinator.watermark import output_log
from penstock.coordinator.watermark.output_log import OutputLog, Row, _Log, log_segment
from penstock.core.errors import PipelineError
from penstock.protocol.api.pipelines import AtSegments, InputOffset
from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.head import Mark, MarkKind
from tests.coordinator.scene import Scene, raw

A, OUT = "connector/s/0", "pipeline/p/out"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember so few epochs that most of them are only in the log."""
    monkeypatch.setattr(epochs, "EPOCHS_MAX", 6)
    monkeypatch.setattr(output_log, "CHUNK_EPOCHS", 3)


async def run(scene: Scene, at: InputOffset, batches: range, *, output: bool = True) -> InputOffset:
    """Epochs of p, each with an event whose time is a hundred times the batch's number."""
    for number in batches:
        await scene.ingest(A, {1: 100 * number})
        at = await scene.epoch(at, number, raw(b"%04d" % number) if output else b"")
    return at


async def read_all(scene: Scene, at: InputOffset, ends: list[int]) -> list[int | None]:
    """The reader's watermarks, one output record at a time."""
    found = []
    for end in ends:
        at = (await scene.cut(at, "reader", upto={OUT: end})).offset
        found.append(at.watermark)
    return found


def record_ends(scene: Scene) -> list[int]:
    info, ends = scene.store.info(OUT), []
    at = info.start
    while at < info.length:
        at = scene.store.record(OUT, at).end
        ends.append(int(at))
    return ends


async def start_reader(scene: Scene) -> InputOffset:
    await scene.start("reader", ["pipeline:p/out"], ())
    return await scene.initial("reader")


async def test_a_reader_that_starts_at_the_oldest_output_sees_the_watermark_of_its_own_position(scene: Scene) -> None:
    await scene.start("p")
    await run(scene, await scene.initial(), range(20))
    expected = [100 * number for number in range(20)]
    assert await read_all(scene, await start_reader(scene), record_ends(scene)) == expected


async def test_after_a_restart_a_reader_still_sees_the_watermark_of_its_own_position(scene: Scene) -> None:
    await scene.start("p")
    at = await run(scene, await scene.initial(), range(17))
    await scene.reopen(truncate_seconds=1000.0)  # keeps what the reader has completed: it is read again below
    await run(scene, at, range(17, 20))
    start = await start_reader(scene)
    ends = record_ends(scene)
    assert await read_all(scene, start, ends[:8]) == [100 * number for number in range(8)]
    await scene.reopen()
    at = InputOffset.from_json(start.as_json())
    for end in ends[:8]:
        at = (await scene.cut(at, "reader", upto={OUT: end})).offset
    assert await read_all(scene, at, ends[8:]) == [100 * number for number in range(8, 20)]


async def test_inside_an_epochs_output_the_watermark_is_that_of_the_epoch_before(scene: Scene) -> None:
    await scene.start("p")
    at = await scene.initial()
    for number in range(4):
        await scene.ingest(A, {1: 100 * number})
        cut = await scene.cut(at)
        staged = [await scene.stage(raw(b"%d" % part), number, part=str(part)) for part in range(2)]
        await scene.merge(number, *staged)
        at = cut.offset
    start = await start_reader(scene)
    assert await read_all(scene, start, record_ends(scene)) == [None, 0, 0, 100, 100, 200, 200, 300]


async def test_output_from_before_a_reset_keeps_its_watermarks(scene: Scene) -> None:
    await scene.start("p")
    await run(scene, await scene.initial(), range(4))
    await scene.coordinator.lifecycle.reset("p")
    await scene.start("p", starting=AtSegments({A: scene.store.info(A).length}))
    await scene.ingest(A, {1: 5})
    await scene.epoch(await scene.initial(), 0, raw(b"again"))
    ends = record_ends(scene)
    log = scene.coordinator._shared.watermarks.outputs
    pipeline = scene.coordinator._shared.state.pipelines["p"]
    found = [log.find("p", pipeline, "out", end) for end in ends]
    assert [row.watermark for row in found if row is not None] == [0, 100, 200, 300, 5]
    assert await read_all(scene, await start_reader(scene), ends) == [0, 100, 200, 300, 300], "it never goes back"


async def test_output_of_a_dropped_pipeline_counts_until_it_is_read_to_its_end(scene: Scene) -> None:
    await scene.start("p")
    await run(scene, await scene.initial(), range(5))
    await scene.ingest("connector/t/0", {9: 10_000})
    await scene.start("reader", ["pipeline:p/out", "t"], ())
    at = await scene.initial("reader")
    at = (await scene.cut(at, "reader", upto={OUT: record_ends(scene)[1], "connector/t/0": 1 << 40})).offset
    assert at.watermark == 100
    await scene.coordinator.lifecycle.drop("p")
    await scene.reopen()
    at = (await scene.cut(at, "reader", upto={OUT: record_ends(scene)[3]})).offset
    assert at.watermark == 300
    at = (await scene.cut(at, "reader", upto={OUT: 1 << 40})).offset
    assert at.watermark == 10_000, "nobody writes there any more"


async def test_the_watermark_log_is_truncated_and_deleted_with_the_output(scene: Scene) -> None:
    await scene.start("p")
    at = await start_reader(scene)
    batches = await scene.initial()
    for number in range(40):
        batches = await run(scene, batches, range(number, number + 1))
        at = (await scene.cut(at, "reader")).offset
    await scene.until(lambda: scene.store.info(OUT).start > 0)
    batches = await run(scene, batches, range(40, 50))
    assert scene.store.info(log_segment("p")).start > 0
    begin = scene.store.info(OUT).start
    log, pipeline = OutputLog(scene.store), scene.coordinator._shared.state.pipelines["p"]
    await scene.durable()
    row = log.find("p", pipeline, "out", begin)
    assert row is not None, "what is left can be read with its watermark"
    assert row.watermark == 100 * (begin // 12 - 1)
    await scene.coordinator.lifecycle.drop("reader")
    await scene.coordinator.lifecycle.drop("p", outputs=True)
    assert not scene.store.exists(log_segment("p"))


async def test_a_watermark_that_rises_without_output_is_inherited_by_an_epoch_without_data(scene: Scene) -> None:
    await scene.start("p")
    at = await run(scene, await scene.initial(), range(2))
    reader = (await scene.cut(await start_reader(scene), "reader")).offset
    assert reader.watermark == 100
    assert (await scene.cut(reader, "reader")).offset == reader, "nothing is new"
    at = await run(scene, at, range(2, 3), output=False)
    moved = (await scene.cut(reader, "reader")).offset
    assert (moved.epoch, moved.segments, moved.watermark) == (1, reader.segments, 200)
    assert (await scene.cut(reader, "reader")).offset == moved, "the same start gets the same end"
    await scene.reopen()
    assert (await scene.cut(reader, "reader")).offset == moved
    assert (await scene.cut(moved, "reader")).offset == moved
    await run(scene, at, range(3, 4))
    assert (await scene.cut(moved, "reader")).offset.watermark == 300


async def test_a_cut_without_data_must_raise_the_watermark(scene: Scene) -> None:
    from penstock.coordinator.machine.commands import Plan

    await scene.start("p")
    await run(scene, await scene.initial(), range(2))
    generation = scene.generation()
    for watermark in (100, 99, None):
        with pytest.raises(PipelineError):
            scene.coordinator._shared.keeper.commit(Plan("p", generation, "in", {}, watermark))
    scene.coordinator._shared.keeper.commit(Plan("p", generation, "in", {}, 101))
    assert scene.status().watermark == 101


async def test_a_query_with_an_end_gets_no_epochs_for_watermarks_except_for_the_end_of_time(scene: Scene) -> None:
    await scene.start("p")
    at = await run(scene, await scene.initial(), range(2))
    start = await start_reader(scene)
    reader = (await scene.cut(start, "reader", upto={OUT: 1 << 40})).offset
    at = await run(scene, at, range(2, 3), output=False)
    assert (await scene.cut(reader, "reader")).offset == reader
    await scene.ingest(A, {}, [Mark(0, MarkKind.FINISHED, "", 1)])
    await scene.epoch(at, 3)
    assert scene.status().watermark == END_OF_TIME
    reader = (await scene.cut(reader, "reader")).offset
    assert reader.watermark == END_OF_TIME
    assert (await scene.cut(reader, "reader")).offset == reader


async def test_no_epoch_without_data_is_cut_while_another_source_is_behind(scene: Scene) -> None:
    await scene.ingest("connector/t/0", {9: 50})
    await scene.start("p")
    at = await run(scene, await scene.initial(), range(2))
    await scene.start("reader", ["pipeline:p/out", "t"], ())
    reader = (await scene.cut(await scene.initial("reader"), "reader")).offset
    assert reader.watermark == 50
    await run(scene, at, range(2, 3), output=False)
    for _ in range(2):
        assert (await scene.cut(reader, "reader")).offset == reader


async def test_replayed_dead_letters_do_not_block_the_watermark(scene: Scene) -> None:
    await scene.ingest(A, {1: 10})
    await scene.start("p", ["s", "pipeline:p/replay.in"])
    assert (await scene.cut(await scene.initial())).offset.watermark == 10


async def test_epochs_without_data_are_rate_limited_except_at_the_end(scene: Scene) -> None:
    await scene.reopen(watermark_seconds=0.3)
    await scene.start("p")
    at = await run(scene, await scene.initial(), range(2))
    reader = (await scene.cut(await start_reader(scene), "reader")).offset
    at = await run(scene, at, range(2, 3), output=False)
    assert (await scene.cut(reader, "reader")).offset == reader
    moved = (await scene.cut(reader, "reader", wait_seconds=0.4)).offset
    if moved == reader:  # nothing new: Spark asks again
        moved = (await scene.cut(reader, "reader")).offset
    assert moved.watermark == 200
    await scene.ingest(A, {}, [Mark(0, MarkKind.FINISHED, "", 1)])
    await scene.epoch(at, 3)
    assert (await scene.cut(moved, "reader")).offset.watermark == END_OF_TIME


class NoStore:
    """A store without segments."""

    def exists(self, _: str) -> bool:
        return False


def test_the_rows_from_a_position_on_are_those_that_are_found_one_by_one() -> None:
    rows = [Row(10 * number, {"out": number // 2 * 5}) for number in range(1, 30)]
    written = _Log()
    for at in range(0, 20, 5):
        written.add(at, at + 5, 1, at + 4, rows[at : at + 5])
    written.chunks = [chunk._replace(rows=rows[chunk.start : chunk.end]) for chunk in written.chunks]
    kept = {number: MergedEpoch(0, 0, row.ends, row.watermark) for number, row in enumerate(rows[15:], 15)}
    pipeline = Pipeline(incarnation=1, generation=1, epochs=kept)
    log = OutputLog(NoStore())  # type: ignore[arg-type]
    log._logs["p"] = written
    for position in range(80):
        found = log.rows("p", pipeline, "out", position)
        assert [end for end, _ in found if end > position] == sorted(
            {one for row in rows if (one := row.ends["out"]) > position}
        )
        for end, watermark in found:
            row = log.find("p", pipeline, "out", end)
            assert row is not None
            assert row.watermark == watermark
