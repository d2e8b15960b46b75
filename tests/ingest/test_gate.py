"""Sources with gated streams: until a stream may send, its NOTIFY is not answered and its session gets no credits."""

import asyncio
from dataclasses import replace

import pytest

from penstock.connectors.api import StreamRef
from penstock.core.address import Address
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import MIGRATING_VERSION, Ack, EndOfStream, Error, Hello, Message, Notify, NotifyAck
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.ingest.idle_scene import SETTINGS, TIMEOUT, IdleScene
from tests.ingest.out_ports.scene import ScriptedGate
from tests.support.waiting import SECONDS_MAX, eventually


def ref(stream_id: int) -> StreamRef:
    return StreamRef("source", stream_id)


def message(stream_id: int, message_id: int) -> Message:
    return Message(stream_id, message_id, 0, b"", b"x")


async def guarded(serve: Serve, **settings: object) -> tuple[RunningServer, ScriptedGate]:
    running = await serve(**settings)
    gate = ScriptedGate()
    running.sources.guard(gate)
    return running, gate


async def credits_in(peer: Peer, seconds: float = 0.6) -> int:
    """The credits that are granted in this time."""
    granted = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                frame = await peer.frame()
                if isinstance(frame, Ack):
                    granted += frame.credits
    except TimeoutError:
        return granted


async def test_a_notify_is_answered_when_all_sinks_have_opened_the_stream(serve: Serve, connect: Connect) -> None:
    running, gate = await guarded(serve)
    gate.closed.add(ref(1))
    peer = await connect(running)
    peer.send(Notify(1, "one"), Notify(2, "two"))
    answer = await peer.frame()
    assert isinstance(answer, NotifyAck)
    assert answer.stream_id == 2
    assert sorted(gate.reports) == [("started", ref(1)), ("started", ref(2))]
    while isinstance(frame := await _next(peer), Ack):
        pass
    assert frame is None
    gate.set(ref(1), is_open=True)
    answer = await peer.frame()
    assert isinstance(answer, NotifyAck)
    assert answer.success
    assert answer.stream_id == 1


async def _next(peer: Peer) -> object:
    try:
        return await peer.frame(0.3)
    except TimeoutError:
        return None


async def test_a_move_of_the_shard_does_not_wait_for_streams_that_no_sink_opens_any_more(
    serve: Serve, connect: Connect
) -> None:
    running, gate = await guarded(serve)
    gate.closed |= {ref(1), ref(2)}
    peer = await connect(running, hello=False)
    peer.send(Hello(MIGRATING_VERSION, b"", "program", "source"), Notify(1, "one"))
    await eventually(lambda: gate.reports == [("started", ref(1))])
    (session,) = running.sessions
    peer.send(Notify(2, "two"))
    await eventually(lambda: len(session._streams) == 2)  # its start may not be durable yet
    moving = asyncio.create_task(running.programs.send_away(Address("127.0.0.1", 1), 1e6))
    refused: list[NotifyAck] = []
    while len(refused) < 2:
        if isinstance(frame := await peer.frame(), NotifyAck):
            refused.append(frame)
    assert sorted(refused, key=lambda one: one.stream_id) == [NotifyAck(False, 1, 0), NotifyAck(False, 2, 0)]
    await asyncio.wait_for(moving, SECONDS_MAX)


async def test_a_session_with_a_closed_stream_gets_no_credits_until_it_is_opened(
    serve: Serve, connect: Connect
) -> None:
    running, gate = await guarded(serve)
    peer = await connect(running)
    await peer.open(1)
    await peer.open(2)
    await credits_in(peer)
    gate.set(ref(1), is_open=False)
    peer.send(*(message(2, number) for number in range(1, 11)))
    assert await credits_in(peer) == 0
    assert running.sessions[0]._streams.is_blocked
    gate.set(ref(1), is_open=True)
    assert await credits_in(peer) == 10 + 14_336  # and those that a source of small messages has more


async def test_messages_sent_on_remaining_credits_after_a_close_are_stored(serve: Serve, connect: Connect) -> None:
    running, gate = await guarded(serve)
    peer = await connect(running)
    await peer.open(1)
    gate.set(ref(1), is_open=False)
    peer.send(message(1, 5))
    await eventually(lambda: running.sources.counters.messages == 1)
    await running.sources.durability.caught_up()
    assert [event.event_id for event in running.events()] == [5]


