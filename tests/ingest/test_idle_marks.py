"""A stream that could send and is silent for the timeout is marked as idle, and its next message marks it as active."""

import asyncio
from dataclasses import replace

import pytest

from penstock.ingest import source_log
from penstock.ingest.known_streams import Standing
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector import Ack, EndOfStream
from penstock.protocol.stored.head import Mark, MarkKind
from tests.ingest.completion_scene import until_stored
from tests.ingest.conftest import Connect, Peer, Serve
from tests.ingest.idle_scene import SETTINGS, TIMEOUT, IdleScene, idle_scene, messages
from tests.ingest.test_source_log import fail_appends
from tests.support.waiting import eventually

IDLE, AGAIN = MarkKind.IDLE, MarkKind.ACTIVE_AGAIN


async def opened(scene: IdleScene, connect: Connect, *stream_ids: int) -> Peer:
    peer = await connect(scene.running)
    for stream_id in stream_ids:
        await peer.open(stream_id, f"stream {stream_id}")
    return peer


async def sent(scene: IdleScene, peer: Peer, message_id: int, *stream_ids: int) -> None:
    before = len(scene.running.events())
    peer.send(*messages(stream_ids, message_id))
    await until_stored(scene.running, before + len(stream_ids))


async def test_a_silent_stream_becomes_idle_and_its_next_message_reactivates_it(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1, 2)
    await sent(scene, peer, 1, 1, 2)
    for message_id in range(2, 7):
        scene.pass_time(TIMEOUT / 5)
        assert await scene.idle() == [], "it has not been silent for so long"
        await sent(scene, peer, message_id, 1)
    scene.pass_time(1)
    assert await scene.idle() == [2]
    assert scene.running.programs.view.totals().idle_streams == 1
    scene.pass_time(TIMEOUT / 2)
    assert await scene.idle() == [2], "it is marked once"
    await sent(scene, peer, 10, 1, 2)
    records = await scene.records()
    assert ([Mark(2, AGAIN)], 10) in [(marks, last.get(2)) for marks, last in records], "in the record of its events"
    assert scene.running.programs.view.totals().idle_streams == 0
    scene.pass_time(2 * TIMEOUT)
    assert await scene.idle() == [1, 2, 2]


async def test_an_open_stream_that_never_sends_becomes_idle(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    scene.pass_time(3 * TIMEOUT)
    await opened(scene, connect, 1)
    scene.pass_time(TIMEOUT - 1)
    assert await scene.idle() == []
    scene.pass_time(2)
    assert await scene.idle() == [1]


async def test_many_idle_streams_are_marked_with_one_record_per_segment(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await idle_scene(serve)
    await opened(scene, connect, *range(300))
    scene.pass_time(TIMEOUT + 1)
    marked = [[m for m in marks if m.kind is IDLE] for marks, _ in await scene.records()]
    assert len([marks for marks in marked if marks]) == 2
    assert await scene.idle() == [*range(300)]
    monkeypatch.setattr(source_log, "_MARKS_PER_RECORD", 10)
    scene.running.sources.log("source").declare(5, range(300))
    assert await scene.marked(MarkKind.WATERMARK) == [*range(300)]


async def test_without_a_timeout_no_stream_is_ever_idle(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve, SourceSettings())
    await opened(scene, connect, 1)
    scene.pass_time(1000, 1.0)
    assert await scene.idle() == []


async def test_each_source_has_its_own_idle_timeout(serve: Serve, connect: Connect) -> None:
    named = {"source": SETTINGS}
    scene = await idle_scene(serve, SourceSettings(), sources=named)
    await opened(scene, connect, 1)
    other = await connect(scene.running, "other")
    await other.open(1)
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1]
    assert not scene.running.sources.log("other").streams.idle


async def test_the_idle_clock_stops_while_the_source_has_no_credit(serve: Serve, connect: Connect) -> None:
    settings = replace(SETTINGS, segments=1, quota_bytes=500)
    scene = await idle_scene(serve, settings, window_bytes=4096 * 4)
    peer = await opened(scene, connect, 1, 2)
    (session,) = scene.running.sessions
    message_id = 0
    while session._credits.available > 0:
        message_id += 1
        peer.send(*messages([1], message_id))
        await until_stored(scene.running, message_id)
        await asyncio.sleep(0.01)
        session.flush()
        assert message_id < 100
    scene.pass_time(5 * TIMEOUT)
    assert await scene.idle() == [], "it cannot send"
    segment = scene.running.sources.log("source").segments[0]
    scene.running.store.truncate(segment, scene.running.store.length(segment))
    session.flush()
    assert session.credits
    scene.pass_time(TIMEOUT - 1)
    assert await scene.idle() == []
    scene.pass_time(2)
    assert await scene.idle() == [1, 2]


async def test_the_idle_clock_runs_while_the_program_is_away_but_not_while_there_is_no_room(
    serve: Serve, connect: Connect
) -> None:
    scene = await idle_scene(serve, replace(SETTINGS, segments=1, quota_bytes=1000))
    peer = await opened(scene, connect, 1, 2)
    peer.send(EndOfStream(2))
    await eventually(lambda: scene.running.sources.log("source").streams[2].standing is Standing.ENDED)
    peer.send(*messages([1] * 2, 1))
    await until_stored(scene.running, 1)
    await peer.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 1)
    log = scene.running.sources.log("source")
    log.settings = replace(log.settings, quota_bytes=1)
    scene.pass_time(5 * TIMEOUT)
    assert await scene.idle() == [], "it would get no credit if it came"
    log.settings = replace(log.settings, quota_bytes=None)
    scene.pass_time(TIMEOUT - 1)
    assert await scene.idle() == []
    scene.pass_time(1)
    assert await scene.idle() == [1], "stream 2 has ended: nobody waits for it"


