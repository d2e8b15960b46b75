"""Tables and transient segments over a real socket."""

import asyncio
import uuid

import pytest

from penstock.protocol.segment import (
    ANY_VERSION,
    NO_VERSION,
    VERSIONED,
    AppendSetup,
    ConditionalBlockEnd,
    CreateSegment,
    CreateTable,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    DeleteTable,
    ErrorMessage,
    Hello,
    MergeSegments,
    Message,
    NoSuchSegment,
    OperationUnsupported,
    ReadTable,
    ReadTableDelta,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    SegmentsMerged,
    SetupAppend,
    TableDeltaRead,
    TableEntriesRead,
    TableEntry,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableNotEmpty,
    TableRead,
    TableUpdated,
    TruncateSegment,
    UpdateTable,
)
from penstock.segment_server import table, tables
from tests.segment_server.conftest import Connect, Peer, Running, Serve

WRITER = uuid.UUID(int=5).bytes


async def ask(peer: Peer, request: Message) -> Message:
    peer.send(request)
    reply = await peer.reply()
    assert isinstance(reply, Message)
    return reply


async def put(peer: Peer, *entries: tuple[bytes, bytes], version: int = ANY_VERSION) -> tuple[int, ...]:
    reply = await ask(peer, UpdateTable("t", tuple(TableEntry(key, version, value) for key, value in entries)))
    assert isinstance(reply, TableUpdated)
    return reply.versions


async def test_a_table_is_created_read_and_deleted(versioned: Peer) -> None:
    assert await ask(versioned, CreateTable("t", request_id=1)) == SegmentCreated("t", 1)
    assert isinstance(await ask(versioned, CreateTable("t")), SegmentAlreadyExists)
    (version,) = await put(versioned, (b"k", b"v"))
    reply = await ask(versioned, ReadTable("t", (TableKey(b"k"), TableKey(b"none"))))
    assert reply == TableRead("t", (TableEntry(b"k", version, b"v"), TableEntry(b"none", NO_VERSION, b"")))
    assert isinstance(await ask(versioned, DeleteTable("t", must_be_empty=True)), TableNotEmpty)
    assert await ask(versioned, DeleteTable("t", request_id=2)) == SegmentDeleted("t", 2)
    assert isinstance(await ask(versioned, ReadTable("t", (TableKey(b"k"),))), NoSuchSegment)


async def test_failed_conditions_are_replies_and_change_nothing(versioned: Peer) -> None:
    await ask(versioned, CreateTable("t"))
    (version,) = await put(versioned, (b"k", b"v"), version=NO_VERSION)
    both = (TableEntry(b"new", NO_VERSION, b"x"), TableEntry(b"k", version + 1, b"x"))
    assert isinstance(await ask(versioned, UpdateTable("t", both, request_id=3)), TableKeyBadVersion)
    missing = (TableEntry(b"new", version, b"x"),)
    assert isinstance(await ask(versioned, UpdateTable("t", missing)), TableKeyDoesNotExist)
    assert isinstance(await ask(versioned, UpdateTable("t", both, offset=1)), SegmentIsTruncated)
    assert isinstance(await ask(versioned, RemoveTableKeys("t", (TableKey(b"k", 77),))), TableKeyBadVersion)
    assert isinstance(await ask(versioned, RemoveTableKeys("t", (TableKey(b"x", 77),))), TableKeyDoesNotExist)
    reply = await ask(versioned, ReadTableKeys("t", 10))
    assert isinstance(reply, TableKeysRead)
    assert reply.keys == (TableKey(b"k", version),)


async def test_keys_and_entries_are_read_in_pages_until_one_is_empty(versioned: Peer) -> None:
    await ask(versioned, CreateTable("t"))
    await put(versioned, *((b"%d" % number, b"v") for number in range(5)))
    seen, continuation = list[bytes](), b""
    while True:
        reply = await ask(versioned, ReadTableEntries("t", 2, continuation))
        assert isinstance(reply, TableEntriesRead)
        if not reply.entries:
            break
        seen += [bytes(entry.key) for entry in reply.entries]
        continuation = bytes(reply.continuation)
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    assert isinstance(await ask(versioned, ReadTableKeys("t", 2, b"odd")), ErrorMessage)


