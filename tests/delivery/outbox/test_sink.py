"""What sinks receive: streams in order, signals before and after them, retained rows, dead letters."""

import asyncio
from dataclasses import replace

import pytest

from penstock.connectors.api import Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.coordinator.machine.state import Retention
from penstock.core.retry import RetryPolicy
from penstock.delivery.outbox.outbox import Outbox, OutboxRecord
from penstock.delivery.outbox.rows import Rows
from tests.delivery.outbox.scene import PIPELINE, A, B, C, SinkScene


async def test_rows_go_to_the_connector_by_stream_in_order_with_ids_keys_and_a_name(scene: SinkScene) -> None:
    sink = await scene.add("x")
    await scene.put_out((A, b"a1"), (B, b"b1"), (A, b"a2"), (None, b"n1"), (C, b"c1"))
    await scene.delivered()
    assert [(one.stream, one.values, one.ids, one.name) for one in sink.given] == [
        (A, [b"a1", b"a2"], [1, 3], "p:1:0/2"),
        (B, [b"b1"], [2], "p:1:0/1"),
        (None, [b"n1"], [0], "p:1:0/3"),
        (C, [b"c1"], [5], "p:1:0/4"),
    ]
    assert sink.given[0].keys == [b"key", b"key"]
    assert sink.given[0].event_times_us == [None, None]
    assert [dict(one) for one in sink.given[0].metadata] == [{"source": "src", "stream": "s1"}] * 2


