"""Traces of delivery: a span for each attempt at each sink, also when the round fails or the worker crashes."""

import time

import pytest

from penstock.coordinator import traces
from penstock.coordinator.spans import Span
from penstock.coordinator.traces import Traces
from tests.delivery.memory_sink import Refuse
from tests.delivery.stage import Stage
from tests.delivery.test_rounds import failing

Shown = tuple[str, ...]


@pytest.fixture
async def spans(stage: Stage) -> list[Span]:
    """The spans that are exported from now on."""
    found: list[Span] = []
    stage.scene.traces = lambda: Traces(time.time_ns, found.append, b"seed")
    await stage.crash()
    return found


def attempts(spans: list[Span]) -> list[Shown]:
    """Sink, vote, decision and error of each attempt."""
    keys = ("penstock.sink", "penstock.vote", "penstock.decision")
    return sorted((*(str(one.attributes[key]) for key in keys), one.error) for one in spans if one.name == "sink")


async def test_the_trace_of_a_refused_round_shows_every_vote(stage: Stage, spans: list[Span]) -> None:
    stage.scripts["b"] = failing("vote", 1, Refuse)
    await stage.bind(voting="a b")
    await stage.put_out()
    await stage.delivered()
    await stage.scene.until(lambda: len(attempts(spans)) == 4)
    first, *rest = attempts(spans)
    assert first[0] == "a"
    assert first[2:] == ("abort", "another sink has not voted yes")
    assert rest == [
        ("a", "yes", "commit", ""),
        ("b", "no", "abort", "not today"),
        ("b", "yes", "commit", ""),
    ]
    (deliver,) = [one for one in spans if one.name == "deliver"]
    assert deliver.attributes == {"penstock.attempts": 2}
    assert {one.parent for one in spans if one.name == "sink"} == {deliver.context}


async def test_the_trace_shows_that_a_sink_was_lost_before_its_vote(stage: Stage, spans: list[Span]) -> None:
    stage.scripts["a"] = failing("before phase 1", 1)
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.delivered()
    await stage.scene.until(lambda: len(attempts(spans)) == 2)
    lost, committed = attempts(spans)[::-1] if attempts(spans)[0][1] == "yes" else attempts(spans)
    assert lost[:3] == ("a", "lost", "abort")
    assert "lost before phase 1" in lost[3]
    assert committed == ("a", "yes", "commit", "")


async def test_an_epoch_that_spans_a_crash_is_one_trace(stage: Stage, spans: list[Span]) -> None:
    stage.scripts["a"] = failing("before open", 1000)
    await stage.bind(voting="a")
    await stage.put_out()
    await stage.crash()
    stage.scripts.clear()
    assert stage.delivery is not None
    stage.delivery.retry("p")
    await stage.delivered()
    await stage.scene.until(lambda: any(one.name == "epoch" for one in spans))
    assert len({one.context.trace_id for one in spans}) == 1
    assert [one.attributes["penstock.resumed"] for one in spans if one.name == "epoch"] == [True]


async def test_a_sink_that_is_retried_forever_does_not_make_an_endless_trace(
    stage: Stage, spans: list[Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "SINK_SPANS_MAX", 2)
    stage.scripts["a"] = failing("vote", 5, Refuse)
    await stage.bind(voting="a")
    await stage.put_out()
    assert stage.delivery is not None
    while not stage.is_delivered():
        stage.delivery.retry("p")
        await stage.scene.durable()
    await stage.scene.until(lambda: any(one.name == "epoch" for one in spans))
    (deliver,) = [one for one in spans if one.name == "deliver"]
    assert deliver.attributes == {"penstock.attempts": 6}
    await stage.scene.until(lambda: len(attempts(spans)) == 3)
    assert [one[2] for one in attempts(spans)] == ["abort", "abort", "commit"]
