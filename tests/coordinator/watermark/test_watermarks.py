"""A pipeline sees the watermark of its own position, also after a restart and after its input was truncated."""

import asyncio

import msgpack

from penstock.coordinator.settings import Connectors
from penstock.coordinator.watermark import source_table
from penstock.coordinator.watermark.source_table import SourceTable
from penstock.protocol.api.codec import decode_reply, encode
from penstock.protocol.api.pipelines import AtSegments, InputSpec, Limits, PipelineStatus, WatermarkBlocker
from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.head import Mark, MarkKind
from tests.coordinator.scene import Scene, opened, raw, u64s

A, B = "connector/s/0", "connector/s/1"


def started(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.STARTED, f"stream {stream_id}")


async def test_a_lagging_pipeline_sees_the_watermark_of_its_own_position(scene: Scene) -> None:
    first = await scene.ingest(A, {1: 10, 2: 20})
    await scene.ingest(A, {1: 100, 2: 200})
    await scene.start()
    cut = await scene.cut(await scene.initial(), upto={A: first})
    assert cut.offset.watermark == 10
    assert (await scene.cut(cut.offset, upto={A: 1 << 40})).offset.watermark == 100


async def test_the_watermark_is_null_before_the_first_event_and_for_raw_segments(scene: Scene) -> None:
    await scene.ingest(A, {}, [started(1)])
    await scene.append("raw", raw(b"1"))
    await scene.start(source=["s", "segment:raw"])
    cut = await scene.cut(await scene.initial())
    assert cut.offset.watermark is None
    await scene.ingest(A, {1: 7})
    assert (await scene.cut(cut.offset)).offset.watermark == 7


async def test_streams_are_remembered_across_a_restart_even_if_their_records_are_truncated(scene: Scene) -> None:
    await scene.ingest(A, {1: 10})
    await scene.start()
    at = await scene.epoch(await scene.initial(), 0)
    for number in range(6):
        await scene.ingest(B, {2: 1000 + number})
        at = await scene.epoch(at, number + 1)
    await scene.until(lambda: scene.store.info(A).start > 0)
    await scene.reopen()
    await scene.ingest(B, {2: 5000})
    at = (await scene.cut(at)).offset
    assert at.watermark == 10, "stream 1 has not moved on"
    await scene.ingest(A, {1: 3000})
    assert (await scene.cut(at)).offset.watermark == 3000


async def test_the_table_is_stored_once_enough_bytes_were_read() -> None:
    async with opened(table_bytes=10) as scene:
        await scene.ingest(A, {1: 10})
        await scene.start()
        assert not scene.store.exists("coordinator/streams/p")
        at = await scene.initial()
        for number in range(500):
            scene.store.append(A, [bytes(40)])
            if number % 100 == 0:
                at = (await scene.cut(at)).offset
        await scene.durable()
        at = (await scene.cut(at)).offset
        await scene.durable()
        written = source_table.read(scene.store, "p", 1)
        assert written is not None
        assert written.table.sources["s"].active == {1: 10}
        assert source_table.read(scene.store, "p", 2) is None, "it is of another incarnation"


async def test_a_table_of_many_streams_is_restored_unchanged(scene: Scene) -> None:
    source_table._ROWS_PER_PART, before = 3, source_table._ROWS_PER_PART
    try:
        await scene.ingest(A, {number: number * 7 for number in range(10)})
        await scene.ingest(A, {}, [Mark(4, MarkKind.IDLE), Mark(2**63 + 5, MarkKind.STARTED)])
        await scene.start()
        await scene.cut(await scene.initial())
        current = scene.coordinator._shared.watermarks._current["p"]
        for _ in range(2):
            source_table.write(scene.store, "p", 1, source_table.Written(current.table, current.offsets))
        await scene.durable()
        written = source_table.read(scene.store, "p", 1)
    finally:
        source_table._ROWS_PER_PART = before
    assert written is not None
    assert vars(written.table) == vars(current.table)
    assert written.offsets == current.offsets


