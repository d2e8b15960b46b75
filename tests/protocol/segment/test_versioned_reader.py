"""The rules of the versioned dialect that a stream of bytes shows by itself."""

import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.segment import (
    VERSIONED,
    AppendBlock,
    AppendBlockEnd,
    AppendByNumber,
    ConditionalAppend,
    ConditionalBlockEnd,
    Event,
    Hello,
    KeepAlive,
    Message,
    Padding,
    PartialEvent,
    SealSegment,
    SetupAppend,
    frame_events,
)

from .streams import receive, stored, versioned
from .vectors import ATTRIBUTE, WRITER

EVENTS = frame_events([b"one", b"", b"three"])
SIZE = len(EVENTS)
LONG = frame_events([b"an event that does not fit into its block"])
SETUP = SetupAppend(WRITER, "seg", "", 1)


def block(content: bytes, whole: int, rest: bytes = b"") -> bytes:
    return versioned(AppendBlock(WRITER, content), AppendBlockEnd(WRITER, whole, rest, 3, 42, 7))


# Blocks


def test_a_block_is_one_append() -> None:
    (append,) = receive(block(EVENTS, SIZE))
    assert append == AppendByNumber(WRITER, 42, 3, (memoryview(EVENTS),), 7)
    assert stored(append) == EVENTS


def test_a_block_s_padding_is_not_stored() -> None:
    (append,) = receive(block(EVENTS + VERSIONED.encode(Padding(11)), SIZE))
    assert stored(append) == EVENTS


def test_a_partial_event_is_stored_without_its_header_and_with_its_rest() -> None:
    (append,) = receive(block(EVENTS + VERSIONED.encode(PartialEvent(LONG[:20])), SIZE, LONG[20:]))
    assert stored(append) == EVENTS + LONG


def test_a_partial_event_may_be_all_of_a_block() -> None:
    (append,) = receive(block(VERSIONED.encode(PartialEvent(LONG[:20])), 0, LONG[20:]))
    assert stored(append) == LONG


def test_the_end_s_data_is_stored_even_behind_whole_events() -> None:
    (append,) = receive(block(EVENTS, SIZE, LONG))
    assert stored(append) == EVENTS + LONG
    (append,) = receive(block(EVENTS + VERSIONED.encode(Padding(3)), SIZE, LONG))
    assert stored(append) == EVENTS + LONG


def test_an_end_without_a_begin_is_an_append() -> None:
    (append,) = receive(versioned(AppendBlockEnd(WRITER, 0, EVENTS, 3, 42, 7)))
    assert append == AppendByNumber(WRITER, 42, 3, (memoryview(EVENTS),), 7)


def test_an_end_without_a_begin_may_declare_any_size_of_whole_events() -> None:
    # Public clients write the size of the data there, though there is no block to have it.
    (append,) = receive(versioned(AppendBlockEnd(WRITER, SIZE, EVENTS, 3, 42, 7)))
    assert stored(append) == EVENTS


def test_an_append_may_be_empty() -> None:
    assert receive(versioned(AppendBlockEnd(WRITER, 0, b"", 1, 42, 7))) == [AppendByNumber(WRITER, 42, 1, (), 7)]


def test_what_is_inside_a_block_is_not_looked_at() -> None:
    nonsense = b"\xff" * 100
    (append,) = receive(block(nonsense, 100))
    assert stored(append) == nonsense


def test_an_end_of_another_writer_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=f"writer {ATTRIBUTE.hex()} ends the block of {WRITER.hex()}"):
        receive(versioned(AppendBlock(WRITER, b""), AppendBlockEnd(ATTRIBUTE, 0, b"", 1, 1, 1)))
    with pytest.raises(ProtocolError, match=f"writer {ATTRIBUTE.hex()} ends the block of {WRITER.hex()}"):
        receive(versioned(AppendBlock(WRITER, b""), ConditionalBlockEnd(ATTRIBUTE, 1, 1, b"", 1)))


@pytest.mark.parametrize("whole", [-1, SIZE + 1])
def test_a_size_of_whole_events_that_does_not_fit_the_block_is_an_error(whole: int) -> None:
    with pytest.raises(ProtocolError, match=f"{whole} bytes of whole events in a block of {SIZE}"):
        receive(block(EVENTS, whole))


def test_a_negative_size_of_whole_events_is_an_error_without_a_block_too() -> None:
    with pytest.raises(ProtocolError, match="AppendBlockEnd: -1 bytes of whole events"):
        receive(versioned(AppendBlockEnd(WRITER, -1, EVENTS, 3, 42, 7)))


