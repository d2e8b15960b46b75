"""The rules of the document's dialect that a stream of bytes shows by itself."""

import pytest

from penstock.core.errors import ProtocolError
from penstock.protocol.segment import (
    DOCUMENT,
    PAYLOAD_SIZE_MAX,
    AppendByOffset,
    BeginAppendBlock,
    Decoder,
    EndAppendBlock,
    Event,
    KeepAlive,
    Message,
    Padding,
    Part,
    PartialMessage,
    ReadSegment,
    Role,
    SetupAppend,
    frame_events,
)

from .streams import document, receive, receive_pieces, stored
from .vectors import ATTRIBUTE, WRITER

EVENTS = frame_events([b"one", b"", b"three"])
SIZE = len(EVENTS)
SETUP = SetupAppend(WRITER, "seg")


def block(length: int, content: bytes, block_length: int, missing: bytes = b"") -> bytes:
    """A block at offset 100."""
    begin = BeginAppendBlock(WRITER, 100, length)
    end = EndAppendBlock(WRITER, 100 + block_length, block_length)
    return document(begin, content, end, missing)


def pieces(message: Message, *cuts: int) -> list[Message]:
    """The message cut up at these places."""
    data = DOCUMENT.encode(message)
    parts = [Part.BEGIN] + [Part.MIDDLE] * (len(cuts) - 1) + [Part.END]
    ends = [0, *cuts, len(data)]
    return [PartialMessage(part, data[ends[i] : ends[i + 1]]) for i, part in enumerate(parts)]


# Blocks


def test_a_block_is_one_append() -> None:
    (append,) = receive(block(SIZE, EVENTS, SIZE))
    assert append == AppendByOffset(WRITER, 100, 100 + SIZE, (memoryview(EVENTS),))
    assert stored(append) == EVENTS


@pytest.mark.parametrize("cuts", [(3,), (8,), (11,), (3, 5), (9, 12, 14)])
def test_an_event_that_is_split_across_the_end_of_a_block_is_stored_whole(cuts: tuple[int, ...]) -> None:
    event = Event(b"across the end")
    first, *rest = pieces(event, *cuts)
    content = EVENTS + DOCUMENT.encode(first)
    whole = EVENTS + DOCUMENT.encode(event)
    data = block(len(content), content, len(whole), document(*rest)) + DOCUMENT.encode(KeepAlive(b"next"))
    append, after = receive(data)
    assert isinstance(append, AppendByOffset)
    assert stored(append) == whole
    assert append.end_offset == 100 + len(whole)
    assert after == KeepAlive(b"next")


@pytest.mark.parametrize(
    "broken",
    [
        [PartialMessage(Part.END, b"too short")],
        [PartialMessage(Part.MIDDLE, b"across the end and more than that")],
        [PartialMessage(Part.BEGIN, b"oss the end")],
        [KeepAlive(b"")],
    ],
)
def test_a_split_event_that_is_not_completed_stores_nothing(broken: list[Message]) -> None:
    event = Event(b"across the end")
    first, _ = pieces(event, 11)
    content = DOCUMENT.encode(first)
    data = block(len(content), content, len(DOCUMENT.encode(event)), document(*broken))
    with pytest.raises(ProtocolError):
        receive(data + bytes(100))


def test_bytes_of_an_event_that_look_like_a_partial_message_are_data() -> None:
    events = frame_events([DOCUMENT.encode(PartialMessage(Part.BEGIN, b"data")), b"x"])
    (append,) = receive(block(len(events), events, len(events)))
    assert stored(append) == events


@pytest.mark.parametrize("size", [1, 5000])
@pytest.mark.parametrize("lookalike", [False, True])
def test_a_split_event_is_found_after_many_small_events_and_after_large_ones(size: int, lookalike: bool) -> None:
    event = Event(b"across the end")
    first, rest = pieces(event, 11)
    before = frame_events([b"x" * size] * 100 + ([DOCUMENT.encode(first)] if lookalike else []))
    whole = before + DOCUMENT.encode(event)
    content = before + DOCUMENT.encode(first)
    (append,) = receive(block(len(content), content, len(whole), document(rest)), block_size_max=1 << 20)
    assert stored(append) == whole


def test_a_block_s_surplus_is_padding_and_dropped() -> None:
    (append,) = receive(block(SIZE + 9, EVENTS + b"surplus!!", SIZE))
    assert stored(append) == EVENTS


