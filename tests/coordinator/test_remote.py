"""A pipeline reads sources of its own shard and of others, and an output of a pipeline in another one."""

import asyncio
from functools import partial
from typing import Any

import pytest

from penstock.coordinator.machine.state import Retention
from penstock.coordinator.settings import Connectors
from penstock.core.errors import DataLoss, PipelineError, RequestError, Unavailable
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.pipelines import AtSegments, InputOffset, InputSpec, Limits, Range
from penstock.protocol.api.shards import RowsIn, SplitIn
from penstock.protocol.stored.head import Mark, MarkKind
from tests.coordinator.scene import Scene, raw, stored
from tests.coordinator.shards_scene import shards
from tests.support.waiting import SECONDS_MAX

A, B, B1 = "connector/a/0", "connector/b/0", "connector/b/1"
PLACES = {"a": 0, "b": 1, "pipeline:p/out": 0, "pipeline:q/out": 1, "pipeline:p/replay.in": 0, "segment:raw": 1}


async def cut(scene: Scene, start: InputOffset, *, at_least: dict[str, int], **more: Any) -> InputOffset:
    """The first cut that reaches these offsets: what another shard has takes a moment to arrive."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            found = (await scene.cut(start, wait_seconds=0.5, **more)).offset
            if all(found.segments.get(name, 0) >= at for name, at in at_least.items()):
                return found
            assert found == start, f"{found} is a cut without {at_least}"


async def began(home: Scene, source: Any = ("a", "b"), **more: Any) -> InputOffset:
    await home.start(source=source, **more)
    return await home.initial()


def released(scene: Scene, source: str) -> list[dict[str, int]]:
    return [positions for _, positions in scene.completions[source].calls]


async def test_a_cut_has_what_is_durable_in_all_shards_and_acknowledgements_wait_for_the_pipeline() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_a, in_b = await home.ingest(A, {1: 10}), await other.ingest(B, {2: 20})
        start = await began(home)
        assert other.completions["b"].calls == [("hold", {B: 0})], "subscribed before the first cut"
        end = await cut(home, start, at_least={A: in_a, B: in_b})
        assert end.segments == {A: in_a, B: in_b}
        assert end.watermark == 10
        await home.merge(0, await home.stage(b"out", 0))
        await other.until(lambda: released(other, "b")[-1] == {B: in_b})
        assert released(home, "a")[-1] == {A: in_a}


async def test_the_reply_names_the_worker_of_each_remote_segment() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        start = await began(home)
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await home.cut(start, wait_seconds=1)).offset == start:
                pass
        assert found.workers == {B: "127.0.0.1:7001"}
        splits = await home.coordinator.readers.splits([Range(B, 0, in_b)], 1, 0, skip_lost=False)
        assert (splits.splits, splits.workers) == ([Range(B, 0, in_b)], {B: "127.0.0.1:7001"})
        assert await home.coordinator.readers.places([A, B]) == {B: "127.0.0.1:7001"}
        with pytest.raises(DataLoss):
            await home.coordinator.readers.splits([Range("connector/b/9", 0, 5)], 1, 0, skip_lost=False)


@pytest.mark.parametrize(("starting", "index"), [("earliest", 0), ("latest", 2), (AtSegments({B: -1}), 1)])
async def test_starting_positions_are_those_of_the_source_shard(starting: Any, index: int) -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        ends = [0, await other.ingest(B, {2: 20}), await other.ingest(B, {2: 30})]
        if isinstance(starting, AtSegments):
            starting = AtSegments({B: ends[1]})
        start = await began(home, "b", starting=starting)
        assert start.segments == {B: ends[index]}
        assert released(other, "b") == [{B: ends[index]}]
        last = await other.ingest(B, {2: 40})
        end = await cut(home, start, at_least={B: last})
        assert end.watermark == 40


async def test_a_stream_that_was_open_where_the_pipeline_starts_blocks_its_watermark() -> None:
    connectors = Connectors(open_streams=lambda _: {2, 3})
    async with shards(PLACES, connectors=connectors) as cluster:
        home, other = cluster.scenes
        await other.ingest(B, {2: 20}, [Mark(2, MarkKind.STARTED, "x")])
        await other.ingest(B, {3: 20}, [Mark(3, MarkKind.STARTED, "y")])
        start = await began(home, "b", starting="latest")
        first = await other.ingest(B, {2: 100})
        end = await cut(home, start, at_least={B: first})
        later = await other.ingest(B, {3: 50})
        assert end.watermark is None
        end = await cut(home, end, at_least={B: later})
        assert end.watermark == 50


async def test_a_start_waits_for_the_source_shard_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.coordinator.remote.START_SECONDS", 0.05)
    async with shards(PLACES) as cluster:
        home, _ = cluster.scenes
        cluster.away.add(1)
        with pytest.raises(Unavailable, match="pipeline 'p' waits for shard 1, which has source 'b': shard 1 is away"):
            await home.start(source="b", request="one")
        cluster.away.clear()
        await home.start(source="b", request="one")
        await home.until(lambda: home.status().blocked is None)


async def test_two_pipelines_may_start_at_once_whichever_request_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        sharing, overtaken = other.coordinator.sharing, asyncio.Event()
        subscribe = sharing.subscribe

        async def late(request: Any) -> dict[str, int]:
            if request.pipeline == "p":
                await overtaken.wait()
            found = await subscribe(request)
            overtaken.set()
            return found

        monkeypatch.setattr(sharing, "subscribe", late)
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(home.start("p", "b"), home.start("q", "b"))
        await other.until(lambda: subscriptions(other)[0].pipelines == ("p", "q"))


async def test_while_the_source_shard_is_away_the_status_says_so_and_other_sources_are_read() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        end = await cut(home, await began(home), at_least={B: in_b})
        await home.merge(0)
        cluster.away.add(1)
        await other.ingest(B, {2: 30})
        await home.until(lambda: "b waits for shard 1" in (home.status().blocked or ""))
        in_a = await home.ingest(A, {1: 35})
        end = await cut(home, end, at_least={A: in_a})
        cluster.away.clear()
        await home.merge(1)
        in_b = await other.ingest(B, {2: 40})
        assert (await cut(home, end, at_least={B: in_b})).watermark == 35


async def test_a_restarted_home_shard_continues_with_the_same_watermark_and_releases_again() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_a, in_b = await home.ingest(A, {1: 15}), await other.ingest(B, {2: 20})
        end = await cut(home, await began(home), at_least={A: in_a, B: in_b})
        cluster.away.add(1)
        await home.merge(0, await home.stage(b"out", 0))
        await home.reopen()
        cluster.away.clear()
        await other.until(lambda: released(other, "b")[-1] == {B: in_b})
        in_b = await other.ingest(B, {2: 30})
        end = await cut(home, end, at_least={B: in_b})
        assert end.watermark == 15


async def test_a_restarted_home_shard_sends_nothing_before_it_has_its_term() -> None:
    """Nor does another retention, which is the first thing that a start writes."""
    async with shards(PLACES) as cluster:
        other, home = cluster.scenes
        await home.reopen(retention=Retention("keep"))
        in_a = await other.ingest(A, {1: 10})
        await cut(home, await began(home, "a"), at_least={A: in_a})
        await home.reopen(retention=Retention("complete"))
        state = other.coordinator.deliveries
        await other.until(lambda: state.state.subscriptions[1, "a"].term == 3)
        assert [*state.state.subscriptions] == [(1, "a")]


async def test_a_restarted_source_shard_still_waits_for_the_pipeline() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        start = await began(home, "b")
        cluster.away.add(1)
        await other.reopen()
        cluster.away.clear()
        assert released(other, "b") == [{B: 0}]
        end = await cut(home, start, at_least={B: in_b})
        await home.merge(0, await home.stage(b"out", 0))
        await other.until(lambda: released(other, "b")[-1] == {B: in_b})
        assert end.segments == {B: in_b}


async def test_what_a_remote_pipeline_may_read_again_is_not_removed_and_what_it_has_completed_is() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        end, begun = await began(home, "b"), []
        for number in range(8):
            begun.append(await other.ingest(B, {2: 20 + number}))
            end = await cut(home, end, at_least={B: begun[-1]})
            await home.merge(number, await home.stage(b"out", number))
        await home.cut(end)
        await other.until(lambda: other.store.info(B).start >= begun[2])
        assert other.store.info(B).start <= begun[5]
        await home.reopen()
        last = await other.ingest(B, {2: 50})
        assert (await cut(home, end, at_least={B: last})).watermark == 50


async def test_a_dropped_pipeline_lets_go_also_when_the_source_shard_was_away() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        await other.ingest(B, {2: 20})
        await began(home, "b")
        cluster.away.add(1)
        await home.coordinator.lifecycle.drop("p")
        await home.reopen()
        cluster.away.clear()
        await other.until(lambda: other.completions["b"].calls[-1] == ("let go", {}))


async def test_a_reset_pipeline_reads_everything_again() -> None:
    async with shards(PLACES, retention_seconds=1000.0) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        end = await cut(home, await began(home, "b"), at_least={B: in_b})
        await home.merge(0, await home.stage(b"out", 0))
        await home.cut(end)
        await home.coordinator.lifecycle.reset("p")
        again = await began(home, "b")
        assert again.segments == {B: 0}
        assert (await cut(home, again, at_least={B: in_b})).watermark == 20


async def test_a_fork_holds_the_source_where_it_starts() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        first = await other.ingest(B, {2: 20})
        end = await cut(home, await began(home, "b"), at_least={B: first})
        await home.merge(0, await home.stage(b"out", 0))
        await home.coordinator.lifecycle.fork("f", "p")
        second = await other.ingest(B, {2: 30})
        end = await cut(home, end, at_least={B: second})
        await home.merge(1, await home.stage(b"out", 1))
        await home.cut(end)
        await other.until(lambda: ("f", "p") in {one.pipelines for one in subscriptions(other)})
        assert released(other, "b")[-1] == {B: first}


def subscriptions(scene: Scene) -> list[Any]:
    return [*scene.coordinator.deliveries.state.subscriptions.values()]


async def test_repeated_and_lost_replies_change_nothing() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        lost: dict[str, int] = {}

        def loses(path: str) -> bool:
            lost[path] = lost.get(path, 0) + 1
            return lost[path] % 2 == 1

        cluster.loses = loses
        in_b = await other.ingest(B, {2: 20})
        start = await began(home, "b")
        assert start.segments == {B: 0}
        end = await cut(home, start, at_least={B: in_b})
        await home.merge(0, await home.stage(b"out", 0))
        await other.until(lambda: released(other, "b")[-1] == {B: in_b})
        assert end.segments == {B: in_b}
        assert {path for path, count in lost.items() if count > 1} >= {"/shard/subscribe", "/shard/follow"}


async def test_an_output_of_another_shard_brings_its_pipelines_watermark() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        await other.start("q", "b")
        produced = (await other.cut(await other.initial("q"), "q")).offset
        await other.merge(0, await other.stage(stored(2, 1, 20), 0, "q"), name="q")
        start = await began(home, "pipeline:q/out")
        length = other.store.info("pipeline/q/out").length
        end = await cut(home, start, at_least={"pipeline/q/out": length})
        assert (end.watermark, produced.segments) == (20, {B: in_b})
        await other.ingest(B, {2: 77})
        await other.cut(produced, "q")
        await other.merge(1, name="q")
        async with asyncio.timeout(SECONDS_MAX):
            while (end := (await home.cut(end, wait_seconds=1)).offset).watermark != 77:
                pass
        with pytest.raises(PipelineError, match=r"pipeline/q/out is read by pipeline p of shard 0"):
            await other.coordinator.lifecycle.drop("q", outputs=True)


async def test_records_of_different_shards_are_read_in_the_order_of_their_arrival() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        for number in range(10):
            await home.ingest(A, {1: number}, arrival_us=1000 + 20 * number)
            await other.ingest(B, {2: number}, arrival_us=1010 + 20 * number)
        size = home.store.info(A).length // 10
        end = await began(home)
        await home.until(lambda: home.status().lag_bytes == 20 * size and home.status().blocked is None)
        seen = list[tuple[int, int]]()
        while len(seen) < 5:
            end = (await home.cut(end, limits=Limits(bytes=4 * size), wait_seconds=1)).offset
            seen.append((end.segments.get(A, 0) // size, end.segments.get(B, 0) // size))
        assert all(0 <= in_a - in_b <= 1 for in_a, in_b in seen)
        assert seen[-1][0] > 5


async def test_an_event_of_a_remote_source_can_be_buried() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.append(B, stored(2, 1, 5) + stored(2, 2, 6))
        start = await began(home, "b")
        half = len(stored(2, 1, 5))
        done = await home.coordinator.burials.bury("p", [EventPlace(B, half)], "bad", undo=False)
        assert done.changed == 1
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await home.cut(start, wait_seconds=1)).offset == start:
                pass
        assert found.left_out == [Range(B, half, in_b)]
        with pytest.raises(PipelineError, match="no event starts at offset 3"):
            await home.coordinator.burials.bury("p", [EventPlace(B, 3)], "bad", undo=False)


async def test_a_raw_segment_and_a_limit_of_rows_work_across_shards() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        ends = [await other.append("raw", raw(b"1", b"2")) for _ in range(3)]
        start = await began(home, "segment:raw")
        await home.until(lambda: home.status().lag_bytes == ends[-1])
        found = await cut(home, start, at_least={"raw": ends[0]}, limits=Limits(rows=3))
        assert found.segments == {"raw": ends[0]}


async def test_a_stream_of_pravegas_clients_is_read_in_its_own_shard_alone() -> None:
    async with shards(PLACES | {"pravega:sc/st": 1}) as cluster:
        home = cluster.scenes[0]
        with pytest.raises(RequestError, match="controller is in another shard") as refused:
            await home.start(source="pravega:sc/st")
        assert "penstock run" in refused.value.hint


async def test_a_process_of_another_shard_does_not_take_what_it_does_not_have_for_lost() -> None:
    """A process may have got the address of one that was replaced."""
    async with shards(PLACES) as cluster:
        sharing = cluster.scenes[0].coordinator.sharing
        with pytest.raises(Unavailable, match="source 'b' is in shard 1; this one is 0"):
            await sharing.split(SplitIn(ranges=[Range(B, 0, 10)], part_bytes=10, skip_lost=True))
        with pytest.raises(Unavailable, match="source 'b' is in shard 1; this one is 0"):
            await sharing.rows_end(RowsIn(segment=B, start=0, end=10, rows_max=1))


async def test_a_reader_without_a_pipeline_reads_all_shards() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_a, in_b = await home.ingest(A, {1: 10}), await other.ingest(B, {2: 20})
        readers = home.coordinator.readers
        assert await readers.resolve(["a", "b"], "latest") == {A: in_a, B: in_b}
        found: dict[str, int] = {}
        async with asyncio.timeout(SECONDS_MAX):
            while found != {A: in_a, B: in_b}:
                found = await readers.cut(["a", "b"], found, wait_seconds=1)


async def test_a_second_pipeline_of_the_home_shard_may_start_earlier_than_the_first() -> None:
    async with shards(PLACES, retention_seconds=1000.0) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        first = await began(home, "b", starting="latest")
        await home.start("second", "b")
        assert first.segments == {B: in_b}
        assert (await home.initial("second")).segments == {B: 0}
        again = await home.initial("second")
        assert (await cut(home, again, at_least={B: in_b}, name="second")).segments == {B: in_b}


async def test_a_source_that_a_pipeline_adds_later_is_subscribed_to_then() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_a, in_b = await home.ingest(A, {1: 10}), await other.ingest(B, {2: 20})
        end = (await home.cut(await began(home, "a"))).offset
        await home.merge(0)
        await home.start(inputs={"in": InputSpec(["a", "b"])})
        assert subscriptions(other)[0].pipelines == ("p",)
        found = await cut(home, end, at_least={B: in_b})
        assert found.segments == {A: in_a, B: in_b}
        await home.start(inputs={"in": InputSpec(["a"])})
        await other.until(lambda: other.completions["b"].calls[-1] == ("let go", {}))


async def test_a_replaced_process_of_the_home_shard_is_refused() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        in_b = await other.ingest(B, {2: 20})
        start = await began(home, "b")
        before = home.coordinator.deliveries.state.term
        await home.reopen()
        await cut(home, start, at_least={B: in_b})
        await other.until(lambda: subscriptions(other)[0].term > before)
        assert subscriptions(other)[0].done == {B: 0}


async def test_the_watermark_is_that_of_the_same_data_in_one_shard() -> None:
    found = []
    for place in (0, 1):
        async with shards({**PLACES, "b": place}) as cluster:
            home, other = cluster.scenes[0], cluster.scenes[place]
            end, watermarks = await began(home), []
            for number in range(6):
                marks = [Mark(2, MarkKind.STARTED, "x")] if number == 2 else []
                in_b = await other.ingest(B, {2 + number % 2: 100 * number}, marks, arrival_us=2 * number + 1)
                in_a = await home.ingest(A, {1: 90 * number}, arrival_us=2 * number + 2)
                await home.until(partial(knows, home, {A: in_a, B: in_b}))
                end = await cut(home, end, at_least={A: in_a, B: in_b})
                await home.merge(number)
                watermarks.append(end.watermark)
            found.append(watermarks)
    assert found[0] == found[1]
    assert found[0][-1] is not None


def knows(home: Scene, ends: dict[str, int]) -> bool:
    view = home.coordinator.remote.view("p")
    return all(view.records.stored_end(name) >= end for name, end in ends.items())


async def test_a_query_with_an_end_is_blocked_while_records_before_it_are_on_their_way() -> None:
    async with shards(PLACES) as cluster:
        home, other = cluster.scenes
        first = await other.ingest(B, {2: 20})
        start = await began(home, "b")
        end = await cut(home, start, at_least={B: first})
        await home.merge(0)
        cluster.away.add(1)
        await home.until(lambda: home.status().blocked is not None)
        last = await other.ingest(B, {2: 30})
        found = await home.cut(end, upto={B: last})
        assert found.offset == end
        assert "b waits for shard 1" in (found.blocked or "")
        cluster.away.clear()
        assert (await cut(home, end, at_least={B: last}, upto={B: last})).segments == {B: last}