async def test_started_comes_before_the_first_event_and_closed_after_the_last_at_every_sink(scene: SinkScene) -> None:
    x, y = await scene.add("x"), await scene.add("y")
    scene.signals.relink("src", ["x", "y"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    await scene.put_out((A, b"a1"))
    await scene.put_out((A, b"a2"))
    scene.signals.ended(A)
    await scene.delivered()
    assert x.what(A) == y.what(A) == ["started", "event", "event"]
    scene.known.discard(A)
    scene.signals.completed(A)
    await scene.until(lambda: "closed" in x.what(A) and "closed" in y.what(A))
    assert x.what(A) == y.what(A) == ["started", "event", "event", "closed"]


async def test_after_a_restart_streams_are_announced_again_before_their_events_and_closed_after_them(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    x.is_down = True
    scene.hosts["x"].disconnected("down")
    await scene.put_out((A, b"a1"), (B, b"b1"))
    scene.known = {B}
    await scene.crash()
    scene.hosts["x"].connected()
    await scene.delivered()
    await scene.until(lambda: "closed" in x.what(A))
    assert x.what(A) == ["started", "event", "closed"], "its end was complete before"
    assert x.what(B) == ["started", "event"], "its source has more to say of it"


async def test_a_sink_that_is_slow_to_open_a_stream_blocks_no_other(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.put_out((B, b"b2"), (A, b"a2"))
    await scene.delivered()
    assert x.all_values == [b"b1", b"b2"]
    assert scene.retained_values("x") == [b"a1", b"a2"]
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1", b"a2"])


async def test_rows_of_a_closed_stream_are_retained_only_for_that_sink_and_sent_first_when_it_opens(
    scene: SinkScene,
) -> None:
    x, y = await scene.add("x"), await scene.add("y")
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.delivered()
    scene.hosts["y"].closed(A, "its connection is gone")
    for number in range(2, 6):
        await scene.put_out((A, b"a%d" % number), (B, b"b%d" % number))
    await scene.delivered()
    assert x.values(A) == [b"a1", b"a2", b"a3", b"a4", b"a5"], "the other sink continues"
    assert y.values(A) == [b"a1"]
    assert y.values(B) == [b"b1", b"b2", b"b3", b"b4", b"b5"], "and so does the other stream"
    assert scene.hosts["y"].outbox_bytes > 0
    assert scene.hosts["x"].outbox_bytes == 0
    scene.hosts["y"].opened(A)
    await scene.put_out((A, b"a6"), (B, b"b6"))
    await scene.delivered()
    await scene.until(lambda: len(y.values(A)) == 6)
    assert y.values(A) == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]
    assert scene.hosts["y"].outbox_bytes == 0


async def test_retained_rows_that_were_sent_are_removed_from_their_segment(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"))
    await scene.delivered()
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1"])
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    await scene.scene.durable()
    info = scene.scene.store.info(f"pipeline/{PIPELINE}/held.x")
    assert info.start == info.length


async def test_after_stream_lost_the_rows_of_the_stream_are_retained_until_a_probe_succeeds(scene: SinkScene) -> None:
    x = await scene.add("x")
    lost = True
    x.trouble = lambda outgoing: StreamLost("reset by peer") if lost and outgoing.stream == A else None
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.delivered()
    assert x.all_values == [b"b1"]
    assert scene.breakers.tripped_streams("x") == {A: "reset by peer"}
    lost = False
    await scene.until(lambda: x.values(A) == [b"a1"])
    assert scene.breakers.takes("x", A)


async def test_lost_closes_the_whole_sink_and_the_same_rows_are_delivered_again_once_a_probe_has_succeeded(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    is_down = True
    tries: list[str] = []

    def trouble(outgoing: Outgoing) -> Exception | None:
        tries.append(outgoing.name)
        return Lost("nobody listens") if is_down else None

    x.trouble = trouble
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.until(lambda: len(tries) >= 3)
    assert set(tries) == {"p:1:0/0"}, "a probe is one block"
    assert not scene.signals.may_send(A)
    assert "nobody listens" in scene.signals.why(A)
    assert scene.waiting == 1
    is_down = False
    await scene.delivered()
    assert x.all_values == [b"a1", b"b1"]
    assert scene.signals.may_send(A)


async def test_a_failed_sink_without_rows_to_probe_with_opens_by_itself(scene: SinkScene) -> None:
    await scene.add("x")
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    scene.breakers.lost("x", "gone for a moment", scene.clock())
    assert not scene.signals.may_send(A)
    await scene.until(lambda: scene.signals.may_send(A))


async def test_a_stream_that_is_gone_becomes_dead_letters_with_the_reason_once_and_the_others_continue(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    is_down = True

    def trouble(outgoing: Outgoing) -> Exception | None:
        if outgoing.stream == A:
            return StreamGone("the connection is closed")
        return Lost("not now") if is_down else None

    x.trouble = trouble
    await scene.put_out((A, b"a1"), (B, b"b1"), (A, b"a2"))
    await scene.until(lambda: scene.breakers.sink_refusal("x") is not None)
    await scene.crash()
    is_down = False
    await scene.delivered()
    assert x.all_values == [b"b1"]
    dead_letters = scene.dead_letters("x")
    assert [(one.event.payload, one.reason, one.event.stream_id) for one in dead_letters] == [
        (b"a1", "the connection is closed", 1),
        (b"a2", "the connection is closed", 1),
    ]
    assert dead_letters[0].event.metadata == {"source": "src", "stream": "s1"}
    assert scene.hosts["x"].dead_letters == 0, "they were written before the crash"


async def test_retained_rows_of_a_stream_that_turns_out_to_be_gone_become_dead_letters(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    x.trouble = lambda outgoing: StreamGone("never again") if outgoing.stream == A else None
    scene.hosts["x"].opened(A)
    await scene.until(lambda: len(scene.dead_letters("x")) == 2)
    await scene.crash()
    await scene.put_out((B, b"b2"))
    await scene.delivered()
    assert [one.event.payload for one in scene.dead_letters("x")] == [b"a1", b"a2"]
    assert scene.hosts["x"].outbox_bytes == 0


async def test_retained_rows_that_were_sent_are_not_sent_again_by_an_epoch_that_waits_for_another_stream(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    x.shy = {A}
    tries = 0
    is_down = True

    def trouble(outgoing: Outgoing) -> Exception | None:
        nonlocal tries
        tries += outgoing.stream == B
        return Lost("not now") if is_down and outgoing.stream == B else None

    x.trouble = trouble
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.until(lambda: tries)
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1"])
    tries = 0
    await scene.until(lambda: tries >= 2)
    await scene.crash()
    is_down = False
    await scene.delivered()
    assert x.all_values == [b"a1", b"b1"]


async def test_with_a_full_outbox_epochs_wait_until_some_rows_were_sent(scene: SinkScene) -> None:
    x = await scene.add("x", outbox_bytes_max=1000)
    x.shy = {A}
    for number in range(4):
        await scene.put_out((A, b"%d" % number * 300), (B, b"b%d" % number))
    await scene.until(lambda: any("of 1,000 bytes used" in one.reason for one in scene.delivery.sinks()))
    assert 1 <= scene.waiting <= 2
    assert scene.hosts["x"].outbox_bytes <= 1000
    scene.hosts["x"].opened(A)
    await scene.delivered()
    assert [value[:1] for value in x.values(A)] == [b"0", b"1", b"2", b"3"]


async def test_three_streams_that_fail_within_a_second_close_the_whole_connector(scene: SinkScene) -> None:
    x = await scene.add("x", failing_streams=3, within_seconds=1.0, probe_after_seconds=0.3)
    scene.signals.relink("src", ["x"])
    streams = [StreamRef("src", number) for number in range(10, 14)]
    for stream in streams:
        scene.signals.started(stream)
    await scene.until(lambda: all(scene.signals.may_send(stream) for stream in streams))
    for stream in streams[:2]:
        scene.hosts["x"].closed(stream, "reset")
    assert scene.signals.may_send(streams[3])
    scene.hosts["x"].closed(streams[2], "reset")
    assert not scene.signals.may_send(streams[3])
    assert "3 of its streams failed within 1 s" in scene.signals.why(streams[3])
    await scene.until(lambda: scene.signals.may_send(streams[3]))
    assert x.all_values == []


async def test_contraflow_is_handled_before_forward_flow(scene: SinkScene) -> None:
    x = await scene.add("x")

    def close_b(outgoing: Outgoing) -> None:
        if outgoing.stream == A:
            asyncio.get_running_loop().call_soon(scene.hosts["x"].closed, B, "now")

    await scene.put_out((A, b"a0"), (B, b"b0"))
    await scene.delivered()
    x.after = close_b
    await scene.put_out((A, b"a1"), (B, b"b1"), (C, b"c1"))
    await scene.delivered()
    assert x.all_values == [b"a0", b"b0", b"a1", b"c1"]
    assert scene.retained_values("x") == [b"b1"]


async def test_no_breaker_undoes_an_operators_pause(scene: SinkScene) -> None:
    x = await scene.add("x")
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.until(lambda: scene.signals.may_send(A))
    scene.breakers.pauses.pause("x")
    scene.breakers.pauses.pause("src", A.stream_id)
    await scene.put_out((A, b"a1"))
    scene.hosts["x"].disconnected("gone")
    scene.hosts["x"].connected()
    scene.hosts["x"].opened(A)
    await asyncio.sleep(0.1)
    assert x.all_values == []
    assert scene.signals.why(A) == "an operator has paused the stream; sink x: an operator has paused it"
    scene.breakers.pauses.resume("x")
    await scene.delivered()
    assert not scene.signals.may_send(A)
    scene.breakers.pauses.resume("src", A.stream_id)
    assert scene.signals.may_send(A)


async def test_a_recreated_connector_gets_what_the_previous_one_did_not_accept(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.delivered()
    await scene.sinks.detach("x")
    await scene.put_out((A, b"a2"), (B, b"b2"))
    await scene.until(lambda: any("is not deployed" in one.reason for one in scene.delivery.sinks()))
    x.shy = set()
    scene.attach("x")
    await scene.delivered()
    await scene.until(lambda: len(x.all_values) == 4)
    assert x.values(A) == [b"a1", b"a2"]
    assert x.values(B) == [b"b1", b"b2"]


async def test_two_ports_linked_to_one_connector_deliver_one_at_a_time_and_retain_rows_separately(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    await scene.scene.coordinator.deliveries.bind(PIPELINE, {"also": ("other", "x", False)})
    x.shy = {C}
    inside: list[int] = []

    def enter(outgoing: Outgoing) -> None:
        inside.append(len(outgoing.values))
        assert len(inside) == 1

    x.before = enter
    x.after = lambda outgoing: inside.clear()
    for number in range(5):
        await scene.put_out((A, b"a%d" % number), (C, b"c%d" % number))
        await scene.put_out((B, b"b%d" % number), (C, b"C%d" % number), port="other")
    await scene.delivered()
    assert len(x.all_values) == 10
    scene.hosts["x"].opened(C)
    await scene.until(lambda: len(x.values(C)) == 10)
    assert [value for value in x.values(C) if value.startswith(b"c")] == [b"c0", b"c1", b"c2", b"c3", b"c4"]
    assert [value for value in x.values(C) if value.startswith(b"C")] == [b"C0", b"C1", b"C2", b"C3", b"C4"]


async def test_retention_removes_nothing_from_the_outbox(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    scene.scene.settings = replace(scene.scene.settings, retention=Retention("size", 0))
    await scene.crash()
    await asyncio.sleep(0.1)
    assert scene.retained_values("x") == [b"a1", b"a2"]
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1", b"a2"])


async def test_retained_rows_are_sent_after_their_task_has_died(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.core.supervisor.RESTARTS", RetryPolicy(0.01, 0.05))
    read, failures = Outbox.read, [RuntimeError("once")]

    async def failing(self: Outbox, record: OutboxRecord) -> Rows:
        if failures:
            raise failures.pop()
        return await read(self, record)

    monkeypatch.setattr(Outbox, "read", failing)
    x = await scene.add("x")
    x.shy = {A}
    await scene.put_out((A, b"a1"))
    await scene.delivered()
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1"])
    assert "background task 'outbox of p to x' failed: once" in caplog.text