def test_a_block_s_missing_bytes_follow_its_end() -> None:
    append, after = receive(block(SIZE - 7, EVENTS[:-7], SIZE, EVENTS[-7:]) + document(SETUP))
    assert stored(append) == EVENTS
    assert after == SETUP


def test_a_block_of_length_0_has_all_its_bytes_after_its_end() -> None:
    (append,) = receive(block(0, b"", SIZE, EVENTS))
    assert stored(append) == EVENTS


def test_a_block_may_be_empty() -> None:
    assert receive(block(0, b"", 0)) == [AppendByOffset(WRITER, 100, 100, ())]


def test_a_block_may_be_all_padding() -> None:
    assert receive(block(9, b"surplus!!", 0)) == [AppendByOffset(WRITER, 100, 100, ())]


def test_what_is_inside_a_block_is_not_looked_at() -> None:
    nonsense = document(EndAppendBlock(ATTRIBUTE, 7, 7)) + b"\xff" * 100
    (append,) = receive(block(len(nonsense), nonsense, len(nonsense)))
    assert stored(append) == nonsense


def test_nothing_comes_out_before_a_block_is_whole() -> None:
    whole = block(SIZE - 7, EVENTS[:-7], SIZE, EVENTS[-7:])
    decoder = Decoder(Role.SERVER)
    assert list(decoder.feed(whole[:-1])) == []
    assert len(list(decoder.feed(whole[-1:]))) == 1


def test_an_end_of_another_connection_id_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=f"connection {ATTRIBUTE.hex()} ends the block of {WRITER.hex()}"):
        receive(document(BeginAppendBlock(WRITER, 0, 1), b"a", EndAppendBlock(ATTRIBUTE, 1, 1)))


@pytest.mark.parametrize("offset", [99, 100, 102, -1, 2**63 - 1])
def test_an_end_whose_offset_is_not_begin_plus_block_is_an_error(offset: int) -> None:
    with pytest.raises(ProtocolError, match=f"offset {offset} after a block of 1 bytes at 100"):
        receive(document(BeginAppendBlock(WRITER, 100, 1), b"a", EndAppendBlock(WRITER, offset, 1)))


def test_a_negative_length_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="BeginAppendBlock: a block of -1 bytes"):
        receive(document(BeginAppendBlock(WRITER, 0, -1)))
    with pytest.raises(ProtocolError, match="EndAppendBlock: a block of -1 bytes"):
        receive(document(BeginAppendBlock(WRITER, 1, 0), EndAppendBlock(WRITER, 0, -1)))


def test_a_negative_offset_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="BeginAppendBlock: offset -1"):
        receive(document(BeginAppendBlock(WRITER, -1, 0)))


def test_a_block_over_the_limit_is_refused_before_its_bytes_arrive() -> None:
    assert receive(document(BeginAppendBlock(WRITER, 0, 1000))) == []
    with pytest.raises(ProtocolError, match="BeginAppendBlock: a block of 1001 bytes, the limit is 1000"):
        receive(document(BeginAppendBlock(WRITER, 0, 1001)))


def test_missing_bytes_over_the_limit_are_refused_before_they_come() -> None:
    assert receive(document(BeginAppendBlock(WRITER, 0, 0), EndAppendBlock(WRITER, 1000, 1000))) == []
    with pytest.raises(ProtocolError, match="EndAppendBlock: a block of 1001 bytes, the limit is 1000"):
        receive(document(BeginAppendBlock(WRITER, 0, 0), EndAppendBlock(WRITER, 1001, 1001)))


@pytest.mark.parametrize(
    "message", [SETUP, KeepAlive(), Padding(0), Event(b""), BeginAppendBlock(WRITER, 0, 0), ReadSegment("s", 0, 0)]
)
def test_only_its_end_may_follow_a_block_s_content(message: Message) -> None:
    with pytest.raises(ProtocolError, match=rf"^{type(message).__name__} .*a block has begun, and its end must follow"):
        receive(document(BeginAppendBlock(WRITER, 0, 1), b"a", message))


def test_an_event_outside_a_block_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="Event: outside a block"):
        receive(document(SETUP, Event(b"data")))


def test_an_end_outside_a_block_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="EndAppendBlock: outside a block"):
        receive(document(SETUP, EndAppendBlock(WRITER, 0, 0)))


