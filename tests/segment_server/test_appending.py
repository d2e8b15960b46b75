"""Appends over a real socket, in both dialects."""

import uuid

import pytest

from penstock.core.types import QUOTA, Buffer
from penstock.protocol.segment import (
    DOCUMENT,
    NO_EVENT_NUMBER,
    AppendSetup,
    BeginAppendBlock,
    ConditionalCheckFailed,
    CreateSegment,
    DataAppended,
    EndAppendBlock,
    ErrorMessage,
    InvalidEventNumber,
    NoSuchSegment,
    SealSegment,
    SegmentCreated,
    SegmentIsSealed,
    SegmentSealed,
    SetupAppend,
    TruncateSegment,
    encode_append,
    frame_events,
)
from penstock.protocol.segment.messages import ErrorCode
from penstock.store.plan import AttributeUpdate
from tests.segment_server.conftest import Connect, Peer, Running
from tests.support.segment_bytes import encode_append_at

WRITER = uuid.UUID(int=1).bytes
OTHER = uuid.UUID(int=2).bytes
EVENT = frame_events([b"event"])


def block(number: int, data: Buffer = EVENT, writer: bytes = WRITER, request: int = 0, **more: int) -> bytes:
    return b"".join(encode_append(writer, data, event_count=1, event_number=number, request_id=request, **more))


def block_at(offset: int, data: Buffer, writer: bytes = WRITER) -> bytes:
    return b"".join(encode_append_at(writer, data, offset=offset))


async def set_up(peer: Peer, segment: str = "s", writer: bytes = WRITER) -> AppendSetup:
    if peer.dialect is not DOCUMENT:
        peer.send(CreateSegment(segment))
        await peer.reply()
    peer.send(SetupAppend(writer, segment))
    reply = await peer.reply()
    assert isinstance(reply, AppendSetup)
    return reply


class TestVersioned:
    async def test_a_new_writer_learns_that_nothing_is_stored(self, versioned: Peer) -> None:
        assert (await set_up(versioned)).acknowledged == NO_EVENT_NUMBER

    async def test_an_append_is_acknowledged_with_its_number_and_the_segment_s_new_end(self, versioned: Peer) -> None:
        await set_up(versioned)
        versioned.send(block(7, request=3))
        assert await versioned.reply() == DataAppended(WRITER, 7, NO_EVENT_NUMBER, len(EVENT), 3)
        versioned.send(block(9, request=4))
        assert await versioned.reply() == DataAppended(WRITER, 9, 7, 2 * len(EVENT), 4)

    async def test_a_repeated_number_is_acknowledged_again_and_not_stored(
        self, versioned: Peer, running: Running
    ) -> None:
        await set_up(versioned)
        versioned.send(block(7), block(7), block(3))
        replies = [await versioned.reply() for _ in range(3)]
        assert [r.acknowledged for r in replies if isinstance(r, DataAppended)] == [7, 7, 3]
        assert running.store.read("s", 0, 100) == EVENT
        assert running.server.counters.duplicates == 2

    async def test_a_writer_that_reconnects_learns_where_to_continue(self, connect: Connect) -> None:
        first = await connect()
        await set_up(first)
        first.send(block(41))
        await first.reply()
        await first.close()
        assert (await set_up(await connect())).acknowledged == 41

    async def test_an_append_before_its_setup_ends_the_connection(self, versioned: Peer) -> None:
        versioned.send(block(1))
        reply = await versioned.reply()
        assert isinstance(reply, ErrorMessage)
        assert "SetupAppend" in reply.message
        assert await versioned.is_closed()

    async def test_setup_for_a_segment_that_does_not_exist_is_refused(self, versioned: Peer) -> None:
        versioned.send(SetupAppend(WRITER, "missing", request_id=5))
        reply = await versioned.reply()
        assert isinstance(reply, NoSuchSegment)
        assert reply.request_id == 5

    async def test_an_append_at_another_offset_than_expected_changes_nothing(
        self, versioned: Peer, running: Running
    ) -> None:
        await set_up(versioned)
        versioned.send(block(1, request=1, expected_offset=99), block(2, request=2, expected_offset=0))
        assert await versioned.reply() == ConditionalCheckFailed(WRITER, 1, 1)
        assert isinstance(await versioned.reply(), DataAppended)
        assert running.store.read("s", 0, 100) == EVENT

    async def test_errors_are_replies_in_the_order_of_the_requests(self, versioned: Peer) -> None:
        await set_up(versioned)
        versioned.send(block(1), SealSegment("s"), block(2), CreateSegment("t"), block(3))
        kinds = [type(await versioned.reply()) for _ in range(5)]
        assert kinds == [DataAppended, SegmentSealed, SegmentIsSealed, SegmentCreated, SegmentIsSealed]

    async def test_after_a_refused_append_nothing_is_stored_until_the_next_setup(
        self, versioned: Peer, running: Running
    ) -> None:
        """Or the refused one, sent again, would pass for a duplicate, and be lost."""
        await set_up(versioned)
        running.store.update_attributes([AttributeUpdate("s", QUOTA, 20)])
        versioned.send(block(1), block(2), TruncateSegment("s", len(EVENT)), block(3))
        replies = [await versioned.reply() for _ in range(4)]
        assert isinstance(replies[1], ErrorMessage)
        assert replies[1].error_code == ErrorCode.QUOTA_REACHED
        assert isinstance(replies[3], ErrorMessage)
        versioned.send(SetupAppend(WRITER, "s"))
        assert await versioned.reply() == AppendSetup("s", WRITER, 1)
        versioned.send(block(2))
        assert isinstance(await versioned.reply(), DataAppended)

    async def test_many_appenders_share_a_connection(self, versioned: Peer, running: Running) -> None:
        await set_up(versioned, "a", WRITER)
        await set_up(versioned, "b", OTHER)
        versioned.send(block(1, b"A" * 10), block(1, b"B" * 10, writer=OTHER), block(2, b"a" * 10))
        for _ in range(3):
            assert isinstance(await versioned.reply(), DataAppended)
        assert running.store.read("a", 0, 100) == b"A" * 10 + b"a" * 10
        assert running.store.read("b", 0, 100) == b"B" * 10


