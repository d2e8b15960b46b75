"""Streams of Pravega's clients as sources and targets of pipelines: a coordinator and a controller on one store."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from penstock.core.errors import DataLoss, PipelineError, RequestError
from penstock.core.types import Position
from penstock.pravega.ledger import Keeper
from penstock.pravega.lineage import PipelineStreams
from penstock.pravega.machine import (
    Begin,
    Commit,
    CreateScope,
    CreateStream,
    NoteTime,
    Refusal,
    RemoveWriter,
    Scale,
    SealStream,
    TruncateStream,
)
from penstock.pravega.state import Config, Stream
from penstock.protocol.api.pipelines import InputOffset, Range, Span, Staged
from penstock.store.journal import Durability
from tests.coordinator.scene import Scene, raw

SOURCE = "pravega:sc/st"
FIRST, LEFT, RIGHT = "sc/st/0.#epoch.0", "sc/st/1.#epoch.1", "sc/st/2.#epoch.1"
HALVES = ((0.0, 0.5), (0.5, 1.0))
SECOND = 1 << 32
MS = 1000


class StreamScene(Scene):
    """With a controller, and a stream of one segment."""

    async def open(self) -> None:
        await super().open()
        self.woken: list[str] = []
        durability = Durability(self.journal, asyncio.get_running_loop(), lambda: None)
        self.keeper = Keeper(self.store, durability, self._changed)
        self.coordinator.streams.controller = PipelineStreams(self.keeper, self._changed)

    def _changed(self, names: Iterable[str], _: Position) -> None:
        self.woken += names

    @property
    def stream(self) -> Stream:
        return self.keeper.state.scopes["sc"]["st"]

    async def scale(self, *ranges: tuple[float, float]) -> None:
        self.keeper.commit(Scale("sc", "st", tuple(one.id for one in self.stream.active), ranges))
        await self.durable()

    async def truncate(self, cut: dict[int, int]) -> None:
        self.keeper.commit(TruncateStream("sc", "st", cut))
        await self.durable()

    async def note(self, writer: str, time: int, **cut: int) -> None:
        self.keeper.commit(NoteTime("sc", "st", writer, time, {int(key[1:]): at for key, at in cut.items()}))
        await self.durable()

    async def stage_for(self, span: Span, data: bytes, batch: int = 0, part: str = "0-0") -> Staged:
        number = span.segment.split("/")[2].partition(".")[0]
        one = await self.stage(data, batch, port=f"out.{number}", part=part)
        return Staged("out", one.segment, one.length, 1, span.segment)

    def content(self, name: str) -> bytes:
        return self.store.read(name, 0, 1 << 20) if self.store.length(name) else b""


@asynccontextmanager
async def opened() -> AsyncIterator[StreamScene]:
    scene = StreamScene()
    await scene.open()
    scene.keeper.commit(CreateScope("sc"))
    scene.keeper.commit(CreateStream("sc", "st", Config()))
    try:
        yield scene
    finally:
        await scene.close()


def test_a_segment_is_read_after_those_that_it_continues() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append(FIRST, raw(b"one"))
            await scene.start(source=SOURCE)
            start = await scene.initial()
            await scene.scale(*HALVES)
            end = await scene.append(LEFT, raw(b"two"))
            first = (await scene.cut(start)).offset
            assert first.segments == {FIRST: 11}
            await scene.merge(0)
            second = (await scene.cut(first)).offset
            assert second.segments == {FIRST: 11, LEFT: end}
            await scene.merge(1)
            await scene.scale((0.0, 1.0))
            await scene.append("sc/st/3.#epoch.2", raw(b"four"))
            third = (await scene.cut(second)).offset
            assert third.segments["sc/st/3.#epoch.2"] == 12, "an empty segment holds back nothing"
            await scene.append(FIRST + "#transaction.ab", raw(b"no"))
            assert (await scene.cut(third)).offset == third

    asyncio.run(main())


def test_a_reader_without_a_pipeline_reads_segments_in_the_same_order() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append(FIRST, raw(b"one"))
            await scene.scale(*HALVES)
            await scene.append(RIGHT, raw(b"two"))
            readers = scene.coordinator.readers
            start = await readers.resolve([SOURCE], "earliest")
            assert start == {FIRST: 0, LEFT: 0, RIGHT: 0}
            first = await readers.cut([SOURCE], start)
            assert first == {FIRST: 11, LEFT: 0, RIGHT: 0}
            assert await readers.cut([SOURCE], first) == {FIRST: 11, LEFT: 0, RIGHT: 11}

    asyncio.run(main())


def test_what_was_read_may_be_truncated() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append(FIRST, raw(b"one"))
            await scene.start(source=SOURCE)
            first = (await scene.cut(await scene.initial())).offset
            await scene.merge(0)
            await scene.scale(*HALVES)
            await scene.append(LEFT, raw(b"two"))
            await scene.truncate({SECOND | 1: 0, SECOND | 2: 0})
            assert FIRST not in scene.names("sc/")
            second = (await scene.cut(first)).offset
            assert second.segments == {FIRST: 11, LEFT: 11}
            await scene.merge(1)
            await scene.reopen()
            await scene.append(RIGHT, raw(b"three"))
            assert (await scene.cut(second)).offset.segments[RIGHT] == 13

    asyncio.run(main())


async def splits(scene: StreamScene, start: InputOffset, end: InputOffset, *, skip_lost: bool) -> list[Range]:
    ranges = [Range(name, start.segments.get(name, 0), at) for name, at in end.segments.items()]
    found = await scene.coordinator.readers.splits(ranges, 1, 0, skip_lost=skip_lost)
    return [one for one in found.splits if one.end > one.start]


def test_what_was_truncated_before_it_was_read_is_an_error_unless_it_may_be_skipped() -> None:
    """Also of segments that the pipeline has never seen."""

    async def main() -> None:
        async with opened() as scene:
            await scene.append(FIRST, raw(b"one"))
            await scene.start(source=SOURCE)
            start = await scene.initial()
            await scene.scale(*HALVES)
            await scene.append(LEFT, raw(b"two"))
            await scene.scale((0.0, 1.0))
            last = "sc/st/3.#epoch.2"
            await scene.append(last, raw(b"three"))
            await scene.truncate({2 * SECOND | 3: 0})
            end = (await scene.cut(start)).offset
            assert end.segments == {FIRST: 11, LEFT: 11, last: 13}
            with pytest.raises(DataLoss, match="were removed before they were read"):
                await splits(scene, start, end, skip_lost=False)
            assert await splits(scene, start, end, skip_lost=True) == [Range(last, 0, 13)]
            readers = scene.coordinator.readers
            assert (await readers.cut([SOURCE], {FIRST: 0}))[LEFT] == 11

    asyncio.run(main())


def test_what_was_truncated_before_the_pipeline_began_does_not_concern_it() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append(FIRST, raw(b"one"))
            await scene.scale(*HALVES)
            await scene.truncate({SECOND | 1: 0, SECOND | 2: 0})
            await scene.append(LEFT, raw(b"two"))
            await scene.start(source=SOURCE)
            end = (await scene.cut(await scene.initial())).offset
            assert end.segments == {LEFT: 11, RIGHT: 0}
            readers = scene.coordinator.readers
            start = await readers.resolve([SOURCE], "earliest")
            assert await readers.cut([SOURCE], start) == {LEFT: 11, RIGHT: 0}

    asyncio.run(main())


def test_without_a_controller_a_stream_is_neither_read_nor_written() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.start(source=SOURCE)
            start = await scene.initial()
            scene.coordinator.streams.controller = None
            with pytest.raises(RequestError, match="no controller") as refused:
                await scene.cut(start)
            assert "--controller-port" in refused.value.hint
            with pytest.raises(RequestError, match="no controller"):
                await scene.coordinator.readers.resolve([SOURCE], "earliest")
            with pytest.raises(RequestError, match="no controller"):
                scene.coordinator.merger.route("p", None, 0, SOURCE)

    asyncio.run(main())


# Times.


def test_the_watermark_is_the_lowest_time_of_the_active_writers_where_all_of_them_were() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.start(source=SOURCE)
            start = await scene.initial()
            end = await scene.append(FIRST, raw(b"one"))
            first = (await scene.cut(start)).offset
            assert first.watermark is None, "a stream whose writers note no times does not count"
            await scene.merge(0)
            await scene.note("a", 7, s0=end)
            await scene.note("b", 5, s0=2 * end)
            second = (await scene.cut(first)).offset
            assert second.watermark == 7 * MS, "an epoch without data"
            await scene.merge(1)
            await scene.note("b", 9, s0=2 * end)
            await scene.note("a", 8, s0=end)
            assert (await scene.cut(second)).offset == second, "b was farther than this reader"
            await scene.append(FIRST, raw(b"two"))
            third = (await scene.cut(second)).offset
            assert third.watermark == 8 * MS
            await scene.merge(2)
            scene.keeper.commit(RemoveWriter("sc", "st", "a"))
            await scene.reopen()
            assert (await scene.cut(third)).offset.watermark == 9 * MS

    asyncio.run(main())


def test_a_transaction_with_a_time_counts_where_it_was_committed() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.start(source=SOURCE)
            start = await scene.initial()
            await scene.append(FIRST, raw(b"one"))
            scene.keeper.commit(Begin("sc", "st", "ab", 1000))
            await scene.append(FIRST + "#transaction.ab", raw(b"two"))
            scene.keeper.commit(Commit("sc", "st", "ab", "w", 3))
            await scene.durable()
            assert scene.stream.marks[-1].cut == {0: 22}
            assert FIRST in scene.woken
            assert (await scene.cut(start)).offset.watermark == 3 * MS

    asyncio.run(main())


# Targets.


def test_an_epoch_is_merged_into_the_segments_of_its_target_once() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append("in", raw(b"x"))
            await scene.start(source="segment:in")
            await scene.cut(await scene.initial())
            route = scene.coordinator.merger.route("p", scene.generation(), 0, SOURCE)
            assert route == (Span(FIRST, 0.0, 1.0),)
            staged = [await scene.stage_for(route[0], raw(b"one")), await scene.stage(raw(b"late"), 0, port="out")]
            assert (await scene.merge(0, *staged)).merged
            assert (scene.content(FIRST), scene.output()) == (raw(b"one"), raw(b"late"))
            again = await scene.stage_for(route[0], raw(b"one"), part="0-1")
            assert not (await scene.merge(0, again)).merged
            assert scene.content(FIRST) == raw(b"one")
            assert FIRST in scene.woken
            assert scene.names("staging/") == []
            assert scene.coordinator.flow.pipelines["p"].rows_out == {"out": 1}

    asyncio.run(main())


def test_an_epoch_that_began_before_a_scaling_is_between_what_was_before_and_after() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append("in", raw(b"x"))
            await scene.start(source="segment:in")
            await scene.cut(await scene.initial())
            route = scene.coordinator.merger.route("p", scene.generation(), 0, SOURCE)
            await scene.scale(*HALVES)
            await scene.append(LEFT, raw(b"before"))
            assert scene.coordinator.merger.route("p", scene.generation(), 0, SOURCE) == route, "for all its tasks"
            await scene.merge(0, await scene.stage_for(route[0], raw(b"one")))
            assert [one.range for one in scene.stream.active] == [*HALVES]
            lineage = scene.coordinator.streams.controller.lineage("sc/st")  # type: ignore[union-attr]
            assert lineage is not None
            middle = "sc/st/3.#epoch.2"
            assert scene.content(middle) == raw(b"one")
            assert lineage.continues[middle] == (LEFT, RIGHT)
            assert lineage.continues["sc/st/4.#epoch.3"] == (middle,)

    asyncio.run(main())


def test_what_cannot_be_merged_into_a_target_is_refused() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.append("in", raw(b"x"))
            await scene.start(source="segment:in")
            await scene.cut(await scene.initial())
            merger = scene.coordinator.merger
            with pytest.raises(RequestError, match="not a valid target"):
                merger.route("p", None, 0, "segment:in")
            route = merger.route("p", scene.generation(), 0, SOURCE)
            staged = await scene.stage_for(route[0], raw(b"one"))
            await scene.scale(*HALVES)
            await scene.reopen()  # which forgets the route
            with pytest.raises(PipelineError, match="run") as refused:
                await scene.merge(0, staged)
            assert "again" in refused.value.hint
            scene.keeper.commit(SealStream("sc", "st"))
            generation = scene.generation()
            with pytest.raises(Refusal, match="sealed"):
                scene.coordinator.merger.route("p", generation, 1, SOURCE)

    asyncio.run(main())
