"""Sinks that hang, are slow to answer, or lose their links while rows are retained for them."""

import asyncio

import pytest

from penstock.connectors.api import Host, Outgoing, StreamLost, StreamRef
from penstock.delivery.outbox import outbox, sink
from tests.delivery.outbox.scene import PIPELINE, A, B, Scripted, SinkScene


async def test_a_connector_that_hangs_in_deliver_can_be_replaced_and_the_next_gets_all(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = await scene.add("x")
    is_hanging = asyncio.Event()
    deliver = Scripted.deliver

    async def hang(self: Scripted, outgoing: Outgoing, host: Host) -> None:
        is_hanging.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Scripted, "deliver", hang)
    await scene.put_out((A, b"a1"), (B, b"b1"))
    await is_hanging.wait()
    await scene.sinks.detach("x")
    monkeypatch.setattr(Scripted, "deliver", deliver)
    scene.attach("x")
    await scene.delivered()
    assert x.values(A) == [b"a1"]
    assert x.values(B) == [b"b1"]


async def test_streams_that_a_sink_does_not_open_are_waited_for_concurrently(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = await scene.add("x")
    waits: list[float | None] = []
    wait = asyncio.wait

    async def counted(tasks: list[asyncio.Task[None]], timeout: float | None = None) -> object:  # noqa: ASYNC109
        waits.append(timeout)
        return await wait(tasks, timeout=timeout)

    async def slow(self: Scripted, stream: StreamRef, host: Host) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "wait", counted)
    monkeypatch.setattr(Scripted, "stream_started", slow)
    streams = [StreamRef("src", number) for number in range(1, 101)]
    scene.known |= {*streams}
    await scene.put_out(*((stream, b"row") for stream in streams))
    await scene.delivered()
    assert x.all_values == [], "all of it is held"
    assert waits.count(sink.ANNOUNCE_SECONDS) == 1


async def test_retained_rows_are_sent_even_if_their_stream_was_linked_elsewhere(scene: SinkScene) -> None:
    x = await scene.add("x")
    x.shy = {A}
    scene.signals.relink("src", ["x"])
    scene.signals.started(A)
    await scene.put_out((A, b"a1"))
    await scene.delivered()
    scene.signals.relink("src", [])
    assert scene.signals.may_send(A), "x holds it no more"
    assert x.what(A) == ["started"], "what is held of it comes before its end"
    scene.hosts["x"].opened(A)
    await scene.until(lambda: x.values(A) == [b"a1"])
    scene.known.discard(A)
    scene.signals.ended(A)
    scene.signals.completed(A)
    await scene.until(lambda: x.what(A) == ["started", "event", "closed"])


async def test_a_stream_that_stays_closed_does_not_retain_rows_of_others_that_were_sent(
    scene: SinkScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "SLACK_BYTES", 1000)
    x = await scene.add("x")
    x.shy = {A, B}
    await scene.put_out((A, b"a1"))
    await scene.put_out((A, b"a2"))
    await scene.delivered()
    buffered_bytes = scene.hosts["x"].outbox_bytes
    for number in range(20):
        await scene.put_out((B, b"%d" % number * 100))
        await scene.delivered()
        scene.hosts["x"].opened(B)
        await scene.until(lambda: scene.hosts["x"].outbox_bytes == buffered_bytes)
        scene.hosts["x"].closed(B, "again")
        await scene.scene.durable()
    info = scene.scene.store.info(f"pipeline/{PIPELINE}/held.x")
    assert info.length - info.start < 2500
    await scene.crash()
    await scene.put_out((A, b"a3"))
    await scene.delivered()
    scene.hosts["x"].opened(A)
    await scene.until(lambda: len(x.values(A)) == 3)
    assert x.values(A) == [b"a1", b"a2", b"a3"]


async def test_a_pause_during_a_probe_delays_no_other_sink_and_retained_rows_are_sent_afterwards(
    scene: SinkScene,
) -> None:
    x = await scene.add("x")
    x.trouble = lambda outgoing: StreamLost("reset by peer")
    await scene.put_out((A, b"a1"))
    await scene.delivered()
    await scene.until(lambda: scene.breakers.probe("x") is None)
    x.before = lambda outgoing: scene.breakers.pauses.pause("x")
    await scene.until(lambda: scene.breakers.pauses.is_paused("x"))
    x.before = lambda outgoing: None
    scene.hosts["x"].probe(A)
    x.trouble = lambda outgoing: None
    scene.breakers.pauses.resume("x")
    await scene.until(lambda: x.values(A) == [b"a1"])
