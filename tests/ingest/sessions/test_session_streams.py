"""Concurrent sessions, and streams that end, reopen and move between sessions."""

import asyncio
import socket
from contextlib import suppress

import pytest

from penstock.core.errors import RequestError
from penstock.core.retry import RetryPolicy
from penstock.ingest.owners import Use
from penstock.ingest.sessions import session
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    EndOfStream,
    Error,
    Frame,
    Message,
    Notify,
    NotifyAck,
    Restart,
    encode,
)
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support.waiting import eventually


def together(*frames: Frame) -> bytes:
    """In one write, so that they arrive in one piece."""
    return b"".join(map(encode, frames))


def message(stream_id: int, message_id: int) -> Message:
    return Message(stream_id, message_id, 0, b"", b"%d of %d" % (message_id, stream_id))


async def until_acked(peer: Peer, stream_id: int, last_id: int) -> list[Frame]:
    frames = []
    while True:
        frames.append(frame := await peer.frame())
        if isinstance(frame, Ack) and Acked(stream_id, last_id) in frame.acked:
            return frames


async def open_retrying(peer: Peer, stream_id: int) -> int:
    """Retries after the next ACK, as existing clients do."""
    for _ in range(3000):
        peer.send(Notify(stream_id, "s"))
        while not isinstance(answer := await peer.frame(), NotifyAck):
            pass
        if answer.success:
            return answer.point_of_reference
        await asyncio.sleep(0.01)
    raise AssertionError("refused for ever")


def open_streams(running: RunningServer) -> int:
    return sum(running.sources.registry.counts().values())


@pytest.mark.parametrize("messages", [[], [message(7, 5)]])
async def test_notify_is_refused_while_its_stream_is_closing_and_accepted_afterwards(
    running: RunningServer, connect: Connect, messages: list[Message]
) -> None:
    peer = await connect(running)
    await peer.open(7)
    peer.send(together(*messages, EndOfStream(7), Notify(7, "s")))
    while not isinstance(answer := await peer.frame(), NotifyAck):
        pass
    assert answer == NotifyAck(False, 7, 0)
    expected = 5 if messages else NOTHING_YET
    assert await open_retrying(peer, 7) == expected
    peer.send(EndOfStream(7))
    await eventually(lambda: open_streams(running) == 0)
    other = await connect(running)
    assert await other.open(7) == expected


async def test_notify_for_a_closing_stream_is_refused_on_other_sessions_too(
    running: RunningServer, connect: Connect
) -> None:
    peer, other = await connect(running), await connect(running)
    await peer.open(7)
    running.sources.registry.close(  # as it is between EOS_MESSAGE and its acknowledgement
        *next(iter([(key, owner) for key, (owner, _) in running.sources.registry._owners.items()]))  # type: ignore[attr-defined]
    )
    other.send(Notify(7, "s"))
    assert await other.frame() == NotifyAck(False, 7, 0)
    await peer.close()
    assert await open_retrying(other, 7) == NOTHING_YET


async def test_a_session_that_ends_with_notifies_unanswered_leaves_nothing_behind(
    running: RunningServer, connect: Connect
) -> None:
    for number in range(20):
        peer = await connect(running)
        frames = [Notify(stream_id, "s") for stream_id in range(50)]
        if number % 2:
            frames.append(Notify(0, "twice"))  # an error, in the middle of it all
        peer.send(together(*frames))
        await asyncio.sleep(0.0005 * number)
        peer.writer.transport.abort()
    await eventually(lambda: open_streams(running) == 0 and len(running.programs.sessions) == 0)
    other = await connect(running)
    for stream_id in range(50):
        assert await other.open(stream_id) == NOTHING_YET


async def test_a_session_that_ends_while_streams_are_closing_leaves_nothing_behind(
    running: RunningServer, connect: Connect
) -> None:
    for number in range(10):
        peer = await connect(running)
        for stream_id in range(5):
            await open_retrying(peer, stream_id)
        ends = [frame for s in range(5) for frame in (message(s, number + 1), EndOfStream(s))]
        peer.send(together(*ends))
        await asyncio.sleep(0.0005 * number)
        peer.writer.transport.abort()
        other = await connect(running)
        point = await open_retrying(other, 0)
        ids = [event.event_id for event in running.events() if event.stream_id == 0]
        assert point == (ids[-1] if ids else NOTHING_YET)
        await other.close()
    await eventually(lambda: open_streams(running) == 0)


async def test_a_stream_moves_between_sessions_without_losing_its_position(
    running: RunningServer, connect: Connect
) -> None:
    last = NOTHING_YET
    for number in range(0, 100, 10):
        peer = await connect(running)
        assert await open_retrying(peer, 7) == last
        peer.send(together(*(message(7, n) for n in range(number, number + 10))))
        if number % 20:
            peer.send(EndOfStream(7))
        last = number + 9
        await until_acked(peer, 7, last)
        await peer.close()
    assert [event.event_id for event in running.events()] == list(range(100))


