"""Declarations about a source, which are marks in the journal: its watermark, and its end."""

import asyncio

import msgpack
import pytest

from penstock.core.errors import RequestError, Unavailable
from penstock.ingest import declarations
from penstock.ingest.declarations import Declarations
from penstock.ingest.known_streams import Standing
from penstock.ingest.settings import SourceSettings
from penstock.ingest.source_log import streams_segment
from penstock.protocol.connector import EndOfStream, stream_id_of
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME
from penstock.protocol.stored.head import Mark, MarkKind
from tests.ingest.completion_scene import until_stored
from tests.ingest.conftest import Connect, Serve
from tests.ingest.idle_scene import TIMEOUT, idle_scene, messages
from tests.support.waiting import eventually

WATERMARK, FINISHED = MarkKind.WATERMARK, MarkKind.FINISHED


async def test_a_watermark_can_be_declared_for_one_stream_by_id_or_name_or_for_all(
    serve: Serve, connect: Connect
) -> None:
    scene = await idle_scene(serve)
    peer = await connect(scene.running)
    usual = stream_id_of("north")
    for stream_id, name in ((usual, "north"), (7, "south"), (8, "gone"), (9, "7")):
        await peer.open(stream_id, name)
    peer.send(EndOfStream(8))
    await eventually(lambda: scene.running.sources.log("source").streams[8].standing is Standing.ENDED)
    declaring = Declarations(scene.running.sources)
    assert await declaring.watermark("source", -5, 7) == 1
    assert await declaring.watermark("source", 10, "north") == 1
    assert await declaring.watermark("source", 20, "south") == 1
    assert await declaring.watermark("source", 30, "9") == 1
    assert await declaring.watermark("source", 40, "7") == 1, "a stream of that name comes before one of that id"
    assert await declaring.watermark("source", END_OF_TIME) == 3
    marks = [mark for marks, _ in await scene.records() for mark in marks if mark.kind is WATERMARK]
    expected = [(usual, 10), (usual, END_OF_TIME), (7, -5), (7, 20), (7, END_OF_TIME)]
    expected += [(9, 30), (9, 40), (9, END_OF_TIME)]
    assert sorted((mark.stream_id, mark.value) for mark in marks) == sorted(expected)
    assert not scene.running.events(), "readers of events see nothing of it"


async def test_an_invalid_declaration_is_refused(serve: Serve, connect: Connect) -> None:
    scene = await idle_scene(serve)
    declaring = Declarations(scene.running.sources)
    with pytest.raises(RequestError, match="source 'source' not found"):
        await declaring.watermark("source", 10)
    with pytest.raises(RequestError, match="source 'source' not found"):
        await declaring.end("source")
    with pytest.raises(RequestError, match="source 'source#1' not found"):
        await declaring.end("source#1")
    peer = await connect(scene.running)
    with pytest.raises(RequestError, match="no stream of source 'source' is open"):
        await declaring.watermark("source", 10)
    await peer.open(7)
    peer.send(EndOfStream(7))
    await eventually(lambda: scene.running.sources.log("source").streams[7].standing is Standing.ENDED)
    for stream, why in (
        (7, "has ended"),
        (8, "stream 8 of source 'source' not found"),
        ("north", "stream 'north' of source 'source' not found"),
    ):
        with pytest.raises(RequestError, match=why):
            await declaring.watermark("source", 10, stream)
    for time_us in (NO_TIME, END_OF_TIME + 1):
        with pytest.raises(RequestError, match="not a valid event time"):
            await declaring.watermark("source", time_us)
    assert await scene.marked(WATERMARK) == []


async def test_a_declaration_keeps_streams_from_becoming_idle_and_reactivates_them(
    serve: Serve, connect: Connect
) -> None:
    scene = await idle_scene(serve)
    declaring = Declarations(scene.running.sources)
    peer, away = await connect(scene.running), await connect(scene.running)
    await peer.open(1)
    await away.open(2)
    await away.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 1)
    for _ in range(3):
        scene.pass_time(TIMEOUT - 1)
        await declaring.watermark("source", 10)
    assert await scene.idle() == []
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1, 2]
    await declaring.watermark("source", 20)
    log = scene.running.sources.log("source")
    assert not log.streams.idle
    scene.pass_time(TIMEOUT + 1)
    assert await scene.idle() == [1, 1, 2, 2]


async def test_a_declaration_waits_for_the_message_it_refers_to(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await idle_scene(serve)
    declaring = Declarations(scene.running.sources)
    peer = await connect(scene.running)
    await peer.open(1)
    waiting = asyncio.create_task(declaring.watermark("source", 10, 1, after=5))
    peer.send(*messages([1], 4))
    await until_stored(scene.running, 1)
    await asyncio.sleep(0.05)
    assert await scene.marked(WATERMARK) == []
    peer.send(*messages([1], 5))
    assert await waiting == 1
    records = await scene.records()
    last = [index for index, (_, last) in enumerate(records) if last.get(1) == 5]
    marked = [index for index, (marks, _) in enumerate(records) if any(mark.kind is WATERMARK for mark in marks)]
    assert last[0] < marked[0]
    await peer.close()
    await eventually(lambda: len(scene.running.sources.log("source").streams.away) == 1)
    assert await declaring.watermark("source", 10, 1, after=5) == 1
    monkeypatch.setattr(declarations, "AFTER_SECONDS_MAX", 0.05)
    with pytest.raises(Unavailable, match="message 6 did not arrive"):
        await declaring.watermark("source", 10, 1, after=6)


async def test_the_end_of_a_source_is_marked_in_every_segment_in_one_record(serve: Serve, connect: Connect) -> None:
    running = await serve(source=SourceSettings(segments=3))
    peer = await connect(running)
    await peer.open(1)
    before = running.journal._records
    await Declarations(running.sources).end("source")
    assert running.journal._records == before + 1
    assert running.sources.log("source").has_finished
    scene = await idle_scene(serve, SourceSettings(segments=4))
    marks = [mark for marks, _ in await scene.records() for mark in marks if mark.kind is FINISHED]
    assert marks == [Mark(number, FINISHED, "", 3) for number in range(3)]
    assert scene.running.sources.log("source").has_finished, "from its snapshot"
    await scene.running.crash()
    again = await serve()
    assert again.sources.log("source").has_finished, "from its heads"
    peer = await connect(again)
    await peer.open(1)
    peer.send(*messages([1], 1))
    await until_stored(again, 1)
    assert again.sources.log("source").has_finished, "what comes later changes nothing of it"


async def test_a_stream_table_written_by_a_version_without_standings_is_read(serve: Serve, connect: Connect) -> None:
    running = await serve()
    peer = await connect(running)
    await peer.open(1)
    await peer.close()
    log = running.sources.log("source")
    offsets = {name: (running.store.info(name).number, running.store.length(name)) for name in log.segments}
    packed = msgpack.packb([offsets, 0, True, [(1, "one", 0, 5), (2, "two", 1, 6)]])
    running.store.append(streams_segment("source"), [len(packed).to_bytes(4, "big"), packed])
    await running.sources.durability.caught_up()
    await running.crash()
    found = (await serve()).sources.log("source")
    assert {i: (s.name, s.last_id, s.standing) for i, s in found.streams.items()} == {
        1: ("one", 5, Standing.ACTIVE),
        2: ("two", 6, Standing.ACTIVE),
    }
    assert not found.has_finished