async def test_when_a_closed_stream_ends_the_other_streams_of_its_session_continue(
    serve: Serve, connect: Connect
) -> None:
    running, gate = await guarded(serve)
    peer = await connect(running)
    await peer.open(1)
    await peer.open(2)
    gate.set(ref(1), is_open=False)
    peer.send(EndOfStream(1))
    await eventually(lambda: gate.of(ref(1)) == ["started", "ended", "completed"])
    assert not running.sessions[0]._streams.is_blocked


async def test_a_stream_is_completed_when_pipelines_have_completed_its_last_message(
    serve: Serve, connect: Connect
) -> None:
    running, gate = await guarded(serve, source=SourceSettings(segments=1))
    peer = await connect(running)
    running.sources.completion("source").hold({})
    await peer.open(1)
    peer.send(message(1, 1), EndOfStream(1))
    await eventually(lambda: gate.of(ref(1)) == ["started", "ended"])
    assert running.sources.knows(ref(1))
    await asyncio.sleep(0.1)
    assert gate.of(ref(1)) == ["started", "ended"]
    (segment,) = running.sources.log("source").segments
    running.sources.completion("source").advance({segment: running.store.info(segment).length})
    await eventually(lambda: gate.of(ref(1)) == ["started", "ended", "completed"])
    assert not running.sources.knows(ref(1))
    assert 1 in running.sources.log("source").streams


@pytest.mark.parametrize("is_connected", [True, False])
async def test_the_idle_clock_stops_for_a_stream_that_may_not_send(
    serve: Serve, connect: Connect, is_connected: bool
) -> None:
    running, gate = await guarded(serve, source=SETTINGS)
    scene = IdleScene(running)
    peer = await connect(running)
    await peer.open(1)
    gate.set(ref(1), is_open=False)
    if not is_connected:
        await peer.close()
        await eventually(lambda: not running.programs.sessions)
    scene.pass_time(3 * TIMEOUT)
    assert await scene.idle() == []
    gate.set(ref(1), is_open=True)
    scene.pass_time(TIMEOUT / 2)
    assert await scene.idle() == []
    scene.pass_time(TIMEOUT)
    assert await scene.idle() == [1]


async def test_a_closed_stream_whose_program_disconnects_does_not_become_idle(serve: Serve, connect: Connect) -> None:
    running, gate = await guarded(serve, source=SETTINGS)
    scene = IdleScene(running)
    peer = await connect(running)
    await peer.open(1)
    gate.set(ref(1), is_open=False)
    await peer.close()
    await eventually(lambda: not running.programs.sessions)
    assert not running.sources.log("source").streams.away
    gate.set(ref(1), is_open=True)
    scene.pass_time(2 * TIMEOUT)
    assert await scene.idle() == [1]


async def test_hello_for_a_source_of_the_worker_itself_is_refused(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "test", "system.streams"))
    (answer,) = await peer.frames_until_closed()
    assert isinstance(answer, Error)
    assert "belongs to the worker" in answer.text


async def test_a_source_is_reconfigured_while_its_program_continues(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    await peer.open(1)
    running.sources.configure("source", SourceSettings(segments=4, quota_bytes=10, max_disorder_us=7))
    log = running.sources.log("source")
    assert len(log.segments) == 4
    assert running.sources.settings_of("source").max_disorder_us == 7
    for stream_id in range(2, 30):
        await peer.open(stream_id)
    peer.send(*(message(stream_id, 1) for stream_id in range(1, 30)))
    await eventually(lambda: running.sources.counters.messages == 29)
    await running.sources.durability.caught_up()
    assert {s.route for s in log.streams.values()} == {0, 1, 2, 3}
    assert not log.has_room()
    assert len(running.sources.completion("source").status().acknowledged) == 4


async def test_a_stream_not_reopened_since_the_worker_started_still_becomes_idle(
    serve: Serve, connect: Connect
) -> None:
    running = await serve(source=SETTINGS)
    peer = await connect(running)
    await peer.open(1)
    await running.sources.durability.caught_up()
    await running.crash()
    running, gate = await guarded(serve, source=SETTINGS)
    gate.is_shut = True
    scene = IdleScene(running)
    running.sources.configure("source", replace(SETTINGS, idle_timeout_seconds=TIMEOUT / 2))
    scene.pass_time(TIMEOUT)
    assert await scene.idle() == [1]
