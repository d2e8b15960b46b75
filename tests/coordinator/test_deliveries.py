"""What the coordinator does for delivery, on a store: sinks, decisions, parked epochs, and what blocks cuts."""

import asyncio
from random import Random

import pytest

from penstock.coordinator import deliveries as service
from penstock.coordinator import reports
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.machine.delivery import next_round, next_to_follow
from penstock.coordinator.machine.state import Pipeline, Retention, Sink
from penstock.core.errors import LimitExceeded, PipelineError, RequestError
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import InputOffset, Limits
from penstock.protocol.stored.names import LEDGER
from penstock.testing.faulty_files import FaultyFiles
from penstock.worker.blockages import Facts, blockages
from tests.coordinator.scene import Scene, opened, raw
from tests.support.waiting import SECONDS_MAX

A, OUT, PARKED = "connector/s/0", "pipeline/p/out", "pipeline/p/parked.x"
X = {"x": ("out", "file:x", True)}
F = {"f": ("out", "stdout:", False)}


def service_of(scene: Scene) -> Deliveries:
    return scene.coordinator.deliveries


def pipeline(scene: Scene) -> Pipeline:
    return service_of(scene).state.pipelines["p"]


def sink(scene: Scene, name: str = "x") -> Sink:
    return pipeline(scene).sinks[name]


async def epoch(scene: Scene, start: InputOffset, batch: int, data: bytes) -> InputOffset:
    """With something new to read."""
    await scene.ingest(A, {1: batch + 1})
    return await scene.epoch(start, batch, data)


async def deliver(scene: Scene, batch: int, **sent: int) -> None:
    attempt = service_of(scene).attempt("p", pipeline(scene))
    await service_of(scene).decide("p", attempt, batch, sent)


