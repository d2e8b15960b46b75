"""Where an epoch ends is decided once, on record ends, within limits, for all inputs of a pipeline."""

import asyncio
from dataclasses import replace

import pytest

from penstock.coordinator.settings import Connectors
from penstock.core.errors import DataLoss, Fenced, PipelineError, RequestError, Unavailable
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import AtSegments, AtTime, InputOffset, InputSpec, Limits
from penstock.protocol.stored.head import StreamColumns, encode_head
from tests.coordinator.scene import Scene, raw, stored, u64s
from tests.support.waiting import SECONDS_MAX

A, B = "connector/s/0", "connector/s/1"


async def test_a_cut_ends_where_the_durable_bytes_do(scene: Scene) -> None:
    end = await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    assert start == InputOffset({A: 0}, NO_EPOCH, 1, None)
    scene.paused = True
    scene.store.append(A, [stored(1, 2, 9)])
    cutting = asyncio.create_task(scene.cut(start))
    await asyncio.sleep(0.01)
    scene.paused = False
    assert (await cutting).offset == InputOffset({A: end}, 0, 1, 5)


async def test_the_same_start_always_gets_the_same_end(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    cut = await scene.cut(start)
    await scene.ingest(A, {1: 6})
    assert await scene.cut(start) == cut
    await scene.reopen()
    assert await scene.cut(start) == cut
    await scene.start()
    assert await scene.cut(start) == cut
    later = await scene.cut(cut.offset)
    assert (later.offset.epoch, later.offset.watermark) == (1, 6)


async def test_only_as_many_epochs_are_planned_as_are_allowed(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    scene.coordinator.allow_epochs(0)
    assert (await scene.cut(start)).offset == start
    waiting = asyncio.create_task(scene.cut(start, wait_seconds=20))
    await asyncio.sleep(0)
    scene.coordinator.allow_epochs(1)
    first = (await waiting).offset
    assert first.epoch == 0, "one that waits is woken"
    await scene.ingest(A, {1: 6})
    assert (await scene.cut(first)).offset == first
    assert (await scene.cut(start)).offset == first, "what was planned stays planned"


async def test_a_cut_is_returned_only_when_it_is_durable(scene: Scene) -> None:
    await scene.ingest(A, {1: 5})
    await scene.start()
    start = await scene.initial()
    scene.paused = True
    cutting = asyncio.create_task(scene.cut(start))
    again = asyncio.create_task(scene.cut(start))
    await asyncio.sleep(0.02)
    assert not cutting.done()
    assert not again.done(), "nor for the same cut again"
    scene.paused = False
    assert await cutting == await again


async def test_a_source_that_does_not_exist_yet_is_empty_and_is_read_when_it_appears(scene: Scene) -> None:
    await scene.start(starting="latest")
    start = await scene.initial()
    assert start.segments == {}
    assert (await scene.cut(start)).offset == start
    first = await scene.ingest(A, {1: 5})
    cut = await scene.cut(start)
    assert cut.offset.segments == {A: first}
    other = await scene.ingest(B, {2: 7})
    assert (await scene.cut(cut.offset)).offset.segments == {A: first, B: other}


async def test_a_cut_without_new_input_waits_for_some(scene: Scene) -> None:
    scene.create(A)
    await scene.start()
    start = await scene.initial()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await scene.cut(start, wait_seconds=0.05)).offset == start
    assert loop.time() - began >= 0.05
    waiting = asyncio.create_task(scene.cut(start, wait_seconds=30))
    await asyncio.sleep(0.01)
    await scene.ingest(A, {1: 5})
    assert (await asyncio.wait_for(waiting, SECONDS_MAX)).offset.epoch == 0


async def test_a_request_has_stored_what_is_gathered_and_only_the_first_one_that_decides(scene: Scene) -> None:
    gathered: list[int] = []
    asked = 0

    def store() -> bool:
        nonlocal asked
        asked += 1
        found, gathered[:] = gathered[:], []
        for number in found:
            columns = StreamColumns(u64s([1]), u64s([number]), u64s([number]))
            scene.store.append(A, [stored(1, number, number)], head=encode_head(columns, (), 1, 0))
        return bool(found)

    scene.connectors = Connectors(store_gathered=store)
    await scene.reopen()
    await scene.ingest(A, {1: 5})
    await scene.start()
    await scene.attach("data")
    await scene.attach("control")
    gathered += [6, 7]
    first = await scene.cut(await scene.initial(), load="data")
    assert (first.offset.segments[A], first.offset.watermark) == (scene.store.length(A), 7)
    gathered += [8]
    again = await scene.cut(await scene.initial(), load="control")
    assert (again.offset, asked, gathered) == (first.offset, 1, [8]), "the other load gets what was decided"
    second = await scene.cut(first.offset, load="data")
    assert second.offset.watermark == 8
    waiting = asyncio.create_task(scene.cut(second.offset, load="data", wait_seconds=20))
    for number in range(3):
        await scene.append("other", raw(b"%d" % number))
    assert asked == 3, "not each time that something was stored"
    gathered += [9]
    await scene.ingest(A, {1: 10})
    assert (await waiting).offset.watermark == 10
    assert gathered == [9]


async def test_waiting_requests_get_an_error_when_the_worker_stops() -> None:
    scene = Scene()
    await scene.open()
    scene.create(A)
    await scene.start()
    start = await scene.initial()
    waiting = asyncio.create_task(scene.cut(start, wait_seconds=30))
    await asyncio.sleep(0.01)
    await scene.close()
    with pytest.raises(Unavailable, match="the worker is stopping"):
        await asyncio.wait_for(waiting, SECONDS_MAX)


async def test_a_new_generation_fences_a_waiting_request_of_an_older_one(scene: Scene) -> None:
    scene.create(A)
    await scene.start()
    start = await scene.initial()
    waiting = asyncio.create_task(scene.cut(start, wait_seconds=30))
    await asyncio.sleep(0.01)
    await scene.start()
    with pytest.raises(Fenced, match="generation 1 of pipeline 'p' was replaced by generation 2"):
        await asyncio.wait_for(waiting, SECONDS_MAX)


class TestLimits:
    async def test_a_byte_limit_is_divided_over_segments_in_proportion_to_their_backlog(self, scene: Scene) -> None:
        for _ in range(30):
            size = await scene.append("a", raw(b"x" * 92))
        for _ in range(10):
            await scene.append("b", raw(b"x" * 92))
        await scene.start(source=["segment:a", "segment:b"], limits=Limits(bytes=2000))
        cut = await scene.cut(await scene.initial())
        assert cut.offset.segments == {"a": 1500, "b": 500}
        assert size == 3000

    async def test_a_cut_takes_at_least_one_record_of_every_segment_that_has_one(self, scene: Scene) -> None:
        await scene.append("a", raw(b"x" * 992))
        await scene.append("a", raw(b"x" * 992))
        await scene.append("b", raw(b"x"))
        await scene.start(source=["segment:a", "segment:b"], limits=Limits(bytes=1))
        assert (await scene.cut(await scene.initial())).offset.segments == {"a": 1000, "b": 9}

    async def test_rows_of_a_connector_are_counted_from_the_heads(self, scene: Scene) -> None:
        ends = [await scene.ingest(A, {1: 5}, count=10) for _ in range(5)]
        await scene.start(limits=Limits(rows=25))
        cut = await scene.cut(await scene.initial())
        assert cut.offset.segments == {A: ends[1]}
        assert (await scene.cut(cut.offset)).offset.segments == {A: ends[3]}

    async def test_rows_of_other_segments_are_counted_from_their_events(self, scene: Scene) -> None:
        ends = [await scene.append("a", raw(b"1", b"", b"3")) for _ in range(5)]
        await scene.start(source="segment:a")
        cut = await scene.cut(await scene.initial(), limits=Limits(rows=7))
        assert cut.offset.segments == {"a": ends[1]}

    async def test_a_cut_stops_at_the_requested_end(self, scene: Scene) -> None:
        ends = [await scene.ingest(A, {1: 5}) for _ in range(3)]
        await scene.start()
        cut = await scene.cut(await scene.initial(), upto={A: ends[1]})
        assert cut.offset.segments == {A: ends[1]}
        assert (await scene.cut(cut.offset, upto={A: ends[1]})).offset == cut.offset


class TestStarting:
    async def test_latest_starts_at_the_current_durable_end(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start(starting="latest")
        await scene.ingest(A, {1: 6})
        assert (await scene.initial()).segments == {A: end}

    async def test_a_start_time_means_the_first_record_with_an_event_at_or_after_it(self, scene: Scene) -> None:
        ends = [await scene.ingest(A, {1: time, 2: 0}) for time in (10, 20, 15, 30)]
        outputs = [await scene.append("pipeline/q/out", stored(1, 1, time)) for time in (10, 20)]
        inputs = {str(at): InputSpec(["s", "pipeline:q/out"], AtTime(at)) for at in (0, 15, 20, 21, 99)}
        await scene.start(inputs=inputs)
        found = {at: (await scene.initial(key=str(at))).segments for at in (0, 15, 20, 21, 99)}
        assert [found[at][A] for at in found] == [0, ends[0], ends[0], ends[2], ends[3]]
        assert [found[at]["pipeline/q/out"] for at in found] == [0, outputs[0], outputs[0], outputs[1], outputs[1]]

    async def test_segments_without_a_given_offset_are_read_from_their_start(self, scene: Scene) -> None:
        first = await scene.ingest(A, {1: 5})
        await scene.ingest(A, {1: 6})
        await scene.ingest(B, {1: 5})
        for wrong in ({A: 10_000}, {A: first - 1}, {A: 8}, {"connector/other/0": 0}):
            with pytest.raises(RequestError):
                await scene.start("q", starting=AtSegments(wrong))
        await scene.start(starting=AtSegments({A: first}))  # from now on nothing before it is retained
        assert (await scene.initial()).segments == {A: first, B: 0}

    async def test_a_given_offset_may_be_that_of_any_event_in_a_record(self, scene: Scene) -> None:
        await scene.append("letters", raw(b"a", b"bc", b"d"))
        await scene.start(source="segment:letters", starting=AtSegments({"letters": 9}))
        assert (await scene.initial()).segments == {"letters": 9}
        with pytest.raises(RequestError, match="no event starts at offset 10 of segment 'letters'"):
            await scene.start("q", "segment:letters", starting=AtSegments({"letters": 10}))

    async def test_the_start_is_decided_once_per_incarnation(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start(starting="latest")
        await scene.ingest(A, {1: 6})
        await scene.start(starting="earliest")
        assert (await scene.initial()).segments == {A: end}

    async def test_an_added_source_starts_where_the_start_that_adds_it_says(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        await scene.start()
        cut = await scene.cut(await scene.initial())
        other = await scene.append("new", raw(b"1"))
        await scene.start(source=["s", "segment:new"], starting="latest")
        await scene.append("new", raw(b"2"))
        later = await scene.cut(cut.offset)
        assert later.offset.segments == {A: end, "new": other + 9}
        spec = scene.coordinator._shared.state.pipelines["p"].inputs["in"]
        assert spec.starting == {A: 0, "new": other}


class TestSeveralInputs:
    async def start(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.append("other", raw(b"1"))
        await scene.start(inputs={"x": InputSpec(["s"]), "y": InputSpec(["segment:other"])})

    async def test_the_first_input_that_asks_decides_for_all(self, scene: Scene) -> None:
        await self.start(scene)
        x, y = await scene.initial(key="x"), await scene.initial(key="y")
        one = await scene.cut(x, key="x")
        await scene.append("other", raw(b"2"))
        two = await scene.cut(y, key="y", wait_seconds=30)
        assert one.offset.epoch == two.offset.epoch == 0
        assert two.offset.segments == {"other": 9}
        # Nobody but the leader moves on.
        assert (await scene.cut(two.offset, key="y", wait_seconds=30)).offset == two.offset
        assert (await scene.cut(one.offset, key="x")).offset.epoch == 1
        assert (await scene.cut(two.offset, key="y")).offset.segments == {"other": 18}

    async def test_the_leader_is_remembered_after_a_restart_of_the_worker(self, scene: Scene) -> None:
        await self.start(scene)
        x, y = await scene.initial(key="x"), await scene.initial(key="y")
        await scene.cut(x, key="x")
        await scene.reopen()
        await scene.append("other", raw(b"2"))
        two = await scene.cut(y, key="y")
        assert (await scene.cut(two.offset, key="y")).offset == two.offset

    async def test_a_cut_lost_from_sparks_log_is_returned_again_to_all_inputs(self, scene: Scene) -> None:
        await self.start(scene)
        x, y = await scene.initial(key="x"), await scene.initial(key="y")
        cuts = [await scene.cut(x, key="x"), await scene.cut(y, key="y")]
        await scene.start(inputs={"x": InputSpec(["s"]), "y": InputSpec(["segment:other"])})
        await scene.append("other", raw(b"2"))
        assert [await scene.cut(x, key="x"), await scene.cut(y, key="y")] == cuts

    async def test_each_input_has_its_own_end_and_the_leader_continues_until_all_have_reached_theirs(
        self, scene: Scene
    ) -> None:
        await self.start(scene)
        at = {"x": await scene.initial(key="x"), "y": await scene.initial(key="y")}
        for _ in range(3):
            await scene.append("other", raw(b"2"))
        upto = {"x": {A: scene.store.length(A)}, "y": {"other": 36}}
        limits = Limits(bytes=1)
        for epoch in range(4):
            for key in at:
                at[key] = (await scene.cut(at[key], key=key, upto=upto[key], limits=limits)).offset
                assert at[key].epoch == epoch
        await scene.append("other", raw(b"3"))
        assert (await scene.cut(at["x"], key="x", upto=upto["x"])).offset == at["x"]
        assert at["y"].segments == {"other": 36}


class TestLoadsOfAQuery:
    """The loads of a query attach before the first of them asks for a cut."""

    async def test_two_loads_of_one_input_read_the_same_epochs(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        for load in ("left", "right"):
            await scene.attach(load)
        at = await scene.initial()
        first = (await scene.cut(at, load="left")).offset
        assert (await scene.cut(at, load="right")).offset == first
        assert (await scene.cut(first, load="left")).offset == first
        await scene.ingest(A, {1: 6})
        assert (await scene.cut(first, load="right", wait_seconds=30)).offset == first, "the other one got no cut"
        second = (await scene.cut(first, load="left")).offset
        assert (second.epoch, (await scene.cut(first, load="right")).offset) == (1, second)

    async def test_the_leader_is_remembered_after_a_restart_of_the_worker(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        for load in ("left", "right"):
            await scene.attach(load)
        first = (await scene.cut(await scene.initial(), load="left")).offset
        await scene.reopen()
        await scene.ingest(A, {1: 6})
        assert (await scene.cut(first, load="right")).offset == first
        assert (await scene.cut(first, load="left")).offset.epoch == 1

    async def test_a_later_query_of_the_generation_has_its_own_end(self, scene: Scene) -> None:
        end = await scene.ingest(A, {1: 5})
        other = await scene.append("other", raw(b"1"))
        await scene.start(inputs={"x": InputSpec(["s"]), "y": InputSpec(["segment:other"])})
        x, y = await scene.initial(key="x"), await scene.initial(key="y")
        await scene.attach("x1", "x", upto={A: end})
        await scene.attach("y1", "y", "segment:other", upto={"other": other})
        x = (await scene.cut(x, key="x", load="x1", upto={A: end})).offset
        y = (await scene.cut(y, key="y", load="y1", upto={"other": other})).offset
        later = await scene.append("other", raw(b"2"))
        await scene.attach("x2", "x", upto={A: end})
        await scene.attach("y2", "y", "segment:other", upto={"other": later})
        x = (await scene.cut(x, key="x", load="x2", upto={A: end})).offset
        y = (await scene.cut(y, key="y", load="y2", upto={"other": later})).offset
        assert (x.epoch, y.epoch, y.segments) == (1, 1, {"other": later})
        last = await scene.append("other", raw(b"3"))
        await scene.attach("x3", "x")
        await scene.attach("y3", "y", "segment:other")
        await scene.cut(x, key="x", load="x3")
        assert (await scene.cut(y, key="y", load="y3")).offset.segments == {"other": last}

    async def test_a_query_that_was_replaced_by_another_gets_no_more_cuts(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        await scene.attach("old")
        cut = (await scene.cut(await scene.initial(), load="old")).offset
        await scene.attach("new")
        with pytest.raises(Fenced, match="another query of pipeline 'p' has begun in generation 1"):
            await scene.cut(cut, load="old")
        await scene.ingest(A, {1: 6})
        assert (await scene.cut(cut, load="new")).offset.epoch == 1

    async def test_loads_of_one_input_must_have_the_same_sources(self, scene: Scene) -> None:
        await scene.start(request="r")
        await scene.attach("one")
        await scene.start(request="r", source="segment:other")
        with pytest.raises(PipelineError, match="is s in one load of the query, and segment:other in another"):
            await scene.attach("two", source="segment:other")
        with pytest.raises(PipelineError, match="is segment:other, not s"):
            await scene.attach("three")


async def test_a_segment_that_was_deleted_and_recreated_is_reported_as_data_loss(scene: Scene) -> None:
    await scene.append("raw", raw(b"12345"))
    await scene.start(source="segment:raw")
    cut = (await scene.cut(await scene.initial())).offset
    scene.store.delete("raw")
    for _ in range(2):
        with pytest.raises(DataLoss, match="has read segment 'raw' up to 13, but it ends before that"):
            await scene.cut(cut)
        await scene.append("raw", raw(b"1"))


class TestForeignOffsets:
    async def test_offsets_of_another_cut_epoch_or_incarnation_are_refused(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        cut = (await scene.cut(await scene.initial())).offset
        for wrong, why in [
            (replace(cut, segments={A: 3}), "ends at"),
            (replace(cut, segments={}), "ends at"),
            (replace(cut, segments={**cut.segments, B: 7}), "ends at"),
            (replace(cut, epoch=7), "epoch 7 is not among those that are kept: -1 to 0"),
            (replace(cut, incarnation=2), "incarnation 2"),
            (InputOffset(cut.segments), "incarnation None"),
        ]:
            with pytest.raises(PipelineError, match=why):
                await scene.cut(wrong)
        with pytest.raises(PipelineError, match="input 'nobody' not found"):
            await scene.cut(cut, key="nobody")

    async def test_an_epoch_that_is_read_again_must_have_been_cut(self, scene: Scene) -> None:
        await scene.ingest(A, {1: 5})
        await scene.start()
        start = await scene.initial()
        end = (await scene.cut(start)).offset
        reading = scene.coordinator.cuts.reading
        await reading("p", 1, "in", start, end)
        with pytest.raises(PipelineError):
            await reading("p", 1, "in", start, replace(end, segments={A: 3}))
        with pytest.raises(PipelineError, match="from cut 0 to -1"):
            await reading("p", 1, "in", end, start)
        with pytest.raises(Fenced):
            await reading("p", 7, "in", start, end)