async def test_many_sessions_of_one_source_send_concurrently(running: RunningServer, connect: Connect) -> None:
    async def send(first: int) -> None:
        peer = await connect(running)
        streams = range(first, first + 5)
        for stream_id in streams:
            await peer.open(stream_id)
        for number in range(1, 21):
            peer.send(together(*(message(stream_id, number) for stream_id in streams)))
            await asyncio.sleep(0)
        for stream_id in streams:
            peer.send(EndOfStream(stream_id))
        waiting = set(streams)
        while waiting:
            frame = await peer.frame()
            if isinstance(frame, Ack):
                waiting -= {acked.stream_id for acked in frame.acked if acked.point_of_reference == 20}

    await asyncio.gather(*(send(first) for first in range(0, 100, 5)))
    ids: dict[int, list[int]] = {}
    for event in running.events():
        ids.setdefault(event.stream_id, []).append(event.event_id)
    assert ids == {stream_id: list(range(1, 21)) for stream_id in range(100)}
    assert running.programs.view.totals().messages == 2000


async def test_a_run_of_only_duplicates_is_acked_and_returns_its_credits(serve: Serve, connect: Connect) -> None:
    running = await serve(window_bytes=4096 * 10)
    peer = await connect(running)
    await peer.open(7)
    peer.send(together(*(message(7, number) for number in range(8))))
    await until_acked(peer, 7, 7)
    await peer.close()
    again = await connect(running)
    assert await again.open(7) == 7
    for _ in range(10):  # ten times eight is far more than ten credits
        again.send(together(*(message(7, number) for number in range(8))))
        granted = sum(frame.credits for frame in await until_acked(again, 7, 7) if isinstance(frame, Ack))
        while granted < 8:
            frame = await again.frame()
            assert isinstance(frame, Ack)
            granted += frame.credits
    assert running.sources.counters.duplicates == 80
    assert len(running.events()) == 8


async def test_an_ack_is_never_below_the_notify_ack(running: RunningServer, connect: Connect) -> None:
    peer = await connect(running)
    await peer.open(7)
    peer.send(together(*(message(7, number) for number in range(50))))
    await until_acked(peer, 7, 49)
    await peer.close()
    again = await connect(running)
    assert await again.open(7) == 49
    for number in range(55):
        again.send(message(7, number))
    for frame in await until_acked(again, 7, 54):
        assert isinstance(frame, Ack)
        assert all(acked.point_of_reference >= 49 for acked in frame.acked)


@pytest.mark.parametrize("before", [[], [message(8, 3)]])
async def test_the_reserved_id_nothing_yet_is_an_error_as_a_message_id_and_never_acked(
    running: RunningServer, connect: Connect, before: list[Message]
) -> None:
    peer = await connect(running)
    await peer.open(7)
    await peer.open(8)
    await running.sources.durability.caught_up()  # the journal is quiet: what comes now is durable at once
    peer.send(together(*before, message(7, NOTHING_YET)))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "2^64-1" in frames[-1].text
    assert not any(a.point_of_reference == NOTHING_YET for f in frames if isinstance(f, Ack) for a in f.acked)
    again = await connect(running)
    assert await again.open(7) == NOTHING_YET
    assert await again.open(8) == (3 if before else NOTHING_YET)


