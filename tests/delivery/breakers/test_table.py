"""Breakers and started streams, by example. They are tested against a model in test_table_model.py."""

import pytest

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.started_streams import StartedStreams
from penstock.delivery.breakers.table import Breakers
from penstock.protocol.api.deployment import BreakerSpec

A, B, C = StreamRef("src", 1), StreamRef("src", 2), StreamRef("src", 3)


@pytest.fixture
def breakers() -> Breakers:
    """Two connected sinks."""
    made = Breakers()
    for name in ("x", "y"):
        made.configure(name, BreakerSpec(probe_after_seconds=1.0, probe_after_seconds_max=3.0))
        made.available(name)
    return made


@pytest.fixture
def streams(breakers: Breakers) -> StartedStreams:
    return StartedStreams(breakers)


def test_a_stream_sends_when_all_its_sinks_have_opened_it_and_not_before(
    breakers: Breakers, streams: StartedStreams
) -> None:
    streams.started(A, ["x", "y"])
    breakers.opened("x", A)
    breakers.opened("x", A)
    assert not streams.may_send(A), "a set of sinks, and not a count of answers"
    assert streams.why(A) == "sink y: it has not opened the stream yet"
    breakers.opened("y", A)
    assert streams.may_send(A)
    assert streams.why(A) == ""


def test_a_stream_without_sinks_sends_at_once(breakers: Breakers, streams: StartedStreams) -> None:
    streams.started(A, [])
    assert streams.may_send(A)


def test_closing_one_stream_does_not_close_the_others(breakers: Breakers, streams: StartedStreams) -> None:
    for stream in (A, B):
        streams.started(stream, ["x"])
        breakers.opened("x", stream)
    breakers.closed("x", A, "reset by peer")
    assert not streams.may_send(A)
    assert streams.may_send(B)
    assert breakers.tripped_streams("x") == {A: "reset by peer"}


def test_a_sink_that_reconnects_finds_its_streams_unchanged(breakers: Breakers, streams: StartedStreams) -> None:
    streams.started(A, ["x"])
    breakers.opened("x", A)
    streams.started(B, ["x"])
    breakers.unavailable("x", "the line is dead")
    assert streams.why(A) == "sink x: the line is dead"
    breakers.available("x")
    assert streams.may_send(A)
    assert not streams.may_send(B)


def test_probes_back_off_to_a_limit_and_start_over_after_a_success(breakers: Breakers) -> None:
    waits, now = [], 0.0
    breakers.lost("x", "nobody answers", now)
    for _ in range(4):
        due = breakers.due()
        assert due is not None
        waits.append(due - now)
        now = due
        assert breakers.tick(now - 0.01) == []
        assert breakers.tick(now) == [("x", None)]
        assert breakers.tick(now + 100) == [], "one at a time"
        breakers.lost("x", "nobody answers", now)
    assert waits == [1.0, 2.0, 3.0, 3.0]
    due = breakers.due()
    assert due is not None
    breakers.tick(due)
    breakers.delivered("x", None)
    assert breakers.sink_refusal("x") is None
    breakers.lost("x", "again", 100.0)
    assert breakers.due() == 101.0


def test_a_sink_opened_without_a_probe_backs_off_further_after_the_next_failure(breakers: Breakers) -> None:
    breakers.lost("x", "nobody answers", 0.0)
    breakers.tick(1.0)
    breakers.nothing_to_probe("x", None)
    assert breakers.sink_refusal("x") is None
    breakers.lost("x", "nobody answers", 1.0)
    assert breakers.due() == 3.0


def test_a_connection_that_its_connector_has_closed_is_not_probed(breakers: Breakers) -> None:
    breakers.lost("x", "no answer", 0.0)
    breakers.unavailable("x", "disconnected")
    breakers.lost("x", "of course", 0.1)
    assert breakers.due() is None
    assert breakers.sink_refusal("x") == "disconnected"


