"""Dead letters of a pipeline are listed, and replayed exactly once."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.coordinator import dead_letters as service
from penstock.coordinator.dead_letters import DeadLetters
from penstock.coordinator.machine.state import Retention
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.dead_letters import DeadLetter, DeadLetterList, Replayed
from penstock.protocol.api.pipelines import InputOffset, InputSpec, StoredInput
from penstock.testing.faulty_files import FaultyFiles
from tests.coordinator.scene import Scene, opened
from tests.protocol.stored.events import stored

A, ERR, REPLAYS = "connector/s/0", "pipeline/p/err", "pipeline/p/replay.in"
PORTS = ("out", "err", "late")


def dead_letter(number: int, segment: str | None = A, **more: Any) -> bytes:
    metadata = {
        "source": "s",
        "stream": "lane",
        "reason": f"reason {number}",
        "segment": segment,
        "offset": number,
        **more,
    }
    return stored(7, number, number, b"k", b"value %d" % number, metadata)


def original(number: int) -> bytes:
    return stored(7, number, number, b"k", b"value %d" % number, {"source": "s", "stream": "lane"})


def dead_letters_of(scene: Scene) -> DeadLetters:
    return scene.coordinator.dead_letters


async def begun(scene: Scene, *records: bytes, port: str = "err") -> InputOffset:
    """A pipeline whose first epoch has these dead letters, each in its own record."""
    await scene.start(outputs=PORTS)
    await scene.ingest(A, {1: 1})
    at = (await scene.cut(await scene.initial())).offset
    staged = [await scene.stage(record, 0, port=port, part=f"{number}-0") for number, record in enumerate(records)]
    await scene.merge(0, *staged)
    return at


async def listed(
    scene: Scene, limit: int = 10, *, oldest: bool = False, ports: Sequence[str] = ("err",)
) -> DeadLetterList:
    return await dead_letters_of(scene).listed("p", ports, limit, oldest=oldest)


async def replay(scene: Scene, upto: int | None = None, port: str = "err") -> Replayed:
    about = (await listed(scene, 0, ports=[port])).ports[0]
    return await dead_letters_of(scene).replay("p", port, about.replayed, about.end if upto is None else upto)


async def choose(scene: Scene, *at: int, key: str | None = None) -> Replayed:
    return await dead_letters_of(scene).replay_chosen("p", "err", at, key)


def numbers(found: DeadLetterList) -> list[int]:
    return [one.message_id for one in found.dead_letters]


class TestLooking:
    async def test_a_dead_letter_has_everything_that_is_known_about_its_event(self, scene: Scene) -> None:
        record = dead_letter(5, watermark=9, behind_us=4)
        await begun(scene, record)
        (found,) = (await listed(scene)).dead_letters
        assert found == DeadLetter(
            port="err",
            at=0,
            end=len(record),
            reason="reason 5",
            replayed=False,
            size=7,
            source="s",
            stream="lane",
            stream_id=7,
            message_id=5,
            event_time=5,
            segment=A,
            offset=5,
            watermark=9,
            behind_us=4,
            key=b"k",
        )
        shown = await dead_letters_of(scene).show("p", "err", 0)
        assert shown.value == b"value 5"
        assert msgspec.convert(msgspec.to_builtins(shown), DeadLetter) == shown

    async def test_the_newest_or_the_oldest_are_listed_in_their_order(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_STEP_BYTES", 1)
        await begun(scene, dead_letter(1), dead_letter(2) + dead_letter(3) + dead_letter(4), dead_letter(5))
        assert numbers(await listed(scene)) == [1, 2, 3, 4, 5]
        assert numbers(await listed(scene, 3)) == [3, 4, 5]
        assert numbers(await listed(scene, 3, oldest=True)) == [1, 2, 3]
        assert numbers(await listed(scene, 0)) == []
        assert numbers(await listed(scene, 0, oldest=True)) == []

    async def test_older_ones_end_where_a_page_begins(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1), dead_letter(2) + dead_letter(3) + dead_letter(4), dead_letter(5))
        found = (await listed(scene, 2)).dead_letters
        pages = [[one.message_id for one in found]]
        while found:
            before = found[0].at
            found = (await dead_letters_of(scene).listed("p", ["err"], 2, oldest=False, before=before)).dead_letters
            pages.append([one.message_id for one in found])
        assert pages == [[4, 5], [2, 3], [1], []]

    async def test_a_pipeline_without_dead_letters_has_none(self, scene: Scene) -> None:
        await scene.start(outputs=("out",))
        found = await listed(scene, ports=["err", "late"])
        assert (found.dead_letters, [(port.port, port.end) for port in found.ports]) == ([], [("err", 0), ("late", 0)])

    async def test_an_unknown_dead_letter_port_or_pipeline_is_refused(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1))
        for at in (1, len(dead_letter(1)), 10**9):
            with pytest.raises(PipelineError, match=f"no dead letter of port 'err' starts at {at}"):
                await dead_letters_of(scene).show("p", "err", at)
        with pytest.raises(RequestError, match="port 'out' has no dead letters"):
            await listed(scene, ports=["out"])
        with pytest.raises(PipelineError, match="pipeline 'q' not found"):
            await dead_letters_of(scene).listed("q", ["err"], 1, oldest=False)
        with pytest.raises(RequestError, match="2000 dead letters"):
            await listed(scene, 2000)


class TestReplaying:
    async def test_replayed_events_are_read_unchanged_in_the_next_epoch(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1), dead_letter(2))
        assert await replay(scene) == Replayed(2, 0)
        assert scene.output(port="replay.in") == original(1) + original(2)
        offset = (await scene.cut(at)).offset
        assert offset.segments == {A: at.segments[A], REPLAYS: 2 * len(original(1))}
        assert [one.replayed for one in (await listed(scene)).dead_letters] == [True, True]

    async def test_replayed_dead_letters_that_retention_has_removed_do_not_refuse_a_reset(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1), dead_letter(2))
        await replay(scene)
        await scene.epoch(at, 1)
        scene.store.truncate(REPLAYS, len(original(1)))
        length = scene.store.info(A).length
        assert scene.coordinator.lifecycle.stored_input("p") == StoredInput(length, length)
        await scene.coordinator.lifecycle.reset("p")

    async def test_later_dead_letters_are_left_for_the_next_replay(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1) + dead_letter(2), dead_letter(3))
        assert await replay(scene, len(dead_letter(1))) == Replayed(1, 0)
        assert await replay(scene) == Replayed(2, 0)
        assert scene.output(port="replay.in") == original(1) + original(2) + original(3)
        with pytest.raises(PipelineError, match="has nothing between"):
            await replay(scene)
        await scene.ingest(A, {1: 2})
        await scene.cut(at)
        await scene.merge(1, await scene.stage(dead_letter(4), 1, port="err"))
        assert await replay(scene) == Replayed(1, 0)

    async def test_a_repeated_replay_has_no_effect_and_returns_the_same(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1), dead_letter(2, segment=None))
        (end,) = [port.end for port in (await listed(scene)).ports]
        for _ in range(2):
            assert await dead_letters_of(scene).replay("p", "err", 0, end) == Replayed(1, 1)
        assert scene.output(port="replay.in") == original(1)

    async def test_of_two_concurrent_replays_one_is_refused(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1), dead_letter(2))
        (end,) = [port.end for port in (await listed(scene)).ports]
        half = len(dead_letter(1))
        both = (dead_letters_of(scene).replay("p", "err", 0, upto) for upto in (end, half))
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [isinstance(one, PipelineError) for one in found].count(True) == 1
        assert scene.names("coordinator/replaying/") == []
        assert scene.output(port="replay.in") in (original(1), original(1) + original(2))

    async def test_a_dead_letter_is_replayed_into_the_input_it_came_from(self, scene: Scene) -> None:
        inputs = {"one": InputSpec(["s"]), "two": InputSpec(["t"]), "both": InputSpec(["t", "u"])}
        await scene.start(outputs=PORTS, inputs=inputs)
        await scene.ingest(A, {1: 1})
        await scene.cut(await scene.initial(key="one"), key="one")
        records = [dead_letter(1), dead_letter(2, segment="connector/u/0"), dead_letter(3, segment="connector/gone/0")]
        await scene.merge(0, await scene.stage(b"".join(records), 0, port="err"))
        assert await replay(scene) == Replayed(2, 1)
        assert scene.output(port="replay.one") == original(1)
        assert scene.output(port="replay.both") == original(2)
        await scene.cut(await self.position(scene), key="one")
        await scene.merge(1, await scene.stage(dead_letter(4, segment="connector/t/0"), 1, port="err"))
        (about,) = (await listed(scene, 0)).ports
        with pytest.raises(RequestError, match="several inputs read t: two, both") as caught:
            await replay(scene)
        assert "--input" in caught.value.hint
        assert scene.names("coordinator/replaying/") == []
        assert await dead_letters_of(scene).replay("p", "err", about.replayed, about.end, "two") == Replayed(1, 0)
        assert scene.output(port="replay.two") == original(4)

    @staticmethod
    async def position(scene: Scene) -> InputOffset:
        pipeline = scene.coordinator._shared.state.pipelines["p"]
        return InputOffset(pipeline.offset("one", 0), 0, pipeline.incarnation, None)

    async def test_a_dead_letter_of_a_replayed_event_can_be_replayed_again(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1))
        await replay(scene)
        await scene.cut(at)
        await scene.merge(1, await scene.stage(dead_letter(1, segment=REPLAYS), 1, port="err"))
        assert await replay(scene) == Replayed(1, 0)
        assert scene.output(port="replay.in") == original(1) * 2

    async def test_dead_letters_that_cannot_be_replayed_are_reported(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1, segment=None), dead_letter(2, segment="coordinator/ledger"))
        with pytest.raises(PipelineError, match="none of the 2 dead letters of port 'err' can be replayed"):
            await replay(scene)
        with pytest.raises(RequestError):
            await replay(scene, 3)
        with pytest.raises(PipelineError, match=f"no dead letter ends at {10**9}") as caught:
            await replay(scene, 10**9)
        assert caught.value.hint == "List them: penstock dead-letters list p --port err"
        with pytest.raises(RequestError, match="no input 'x'"):
            await dead_letters_of(scene).replay("p", "err", 0, len(dead_letter(1, segment=None)), "x")
        with pytest.raises(PipelineError, match="pipeline 'q' not found"):
            await dead_letters_of(scene).replay("q", "err", 0, 5)
        assert not scene.store.exists(REPLAYS)

    async def test_replayed_events_neither_block_nor_advance_the_watermark(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1))
        before = scene.status().watermark
        await replay(scene)
        at = (await scene.cut(at)).offset
        assert (at.watermark, before) == (1, 1)
        await scene.merge(1)
        await scene.ingest(A, {1: 50})
        assert (await scene.cut(at)).offset.watermark == 50

    async def test_a_query_with_an_end_reads_only_what_was_replayed_before_it_started(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1), dead_letter(2))
        half = len(dead_letter(1))
        await replay(scene, half)
        await scene.attach("new", upto=at.segments)
        at = (await scene.cut(at, load="new", upto={A: at.segments[A]})).offset
        assert at.segments[REPLAYS] == len(original(1))
        await scene.merge(1)
        await replay(scene)
        await scene.ingest(A, {1: 3})
        assert (await scene.cut(at, load="new", upto={A: at.segments[A]})).offset == at

    async def test_retention_removes_completed_replays_and_never_dead_letters(self) -> None:
        async with opened(truncate_bytes=1) as scene:
            at = await begun(scene, dead_letter(1))
            await replay(scene)
            end = scene.store.length(REPLAYS)
            for batch in range(1, 7):
                await scene.ingest(A, {1: batch + 1})
                at = await scene.epoch(at, batch)
            await scene.until(lambda: scene.store.info(REPLAYS).start == end)
            assert scene.store.info(ERR).start == 0

    async def test_dead_letters_removed_by_retention_by_size_are_not_listed(self) -> None:
        async with opened(retention=Retention("size", len(dead_letter(1))), truncate_bytes=1) as scene:
            await begun(scene, dead_letter(1), dead_letter(2), dead_letter(3))
            await scene.until(lambda: scene.store.info(ERR).start == 2 * len(dead_letter(1)))
            assert numbers(await listed(scene)) == [3]
            assert await replay(scene) == Replayed(1, 0)

    async def test_what_was_replayed_is_remembered_across_starts_and_in_the_ledger(self, scene: Scene) -> None:
        at = await begun(scene, dead_letter(1), dead_letter(2))
        await replay(scene, len(dead_letter(1)))
        await scene.reopen()
        await scene.start(outputs=PORTS)
        await scene.attach("load")
        assert await replay(scene) == Replayed(1, 0)
        assert (await scene.cut(at, load="load")).offset.segments[REPLAYS] == len(original(1)) * 2
        scene.coordinator._shared.keeper._ledger.compact(scene.coordinator._shared.state)
        await scene.reopen()
        with pytest.raises(PipelineError, match="has nothing between"):
            await replay(scene)

    async def test_the_port_for_replays_cannot_be_declared(self, scene: Scene) -> None:
        with pytest.raises(RequestError, match=r"'replay\.in' is not a valid port name"):
            await scene.start(outputs=("out", "replay.in"))


class TestChoosing:
    async def test_only_the_chosen_ones_are_replayed_each_once_and_the_others_stay(self, scene: Scene) -> None:
        at = await begun(scene, *map(dead_letter, range(1, 6)))
        size = len(dead_letter(1))
        assert await choose(scene, 3 * size, size, size) == Replayed(2, 0)
        assert scene.output(port="replay.in") == original(2) + original(4)
        assert (await scene.cut(at)).offset.segments[REPLAYS] == 2 * len(original(1))
        found = await listed(scene)
        assert [one.replayed for one in found.dead_letters] == [False, True, False, True, False]
        assert found.ports[0].waiting == 3 * size
        assert (await dead_letters_of(scene).show("p", "err", size)).replayed
        assert await replay(scene) == Replayed(3, 0)
        assert scene.output(port="replay.in") == b"".join(map(original, (2, 4, 1, 3, 5)))
        assert (await listed(scene, 0)).ports[0].waiting == 0

    async def test_the_same_choice_again_has_no_effect_and_a_mixed_one_is_refused(self, scene: Scene) -> None:
        await begun(scene, *map(dead_letter, range(1, 4)))
        size = len(dead_letter(1))
        for _ in range(2):
            assert await choose(scene, size) == Replayed(1, 0)
        with pytest.raises(PipelineError, match=f"dead letter {size} of p/err has already been replayed"):
            await choose(scene, 0, size)
        assert scene.names("coordinator/replaying/") == []
        assert scene.output(port="replay.in") == original(2)
        end = (await listed(scene, 0)).ports[0].end
        for _ in range(2):
            assert await dead_letters_of(scene).replay("p", "err", 0, end) == Replayed(2, 0)
        assert await choose(scene, 0, size) == Replayed(2, 0), "they were replayed in order, and by choice"
        assert scene.output(port="replay.in") == b"".join(map(original, (2, 1, 3)))

    async def test_what_cannot_be_chosen_is_refused(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1, segment=None), dead_letter(2))
        size = len(dead_letter(1, segment=None))
        with pytest.raises(PipelineError, match="no dead letter of port 'err' starts at 1"):
            await choose(scene, size, 1)
        with pytest.raises(PipelineError, match="none of the 1 dead letters"):
            await choose(scene, 0)
        for wrong in ((), tuple(range(service.LIST_MAX + 1))):
            with pytest.raises(RequestError, match="cannot be replayed at once"):
                await choose(scene, *wrong)
        with pytest.raises(RequestError, match="no input 'x'"):
            await choose(scene, size, key="x")
        assert not scene.store.exists(REPLAYS)
        assert scene.names("coordinator/replaying/") == []
        assert await choose(scene, 0, size) == Replayed(1, 1)
        assert [one.replayed for one in (await listed(scene)).dead_letters] == [False, True]

    async def test_a_choice_and_a_replay_in_order_at_the_same_time_replay_nothing_twice(self, scene: Scene) -> None:
        await begun(scene, dead_letter(1), dead_letter(2), dead_letter(3))
        end = (await listed(scene, 0)).ports[0].end
        both = (
            dead_letters_of(scene).replay("p", "err", 0, end),
            choose(scene, len(dead_letter(1))),
            choose(scene, len(dead_letter(1))),
        )
        await asyncio.gather(*both, return_exceptions=True)
        if (await listed(scene, 0)).ports[0].waiting:
            await replay(scene)
        output = scene.output(port="replay.in")
        assert sorted(output.count(original(number)) for number in (1, 2, 3)) == [1, 1, 1]
        assert scene.names("coordinator/replaying/") == []

    async def test_older_versions_read_the_ledger_until_something_is_chosen(self, scene: Scene) -> None:
        keeper = scene.coordinator._shared.keeper
        await begun(scene, dead_letter(1), dead_letter(2), dead_letter(3))
        await replay(scene, len(dead_letter(1)))
        assert keeper._ledger.version == 1
        await choose(scene, 2 * len(dead_letter(1)))
        assert keeper._ledger.version == 5
        for compacts in (False, True):
            if compacts:
                scene.coordinator._shared.keeper._ledger.compact(scene.coordinator._shared.state)
            await scene.reopen()
            assert [one.replayed for one in (await listed(scene)).dead_letters] == [True, False, True]
        await replay(scene)
        assert scene.output(port="replay.in") == b"".join(map(original, (1, 3, 2)))


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_chosen_and_replayed_each_dead_letter_arrives_once(seed: int) -> None:
    """Choices, replays in order, snapshots and restarts of the worker, in any order."""
    random = Random(seed)
    async with opened() as scene:
        await begun(scene, *map(dead_letter, range(1, 10)))
        size = len(dead_letter(1))
        for _ in range(12):
            waiting = [one.at for one in (await listed(scene, 20)).dead_letters if not one.replayed]
            if not waiting:
                break
            match random.randrange(4):
                case 0:
                    await replay(scene, random.choice(waiting) + size)
                case 1:
                    scene.coordinator._shared.keeper._ledger.compact(scene.coordinator._shared.state)
                    await scene.reopen()
                case _:
                    await choose(scene, *random.sample(waiting, min(len(waiting), 2)))
        if (await listed(scene, 0)).ports[0].waiting:
            await replay(scene)
        output = scene.output(port="replay.in")
        parts = [output[at : at + len(original(1))] for at in range(0, len(output), len(original(1)))]
        everything = b"".join(map(original, range(1, 10)))
        assert len(output) == len(everything)
        assert len({*parts}) == len(parts)


@pytest.mark.parametrize("by_choice", [False, True])
async def test_a_crash_leaves_all_of_a_replay_or_nothing(by_choice: bool) -> None:
    found = {await crashed(seed, by_choice=by_choice) for seed in range(12)}
    assert found == {True, False}, "crashes come before the replay is durable, and after it"


async def crashed(seed: int, *, by_choice: bool) -> bool:
    """Whether the replay was stored at the crash. Requested again, it is stored once."""
    random = Random(seed)
    files = FaultyFiles(random)
    scene = Scene(files)
    await scene.open()
    await begun(scene, dead_letter(1), dead_letter(2))
    await scene.durable()
    scene.paused = True
    both = (0, len(dead_letter(1)))
    replaying = asyncio.create_task(choose(scene, *both) if by_choice else replay(scene))
    await scene.until(lambda: scene.names("coordinator/replaying/") or scene.store.exists(REPLAYS))
    if random.random() < 0.7:
        await scene.until(
            lambda: (p := scene.coordinator._shared.state.pipelines["p"]).replayed or p.chosen,
        )
    again = Scene(await scene.crash(files, random, replaying))
    await again.open()
    assert again.names("coordinator/replaying/") == []
    (about,) = (await listed(again, 0)).ports
    copies = again.output(port="replay.in") if again.store.exists(REPLAYS) else b""
    assert (about.waiting, copies) in ((about.end, b""), (0, original(1) + original(2)))
    repeated = choose(again, *both) if by_choice else dead_letters_of(again).replay("p", "err", 0, about.end)
    assert await repeated == Replayed(2, 0)  # as a client repeats it
    assert again.output(port="replay.in") == original(1) + original(2)
    await again.close()
    return about.waiting == 0
