"""Reads over a real socket, in both dialects; those at the tail wait."""

import asyncio
from pathlib import Path

import pytest

from penstock.core.types import Position
from penstock.protocol.segment import (
    DOCUMENT,
    VERSIONED,
    CreateSegment,
    DeleteSegment,
    ErrorMessage,
    GetSegmentInfo,
    Hello,
    KeepAlive,
    MergeSegments,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentIsTruncated,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
)
from penstock.store.chapters import chapter_name
from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.store import SegmentStore
from tests.segment_server.conftest import SMALL, Connect, Peer, Running, Serve, hang_up
from tests.store.small import journal_of, next_chapter
from tests.support.gated_files import GatedFile, GatedFiles


async def filled(running: Running, data: bytes, name: str = "s") -> None:
    if not running.store.exists(name):
        running.store.create(name)
    position = running.store.append(name, [data]).position
    await asyncio.to_thread(running.store.journal.wait, position)


async def test_a_read_returns_the_bytes_at_the_offset(versioned: Peer, running: Running) -> None:
    await filled(running, b"0123456789")
    versioned.send(ReadSegment("s", 3, 4, request_id=9))
    assert await versioned.reply() == SegmentRead("s", 3, False, False, b"3456", 9)


async def test_while_others_wait_for_the_disk_a_new_reader_gets_what_is_durable(serve: Serve) -> None:
    GatedFile.gate.set()
    running = await serve(files=GatedFiles)
    await filled(running, b"0123456789")
    GatedFile.gate.clear()
    running.store.create("another")
    running.server._state.durability.after(running.store.journal.end, lambda: None)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    peer = Peer(reader, writer, VERSIONED)
    peer.send(Hello(17, 5), ReadSegment("s", 3, 4, request_id=9))
    assert isinstance(await peer.reply(), Hello)
    assert await peer.reply() == SegmentRead("s", 3, False, False, b"3456", 9)
    assert running.store.journal.durable < running.store.journal.end
    GatedFile.gate.set()
    await hang_up(writer)


async def test_the_last_bytes_are_at_the_tail(versioned: Peer, document: Peer, running: Running) -> None:
    await filled(running, b"0123456789")
    for peer, request in ((versioned, 1), (document, -1)):
        peer.send(ReadSegment("s", 5, 100, request_id=request))
        assert await peer.reply() == SegmentRead("s", 5, True, False, b"56789", request)


async def test_a_read_at_the_tail_answers_as_soon_as_there_is_data(versioned: Peer, running: Running) -> None:
    await filled(running, b"old")
    versioned.send(ReadSegment("s", 3, 100, request_id=1), KeepAlive())
    assert isinstance(await versioned.reply(), KeepAlive), "later requests pass a read that waits"
    await filled(running, b"new")
    assert await versioned.reply() == SegmentRead("s", 3, True, False, b"new", 1)


async def test_a_merge_wakes_the_readers_of_its_target(versioned: Peer, connect: Connect, running: Running) -> None:
    await filled(running, b"target")
    await filled(running, b"source", "t")
    versioned.send(ReadSegment("s", 6, 100, request_id=1))
    other = await connect()
    other.send(MergeSegments("s", "t", request_id=2))
    assert await other.reply() == SegmentsMerged("s", "t", 12, 2)
    assert await versioned.reply() == SegmentRead("s", 6, True, False, b"source", 1)


async def test_a_read_at_the_tail_answers_with_nothing_when_its_time_is_up(serve: Serve) -> None:
    running = await serve(tail_wait_seconds=0.05)
    await filled(running, b"old")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    peer = Peer(reader, writer, DOCUMENT)
    peer.send(ReadSegment("s", 3, 100))
    assert await peer.reply() == SegmentRead("s", 3, True, False, b"")
    await hang_up(writer)


async def test_the_end_of_a_sealed_segment_is_reported_and_wakes_waiting_reads(
    versioned: Peer, connect: Connect, running: Running
) -> None:
    await filled(running, b"all")
    versioned.send(ReadSegment("s", 3, 100, request_id=1))
    other = await connect()
    other.send(SealSegment("s", request_id=2))
    assert isinstance(await other.reply(), SegmentSealed)
    assert await versioned.reply() == SegmentRead("s", 3, True, True, b"", 1)
    versioned.send(ReadSegment("s", 0, 100, request_id=2), ReadSegment("s", 3, 100, request_id=3))
    assert await versioned.reply() == SegmentRead("s", 0, True, True, b"all", 2)
    assert await versioned.reply() == SegmentRead("s", 3, True, True, b"", 3)