def test_three_streams_that_fail_within_a_second_trip_the_sink_and_slower_ones_do_not() -> None:
    breakers = Breakers()
    streams = StartedStreams(breakers)
    breakers.configure("x", BreakerSpec(failing_streams=3, within_seconds=1.0), is_passing=True)
    for stream in (A, B, C):
        streams.started(stream, ["x"])
        breakers.opened("x", stream)
    for now in (0.0, 0.9, 1.8, 2.7):
        assert not breakers.failed("x", A if now < 1 else B, "reset", now)
    assert breakers.sink_refusal("x") is None
    assert not breakers.failed("x", A, "reset", 3.0)
    assert breakers.failed("x", C, "reset", 3.5)
    assert breakers.sink_refusal("x") == "3 of its streams failed within 1 s, the last one: reset"


def test_a_pause_survives_breakers_and_applies_to_later_streams(breakers: Breakers, streams: StartedStreams) -> None:
    breakers.pauses.pause("src", 1)
    breakers.pauses.pause("src")
    streams.started(A, ["x"])
    streams.started(B, ["x"])
    for stream in (A, B):
        breakers.opened("x", stream)
    breakers.unavailable("x", "gone")
    breakers.available("x")
    assert not streams.may_send(A)
    assert not streams.may_send(B)
    breakers.pauses.resume("src")
    assert streams.may_send(B)
    assert streams.why(A) == "an operator has paused the stream"
    assert breakers.pauses.all() == [("src", 1)]


def test_a_paused_sink_gets_nothing_not_even_a_probe(breakers: Breakers) -> None:
    breakers.lost("x", "nobody answers", 0.0)
    breakers.pauses.pause("x")
    assert breakers.due() is None
    assert breakers.tick(100.0) == []
    assert not breakers.admits("x", None)
    breakers.pauses.resume("x")
    assert breakers.tick(100.0) == [("x", None)]
    assert breakers.admits("x", None)


def test_a_sink_linked_later_must_open_the_stream_and_an_unlinked_one_blocks_nothing(
    breakers: Breakers, streams: StartedStreams
) -> None:
    streams.started(A, ["x"])
    breakers.opened("x", A)
    streams.relinked("src", ["x", "y"])
    assert not streams.may_send(A)
    breakers.opened("y", A)
    assert streams.may_send(A)
    breakers.closed("x", A, "full")
    streams.relinked("src", ["y"])
    assert streams.may_send(A)
    streams.relinked("src", ["x", "y"])
    assert not streams.may_send(A), "it has to open it again"


def test_ten_thousand_streams_are_each_reported_once(breakers: Breakers, streams: StartedStreams) -> None:
    changes: list[tuple[StreamRef, bool]] = []
    streams.watchers.append(lambda stream, may_send: changes.append((stream, may_send)))
    refs = [StreamRef("src", number) for number in range(10_000)]
    breakers.watchers.append(lambda sink, stream: breakers.due())  # as a timer does
    for stream in refs:
        streams.started(stream, ["x", "y"])
        breakers.opened("x", stream)
        breakers.opened("y", stream)
    assert changes == [(stream, True) for stream in refs]
    breakers.unavailable("y", "gone")
    assert changes[10_000:] == [(stream, False) for stream in refs]


def test_ten_thousand_streams_that_fail_are_probed_one_after_the_other(
    breakers: Breakers, streams: StartedStreams
) -> None:
    refs = [StreamRef("src", number) for number in range(10_000)]
    breakers.watchers.append(lambda sink, stream: breakers.due())
    for at, stream in enumerate(refs):
        streams.started(stream, ["x"])
        breakers.failed("x", stream, "refused", at / 1000)
    probed: list[StreamRef | None] = []
    while breakers.due() is not None:
        ((sink, begun),) = breakers.tick(1000.0)
        assert breakers.tick(1000.0) == [], "one at a time"
        probed.append(begun)
        breakers.delivered(sink, begun)
    assert probed == refs
    assert all(map(streams.may_send, refs))


def test_a_probe_interrupted_by_a_trip_of_the_whole_sink_is_made_when_it_passes_again(
    breakers: Breakers, streams: StartedStreams
) -> None:
    streams.started(A, ["x"])
    breakers.failed("x", A, "reset", 0.0)
    assert breakers.tick(100.0) == [("x", A)]
    breakers.unavailable("x", "gone")
    assert breakers.due() is None
    breakers.available("x")
    assert breakers.tick(100.0) == [("x", A)]