async def test_a_reset_pipeline_starts_with_an_empty_table(scene: Scene) -> None:
    end = await scene.ingest(A, {1: 10})
    await scene.ingest(A, {2: 500})
    await scene.start()
    await scene.cut(await scene.initial())
    await scene.coordinator.lifecycle.reset("p")
    await scene.start(starting=AtSegments({A: end}))
    assert (await scene.cut(await scene.initial())).offset.watermark == 500


async def test_an_output_carries_the_watermark_of_its_pipeline(scene: Scene) -> None:
    await scene.ingest(A, {1: 10})
    await scene.start("p")
    at = await scene.epoch(await scene.initial(), 0, raw(b"first"))
    await scene.ingest("connector/t/0", {9: 1_000_000})
    await scene.start("reader", ["pipeline:p/out", "t"])
    cut = await scene.cut(await scene.initial("reader"), "reader")
    assert cut.offset.watermark == 10
    await scene.ingest(A, {1: 300})
    await scene.epoch(at, 1, raw(b"second"))
    cut = await scene.cut(cut.offset, "reader")
    assert cut.offset.watermark == 300
    await scene.reopen()
    await scene.ingest("connector/t/0", {9: 2_000_000})
    assert (await scene.cut(cut.offset, "reader")).offset.watermark == 300


async def test_a_long_fold_does_not_block_the_event_loop(scene: Scene) -> None:
    for number in range(3000):
        if not scene.store.exists(A):
            scene.create(A)
        scene.store.append(A, [bytes(8)])
        if number % 500 == 0:
            await scene.durable()
    await scene.ingest(A, {1: 10})
    await scene.start()
    start = await scene.initial()
    cutting = asyncio.create_task(scene.cut(start))
    turns = 0
    while not cutting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    assert cutting.result().offset.watermark == 10


async def test_the_status_names_the_stream_that_blocks_the_watermark_and_for_how_long(scene: Scene) -> None:
    await scene.close()
    scene.connectors = Connectors(lambda _: 3, lambda source, stream_id: f"{source}-{stream_id}")
    await scene.open()
    await scene.ingest(A, {1: 10, 2: 500})
    await scene.start()
    assert scene.status().watermark_blocked_by is None
    at = (await scene.cut(await scene.initial())).offset
    assert scene.status().watermark == 7
    assert scene.status().watermark_blocked_by == WatermarkBlocker("s", 1, "s-1", 7)
    first = scene.status().watermark_unmoved_seconds
    assert first is not None
    await asyncio.sleep(0.05)
    await scene.ingest(A, {2: 600})
    at = (await scene.cut(at)).offset
    second = scene.status().watermark_unmoved_seconds
    assert second is not None
    assert second >= first + 0.04, "it has not moved"
    await scene.ingest(A, {1: 700}, [started(3)])
    at = (await scene.cut(at)).offset
    blocker = scene.status().watermark_blocked_by
    assert blocker == WatermarkBlocker("s", 3, "s-3", None)
    assert blocker.text() == "stream 's-3' of source s, of which no event was read yet"
    await scene.ingest(A, {3: 800})
    await scene.cut(at)
    unmoved = scene.status().watermark_unmoved_seconds
    assert unmoved is not None
    assert unmoved < second, "now it has"
    status = scene.status()
    assert encode(decode_reply(encode(status), PipelineStatus)) == encode(status)
    await scene.reopen()
    assert scene.status().watermark_blocked_by == WatermarkBlocker("s", 2, "s-2", 597)