async def test_a_delta_continues_where_the_one_before_ended(versioned: Peer) -> None:
    await ask(versioned, CreateTable("t"))
    await put(versioned, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    first = await ask(versioned, ReadTableDelta("t", 0, 2))
    assert isinstance(first, TableDeltaRead)
    assert not first.reached_end
    second = await ask(versioned, ReadTableDelta("t", first.position, 2))
    assert isinstance(second, TableDeltaRead)
    assert [bytes(entry.key) for entry in (*first.entries, *second.entries)] == [b"a", b"b", b"c"]
    assert second.reached_end
    assert await ask(versioned, RemoveTableKeys("t", (TableKey(b"a"),))) == TableKeysRemoved("t")
    third = await ask(versioned, ReadTableDelta("t", second.position, 2))
    assert isinstance(third, TableDeltaRead)
    assert third.entries == (TableEntry(b"a", NO_VERSION, b"1"),)
    last = await ask(versioned, ReadTableDelta("t", third.position, 2))
    assert last == TableDeltaRead("t", (), should_clear=False, reached_end=True, position=third.position)


async def test_a_delta_with_as_many_entries_as_a_reply_may_have_is_not_the_end(
    versioned: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_READ_ENTRIES_MAX", 2)
    await ask(versioned, CreateTable("t"))
    await put(versioned, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    first = await ask(versioned, ReadTableDelta("t", 0, 100))
    assert isinstance(first, TableDeltaRead)
    assert (len(first.entries), first.reached_end) == (2, False)
    second = await ask(versioned, ReadTableDelta("t", first.position, 100))
    assert isinstance(second, TableDeltaRead)
    assert (len(second.entries), second.reached_end) == (1, True)


async def test_a_table_is_compacted_and_read_again_from_its_segment(
    versioned: Peer, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "COMPACT_BYTES", 1000)
    await ask(versioned, CreateTable("t"))
    await put(versioned, (b"stays", b"v"))
    for number in range(100):
        (version,) = await put(versioned, (b"k", b"%d" % number))
    info = running.store.info("t")
    assert info.length - info.start < 2000 < info.length
    opened = tables.Tables(running.store).open("t")
    assert {one.key: (one.value, one.version) for one in opened.after(-1)} == {
        b"stays": (b"v", 0),
        b"k": (b"99", version),
    }


async def test_only_requests_about_tables_change_a_table(versioned: Peer) -> None:
    await ask(versioned, CreateTable("t"))
    await ask(versioned, CreateSegment("s"))
    for request in (SetupAppend(WRITER, "t"), SealSegment("t"), TruncateSegment("t", 0), MergeSegments("s", "t")):
        assert isinstance(await ask(versioned, request), ErrorMessage)
    reply = await ask(versioned, UpdateTable("s", (TableEntry(b"k", ANY_VERSION, b"v"),)))
    assert isinstance(reply, ErrorMessage)
    assert "not a table" in reply.message


async def test_tables_that_were_not_used_for_longest_are_closed_and_opened_again(
    versioned: Peer, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TABLES_BYTES_MAX", 100)
    monkeypatch.setattr(tables, "TABLE_BYTES_MAX", 700)
    for name in ("t", "u"):
        await ask(versioned, CreateTable(name))
        reply = await ask(versioned, UpdateTable(name, (TableEntry(b"k", ANY_VERSION, b"x" * 80),)))
        assert isinstance(reply, TableUpdated)
    reply = await ask(versioned, ReadTable("t", (TableKey(b"k"),)))
    assert isinstance(reply, TableRead)
    assert bytes(reply.entries[0].value) == b"x" * 80
    reply = await ask(versioned, UpdateTable("t", (TableEntry(b"l", ANY_VERSION, b"x" * 300),)))
    assert isinstance(reply, ErrorMessage)


async def test_removed_keys_take_up_memory_until_others_need_it(
    versioned: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is too short to be compacted for its own sake."""
    monkeypatch.setattr(tables, "TABLE_BYTES_MAX", 20_000)
    monkeypatch.setattr(table, "_REMOVED_MAX", 1)
    await ask(versioned, CreateTable("t"))
    for number in range(200):
        key = b"%d" % number
        assert isinstance(await ask(versioned, UpdateTable("t", (TableEntry(key, ANY_VERSION, b""),))), TableUpdated)
        assert isinstance(await ask(versioned, RemoveTableKeys("t", (TableKey(key),))), TableKeysRemoved)
    many = tuple(TableEntry(b"%d" % number, ANY_VERSION, b"") for number in range(100))
    assert isinstance(await ask(versioned, UpdateTable("t", many)), ErrorMessage)


async def test_a_large_event_is_written_beside_its_segment_and_merged(versioned: Peer, running: Running) -> None:
    await ask(versioned, CreateSegment("s"))
    created = await ask(versioned, CreateTransientSegment(WRITER, "s", request_id=4))
    assert isinstance(created, SegmentCreated)
    assert created.segment.startswith("s#transient.")
    setup = await ask(versioned, SetupAppend(WRITER, created.segment))
    assert isinstance(setup, AppendSetup)
    for number, part in enumerate((b"abc", b"def")):
        reply = await ask(versioned, ConditionalBlockEnd(WRITER, number, 3 * number, part))
        assert isinstance(reply, DataAppended)
    assert isinstance(await ask(versioned, MergeSegments("s", created.segment)), SegmentsMerged)
    assert running.store.read("s", 0, 100) == b"abcdef"


async def test_a_transient_segment_is_gone_with_its_connection(connect: Connect, running: Running) -> None:
    peer, other = await connect(), await connect()
    await ask(peer, CreateSegment("s"))
    assert isinstance(await ask(peer, CreateTransientSegment(WRITER, "none")), NoSuchSegment)
    created = await ask(peer, CreateTransientSegment(WRITER, "s"))
    assert isinstance(created, SegmentCreated)
    await peer.close()
    while running.store.exists(created.segment):
        await ask(other, ReadTable("none", ()))


async def test_a_deleted_transient_segment_does_not_count(serve: Serve) -> None:
    running = await serve(appenders_max=1)
    peer = Peer(*await asyncio.open_connection("127.0.0.1", running.port), VERSIONED)
    await ask(peer, Hello(17, 5))
    await ask(peer, CreateSegment("s"))
    for _ in range(2):
        created = await ask(peer, CreateTransientSegment(WRITER, "s"))
        assert isinstance(created, SegmentCreated)
        assert isinstance(await ask(peer, DeleteSegment(created.segment)), SegmentDeleted)
    await peer.close()


async def test_a_request_of_a_later_version_is_unsupported_and_the_connection_continues(versioned: Peer) -> None:
    versioned.send(bytes.fromhex("00000079 0000000c 0000000000000007 61626364"))
    assert await versioned.reply() == OperationUnsupported("type 121", "", 7)
    versioned.send(bytes.fromhex("00000079 00000002 6162"))
    assert await versioned.reply() == OperationUnsupported("type 121", "", -1)
    assert await ask(versioned, CreateSegment("s", request_id=1)) == SegmentCreated("s", 1)