async def test_a_program_that_reconnects_reactivates_its_stream(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1)
    await sent(scene, peer, 1, 1)
    await peer.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 1)
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1]
    peer = await opened(scene, connect, 1)
    assert not scene.running.sources.log("source").streams.idle
    await sent(scene, peer, 2, 1)
    assert await scene.marked(AGAIN) == [], "its start has said so"
    assert await scene.marked(MarkKind.STARTED) == [1, 1]


async def test_a_stream_reopened_after_its_end_counts_for_idleness_again(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1)
    peer.send(EndOfStream(1))
    await eventually(lambda: scene.running.sources.log("source").streams[1].standing is Standing.ENDED)
    scene.pass_time(2 * TIMEOUT)
    assert await scene.idle() == []
    await opened(scene, connect, 1)
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1]


async def test_a_duplicate_message_reactivates_its_stream(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1)
    await sent(scene, peer, 5, 1)
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1]
    peer.send(*messages([1], 5))
    await eventually(lambda: not scene.running.sources.log("source").streams.idle)
    assert await scene.marked(AGAIN) == [1]
    assert len(scene.running.events()) == 1


async def test_time_during_which_the_worker_was_busy_makes_no_stream_idle(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    await opened(scene, connect, 1)
    scene.pass_time(1)
    scene.pass_time(100 * TIMEOUT, 100 * TIMEOUT)
    assert await scene.idle() == []


async def test_a_busy_worker_makes_no_stream_idle_even_with_a_short_timeout(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve, replace(SETTINGS, idle_timeout_seconds=0.5))
    peer = await opened(scene, connect, 1, 2)
    await peer.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 2)
    await opened(scene, connect, 2)
    scene.pass_time(0.2, 0.1)
    scene.pass_time(3, 3)
    assert await scene.idle() == []
    scene.pass_time(0.5, 0.1)
    assert await scene.idle() == [1, 2]


async def test_marks_that_a_full_disk_refuses_are_stored_later(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1)
    away = await opened(scene, connect, 2)
    await away.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 1)
    mend = fail_appends(scene.running, *scene.running.sources.log("source").segments)
    scene.pass_time(TIMEOUT + 1)
    assert not scene.running.sources.log("source").streams.idle
    mend()
    scene.pass_time(1)
    assert await scene.idle() == [1, 2]
    await sent(scene, peer, 1, 1)
    assert await scene.marked(AGAIN) == [1]


async def test_an_active_again_mark_that_cannot_be_stored_is_stored_with_the_next_message(
    serve: Serve, connect: Connect
) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1)
    scene.pass_time(TIMEOUT + 1)
    mend = fail_appends(scene.running, *scene.running.sources.log("source").segments)
    peer.send(*messages([1], 1))
    await peer.frames_until_closed()
    mend()
    assert scene.running.sources.log("source").streams.idle == {1}
    peer = await opened(scene, connect, 1)
    await sent(scene, peer, 1, 1)
    assert not scene.running.sources.log("source").streams.idle
    assert await scene.idle() == [1]


@pytest.mark.parametrize("how", ["snapshot", "crash"])
async def test_after_a_restart_idle_clocks_start_from_zero_and_idle_streams_are_known(
    serve: Serve, connect: Connect, how: str
) -> None:
    scene = await idle_scene(serve)
    peer = await opened(scene, connect, 1, 2, 3, 4)
    await sent(scene, peer, 1, 1, 2)
    peer.send(EndOfStream(3))
    await eventually(lambda: scene.running.sources.log("source").streams[3].standing is Standing.ENDED)
    scene.pass_time(TIMEOUT / 2)
    await sent(scene, peer, 2, 1)
    scene.pass_time(TIMEOUT / 2 + 1)
    assert await scene.idle() == [2, 4]
    if how == "crash":
        await scene.running.crash()
    scene = await idle_scene(serve)
    log = scene.running.sources.log("source")
    assert {i: s.standing for i, s in log.streams.items()} == {
        1: Standing.ACTIVE,
        2: Standing.IDLE,
        3: Standing.ENDED,
        4: Standing.IDLE,
    }
    assert log.streams.idle == {2, 4}
    scene.pass_time(TIMEOUT - 1)
    assert await scene.idle() == [2, 4], "the time before the restart does not count"
    scene.pass_time(2)
    assert await scene.idle() == [1, 2, 4]
    peer = await opened(scene, connect, 2)
    await sent(scene, peer, 7, 2)
    assert log.streams.idle == {1, 4}


async def test_the_program_server_marks_idle_streams_on_its_own_ticks(serve: Serve, connect: Connect) -> None:
    """With the real clock."""
    running = await serve(source=SourceSettings(segments=1, idle_timeout_seconds=0.5))
    peer = await connect(running)
    await peer.open(1)
    await peer.open(2)
    for message_id in range(8):
        peer.send(*messages([1], message_id))
        await asyncio.sleep(0.15)
    log = running.sources.log("source")
    assert log.streams.idle == {2}
    assert isinstance(await peer.frame(), Ack)
    await eventually(lambda: log.streams.idle == {1, 2})
