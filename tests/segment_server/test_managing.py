"""Requests about whole segments, over a real socket."""

import uuid

from penstock.core.types import NO_VALUE
from penstock.protocol.segment import (
    Attribute,
    AttributeUpdate,
    AttributeUpdated,
    CreateSegment,
    DeleteSegment,
    ErrorMessage,
    GetAttribute,
    GetSegmentInfo,
    MergeSegments,
    NoSuchSegment,
    OperationUnsupported,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    TruncateSegment,
    UpdateAttribute,
)
from tests.segment_server.conftest import Peer, Running

KEY = uuid.UUID(int=77).bytes


async def test_create_then_create_again(versioned: Peer) -> None:
    versioned.send(CreateSegment("s", request_id=1), CreateSegment("s", request_id=2))
    assert await versioned.reply() == SegmentCreated("s", 1)
    reply = await versioned.reply()
    assert isinstance(reply, SegmentAlreadyExists)
    assert reply.request_id == 2


async def test_info_reports_what_is_durable(versioned: Peer, running: Running) -> None:
    running.store.create("s")
    running.store.append("s", [b"0123456789"])
    versioned.send(TruncateSegment("s", 4, request_id=1), SealSegment("s", request_id=2))
    assert await versioned.reply() == SegmentTruncated("s", 1)
    assert await versioned.reply() == SegmentSealed("s", 2)
    versioned.send(GetSegmentInfo("s", request_id=3))
    assert await versioned.reply() == SegmentInfo("s", True, True, False, 0, 10, 4, 3)


async def test_a_deleted_segment_is_gone_and_its_name_free(versioned: Peer) -> None:
    versioned.send(CreateSegment("s"), DeleteSegment("s"), GetSegmentInfo("s"), CreateSegment("s"))
    kinds = [type(await versioned.reply()) for _ in range(4)]
    assert kinds == [SegmentCreated, SegmentDeleted, NoSuchSegment, SegmentCreated]


async def test_an_attribute_changes_only_from_its_expected_value(versioned: Peer) -> None:
    versioned.send(CreateSegment("s"), GetAttribute("s", KEY, request_id=1))
    await versioned.reply()
    assert await versioned.reply() == Attribute(NO_VALUE, 1)
    versioned.send(UpdateAttribute("s", KEY, 5, NO_VALUE, request_id=2))
    versioned.send(UpdateAttribute("s", KEY, 6, NO_VALUE, request_id=3))
    versioned.send(UpdateAttribute("s", KEY, 7, 5, request_id=4), GetAttribute("s", KEY, request_id=5))
    assert await versioned.reply() == AttributeUpdated(success=True, request_id=2)
    assert await versioned.reply() == AttributeUpdated(success=False, request_id=3)
    assert await versioned.reply() == AttributeUpdated(success=True, request_id=4)
    assert await versioned.reply() == Attribute(7, 5)


async def test_a_merge_with_attributes_happens_all_or_not_at_all(versioned: Peer, running: Running) -> None:
    for name in ("s", "t"):
        running.store.create(name)
        running.store.append(name, [name.encode() * 5])
    wrong = AttributeUpdate(KEY, 4, 1, 99)
    right = AttributeUpdate(KEY, 1, 1, 0)
    versioned.send(MergeSegments("s", "t", (wrong,), request_id=1), MergeSegments("s", "t", (right,), request_id=2))
    assert isinstance(await versioned.reply(), ErrorMessage)
    assert await versioned.reply() == SegmentsMerged("s", "t", 10, 2)
    assert running.store.read("s", 0, 100) == b"sssssttttt"
    assert running.store.attribute("s", KEY) == 1
    assert not running.store.exists("t")


async def test_an_attribute_update_of_another_kind_is_unsupported(versioned: Peer, running: Running) -> None:
    running.store.create("s")
    running.store.create("t")
    versioned.send(MergeSegments("s", "t", (AttributeUpdate(KEY, 3, 1, 0),), request_id=1))
    assert isinstance(await versioned.reply(), OperationUnsupported)
    assert running.store.exists("t")


async def test_truncating_beyond_the_end_is_an_error(versioned: Peer) -> None:
    versioned.send(CreateSegment("s"), TruncateSegment("s", 1))
    await versioned.reply()
    assert isinstance(await versioned.reply(), ErrorMessage)