class TestDocument:
    async def test_setup_creates_the_segment_and_reports_zero(self, document: Peer, running: Running) -> None:
        assert (await set_up(document)).acknowledged == 0
        assert running.store.exists("s")

    async def test_a_block_is_acknowledged_with_the_offset_behind_it(self, document: Peer, running: Running) -> None:
        await set_up(document)
        document.send(block_at(0, EVENT), block_at(len(EVENT), EVENT))
        assert await document.reply() == DataAppended(WRITER, len(EVENT))
        assert await document.reply() == DataAppended(WRITER, 2 * len(EVENT))
        assert running.store.read("s", 0, 100) == EVENT + EVENT

    async def test_what_lies_below_the_acknowledged_offset_is_not_stored_again(
        self, document: Peer, running: Running
    ) -> None:
        await set_up(document)
        document.send(block_at(0, b"01234567"), block_at(4, b"4567abcd"), block_at(0, b"0123"))
        acknowledged = [await document.reply() for _ in range(3)]
        assert [r.acknowledged for r in acknowledged if isinstance(r, DataAppended)] == [8, 12, 12]
        assert running.store.read("s", 0, 100) == b"01234567abcd"

    async def test_a_gap_is_an_error_and_ends_the_appender(self, document: Peer, running: Running) -> None:
        await set_up(document)
        document.send(block_at(5, b"late"), block_at(0, b"first"))
        reply = await document.reply()
        assert isinstance(reply, InvalidEventNumber)
        assert "gap" in reply.stack_trace
        assert isinstance(await document.reply(), ErrorMessage)
        assert running.store.read("s", 0, 100) == b""

    async def test_a_block_before_its_setup_ends_the_connection(self, document: Peer) -> None:
        document.send(block_at(0, EVENT))
        assert isinstance(await document.reply(), ErrorMessage)
        assert await document.is_closed()

    async def test_the_surplus_of_a_block_is_dropped(self, document: Peer, running: Running) -> None:
        await set_up(document)
        document.send(BeginAppendBlock(WRITER, 0, 10), b"12345xxxxx", EndAppendBlock(WRITER, 5, 5))
        assert await document.reply() == DataAppended(WRITER, 5)
        assert running.store.read("s", 0, 100) == b"12345"

    async def test_the_rest_of_a_partial_event_follows_the_block_s_end(self, document: Peer, running: Running) -> None:
        await set_up(document)
        document.send(BeginAppendBlock(WRITER, 0, 4), b"1234", EndAppendBlock(WRITER, 9, 9), b"56789")
        assert await document.reply() == DataAppended(WRITER, 9)
        assert running.store.read("s", 0, 100) == b"123456789"

    async def test_appenders_of_several_segments_share_a_connection(self, document: Peer, running: Running) -> None:
        await set_up(document, "a", WRITER)
        await set_up(document, "b", OTHER)
        document.send(block_at(0, b"aa"), block_at(0, b"bb", OTHER), block_at(2, b"AA"))
        for _ in range(3):
            assert isinstance(await document.reply(), DataAppended)
        assert running.store.read("a", 0, 9) == b"aaAA"
        assert running.store.read("b", 0, 9) == b"bb"


@pytest.mark.parametrize("size", [1, 70_000, 3_000_000])
async def test_large_blocks_arrive_whole(versioned: Peer, running: Running, size: int) -> None:
    await set_up(versioned)
    data = bytes(range(256)) * (size // 256 + 1)
    versioned.send(block(1, data[:size]))
    assert isinstance(await versioned.reply(), DataAppended)
    assert running.store.read("s", 0, size) == data[:size]


async def test_a_known_writer_of_a_sealed_segment_learns_what_is_stored_and_a_new_one_is_refused(
    versioned: Peer, running: Running
) -> None:
    await set_up(versioned)
    versioned.send(block(1), SealSegment("s"), SetupAppend(WRITER, "s"), block(1), SetupAppend(OTHER, "s"))
    replies = [await versioned.reply() for _ in range(5)]
    assert [type(reply) for reply in replies] == [
        DataAppended,
        SegmentSealed,
        AppendSetup,
        DataAppended,
        SegmentIsSealed,
    ]
    assert running.store.read("s", 0, 100) == EVENT


async def test_an_append_larger_than_the_quota_is_refused_for_good(versioned: Peer, running: Running) -> None:
    await set_up(versioned)
    running.store.update_attributes([AttributeUpdate("s", QUOTA, 5)])
    versioned.send(block(1))
    reply = await versioned.reply()
    assert isinstance(reply, ErrorMessage)
    assert reply.error_code == ErrorCode.LIMIT_EXCEEDED