@pytest.mark.parametrize("stream_id", [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
async def test_stream_ids_and_message_ids_work_at_their_limits(serve: Serve, connect: Connect, stream_id: int) -> None:
    peer = await connect(await serve())
    assert await peer.open(stream_id) == NOTHING_YET
    for number in (0, 2**63 - 1, 2**63, 2**64 - 2):
        peer.send(message(stream_id, number))
        await until_acked(peer, stream_id, number)
    again = await serve()
    peer = await connect(again)
    assert await peer.open(stream_id) == 2**64 - 2
    peer.send(message(stream_id, 2**64 - 2), EndOfStream(stream_id))
    await until_acked(peer, stream_id, 2**64 - 2)
    assert [event.event_id for event in again.events()] == [0, 2**63 - 1, 2**63, 2**64 - 2]


async def test_an_active_stream_is_not_opened_again_by_its_own_session(
    running: RunningServer, connect: Connect
) -> None:
    peer = await connect(running)
    await peer.open(7)
    peer.send(Notify(7, "s"))
    frames = await peer.frames_until_closed()
    assert isinstance(frames[-1], Error)
    assert "NOTIFY is not legal for stream 7 in state Active" in frames[-1].text
    assert running.sources.registry.counts() == {Use.ACTIVE: 0, Use.CLOSING: 0}


async def test_a_stop_acknowledges_what_was_received(serve: Serve, connect: Connect) -> None:
    running = await serve()
    peer = await connect(running)
    await peer.open(7)
    peer.send(*(Message(7, number, 0, b"", bytes(1000)) for number in range(1, 501)))
    await eventually(lambda: running.sources.counters.messages == 500)
    await running.stop()
    running.crashed = True
    frames = await peer.frames_until_closed()
    assert max(last for frame in frames if isinstance(frame, Ack) for _, last in frame.acked) == 500


async def test_a_stop_redirects_sources_to_the_successor(serve: Serve, connect: Connect) -> None:
    running = await serve(successor="127.0.0.1:7777")
    peer = await connect(running)
    await running.stop()
    running.crashed = True
    assert (await peer.frames_until_closed())[-1] == Restart("127.0.0.1:7777")


async def test_a_running_successor_is_refused_because_it_has_different_data(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    address = f"127.0.0.1:{port}"
    running = await serve(successor=address)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(RequestError, match="send everything again"):
        await running.programs.start()
    assert f"sources are sent to {address}" in caplog.text
    assert "on the same data directory" in caplog.text


async def test_a_stop_closes_the_sources_if_the_successor_has_different_data(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    running = await serve(successor=f"127.0.0.1:{port}")
    peer = await connect(running)
    with socket.create_server(("127.0.0.1", port)):
        await running.stop()
    running.crashed = True
    assert not any(isinstance(frame, Restart) for frame in await peer.frames_until_closed())
    assert "sources are not sent to the successor" in caplog.text


# A NOTIFY that is refused.


async def until_refused(peer: Peer, stream_id: int) -> None:
    """Send NOTIFY, and wait for its refusal."""
    peer.send(Notify(stream_id, "s"))
    while not isinstance(answer := await peer.frame(), NotifyAck):
        pass
    assert answer == NotifyAck(False, stream_id, 0)


async def test_a_client_that_retries_notify_on_every_ack_does_not_spin(
    running: RunningServer, connect: Connect
) -> None:
    first, second = await connect(running), await connect(running)
    await first.open(7)
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while True:
                await until_refused(second, 7)
                assert await second.frame() == Ack(1)
    assert 0 < running.sources.counters.streams_refused < 20


async def test_the_ack_after_a_refusal_is_sent_at_once_when_the_stream_becomes_free(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REFUSALS", RetryPolicy(first_seconds=3600, max_seconds=3600))
    first, second, third = await connect(running), await connect(running), await connect(running)
    await first.open(7)
    await until_refused(second, 7)
    await until_refused(third, 7)
    await third.close()
    await first.close()
    assert await second.frame() == Ack(1)
    assert await second.open(7) == NOTHING_YET
    await second.close()
    await eventually(lambda: not running.sessions)


async def test_a_refused_notify_takes_no_credits_from_other_streams(serve: Serve, connect: Connect) -> None:
    """The credit returns with the next regular ACK."""
    running = await serve(window_bytes=4096 * 2)
    first, second = await connect(running), await connect(running)
    await first.open(7)
    await second.open(8)
    for number in range(1, 10):
        await until_refused(second, 7)
        second.send(message(8, number))
        await until_acked(second, 8, number)


async def test_a_source_over_its_quota_is_closed_after_one_more_window(serve: Serve, connect: Connect) -> None:
    settings = SourceSettings(segments=1, quota_bytes=1000)
    running = await serve(window_bytes=64 * 1024, source=settings)
    peer = await connect(running)
    await peer.open(1)
    for number in range(1, 12):
        peer.send(Message(1, number, 0, b"", bytes(10_000)))
        await asyncio.sleep(0.05)
    await peer.frames_until_closed()
    assert running.sources.counters.closed_for_room == 1
    assert running.sources.log("source").data_segments.retained_bytes < 100_000


@pytest.mark.slow
async def test_a_source_that_opens_very_many_streams_at_once_does_not_starve_the_others(
    running: RunningServer, connect: Connect
) -> None:
    good, greedy = await connect(running, "good"), await connect(running, "greedy")
    await good.open(1)
    good.send(message(1, 1))
    await until_acked(good, 1, 1)
    greedy.send(b"".join(encode(Notify(number, "stream")) for number in range(20_000)))
    most = before = 0
    while (opened := running.sources.counters.streams_opened) < 20_001:
        most, before = max(most, opened - before), opened
        await asyncio.sleep(0)
    assert most < 2000, "in each turn of the event loop only some: then it is the turn of the others"
    good.send(message(1, 1))
    await until_acked(good, 1, 1)
