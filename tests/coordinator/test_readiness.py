"""Which pipelines are ready for events, and when the others will be."""

import asyncio

import pytest

from penstock.coordinator.heartbeats import DEFAULT_START_SECONDS, Heartbeats
from penstock.coordinator.readiness import NotReady
from penstock.protocol.api.pipelines import InputSpec
from tests.coordinator.scene import Scene
from tests.support.waiting import SECONDS_MAX

LAPSE = 15.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Starts:
    def __init__(self) -> None:
        self.kept: dict[str, float] = {}

    def seconds(self, name: str) -> float:
        return self.kept.get(name, DEFAULT_START_SECONDS)

    def keep(self, name: str, seconds: float) -> None:
        self.kept[name] = seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def heartbeats(clock: Clock, starts: Starts) -> Heartbeats:
    return Heartbeats(LAPSE, clock, starts)


def test_a_pipeline_runs_when_its_query_asks_for_an_epoch_and_not_before(heartbeats: Heartbeats) -> None:
    assert heartbeats.state("p") == "STOPPED"
    heartbeats.announce({"p": ["s"]})
    assert heartbeats.state("p") == "STARTING"
    heartbeats.started("p")
    heartbeats.beat("p")
    assert heartbeats.state("p") == "STARTING"
    heartbeats.asked("p")
    assert heartbeats.state("p") == "RUNNING"
    heartbeats.started("p")
    assert heartbeats.state("p") == "STARTING", "a new generation has yet to ask"


def test_a_start_that_is_no_longer_announced_is_forgotten(heartbeats: Heartbeats, clock: Clock) -> None:
    heartbeats.announce({"p": ["s"]})
    clock.now += LAPSE + 1
    assert (heartbeats.state("p"), heartbeats.announced()) == ("STOPPED", {})
    heartbeats.started("q")
    clock.now += LAPSE + 1
    assert heartbeats.state("q") == "FAILING"
    heartbeats.announce({"q": ["s"]})
    assert heartbeats.state("q") == "STARTING"


def test_a_killed_driver_is_forgotten_when_the_next_one_is_announced(
    heartbeats: Heartbeats, clock: Clock, starts: Starts
) -> None:
    heartbeats.started("p")
    heartbeats.asked("p")
    clock.now += 1
    heartbeats.announce({"p": ["s"]})
    assert heartbeats.state("p") == "STARTING"
    assert heartbeats.ready_in_seconds("p") is not None
    clock.now += 1
    heartbeats.beat("p")
    assert heartbeats.state("p") == "RUNNING", "it was not killed: until it is fenced it takes events"
    clock.now += 8
    heartbeats.asked("p")
    heartbeats.started("p")
    heartbeats.asked("p")
    assert starts.kept["p"] == 0, "the start of the new generation alone was measured"


def test_the_remaining_time_is_estimated_from_the_last_start(
    heartbeats: Heartbeats, clock: Clock, starts: Starts
) -> None:
    heartbeats.announce({"p": ["s"]})
    assert heartbeats.ready_in_seconds("p") == DEFAULT_START_SECONDS
    clock.now += 12
    heartbeats.announce({"p": ["s"]})
    heartbeats.started("p")
    assert heartbeats.ready_in_seconds("p") == DEFAULT_START_SECONDS - 12, "it is the same start"
    heartbeats.asked("p")
    assert (heartbeats.ready_in_seconds("p"), starts.kept) == (None, {"p": 12})
    heartbeats.beat("p", stopped=True)
    heartbeats.announce({"p": ["s"]})
    assert heartbeats.ready_in_seconds("p") == 12
    clock.now += 11
    heartbeats.announce({"p": ["s"]})
    left = heartbeats.ready_in_seconds("p")
    assert left is not None
    assert 1 < left < 12, "a start that is overdue is not reported as over"


def test_a_driver_that_is_older_than_the_worker_counts_as_running(heartbeats: Heartbeats) -> None:
    heartbeats.beat("p")
    assert heartbeats.state("p") == "RUNNING"
    assert not heartbeats.is_on_first_epoch("p")


