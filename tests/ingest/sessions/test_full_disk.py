"""Programs on a full disk: they are accepted, wait for the replies to NOTIFY and EOS_MESSAGE, and continue
automatically.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.address import Address
from penstock.core.errors import DiskFull
from penstock.ingest.sessions import streams
from penstock.ingest.settings import AckMode, SourceSettings
from penstock.protocol.connector import (
    MIGRATING_VERSION,
    NOTHING_YET,
    Ack,
    EndOfStream,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
)
from penstock.store.file_journal import FileJournal
from tests.ingest.conftest import Connect, Peer, RunningServer, Serve
from tests.support.waiting import SECONDS_MAX, eventually

DURABLE = SourceSettings(segments=1, ack=AckMode.DURABLE)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes the disk full, or not full again."""
    check = FileJournal.check_room

    def no_room(self: FileJournal, *, draining: bool) -> None:
        if not draining:
            raise DiskFull("for a test")
        check(self, draining=draining)

    return lambda is_full: monkeypatch.setattr(FileJournal, "check_room", no_room if is_full else check)


async def answers(peer: Peer, kind: type[Any]) -> Any:
    while not isinstance(frame := await peer.frame(), kind):
        pass
    return frame


async def waits(running: RunningServer) -> None:
    await eventually(lambda: [one.status().state for one in running.sessions] == ["Waiting for room"])


async def test_a_stream_waits_on_a_full_disk_and_opens_when_there_is_room(
    serve: Serve, connect: Connect, full: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    running = await serve(source=DURABLE)
    full(True)
    with caplog.at_level(logging.WARNING):
        peer = await connect(running)
        peer.send(Notify(7, "a"), Notify(8, "b"))
        await waits(running)
    assert "the disk is full: it waits" in caplog.text
    full(False)
    assert [await answers(peer, NotifyAck) for _ in "ab"] == [NotifyAck(True, one, NOTHING_YET) for one in (7, 8)]
    peer.send(Message(7, 1, 0, b"", b"x"))
    while not (await answers(peer, Ack)).acked:
        pass
    assert [event.payload for event in running.events()] == [b"x"]
    assert running.sources.counters.closed_for_room == 0


async def test_on_a_full_disk_a_new_source_is_accepted_without_credits(
    serve: Serve, connect: Connect, full: Callable[[bool], None]
) -> None:
    running = await serve(source=DURABLE)
    full(True)
    peer = await connect(running, hello=False)
    peer.send(Hello("0.0.1", b"", "program", "new"))
    assert await peer.frame() == Ok(0)
    peer.send(Notify(1, "s"))
    await waits(running)
    full(False)
    assert await answers(peer, NotifyAck) == NotifyAck(True, 1, NOTHING_YET)


async def test_the_end_of_a_stream_waits_on_a_full_disk_until_there_is_room(
    serve: Serve, connect: Connect, full: Callable[[bool], None]
) -> None:
    running = await serve(source=DURABLE)
    peer = await connect(running)
    await peer.open(7)
    peer.send(Message(7, 1, 0, b"", b"x"))
    while not (await answers(peer, Ack)).acked:
        pass
    full(True)
    peer.send(EndOfStream(7))
    peer.writer.write_eof()
    await waits(running)
    full(False)
    while not (ack := await answers(peer, Ack)).acked:
        pass
    assert ack.acked[0].point_of_reference == 1
    again = await connect(running)
    assert await again.open(7) == 1


async def test_a_move_of_the_shard_does_not_wait_for_room(
    serve: Serve, connect: Connect, full: Callable[[bool], None]
) -> None:
    running = await serve(source=DURABLE)
    full(True)
    peer = await connect(running, hello=False)
    peer.send(Hello(MIGRATING_VERSION, b"", "program", "source"), Notify(7, "a"))
    await waits(running)
    moving = asyncio.create_task(running.programs.send_away(Address("127.0.0.1", 1), 1e6))
    assert await answers(peer, NotifyAck) == NotifyAck(False, 7, 0)
    await asyncio.wait_for(moving, SECONDS_MAX)
    full(False)
    await running.programs.seal()
    assert running.events() == []


async def test_a_stream_waiting_for_room_is_released_when_its_program_leaves(
    serve: Serve, connect: Connect, full: Callable[[bool], None]
) -> None:
    running = await serve(source=DURABLE)
    full(True)
    first = await connect(running)
    first.send(Notify(7, "a"))
    await waits(running)
    await first.close()
    await eventually(lambda: not running.sessions)
    second = await connect(running)
    second.send(Notify(7, "a"))
    await waits(running)
    full(False)
    assert await answers(second, NotifyAck) == NotifyAck(True, 7, NOTHING_YET)


async def test_many_waiting_streams_are_opened_in_order_in_records_of_limited_size(
    serve: Serve, connect: Connect, full: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MARKS_PER_RECORD", 10)
    running = await serve(source=DURABLE)
    full(True)
    peer = await connect(running)
    for stream_id in range(95):
        peer.send(Notify(stream_id, "s"))
        await asyncio.sleep(0)
    await waits(running)
    await eventually(lambda: running.sessions[0].status().streams == 95)
    full(False)
    assert [(await answers(peer, NotifyAck)).stream_id for _ in range(95)] == [*range(95)]


async def test_messages_that_cannot_be_stored_are_sent_again_when_there_is_room(
    serve: Serve, connect: Connect, full: Callable[[bool], None]
) -> None:
    """The program had credits when the disk became full: its session is closed, and its next NOTIFY waits."""
    running = await serve(source=DURABLE)
    peer = await connect(running)
    await peer.open(7)
    full(True)
    peer.send(Message(7, 1, 0, b"", b"x"))
    await peer.frames_until_closed()
    await eventually(lambda: not running.sessions)
    peer = await connect(running)
    peer.send(Notify(7, "stream"))
    await waits(running)
    full(False)
    assert await answers(peer, NotifyAck) == NotifyAck(True, 7, NOTHING_YET)
    assert running.events() == []