async def test_a_deleted_segment_ends_waiting_reads_with_an_error(
    versioned: Peer, connect: Connect, running: Running
) -> None:
    await filled(running, b"all")
    versioned.send(ReadSegment("s", 3, 100, request_id=1))
    other = await connect()
    other.send(DeleteSegment("s", request_id=2))
    assert isinstance(await other.reply(), SegmentDeleted)
    assert isinstance(await versioned.reply(), NoSuchSegment)


async def test_reading_below_the_start_reports_where_the_segment_begins(versioned: Peer, running: Running) -> None:
    await filled(running, b"0123456789")
    running.store.truncate("s", 4)
    versioned.send(ReadSegment("s", 2, 100, request_id=1))
    reply = await versioned.reply()
    assert isinstance(reply, SegmentIsTruncated)
    assert (reply.start_offset, reply.offset, reply.request_id) == (4, 2, 1)


async def test_reading_beyond_the_end_or_nowhere_is_an_error(versioned: Peer, running: Running) -> None:
    await filled(running, b"0123456789")
    versioned.send(ReadSegment("s", 11, 1), ReadSegment("missing", 0, 1))
    assert isinstance(await versioned.reply(), ErrorMessage)
    assert isinstance(await versioned.reply(), NoSuchSegment)


async def test_replies_to_reads_come_in_order_with_other_replies(versioned: Peer, running: Running) -> None:
    await filled(running, b"0123456789" * 100_000)
    versioned.send(ReadSegment("s", 0, 900_000, request_id=1), CreateSegment("t", request_id=2))
    versioned.send(ReadSegment("s", 5, 5, request_id=3))
    kinds = [type(await versioned.reply()) for _ in range(3)]
    assert kinds == [SegmentRead, SegmentCreated, SegmentRead]


async def test_a_read_gives_no_more_than_its_limit(serve: Serve) -> None:
    running = await serve(SMALL, read_bytes_max=1000)
    await filled(running, bytes(5000))
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    peer = Peer(reader, writer, DOCUMENT)
    peer.send(ReadSegment("s", 0, 2**31 - 1), ReadSegment("s", 0, -5))
    reply, odd = await peer.reply(), await peer.reply()
    assert isinstance(reply, SegmentRead)
    assert len(reply.data) == 1000
    assert isinstance(odd, SegmentRead)
    assert len(odd.data) == 1
    await hang_up(writer)


async def test_a_look_at_the_segment_does_not_wake_a_waiting_read(
    versioned: Peer, connect: Connect, running: Running
) -> None:
    await filled(running, b"old")
    versioned.send(ReadSegment("s", 3, 100, request_id=1))
    other = await connect()
    other.send(GetSegmentInfo("s", request_id=2))
    assert isinstance(await other.reply(), SegmentInfo)
    await filled(running, b"new")
    assert await versioned.reply() == SegmentRead("s", 3, True, False, b"new", 1)


@pytest.mark.parametrize("is_index_loaded", [False, True])
async def test_a_read_of_a_chapter_that_was_deleted_is_refused_as_damaged(
    running: Running, versioned: Peer, tmp_path: Path, *, is_index_loaded: bool
) -> None:
    await filled(running, b"0123456789")
    store, chapter = running.store, running.store.journal.chapter
    store._turn(0, draining=True)
    await asyncio.to_thread(store.journal.wait, store.journal.end)
    if not is_index_loaded:
        store.indexes.forget(chapter)
    (tmp_path / "journal" / chapter_name(chapter)).unlink()
    journal_of(store)._open.clear()
    await assert_missing(versioned, running, chapter)


async def test_a_read_of_a_chapter_that_was_deleted_before_the_start_is_refused_as_damaged(
    serve: Serve, tmp_path: Path
) -> None:
    store = SegmentStore(FileJournal(RealFiles(tmp_path / "journal"), SMALL), SMALL)
    store.create("s")
    store.append("s", [b"0123456789"])
    chapter = next_chapter(store)
    store.journal.close()
    (tmp_path / "journal" / chapter_name(chapter)).unlink()
    running = await serve()
    peer = Peer(*await asyncio.open_connection("127.0.0.1", running.port), VERSIONED)
    peer.send(Hello(17, 5))
    assert isinstance(await peer.reply(), Hello)
    await assert_missing(peer, running, chapter)
    await peer.close()


async def assert_missing(peer: Peer, running: Running, chapter: Position) -> None:
    peer.send(ReadSegment("s", 0, 4, request_id=9))
    refusal = await peer.reply()
    assert isinstance(refusal, ErrorMessage)
    assert chapter_name(chapter) in refusal.message
    assert "is missing" in refusal.message
    assert running.store.is_damaged("s")