def test_the_first_epoch_is_over_when_events_were_merged(heartbeats: Heartbeats) -> None:
    heartbeats.started("p")
    heartbeats.asked("p")
    assert heartbeats.is_on_first_epoch("p")
    heartbeats.merged("p", 0)
    assert heartbeats.is_on_first_epoch("p"), "Spark has run a batch without an epoch"
    heartbeats.got_epoch("p", 2)
    heartbeats.merged("p", 1)
    assert heartbeats.is_on_first_epoch("p"), "and then one without events"
    heartbeats.merged("p", 2)
    assert not heartbeats.is_on_first_epoch("p")
    heartbeats.started("p")
    assert heartbeats.is_on_first_epoch("p"), "Spark has been started again"


class TestReadiness:
    async def test_waiting_ends_when_the_last_pipeline_on_the_source_asks_for_an_epoch(self, scene: Scene) -> None:
        await scene.start("p")
        await scene.start("q")
        readiness = scene.coordinator.readiness.of("s")
        waiting = asyncio.create_task(readiness.ready(by_all=True))
        await scene.cut(await scene.initial("p"), "p")
        await scene.durable()
        assert not waiting.done()
        found = readiness.not_ready()
        assert found == NotReady("q is starting, ready in about 20 s", 20)
        await scene.cut(await scene.initial("q"), "q")
        await asyncio.wait_for(waiting, SECONDS_MAX)
        assert readiness.not_ready() is None

    async def test_a_pipeline_without_a_driver_is_distinguished_from_one_that_starts(self, scene: Scene) -> None:
        lifecycle = scene.coordinator.lifecycle
        await lifecycle.register("p", {"in": InputSpec(["s"])}, "application")
        readiness = scene.coordinator.readiness.of("s")
        assert readiness.not_ready() == NotReady(
            "p is not running: start it with penstock run, or end it with penstock pipeline drop p"
        )
        assert scene.coordinator.readiness.starting() == []
        scene.coordinator.announce({"p": ["s"], "later": ["s", "other"]})
        starting = {one.name: one.sources for one in scene.coordinator.readiness.starting()}
        assert starting == {"p": ["s"], "later": ["other", "s"]}

    async def test_a_dropped_pipeline_is_not_waited_for(self, scene: Scene) -> None:
        await scene.start("p")
        waiting = asyncio.create_task(scene.coordinator.readiness.of("s").ready(by_all=True))
        await asyncio.sleep(0)
        assert not waiting.done()
        await scene.coordinator.lifecycle.drop("p")
        await asyncio.wait_for(waiting, SECONDS_MAX)
        assert not scene.coordinator.readiness.of("s").is_waited_for(by_all=True)

    async def test_a_stopped_pipeline_does_not_block_the_others(self, scene: Scene) -> None:
        await scene.start("p")
        generation = await scene.start("q")
        await scene.cut(await scene.initial("p"), "p")
        readiness = scene.coordinator.readiness.of("s")
        assert readiness.is_waited_for(by_all=True), "q is starting"
        assert not readiness.is_waited_for(by_all=False), "p may reply"
        scene.coordinator.lifecycle.heartbeat("q", generation.generation, stopped=True)
        assert not readiness.is_waited_for(by_all=True)
        assert readiness.not_ready() is not None, "and still there is a reason for what takes too long"
        scene.coordinator.lifecycle.heartbeat("p", 1, stopped=True)
        assert readiness.is_waited_for(by_all=False), "nobody takes anything"

    async def test_waiting_for_the_first_epoch_ends_when_it_is_merged(self, scene: Scene) -> None:
        await scene.start("p")
        readiness = scene.coordinator.readiness.of("s")
        begin = await scene.initial("p")
        await scene.cut(begin, "p")
        waiting = asyncio.create_task(readiness.warm(by_all=True))
        await scene.ingest("connector/s/0", {1: 1_000})
        await scene.cut(begin, "p")
        assert readiness.is_on_first_epoch(by_all=True)
        assert not waiting.done()
        await scene.merge(0)
        await asyncio.wait_for(waiting, SECONDS_MAX)

    async def test_waiting_for_the_first_epoch_ends_when_its_pipeline_fails(self, scene: Scene) -> None:
        started = await scene.start("p")
        await scene.cut(await scene.initial("p"), "p")
        waiting = asyncio.create_task(scene.coordinator.readiness.of("s").warm(by_all=True))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.coordinator.lifecycle.heartbeat("p", started.generation, stopped=False, failed=True)
        await asyncio.wait_for(waiting, SECONDS_MAX)

    async def test_other_sources_do_not_wait(self, scene: Scene) -> None:
        await scene.start("p")
        assert scene.coordinator.readiness.of("other").not_ready() is None