@pytest.mark.parametrize("count", [0, -1])
def test_an_append_of_no_events_is_an_error(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"an append of {count} events"):
        receive(versioned(AppendBlockEnd(WRITER, 0, EVENTS, count, 42, 7)))


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        (b"1234567", "7 bytes after the whole events are not a message"),
        (VERSIONED.encode(Event(b"")), r"Event \(type 0\) after the whole events"),
        (VERSIONED.encode(KeepAlive()), r"KeepAlive \(type 100\) after the whole events"),
        (VERSIONED.encode(Padding(3))[:-1], r"Padding \(type -1\) does not end where its block does"),
        (VERSIONED.encode(PartialEvent(b"abc")) + b"d", r"PartialEvent \(type -2\) does not end where its block does"),
        (b"\xff" * 8, "a message of type -1 claims 4294967295 bytes"),
    ],
)
def test_only_padding_or_a_partial_event_may_follow_the_whole_events(tail: bytes, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        receive(block(EVENTS + tail, SIZE))


@pytest.mark.parametrize(
    "message",
    [
        SETUP,
        KeepAlive(),
        Padding(0),
        Event(b""),
        PartialEvent(b""),
        AppendBlock(WRITER, b""),
        ConditionalAppend(WRITER, 1, 2, frame_events([b""]), 3),
        Hello(17, 5),
    ],
)
def test_only_its_end_may_follow_a_block(message: Message) -> None:
    with pytest.raises(ProtocolError, match=rf"^{type(message).__name__} .*a block has begun, and its end must follow"):
        receive(versioned(AppendBlock(WRITER, b"a"), message))


@pytest.mark.parametrize("message", [Event(b"data"), PartialEvent(b"data")])
def test_parts_of_a_block_outside_one_are_an_error(message: Message) -> None:
    with pytest.raises(ProtocolError, match=f"{type(message).__name__}: outside a block"):
        receive(versioned(SETUP, message))


def test_padding_between_messages_is_dropped() -> None:
    assert receive(versioned(Padding(5), SETUP, Padding(0), SETUP)) == [SETUP, SETUP]


# Conditions


def test_a_conditional_append_is_one_append_of_its_event_with_header() -> None:
    event = frame_events([b"data"])
    (append,) = receive(versioned(ConditionalAppend(WRITER, 42, 16, event, 7)))
    assert append == AppendByNumber(WRITER, 42, 1, (memoryview(event),), 7, expected_offset=16)


def test_a_conditional_block_end_is_one_append_of_its_data() -> None:
    (append,) = receive(versioned(ConditionalBlockEnd(WRITER, 42, 16, EVENTS, 7)))
    assert append == AppendByNumber(WRITER, 42, 1, (memoryview(EVENTS),), 7, expected_offset=16)


def test_a_conditional_block_end_ends_a_block_and_stores_all_of_it() -> None:
    begin, end = AppendBlock(WRITER, EVENTS), ConditionalBlockEnd(WRITER, 42, 16, LONG, 7)
    (append,) = receive(versioned(begin, end))
    assert append == AppendByNumber(WRITER, 42, 1, (memoryview(EVENTS), memoryview(LONG)), 7, expected_offset=16)


# Limits


def test_a_block_at_the_limit_is_accepted() -> None:
    (append,) = receive(block(bytes(900), 900, bytes(100)))
    assert stored(append) == bytes(1000)


@pytest.mark.parametrize(
    "data",
    [
        block(bytes(1001), 1001),
        block(bytes(900), 900, bytes(101)),
        versioned(AppendBlockEnd(WRITER, 0, bytes(1001), 1, 1, 1)),
        versioned(ConditionalBlockEnd(WRITER, 1, 1, bytes(1001), 1)),
        versioned(ConditionalAppend(WRITER, 1, 1, frame_events([bytes(993)]), 1)),
    ],
)
def test_an_append_over_the_limit_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="an append of 1001 bytes is over the limit of 1000"):
        receive(data)


def test_a_block_s_padding_counts_for_the_limit() -> None:
    with pytest.raises(ProtocolError, match="an append of 1001 bytes is over the limit of 1000"):
        receive(versioned(AppendBlock(WRITER, VERSIONED.encode(Padding(993)))))


@pytest.mark.parametrize("kind", [3, 4, 5, 89])
def test_an_append_far_over_the_limit_is_refused_before_its_bytes_arrive(kind: int) -> None:
    header = kind.to_bytes(4, "big") + (10_000).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="over the limit of 1000"):
        receive(versioned(header))


@pytest.mark.parametrize("kind", [4, 89])
def test_what_has_begun_counts_for_the_limit_before_the_rest_comes(kind: int) -> None:
    header = kind.to_bytes(4, "big") + (2000).to_bytes(4, "big")
    assert receive(versioned(AppendBlock(WRITER, b""), header)) == []
    with pytest.raises(ProtocolError, match="over the limit of 1000"):
        receive(versioned(AppendBlock(WRITER, bytes(900)), header))


def test_messages_that_append_nothing_are_not_bound_by_the_limit_of_a_block() -> None:
    seal = SealSegment("s" * 2000, "", 7)
    assert receive(versioned(seal)) == [seal]


def test_a_second_hello_is_a_message_like_any_other() -> None:
    assert receive(versioned(SETUP, Hello(9, 8))) == [SETUP, Hello(9, 8)]
