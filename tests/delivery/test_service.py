"""A sink that hangs blocks the others only while it is bound, and no sink is blamed for the refusal of another."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.connectors.sink_api import YES, Block, CheckReport, Epoch, Transaction, Vote, accept_any
from penstock.connectors.threaded import OneThread, Threaded
from penstock.core.errors import PipelineError
from penstock.core.retry import RetryPolicy
from penstock.delivery import service, sink_slot
from penstock.delivery.backoff import Backoff
from penstock.worker.blockages import Facts, blockages
from tests.delivery.memory_sink import Refuse
from tests.delivery.stage import PIPELINE, Stage, values
from tests.support.supervised import task_named
from tests.support.waiting import SECONDS_MAX


class HangingSink:
    """A BlockingSink that does not vote until `may_continue` is set."""

    def __init__(self, may_continue: threading.Event) -> None:
        self.is_asked = threading.Event()
        self.is_closed = threading.Event()
        self._may_continue = may_continue

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None: ...

    def write(self, block: Block) -> None: ...

    def prepare(self, transaction: Transaction) -> Vote:
        self.is_asked.set()
        self._may_continue.wait(30)
        return YES

    def commit(self, transaction: Transaction) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        self.is_closed.set()


class HangingNonVotingSink:
    async def deliver(self, epoch: Epoch) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


@pytest.fixture
def may_continue(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(service, "LEAVE_SECONDS", 0.05)
    monkeypatch.setattr(sink_slot, "CLOSE_SECONDS", 0.05)
    event = threading.Event()
    yield event
    event.set()


def hangs(stage: Stage, name: str, sink: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(pipeline: str, key: str, bound: Any, *_: object) -> Any:
        return sink if key == name and bound.url == f"memory:{name}" else stage.make(pipeline, key, bound)

    monkeypatch.setattr(service.Delivery, "_make", staticmethod(make))


async def test_a_hanging_voting_sink_is_abandoned_when_it_is_removed(
    stage: Stage, may_continue: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = HangingSink(may_continue)
    hangs(stage, "b", Threaded(sink, "b"), monkeypatch)
    await stage.bind(voting="a b")
    await stage.put_out()
    await stage.scene.until(lambda: bool(stage.disks["a"].in_doubt) and sink.is_asked.is_set())
    assert stage.delivery is not None
    await stage.delivery.unbind(PIPELINE, "b")
    await stage.delivered()
    assert stage.disks["a"].values == values(0)
    assert not sink.is_closed.is_set()
    may_continue.set()
    assert await asyncio.to_thread(sink.is_closed.wait, 30), "it keeps what it has"


async def test_a_hanging_non_voting_sink_is_abandoned_when_it_is_bound_elsewhere(
    stage: Stage, may_continue: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not may_continue.is_set()
    hangs(stage, "f", HangingNonVotingSink(), monkeypatch)
    await stage.bind(following="f")
    await stage.put_out()
    await stage.shows("DECIDED")
    await stage.scene.coordinator.deliveries.bind(PIPELINE, {"f": ("out", "memory:elsewhere", False)})
    await stage.delivered()
    assert stage.taken["f"] == [("p:1:0", values(0))]


async def test_a_non_voting_sink_gets_nothing_from_a_worker_that_may_have_been_replaced(stage: Stage) -> None:
    asked: list[None] = []

    def may_act() -> bool:
        asked.append(None)
        return False

    stage.may_act = may_act
    await stage.bind(following="f")
    await stage.put_out()
    await stage.put_out()
    await stage.scene.until(lambda: len(asked) > 1)
    assert stage.taken["f"] == []
    stage.may_act = lambda: True
    await stage.delivered()
    assert stage.taken["f"] == [("p:1:0", values(0)), ("p:1:1", values(1))]


async def test_a_sink_that_has_since_agreed_is_not_blamed_for_the_refusal_of_another(stage: Stage) -> None:
    asked = [0]

    def first(now: str) -> None:
        if now == "vote":
            asked[0] += 1
            if asked[0] == 1:
                raise Refuse

    def then(now: str) -> None:
        if now == "vote" and asked[0]:
            raise Refuse

    stage.scripts |= {"a": first, "b": then}
    await stage.bind(voting="a b")
    await stage.put_out()
    delivery = stage.delivery
    assert delivery is not None
    await stage.scene.until(lambda: [one.sink for one in delivery.sinks() if one.state == "REFUSED"] == ["b"])
    await delivery.park(PIPELINE, 0, None)
    await stage.delivered()
    assert (stage.disks["a"].values, stage.disks["b"].values) == (values(0), [])


def blocked(stage: Stage) -> list[str]:
    assert stage.delivery is not None
    facts = Facts(pipelines=stage.scene.coordinator.pipelines(), sinks=stage.delivery.sinks())
    return [one.text for one in blockages(facts) if one.kind == "sink"]


async def test_a_parked_refusal_is_no_longer_reported(stage: Stage) -> None:
    def refuse(now: str) -> None:
        if now == "vote":
            raise Refuse

    stage.scripts["b"] = refuse
    await stage.bind(voting="b")
    await stage.put_out()
    delivery = stage.delivery
    assert delivery is not None
    await stage.shows("REFUSED")
    assert blocked(stage) == ["pipeline p is blocked by sink b (1 epoch waits): it votes no: not today"]
    await delivery.park(PIPELINE, 0, None)
    assert [(one.state, one.lacking) for one in delivery.sinks()] == [("READY", 0)]
    assert blocked(stage) == []
    with pytest.raises(PipelineError, match="no sink of 'p' refuses"):
        await delivery.park(PIPELINE, 1, None)


async def test_a_retry_requested_during_an_attempt_is_not_lost() -> None:
    backoff = Backoff()
    backoff._pauses.failures = 10
    backoff.retry()
    async with asyncio.timeout(5):  # without the retry it would take more than seven seconds
        await backoff.wait()
    backoff.retry()
    backoff.succeeded()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await backoff.wait()


async def test_the_thread_of_a_sink_ends_with_it() -> None:
    thread = OneThread("of nobody")
    ident = await thread.call(threading.get_ident)
    del thread
    async with asyncio.timeout(SECONDS_MAX):
        while ident in [one.ident for one in threading.enumerate()]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_delivery_that_dies_is_restarted_and_delivers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(0.01, 0.05))
    assert stage.delivery is not None
    supervisor = stage.delivery._supervisor
    await stage.bind(voting="a", following="f")
    await stage.put_out()
    await stage.delivered()
    names = ["delivery of p", "delivery of p to f"]
    killed = [task_named(supervisor, name) for name in names]
    for task in killed:
        task.cancel()
    await stage.scene.until(lambda: [task_named(supervisor, name) for name in names] != killed)
    await stage.put_out()
    await stage.delivered()
    assert (stage.disks["a"].values, len(stage.taken["f"])) == ([*values(0), *values(1)], 2)
    assert {one.name: one.deaths for one in supervisor.states() if one.deaths} == dict.fromkeys(names, 1)
    assert all(f"background task {name!r} failed: it was cancelled" in caplog.text for name in names)