async def test_the_status_names_an_output_that_blocks_the_watermark(scene: Scene) -> None:
    await scene.ingest(A, {1: 10})
    await scene.start("p")
    await scene.ingest("connector/t/0", {9: 1_000_000})
    await scene.start("reader", ["pipeline:p/out", "t"])
    assert scene.status("reader").watermark_blocked_by is None
    cut = await scene.cut(await scene.initial("reader"), "reader")
    blocker = scene.status("reader").watermark_blocked_by
    assert blocker == WatermarkBlocker("pipeline:p/out")
    assert blocker.text() == "output pipeline:p/out, which has no watermark yet"
    await scene.epoch(await scene.initial(), 0, raw(b"first"))
    await scene.cut(cut.offset, "reader")
    assert scene.status("reader").watermark_blocked_by == WatermarkBlocker("pipeline:p/out", None, "", 10)


async def test_a_changed_disorder_applies_from_the_next_cut(scene: Scene) -> None:
    await scene.ingest(A, {1: 100})
    await scene.start()
    at = (await scene.cut(await scene.initial())).offset
    assert at.watermark == 100
    await scene.close()
    scene.connectors = Connectors(lambda _: 30)
    await scene.open()
    await scene.ingest(A, {1: 120})
    at = (await scene.cut(at)).offset
    assert at.watermark == 100, "it never goes back"
    await scene.ingest(A, {1: 140})
    assert (await scene.cut(at)).offset.watermark == 110


async def test_a_table_in_the_older_format_with_one_highest_time_is_read(scene: Scene) -> None:
    segment = source_table.table_segment("p")
    scene.store.create(segment)
    for kind, stream_id, is_last in ((0, 4, False), (1, 5, True)):
        rows = ["s", kind, u64s([stream_id]), u64s([30 * stream_id])]
        packed = msgpack.packb([1, not is_last, is_last, {A: 8}, 200, {"pipeline/q/out": 7}, *rows])
        scene.store.append(segment, [len(packed).to_bytes(4, "big"), packed])
    await scene.durable()
    written = source_table.read(scene.store, "p", 1)
    assert written is not None
    assert written.table.sources == {"s": SourceTable({4: 120}, {5: 150}, highest=200)}
    assert written.table.outputs == {"pipeline:q/out": 7}


async def test_a_backlog_in_several_segments_is_read_in_order_of_arrival(scene: Scene) -> None:
    """Streams of one record each, in alternating segments and with increasing times: however little an epoch takes,
    none of them is behind the watermark of the previous epoch.
    """
    came: list[tuple[str, int, int]] = []
    for number in range(60):
        segment = B if number % 3 == 0 or 20 < number < 30 else A
        marks = [started(number), Mark(number, MarkKind.ENDED)]
        came.append((segment, await scene.ingest(segment, {number: number * 100}, marks), number * 100))
    await scene.start(limits=Limits(bytes=500))
    at, before = await scene.initial(), None
    while True:
        cut = await scene.cut(at)
        if cut.offset == at:
            break
        read = [
            t for segment, end, t in came if at.segments.get(segment, 0) < end <= cut.offset.segments.get(segment, 0)
        ]
        assert read, "every epoch takes something in"
        assert before is None or min(read) >= before
        at, before = cut.offset, cut.offset.watermark
    assert before == 5900


async def test_a_backlog_is_read_in_order_of_arrival_with_a_row_limit_too(scene: Scene) -> None:
    for number in range(10):
        await scene.ingest(B if number < 3 else A, {number: number}, [started(number), Mark(number, MarkKind.ENDED)])
    await scene.start(limits=Limits(rows=4))
    at, seen = await scene.initial(), []
    for _ in range(10):
        at = (await scene.cut(at)).offset
        seen.append((at.segments.get(A, 0) > 0, at.watermark))
    assert all(watermark is not None and watermark >= 2 for has_come, watermark in seen if has_come)
    assert not seen[0][0], "what came first is read first"
    assert seen[-1] == (True, 9)