class TestSinks:
    async def test_a_sink_bound_before_the_first_start_misses_nothing(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        assert (scene.status().state, scene.status().outputs) == ("STOPPED", None)
        await scene.start(fresh=True)
        await epoch(scene, await scene.initial(), 0, b"one")
        await scene.durable()
        assert (scene.status().merged, scene.status().delivered, scene.status().complete) == (0, NO_EPOCH, NO_EPOCH)
        assert [what for what, _ in scene.completions["s"].calls] == ["hold"]
        await deliver(scene, 0, x=3)
        await scene.durable()
        assert (scene.status().delivered, scene.status().complete) == (0, 0)
        assert [what for what, _ in scene.completions["s"].calls] == ["hold", "advance"]

    async def test_binding_the_same_sink_again_writes_nothing(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        before = scene.store.length(LEDGER)
        await service_of(scene).bind("p", X)
        assert scene.store.length(LEDGER) == before

    async def test_sinks_are_unchanged_after_a_restart(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | F)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        await deliver(scene, 0, x=3)
        await service_of(scene).bind("p", {"x": ("out", "file:elsewhere", True)})
        before = service_of(scene).state
        await scene.reopen()
        assert service_of(scene).state == before
        assert (sink(scene).url, sink(scene).at, sink(scene).sent) == ("file:elsewhere", 3, 3)
        assert service_of(scene).attempt("p", pipeline(scene)) == 2

    async def test_another_port_or_an_undeclared_port_is_refused(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        with pytest.raises(PipelineError, match="already bound to port 'out'") as caught:
            await service_of(scene).bind("p", {"x": ("late", "file:x", True)})
        assert "penstock sink remove p x" in caught.value.hint
        with pytest.raises(PipelineError, match="no output port 'out'"):
            await scene.start(outputs=["late"])
        await scene.start(outputs=["out"])
        with pytest.raises(PipelineError, match="no output port 'late'"):
            await service_of(scene).bind("p", {"y": ("late", "file:y", True)})

    @pytest.mark.parametrize("name", ["", "a/b", "a b", "n" * 100])
    async def test_a_name_that_could_not_have_dead_letters_is_refused(self, scene: Scene, name: str) -> None:
        with pytest.raises(RequestError):
            await service_of(scene).bind("p", {name: ("out", "file:x", True)})
        assert not service_of(scene).state.pipelines

    async def test_a_sink_bound_late_starts_after_what_is_merged(self, scene: Scene) -> None:
        await scene.start()
        at = await epoch(scene, await scene.initial(), 0, b"one")
        await service_of(scene).bind("p", X)
        assert (sink(scene).at, sink(scene).begun, scene.status().complete) == (3, 3, 0)
        await epoch(scene, at, 1, b"two")
        assert (next_round(pipeline(scene)), scene.status().complete) == (1, 0)
        await deliver(scene, 1, x=3)
        await scene.durable()
        assert scene.output() == b"onetwo", "what was there before it was meant to stay"

    async def test_output_that_all_sinks_have_is_truncated_also_after_a_restart(self) -> None:
        async with opened(truncate_seconds=1000) as scene:
            await service_of(scene).bind("p", X)
            await scene.start()
            await epoch(scene, await scene.initial(), 0, b"one")
            await deliver(scene, 0, x=3)
            await scene.durable()
            assert scene.store.info(OUT).start == 0
            await scene.reopen(truncate_seconds=0.0)
            await scene.until(lambda: scene.store.info(OUT).start == 3)

    async def test_a_sink_bound_after_everything_was_truncated_does_not_block_truncation(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        at = await epoch(scene, await scene.initial(), 0, b"one")
        await deliver(scene, 0, x=3)
        await scene.until(lambda: scene.store.info(OUT).start == 3)
        await service_of(scene).unbind("p", "x")
        await service_of(scene).bind("p", X)
        await epoch(scene, at, 1, b"two")
        await deliver(scene, 1, x=3)
        await scene.until(lambda: scene.store.info(OUT).start == 6)

    async def test_an_unbound_sink_blocks_nothing(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start(limits=Limits(undelivered_bytes=2))
        at = await epoch(scene, await scene.initial(), 0, b"one")
        await scene.ingest(A, {1: 9})
        assert (await scene.cut(at)).blocked is not None
        await service_of(scene).unbind("p", "x")
        assert scene.status().complete == 0
        assert (await scene.cut(at)).offset.epoch == 1
        with pytest.raises(PipelineError, match="has no sink 'x'"):
            await service_of(scene).unbind("p", "x")

    async def test_a_dropped_pipeline_has_no_sinks_and_leaves_its_dead_letters(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        await service_of(scene).park("p", "x", 0)
        attempt = service_of(scene).attempt("p", pipeline(scene))
        await scene.coordinator.lifecycle.drop("p")
        with pytest.raises(PipelineError, match=r"pipeline .* not found"):
            await service_of(scene).decide("p", attempt, 0, {"x": 3})
        assert scene.output(port="parked.x") == b"one"
        await service_of(scene).bind("p", X)
        assert (sink(scene).at, sink(scene).sent, sink(scene).parked) == (3, 0, 0)
        await scene.coordinator.lifecycle.drop("p", outputs=True)
        assert scene.names("pipeline/p/") == []


class TestWaiting:
    async def test_a_cut_that_waits_for_sinks_names_them(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | {"y": ("out", "file:y", True)} | F)
        await scene.start(limits=Limits(undelivered_bytes=5))
        at = await epoch(scene, await scene.initial(), 0, b"one")
        at = await epoch(scene, at, 1, b"two")
        await scene.ingest(A, {1: 9})
        blocked = (await scene.cut(at)).blocked
        assert blocked == "blocked: 6 bytes of its output wait for sink x, sink y, sink f, and the limit is 5"
        assert f"pipeline p is {blocked}" in map(str, blockages(Facts(pipelines=scene.coordinator.pipelines())))
        await deliver(scene, 0, x=3, y=3)
        await deliver(scene, 1, x=6, y=6)
        blocked = (await scene.cut(at)).blocked
        assert blocked == "blocked by sink f: 6 bytes of its output wait, and the limit is 5"
        await service_of(scene).follow("p", pipeline(scene), "f", 0, 3)
        assert (await scene.cut(at)).offset.epoch == 2
        assert (scene.status().undelivered_bytes, scene.status().delivered) == (3, 0)

    async def test_cuts_are_blocked_long_before_a_merge_is_refused(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reports, "WAITING_EPOCHS_MAX", 3)
        monkeypatch.setattr("penstock.coordinator.machine.epochs.EPOCHS_MAX", 4)
        await service_of(scene).bind("p", X | {"y": ("late", "file:y", True)})
        await scene.start(outputs=["out", "late"])
        at = await scene.initial()
        for number in range(3):
            at = await epoch(scene, at, number, b"1")
        await scene.ingest(A, {1: 9})
        cut = await scene.cut(at)
        assert cut.offset == at
        assert cut.blocked == "blocked by sink x: 3 epochs wait, and the limit is 3"
        await scene.merge(3, await scene.stage(b"1", 3))  # Spark closes windows: there is room for that
        staged = await scene.stage(b"1", 4)
        with pytest.raises(LimitExceeded, match="4 epochs wait for their sinks"):
            await scene.merge(4, staged)
        for number in range(2):
            await deliver(scene, number, x=number)
        await scene.merge(4, staged)
        assert scene.output().endswith(b"111")

    async def test_a_non_voting_sink_gets_nothing_before_the_voting_sinks(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | F)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        with pytest.raises(PipelineError, match="not the next one for sink 'f'"):
            await service_of(scene).follow("p", pipeline(scene), "f", 0, 3)
        await deliver(scene, 0, x=3)
        assert (next_to_follow(pipeline(scene), "f"), scene.status().complete) == (0, NO_EPOCH)
        await service_of(scene).follow("p", pipeline(scene), "f", 0, 3)
        assert scene.status().complete == 0

    async def test_a_delivery_to_a_sink_whose_url_has_changed_is_refused(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | F)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        before = pipeline(scene)
        await service_of(scene).bind("p", {"x": ("out", "file:elsewhere", True)})
        with pytest.raises(PipelineError, match="have changed in the meantime"):
            service_of(scene).attempt("p", before)
        await deliver(scene, 0, x=3)
        before = pipeline(scene)
        await service_of(scene).bind("p", {"f": ("out", "http://elsewhere", False)})
        with pytest.raises(PipelineError, match="has changed in the meantime"):
            await service_of(scene).follow("p", before, "f", 0, 3)

    async def test_no_sink_is_notified_of_a_decision_before_it_is_durable(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        scene.paused = True
        deciding = asyncio.create_task(deliver(scene, 0, x=3))
        await asyncio.sleep(0.02)
        assert not deciding.done()
        assert [what for what, _ in scene.completions["s"].calls] == ["hold"]
        scene.paused = False
        await deciding


class TestReset:
    async def test_a_decision_or_delivery_based_on_the_state_before_a_reset_is_refused(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | F)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        before = pipeline(scene)
        await deliver(scene, 0, x=3)
        decided = pipeline(scene)
        await scene.coordinator.lifecycle.reset("p")
        await scene.start(fresh=True, starting="latest")
        await epoch(scene, await scene.initial(), 0, b"new")
        with pytest.raises(PipelineError, match="have changed in the meantime"):
            service_of(scene).attempt("p", before)
        with pytest.raises(PipelineError, match="has changed in the meantime"):
            await service_of(scene).follow("p", decided, "f", 0, 3)
        await deliver(scene, 0, x=6)
        with pytest.raises(PipelineError, match="has changed in the meantime"):
            await service_of(scene).follow("p", decided, "f", 0, 3)
        assert sink(scene, "f").at == 0
        await service_of(scene).follow("p", pipeline(scene), "f", 0, 6)

    async def test_sinks_stay_and_undelivered_output_comes_with_the_first_epoch_after_a_reset(
        self, scene: Scene
    ) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        at = await epoch(scene, await scene.initial(), 0, b"one")
        await epoch(scene, at, 1, b"two")
        await deliver(scene, 0, x=3)
        attempt = service_of(scene).attempt("p", pipeline(scene))
        await scene.coordinator.lifecycle.reset("p")
        with pytest.raises(PipelineError, match="no longer open"):
            await service_of(scene).decide("p", attempt, 1, {"x": 6})
        await scene.start(fresh=True, starting="latest")
        assert next_round(pipeline(scene)) is None
        await epoch(scene, await scene.initial(), 0, b"new")
        assert (next_round(pipeline(scene)), sink(scene).at, pipeline(scene).epochs[0].ends) == (0, 3, {"out": 9})
        assert scene.store.read(OUT, 3, 100) == b"twonew"
        await deliver(scene, 0, x=9)
        assert (sink(scene).at, scene.status().complete) == (9, 0)


class TestParking:
    async def test_exactly_the_bytes_of_the_epoch_become_dead_letters(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X | {"y": ("out", "file:y", True)})
        await scene.start()
        at = await epoch(scene, await scene.initial(), 0, b"one")
        at = await epoch(scene, at, 1, b"two")
        await epoch(scene, at, 2, b"three")
        await deliver(scene, 0, x=3, y=3)
        with pytest.raises(PipelineError, match="the next epoch for sink 'x' is 1, not 2"):
            await service_of(scene).park("p", "x", 2)
        await service_of(scene).park("p", "x", 1)
        assert scene.output(port="parked.x") == b"two"
        assert (sink(scene).at, sink(scene).sent, sink(scene).parked) == (6, 3, 1)
        with pytest.raises(PipelineError, match="the next epoch for sink 'x' is 2, not 1"):
            await service_of(scene).park("p", "x", 1)
        await service_of(scene).park("p", "x", 2)
        assert scene.output(port="parked.x") == b"twothree"
        with pytest.raises(PipelineError, match="no epoch waits for sink"):
            await service_of(scene).park("p", "x", 2)
        assert scene.names("coordinator/parking/") == []
        assert not scene.store.exists("pipeline/p/parked.y")

    async def test_readers_of_parked_epochs_find_whole_events(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_COPY_BYTES", 20)
        await service_of(scene).bind("p", X)
        await scene.start()
        await scene.ingest(A, {1: 1})
        await scene.cut(await scene.initial())
        parts = [raw(b"a" * 30, b"b"), raw(b"c"), raw(b"d"), raw(b"e" * 50)]
        await scene.merge(0, *[await scene.stage(part, 0, part=f"{i}-0") for i, part in enumerate(parts)])
        await service_of(scene).park("p", "x", 0)
        assert scene.output(port="parked.x") == b"".join(parts)
        ends, at = [], 0
        while at < scene.store.length(PARKED):
            at = scene.store.record(PARKED, at).end
            ends.append(at)
        whole = [len(b"".join(parts[:count])) for count in (1, 3, 4)]
        assert ends == whole

    async def test_parking_waits_until_the_merge_is_durable(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        await scene.ingest(A, {1: 1})
        await scene.cut(await scene.initial())
        staged = await scene.stage(b"one", 0)
        scene.paused = True
        merging = asyncio.create_task(scene.merge(0, staged))
        await scene.until(lambda: scene.status().merged == 0)
        merging.cancel()  # whoever asked for it has gone
        parking = asyncio.create_task(service_of(scene).park("p", "x", 0))
        await asyncio.sleep(0.02)
        assert scene.names("coordinator/parking/") == []
        scene.paused = False
        await parking
        assert scene.output(port="parked.x") == b"one"

    async def test_an_epoch_removed_by_retention_can_still_be_parked(self) -> None:
        async with opened(retention=Retention("size", 3)) as scene:
            await service_of(scene).bind("p", X)
            await scene.start()
            at = await epoch(scene, await scene.initial(), 0, b"one")
            await epoch(scene, at, 1, b"two")
            await scene.until(lambda: scene.store.info(OUT).start == 3)
            for number in range(2):
                await service_of(scene).park("p", "x", number)
            assert (scene.output(port="parked.x"), sink(scene).parked, scene.status().complete) == (b"two", 2, 1)

    async def test_an_epoch_delivered_while_it_is_being_parked_is_not_parked(self, scene: Scene) -> None:
        await service_of(scene).bind("p", X)
        await scene.start()
        await epoch(scene, await scene.initial(), 0, b"one")
        parking = asyncio.create_task(service_of(scene).park("p", "x", 0))
        await copying(scene)
        await deliver(scene, 0, x=3)
        with pytest.raises(PipelineError, match="no epoch waits for sink"):
            await parking
        assert scene.names("coordinator/parking/") == []
        assert not scene.store.exists(PARKED) or scene.output(port="parked.x") == b""

    async def test_after_a_crash_an_epoch_is_parked_and_copied_or_neither(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_COPY_BYTES", 1)
        outcomes = {await crashed(Random(seed)) for seed in range(40)}
        assert outcomes == {(False, b""), (True, b"one")}

    async def test_what_a_crash_has_left_of_a_copy_is_removed_at_the_start(self, scene: Scene) -> None:
        await scene.append("coordinator/parking/some-id", b"half of it")
        await scene.reopen()
        assert scene.names("coordinator/parking/") == []


async def copying(scene: Scene) -> None:
    """Wait until some of it may be copied, and nothing is decided."""
    async with asyncio.timeout(SECONDS_MAX):
        while not scene.names("coordinator/parking/"):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def crashed(random: Random) -> tuple[bool, bytes]:
    """Kill a worker somewhere in the write that parks an epoch. Returns what the next one finds."""
    files = FaultyFiles(random)
    scene = Scene(files)
    await scene.open()
    await service_of(scene).bind("p", X)
    await scene.start()
    await scene.ingest(A, {1: 1})
    await scene.cut(await scene.initial())
    await scene.merge(0, await scene.stage(b"o", 0, part="0-0"), await scene.stage(b"ne", 0, part="1-0"))
    await scene.durable()
    scene.paused = True
    parking = asyncio.create_task(service_of(scene).park("p", "x", 0))
    if random.random() < 0.7:
        await scene.until(lambda: sink(scene).parked)
    else:
        await copying(scene)
    again = Scene(await scene.crash(files, random, parking))
    await again.open()
    assert again.names("coordinator/parking/") == []
    found = sink(again).parked == 1, again.output(port="parked.x") if again.store.exists(PARKED) else b""
    assert sink(again).at == (3 if found[0] else 0)
    await again.close()
    return found
