"""Readers without a pipeline, and the splits in which ranges are read."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator import records as reading
from penstock.coordinator.readers import split
from penstock.coordinator.records import Records, count_events
from penstock.core.errors import DataLoss, RequestError
from penstock.protocol.api.pipelines import AtSegments, Limits, Range
from penstock.protocol.stored.event import NO_TIME
from penstock.testing.memory_files import MemoryFiles
from tests.coordinator.scene import Scene, raw, stored
from tests.store.small import commit, open_store

A, B = "connector/s/0", "connector/s/1"


async def test_a_position_is_resolved_in_every_segment_of_every_source(scene: Scene) -> None:
    ends = {A: await scene.ingest(A, {1: 5}), B: await scene.ingest(B, {1: 5}), "x": await scene.append("x", raw(b"1"))}
    resolve = scene.coordinator.readers.resolve
    scene.store.truncate(A, ends[A])
    assert await resolve(["s", "segment:x"], "earliest") == {A: ends[A], B: 0, "x": 0}
    assert await resolve(["s", "segment:x"], "latest") == ends
    assert await resolve(["s"], AtSegments({B: ends[B]})) == {A: ends[A], B: ends[B]}
    assert await resolve(["nobody"], "latest") == {}
    with pytest.raises(RequestError):
        await resolve(["connector/s/streams"], "latest")


async def test_a_cut_without_a_pipeline_obeys_limits_and_waits_for_input(scene: Scene) -> None:
    ends = [await scene.append("x", raw(b"1" * 92)) for _ in range(3)]
    cut = scene.coordinator.readers.cut
    assert await cut(["segment:x"], {"x": 0}) == {"x": ends[2]}
    assert await cut(["segment:x"], {}, limits=Limits(bytes=150)) == {"x": ends[0]}
    assert await cut(["segment:x"], {"x": 0}, upto={"x": ends[1]}) == {"x": ends[1]}
    assert await cut(["segment:x"], {"x": ends[1]}, upto={"x": ends[1]}) == {"x": ends[1]}
    waiting = asyncio.create_task(cut(["segment:x"], {"x": ends[2]}, wait_seconds=30))
    await asyncio.sleep(0.01)
    end = await scene.append("x", raw(b"2"))
    assert await waiting == {"x": end}


async def test_nothing_is_retained_or_recorded_for_a_cut_without_a_pipeline(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    before = scene.journal.end
    await scene.coordinator.readers.cut(["s"], {})
    assert scene.journal.end == before
    assert scene.completions == {}


class TestSplits:
    async def test_splits_are_contiguous_end_with_records_and_are_about_as_many_as_requested(
        self, scene: Scene
    ) -> None:
        for _ in range(40):
            await scene.append("x", raw(b"1" * 92))
        found = await scene.coordinator.readers.splits([Range("x", 0, 4000)], 4, 0, skip_lost=False)
        assert found.splits == [Range("x", n, n + 1000) for n in range(0, 4000, 1000)]
        found = await scene.coordinator.readers.splits([Range("x", 0, 4000)], 4, 1500, skip_lost=False)
        assert found.splits == [Range("x", 0, 2000), Range("x", 2000, 4000)]

    async def test_splits_over_removed_bytes_are_data_loss_or_reported(self, scene: Scene) -> None:
        ends = [await scene.append("x", raw(b"1" * 92)) for _ in range(4)]
        scene.store.truncate("x", ends[1])
        splits = scene.coordinator.readers.splits
        with pytest.raises(DataLoss, match="the bytes 50 to 200 of segment 'x' were removed") as caught:
            await splits([Range("x", 50, 400)], 1, 0, skip_lost=False)
        assert "failOnDataLoss" in caught.value.hint
        found = await splits([Range("x", 50, 400), Range("gone", 3, 9)], 1, 0, skip_lost=True)
        assert found.splits == [Range("x", 200, 400)]
        assert found.lost == [Range("x", 50, 200), Range("gone", 3, 9)]
        assert (await splits([Range("x", 0, 150)], 1, 0, skip_lost=True)).splits == []

    async def test_splits_beyond_the_end_are_refused(self, scene: Scene) -> None:
        await scene.append("x", raw(b"1"))
        with pytest.raises(RequestError, match="ends at 9, before 10"):
            await scene.coordinator.readers.splits([Range("x", 0, 10)], 1, 0, skip_lost=False)
        with pytest.raises(RequestError, match="parts"):
            await scene.coordinator.readers.splits([], 0, 0, skip_lost=False)

    @settings(deadline=None, max_examples=50)
    @given(
        st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=20), min_size=1, max_size=3),
        st.integers(1, 12),
        st.integers(0, 500),
        st.randoms(use_true_random=False),
    )
    def test_splits_lose_nothing_and_none_is_too_small(
        self, sizes: list[list[int]], parts: int, bytes_min: int, random: "st.DrawFn"
    ) -> None:
        store = open_store(MemoryFiles())
        ranges, ends = [], {}
        for number, records in enumerate(sizes):
            name = f"x{number}"
            store.create(name)
            ends[name] = {0, *(int(store.append(name, [bytes(size)]).end) for size in records)}
            start, end = sorted(random.sample(sorted(ends[name]), 2))  # type: ignore[attr-defined]
            ranges.append(Range(name, start, end))
        commit(store)
        found = split(Records(store), ranges, parts, bytes_min, skip_lost=False).splits
        for whole in ranges:
            mine = [part for part in found if part.segment == whole.segment]
            assert [mine[0].start, *(part.end for part in mine)] == [*(part.start for part in mine), whole.end]
            assert mine[0].start == whole.start
            assert {part.end for part in mine} <= ends[whole.segment]
            if len(mine) > 1:
                assert min(part.end - part.start for part in mine) >= bytes_min
        assert len(found) <= parts + len(ranges)


async def test_counting_very_many_small_events_does_not_block_the_event_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def counted(*given: Any, **how: Any) -> tuple[int, int]:
        threads.add(threading.get_ident())
        return count_events(*given, **how)

    monkeypatch.setattr(reading, "count_events", counted)
    end = await scene.append("raw", raw(*[b""] * 1000))
    assert [r async for r in Records(scene.store).walk("raw", 0, end)] == [[(end, 1000, NO_TIME)]]
    assert threads
    assert threading.get_ident() not in threads


def test_events_are_counted_as_rows_and_marks_are_not() -> None:
    events = stored(1, 1, 50) + bytes(8) + stored(1, 2, 40)
    assert count_events(events, stored=True) == (2, 50)
    assert count_events(raw(b"1", b"", b"22"), stored=False)[0] == 3
    assert count_events(memoryview(events)[:60], stored=True)[0] == 2, "half an event does not end it"