def test_padding_between_messages_is_dropped() -> None:
    assert receive(document(Padding(5), SETUP, Padding(0), SETUP)) == [SETUP, SETUP]


# Partial messages


@pytest.mark.parametrize("cuts", [(0,), (1,), (8,), (4, 12), (3, 3, 9), (0, 29), (29,)])
def test_pieces_make_a_message(cuts: tuple[int, ...]) -> None:
    assert receive(document(*pieces(SETUP, *cuts), SETUP)) == [SETUP, SETUP]


def test_a_block_s_begin_and_end_may_come_in_pieces() -> None:
    begin = pieces(BeginAppendBlock(WRITER, 100, SIZE - 7), 5, 20)
    end = pieces(EndAppendBlock(WRITER, 100 + SIZE, SIZE), 11)
    append, after = receive(document(*begin, EVENTS[:-7], *end, EVENTS[-7:], SETUP))
    assert stored(append) == EVENTS
    assert after == SETUP


def test_a_message_in_pieces_counts_where_its_last_piece_is() -> None:
    first, last = pieces(SETUP, 9)
    assert receive(document(first, KeepAlive(b"x"), last)) == [KeepAlive(b"x"), SETUP]


def test_data_of_a_message_in_pieces_is_the_same() -> None:
    assert receive(document(*pieces(KeepAlive(b"x" * 500), 100, 200, 300))) == [KeepAlive(b"x" * 500)]


def test_a_new_begin_before_the_end_is_an_error() -> None:
    first, _ = pieces(SETUP, 9)
    with pytest.raises(ProtocolError, match="begin before the end of the previous one"):
        receive(document(first, first))


@pytest.mark.parametrize("part", [Part.MIDDLE, Part.END])
def test_a_piece_without_a_begin_is_an_error(part: Part) -> None:
    with pytest.raises(ProtocolError, match=f"PartialMessage: {part.name.lower()} without a begin"):
        receive(document(PartialMessage(part, b"")))
    with pytest.raises(ProtocolError, match=f"PartialMessage: {part.name.lower()} without a begin"):
        receive(document(*pieces(SETUP, 9), PartialMessage(part, b"")))


def test_pieces_that_do_not_form_a_message_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="7 bytes in all are not a message"):
        receive(document(PartialMessage(Part.BEGIN, b"abc"), PartialMessage(Part.END, b"defg")))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_pieces_must_be_as_long_as_their_header_reports(wrong: int) -> None:
    data = DOCUMENT.encode(SETUP)
    data = data[:wrong] if wrong < 0 else data + b"a"
    with pytest.raises(ProtocolError, match=f"{21 + wrong} bytes in all for a message of type 1 that has 21"):
        receive(document(PartialMessage(Part.BEGIN, data), PartialMessage(Part.END, b"")))


def test_a_piece_may_not_be_made_of_pieces() -> None:
    inner = pieces(SETUP, 9)[0]
    with pytest.raises(ProtocolError, match="inside a PartialMessage"):
        receive(document(*pieces(inner, 9)))


def test_only_its_end_may_come_in_pieces_after_a_block_s_content() -> None:
    with pytest.raises(ProtocolError, match="KeepAlive: a block has begun, and its end must follow"):
        receive(document(BeginAppendBlock(WRITER, 0, 1), b"a", *pieces(KeepAlive(), 3)))


def test_what_may_not_come_whole_may_not_come_in_pieces() -> None:
    with pytest.raises(ProtocolError, match="Event: outside a block"):
        receive(document(*pieces(Event(b"data"), 3)))
    with pytest.raises(ProtocolError, match=r"SetupAppend \(type 1\): a request, sent to a client"):
        receive(document(*pieces(SETUP, 3)), Role.CLIENT)


def test_the_size_of_a_message_in_pieces_is_limited() -> None:
    decoder = Decoder(Role.SERVER)
    half = DOCUMENT.encode(PartialMessage(Part.MIDDLE, bytes(PAYLOAD_SIZE_MAX // 2)))
    begin = DOCUMENT.encode(PartialMessage(Part.BEGIN, b""))
    assert receive_pieces(decoder, [begin, half]) == ([], "")
    assert decoder.buffered_bytes >= PAYLOAD_SIZE_MAX // 2
    _, error = receive_pieces(decoder, [half, half])
    assert error == "PartialMessage: the pieces are over the limit of 16777215 bytes"
