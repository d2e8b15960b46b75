"""What holds for every message: it survives a round trip, and anything else is a readable error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.protocol.segment import (
    DOCUMENT,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    VERSIONED,
    AppendBlock,
    AppendBlockEnd,
    Attribute,
    AttributeUpdate,
    AuthTokenCheckFailed,
    BeginAppendBlock,
    ConditionalAppend,
    ConditionalCheckFailed,
    CreateSegment,
    DataAppended,
    Dialect,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    LocatedObject,
    LocateSegment,
    MergeSegments,
    Message,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    ReadSegment,
    SegmentAlreadyExists,
    SegmentInfo,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentLocated,
    SegmentRead,
    SegmentsMerged,
    SetupAppend,
    WrongHost,
    frame_events,
)
from penstock.protocol.segment.primitives import UPDATES_MAX, Rest, Zeros

from .strategies import messages
from .vectors import ATTRIBUTE, DOCUMENT_VECTORS, VERSIONED_VECTORS, WRITER

EVENT = frame_events([b"a"])

both = pytest.mark.parametrize("dialect", [DOCUMENT, VERSIONED], ids=repr)
each_document_message = pytest.mark.parametrize("message", [message for message, _ in DOCUMENT_VECTORS])
each_versioned_message = pytest.mark.parametrize("message", [message for message, _ in VERSIONED_VECTORS])


def decode(dialect: Dialect, data: bytes) -> Message:
    """Of the header only the type is looked at."""
    return dialect.decode(int.from_bytes(data[:4], "big", signed=True), memoryview(data)[HEADER_SIZE:])


def ends_in_data(dialect: Dialect, message: Message) -> bool:
    """Whether all bytes that are left belong to the last field."""
    fields = next(layout.fields for layout in dialect.table.values() if layout.message is type(message))
    return bool(fields) and isinstance(fields[-1], Rest | Zeros)


@both
@given(data=st.data())
def test_a_message_survives_a_round_trip(dialect: Dialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    assert decode(dialect, dialect.encode(message)) == message


@each_document_message
def test_in_the_document_s_dialect_nothing_follows_the_last_field(message: Message) -> None:
    if ends_in_data(DOCUMENT, message):
        return
    with pytest.raises(ProtocolError, match=rf"^{type(message).__name__} \(type -?\d+\): 1 bytes after the last field"):
        decode(DOCUMENT, DOCUMENT.encode(message) + b"\0")


@each_versioned_message
def test_in_the_versioned_dialect_what_a_later_version_adds_is_skipped(message: Message) -> None:
    if not ends_in_data(VERSIONED, message):
        assert decode(VERSIONED, VERSIONED.encode(message) + b"later") == message


@each_document_message
def test_in_the_document_s_dialect_every_field_is_wanted(message: Message) -> None:
    data = DOCUMENT.encode(message)
    for size in range(HEADER_SIZE, len(data)):
        if not ends_in_data(DOCUMENT, message):
            with pytest.raises(ProtocolError, match=f"^{type(message).__name__} "):
                decode(DOCUMENT, data[:size])


@pytest.mark.parametrize(
    ("message", "missing", "shorter"),
    [
        (AppendBlockEnd(WRITER, 1, b"a", 2, 3, 7), 8, AppendBlockEnd(WRITER, 1, b"a", 2, 3, -1)),
        (ConditionalAppend(WRITER, 1, 2, EVENT, 7), 8, ConditionalAppend(WRITER, 1, 2, EVENT, -1)),
        (DataAppended(WRITER, 1, 2, 3, 7), 8, DataAppended(WRITER, 1, 2, -1, 7)),
        (DataAppended(WRITER, 1, 2, 3, 7), 16, DataAppended(WRITER, 1, 2, -1, -1)),
        (DataAppended(WRITER, 1, 2, 3, 7), 24, DataAppended(WRITER, 1, -1, -1, -1)),
        (ConditionalCheckFailed(WRITER, 1, 7), 8, ConditionalCheckFailed(WRITER, 1, -1)),
        (ReadSegment("s", 1, 2, "t", 7), 8, ReadSegment("s", 1, 2, "t", -1)),
        (SegmentRead("s", 1, True, True, b"a", 7), 8, SegmentRead("s", 1, True, True, b"a", -1)),
        (SegmentInfo("s", True, True, True, 1, 2, 3, 7), 8, SegmentInfo("s", True, True, True, 1, 2, 0, 7)),
        (CreateSegment("s", 1, 2, 3, "t", 7), 8, CreateSegment("s", 1, 2, 0, "t", 7)),
        (MergeSegments("s", "t", (), "t", 7), 4, MergeSegments("s", "t", (), "t", 7)),
        (SegmentsMerged("s", "t", 1, 7), 8, SegmentsMerged("s", "t", -1, 7)),
        (WrongHost("s", "h", "why", 7), 5, WrongHost("s", "h", "", 7)),
        (SegmentIsSealed("s", "why", 1, 7), 8, SegmentIsSealed("s", "why", -1, 7)),
        (SegmentIsSealed("s", "why", 1, 7), 13, SegmentIsSealed("s", "", -1, 7)),
        (SegmentAlreadyExists("s", "why", 7), 5, SegmentAlreadyExists("s", "", 7)),
        (NoSuchSegment("s", "why", 1, 7), 8, NoSuchSegment("s", "why", -1, 7)),
        (InvalidEventNumber(WRITER, "why", 1, 7), 13, InvalidEventNumber(WRITER, "", -1, 7)),
        (SegmentIsTruncated("s", 1, "why", 2, 7), 8, SegmentIsTruncated("s", 1, "why", -1, 7)),
        (OperationUnsupported("o", "why", 7), 5, OperationUnsupported("o", "", 7)),
        (AuthTokenCheckFailed("why", 1, 7), 4, AuthTokenCheckFailed("why", -1, 7)),
        (LocateSegment("s", 1, 2, "m", "t", 7, True), 1, LocateSegment("s", 1, 2, "m", "t", 7)),
        (SegmentLocated("s", 1, (), (), 7, (LocatedObject("u", "k"),)), 18, SegmentLocated("s", 1, (), (), 7)),
        (AuthTokenCheckFailed("why", 1, 7), 9, AuthTokenCheckFailed("", -1, 7)),
    ],
)
def test_in_the_versioned_dialect_fields_that_came_later_may_be_missing(
    message: Message, missing: int, shorter: Message
) -> None:
    assert decode(VERSIONED, VERSIONED.encode(message)[:-missing]) == shorter


@each_versioned_message
def test_in_the_versioned_dialect_a_cut_message_is_a_readable_error_or_an_older_message(message: Message) -> None:
    data = VERSIONED.encode(message)
    for size in range(HEADER_SIZE, len(data)):
        try:
            outcome = type(decode(VERSIONED, data[:size])).__name__
        except ProtocolError as error:
            outcome = str(error)
        assert outcome.startswith(type(message).__name__)


@pytest.mark.parametrize(
    ("dialect", "data", "error"),
    [
        (DOCUMENT, "00000001 00000000 0011", r"SetupAppend \(type 1\): writer_id: 16 bytes expected, 2 are left"),
        (DOCUMENT, "00000009 00000000 0005 6162", r"ReadSegment \(type 9\): segment: 5 bytes expected, 2 are left"),
        (DOCUMENT, "00000009 00000000 0001 ff", r"ReadSegment \(type 9\): segment: byte 0 of a text is 0xff"),
        (DOCUMENT, "0000000a 00000000 0000 0000000000000000 04", r"SegmentRead .*: flags 0x04"),
        (DOCUMENT, "fffffffe 00000000 03", r"PartialMessage \(type -2\): part: .* not 3"),
        (DOCUMENT, "fffffffe 00000000", r"PartialMessage \(type -2\): part: 1 bytes expected, 0 are left"),
        (DOCUMENT, "00000014 00000000", r"type 20: the document's dialect has no such message"),
        (DOCUMENT, "ffffff81 00000000", r"type -127: the document's dialect has no such message"),
        (VERSIONED, "00000025 00000000 0000000000000007 02", r"AttributeUpdated .*: success: a bool is 0 or 1, not 2"),
        (
            VERSIONED,
            "00000059 00000000" + "00" * 32 + "ffffffff" + "00" * 8,
            r"ConditionalBlockEnd .*: data: -1 bytes expected",
        ),
        (VERSIONED, "00000059 00000000" + "00" * 32 + "7fffffff", r"data: 2147483647 bytes expected, 0 are left"),
        (VERSIONED, "00000005 00000000" + "00" * 32 + "00000001 00000000", r"event: an Event .* found type 1"),
        (VERSIONED, "00000005 00000000" + "00" * 32 + "00000000 00000001", r"event: 1 bytes expected, 0 are left"),
        (VERSIONED, "00000005 00000000" + "00" * 32 + "00000000 ffffffff", r"event: .* claims 4294967295 bytes"),
        (VERSIONED, "0000003a 00000000" + "00" * 14 + "ffffffff", r"MergeSegments .*: updates: -33 bytes expected"),
        (VERSIONED, "0000003a 00000000" + "00" * 14 + "7fffffff", r"updates: 2147483647 updates are over the limit"),
        (
            VERSIONED,
            "000003f2 00000000" + "00" * 26 + "00001001",
            r"SegmentLocated .*: objects: 4097 objects are over the limit",
        ),
        (VERSIONED, "00000006 00000000", r"type 6: the versioned dialect has no such message"),
    ],
)
def test_an_error_names_the_message_and_what_was_wrong(dialect: Dialect, data: str, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        decode(dialect, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("dialect", "message", "error"),
    [
        (VERSIONED, SetupAppend(b"short", "s"), "SetupAppend: writer_id: an id has 16 bytes, not 5"),
        (VERSIONED, Attribute(2**63), "Attribute: value: "),
        (VERSIONED, Hello(2**31, 0), "Hello: high: "),
        (VERSIONED, SetupAppend(WRITER, "\ud800"), "SetupAppend: segment: half a surrogate pair at character 0"),
        (VERSIONED, ConditionalAppend(WRITER, 1, 2, b"no header"), "ConditionalAppend: event: not an event"),
        (VERSIONED, ConditionalAppend(WRITER, 1, 2, b""), "ConditionalAppend: event: not an event"),
        (
            VERSIONED,
            MergeSegments("s", "t", (AttributeUpdate(b"", 1, 2, 3),)),
            "MergeSegments: updates: an id has 16",
        ),
        (VERSIONED, BeginAppendBlock(WRITER, 0, 0), "the versioned dialect has no BeginAppendBlock"),
        (DOCUMENT, AppendBlock(WRITER, b""), "the document's dialect has no AppendBlock"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(dialect: Dialect, message: Message, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        dialect.encode(message)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (SetupAppend(WRITER, "s" * 65536), "SetupAppend: segment: a text of 65536 bytes is over the limit of 65535"),
        (SetupAppend(WRITER, "\0" * 32768), "SetupAppend: segment: a text of 65536 bytes"),
        (KeepAlive(bytes(PAYLOAD_SIZE_MAX + 1)), "KeepAlive: a message of 16777208 bytes is over the limit"),
        (Padding(2**40), "Padding: length: 1099511627776 zeros"),
        (Padding(-1), "Padding: length: -1 zeros"),
    ],
)
def test_a_message_over_a_limit_is_refused(message: Message, error: str) -> None:
    with pytest.raises(LimitExceeded, match=error):
        DOCUMENT.encode(message)


def test_updates_of_one_merge_are_limited() -> None:
    updates = (AttributeUpdate(ATTRIBUTE, 1, 2, 3),) * (UPDATES_MAX + 1)
    with pytest.raises(LimitExceeded, match="MergeSegments: updates: 1025 updates"):
        VERSIONED.encode(MergeSegments("s", "t", updates))
    assert VERSIONED.encode(MergeSegments("s", "t", updates[1:]))


def test_a_message_may_be_one_byte_short_of_2_to_the_24() -> None:
    data = DOCUMENT.encode(KeepAlive(bytes(PAYLOAD_SIZE_MAX)))
    assert len(data) == 2**24 - 1
    assert decode(DOCUMENT, data) == KeepAlive(bytes(PAYLOAD_SIZE_MAX))


def test_large_data_is_sent_without_copying_it() -> None:
    data = bytes(100_000)
    parts = VERSIONED.encode_parts(SegmentRead("s", 1, True, True, data, 7))
    assert len(parts) == 3
    assert parts[1] is data


def test_small_messages_are_sent_as_one_buffer() -> None:
    assert len(VERSIONED.encode_parts(SegmentRead("s", 1, True, True, b"small", 7))) == 1


def test_data_is_decoded_without_copying_it() -> None:
    payload = memoryview(bytes(16) + b"data")
    message = VERSIONED.decode(3, payload)
    assert isinstance(message, AppendBlock)
    assert isinstance(message.data, memoryview)
    assert message.data.obj is payload.obj


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(SetupAppend(WRITER, "s", "secret"))