class TestStreamsThatWereOpenBefore:
    """A pipeline starts after the start of some streams."""

    async def test_a_stream_that_is_still_open_blocks_the_watermark_until_its_next_event(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 10, 2: 500}, [started(1), started(2), started(3)])
        await scene.ingest(A, {}, [Mark(3, MarkKind.ENDED)])
        scene.connectors = Connectors(open_streams=lambda _: {1, 2})
        await scene.reopen()
        await scene.start(starting="latest")
        await scene.ingest(A, {2: 600})
        at = (await scene.cut(await scene.initial())).offset
        assert at.watermark is None, "stream 1 is somewhere behind"
        await scene.reopen()
        await scene.ingest(A, {2: 700})
        at = (await scene.cut(at)).offset
        assert at.watermark is None, "after a restart too"
        await scene.ingest(A, {1: 20})
        assert (await scene.cut(at)).offset.watermark == 20

    async def test_a_stream_that_has_ended_since_blocks_the_watermark_where_it_was_open(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 10, 2: 500}, [started(1), started(2)])
        start = await scene.ingest(A, {2: 510})
        first = await scene.ingest(A, {2: 600})
        await scene.ingest(A, {1: 20}, [Mark(1, MarkKind.ENDED)])
        last = await scene.ingest(A, {2: 700})
        await scene.start(starting=AtSegments({A: start}))
        at = (await scene.cut(await scene.initial(), upto={A: first})).offset
        assert at.watermark is None
        assert (await scene.cut(at, upto={A: last})).offset.watermark == 700

    async def test_a_stream_that_starts_after_that_position_does_not_block_the_watermark(self, scene: Scene) -> None:
        start = await scene.ingest(A, {1: 10}, [started(1), started(4)])
        first = await scene.ingest(A, {1: 600})
        marks = [started(2), Mark(3, MarkKind.ACTIVE_AGAIN), Mark(4, MarkKind.STARTED, "opened again", 1)]
        last = await scene.ingest(A, {2: 700, 3: 700, 4: 650}, marks)
        scene.connectors = Connectors(open_streams=lambda _: {1, 2, 3, 4})
        await scene.reopen()
        await scene.start(starting=AtSegments({A: start}))
        at = (await scene.cut(await scene.initial(), upto={A: first})).offset
        assert at.watermark is None, "stream 4 was open, though it is opened again"
        assert (await scene.cut(at, upto={A: last})).offset.watermark == 600
        await scene.coordinator.lifecycle.reset("p")
        await scene.start(starting=AtSegments({A: 0}))
        at = (await scene.cut(await scene.initial(), upto={A: start})).offset
        assert at.watermark is None, "from the beginning the heads say all: stream 4 is silent"

    async def test_a_source_that_ended_before_that_position_has_ended(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 10}, [Mark(0, MarkKind.FINISHED, "", 1)])
        await scene.ingest("connector/t/0", {9: 5}, [started(9)])
        scene.connectors = Connectors(open_streams=lambda _: {1}, has_finished=lambda name: name == "s")
        await scene.reopen()
        inputs = {"in": InputSpec(["s"], "latest"), "other": InputSpec(["t"], "earliest")}
        await scene.start(inputs=inputs)
        at = (await scene.cut(await scene.initial())).offset
        assert at.watermark == 5
        await scene.ingest("connector/t/0", {}, [Mark(0, MarkKind.FINISHED, "", 1)])
        assert (await scene.cut(at)).offset.watermark == END_OF_TIME

    async def test_events_after_the_end_of_a_source_are_not_late_for_a_pipeline_that_starts_there(
        self, scene: Scene
    ) -> None:
        await scene.ingest(A, {1: 10}, [started(1), Mark(1, MarkKind.ENDED), Mark(0, MarkKind.FINISHED, "", 1)])
        scene.connectors = Connectors(has_finished=lambda _: True)
        await scene.reopen()
        await scene.start(starting="latest")
        start = await scene.initial()
        assert (await scene.cut(start)).offset == start
        await scene.ingest(A, {2: 20}, [started(2)])
        assert (await scene.cut(start)).offset.watermark == 20
