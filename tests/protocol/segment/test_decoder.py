"""What holds for a decoder in either dialect and either role."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError
from penstock.protocol.segment import (
    DOCUMENT,
    PAYLOAD_SIZE_MAX,
    VERSIONED,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    BeginAppendBlock,
    Decoder,
    Dialect,
    EndAppendBlock,
    Hello,
    KeepAlive,
    Message,
    Part,
    PartialMessage,
    Reply,
    Request,
    Role,
    SegmentRead,
    SetupAppend,
    encode_append,
)
from penstock.protocol.segment.messages import UnknownRequest
from tests.support.segment_bytes import encode_append_at

from .fuzz import CONVERSATIONS, Conversation
from .streams import HELLO, document, receive, receive_pieces, versioned
from .vectors import DOCUMENT_VECTORS, VERSIONED_VECTORS, WRITER

SETUP = SetupAppend(WRITER, "seg")
each_conversation = pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.name)


# The dialect


def test_a_connection_that_opens_with_hello_speaks_the_versioned_dialect() -> None:
    decoder = Decoder(Role.SERVER)
    assert decoder.dialect is None
    assert list(decoder.feed(HELLO[:7])) == []
    assert decoder.dialect is None
    assert list(decoder.feed(HELLO[7:])) == [Hello(17, 5)]
    assert decoder.dialect is VERSIONED


@pytest.mark.parametrize("message", [SETUP, KeepAlive(b"any")])
def test_any_other_connection_speaks_the_document_s(message: Message) -> None:
    decoder = Decoder(Role.SERVER)
    assert list(decoder.feed(DOCUMENT.encode(message))) == [message]
    assert decoder.dialect is DOCUMENT


def test_the_dialect_stays_as_it_was_chosen() -> None:
    with pytest.raises(ProtocolError, match="type -127: the document's dialect has no such message"):
        receive(document(SETUP) + HELLO)


# The roles


def one_by_one(dialect: Dialect, vectors: list[tuple[Message, str]]) -> Iterator[tuple[Dialect, Message]]:
    for message, _ in vectors:
        yield dialect, message


@pytest.mark.parametrize(
    ("dialect", "message"), [*one_by_one(DOCUMENT, DOCUMENT_VECTORS), *one_by_one(VERSIONED, VERSIONED_VECTORS)]
)
def test_requests_are_for_servers_and_replies_for_clients(dialect: Dialect, message: Message) -> None:
    data = (versioned if dialect is VERSIONED else document)(message)
    for role, wrong in ((Role.SERVER, Reply), (Role.CLIENT, Request)):
        _, error = receive_pieces(Decoder(role), [data])
        assert (f", sent to a {role.value}" in error) == isinstance(message, wrong)


def test_a_message_for_the_other_side_is_refused_by_its_header() -> None:
    header = DOCUMENT.encode(SegmentRead("s", 0, True, True, b"data"))[:8]
    with pytest.raises(ProtocolError, match=r"SegmentRead \(type 10\): a reply, sent to a server"):
        receive(header)


def test_an_unknown_message_is_refused_by_its_header() -> None:
    with pytest.raises(ProtocolError, match="type 6: the document's dialect has no such message"):
        receive(bytes.fromhex("00000006 00000100"))


def test_in_the_versioned_dialect_an_unknown_message_is_a_request_of_a_later_version() -> None:
    later = bytes.fromhex("00000006 00000009 0000000000000007 ff")
    assert [*Decoder(Role.SERVER).feed(HELLO + later)][1:] == [UnknownRequest(6, 7)]
    with pytest.raises(ProtocolError, match="type 6: the versioned dialect has no such message"):
        list(Decoder(Role.CLIENT).feed(HELLO + later))


# Limits


@pytest.mark.parametrize("length", [PAYLOAD_SIZE_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("start", [b"", HELLO])
def test_a_message_over_the_limit_is_refused_before_memory_is_taken_for_it(length: int, start: bytes) -> None:
    decoder = Decoder(Role.SERVER, chunk_size=100)
    header = (100).to_bytes(4, "big") + length.to_bytes(4, "big")
    _, error = receive_pieces(decoder, [start + header])
    assert error == f"a message of type 100 claims {length} bytes, the limit is {PAYLOAD_SIZE_MAX}"
    assert decoder.buffered_bytes == 100


def test_the_largest_message_arrives() -> None:
    message = KeepAlive(bytes(PAYLOAD_SIZE_MAX))
    assert receive(DOCUMENT.encode(message)) == [message]


def test_memory_for_a_large_message_is_not_kept() -> None:
    decoder = Decoder(Role.SERVER, chunk_size=1000)
    data = DOCUMENT.encode(KeepAlive(bytes(100_000)))
    assert list(decoder.feed(data[:-1])) == []
    assert decoder.buffered_bytes == 100_000
    assert len(list(decoder.feed(data[-1:]))) == 1
    assert decoder.buffered_bytes == 1000


# Errors


@each_conversation
def test_an_error_is_final(conversation: Conversation) -> None:
    decoder = Decoder(conversation.role)
    bad = bytes.fromhex("00000064 ffffffff")
    incoming, error = receive_pieces(decoder, [*conversation.messages, bad])
    assert len(incoming) == conversation.incoming
    assert error
    for attempt in (decoder.get_buffer, lambda: decoder.received(0), lambda: list(decoder.feed(HELLO))):
        with pytest.raises(ProtocolError, match=error.replace("(", r"\(").replace(")", r"\)")):
            attempt()


def test_valid_input_before_an_error_comes_out_before_it() -> None:
    decoder = Decoder(Role.SERVER)
    incoming, error = receive_pieces(decoder, [document(SETUP, KeepAlive(b"x"), EndAppendBlock(WRITER, 0, 0), SETUP)])
    assert incoming == [SETUP, KeepAlive(b"x")]
    assert error == "EndAppendBlock: outside a block"


# Chunks of the stream


@each_conversation
@settings(max_examples=100)
@given(data=st.data())
def test_however_a_stream_is_cut_the_same_comes_out(conversation: Conversation, data: st.DataObject) -> None:
    stream = b"".join(conversation.messages)
    if data.draw(st.booleans(), "damaged"):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = stream[:at] + data.draw(st.binary(min_size=1, max_size=9)) + stream[at + 1 :]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    chunk_size = data.draw(st.sampled_from([16, 64, 1000, 2**20]))
    whole = receive_pieces(Decoder(conversation.role), [stream])
    assert receive_pieces(Decoder(conversation.role, chunk_size=chunk_size), pieces) == whole


@each_conversation
def test_a_stream_may_come_byte_by_byte(conversation: Conversation) -> None:
    stream = b"".join(conversation.messages)
    incoming, error = receive_pieces(Decoder(conversation.role, chunk_size=16), (bytes([byte]) for byte in stream))
    assert (len(incoming), error) == (conversation.incoming, "")


@each_conversation
def test_a_decoder_reports_whether_a_message_or_block_is_under_way(conversation: Conversation) -> None:
    decoder = Decoder(conversation.role)
    between = 0
    for byte in b"".join(conversation.messages):
        list(decoder.feed(bytes([byte])))
        between += not decoder.is_inside_message
    dropped = sum(message.startswith(b"\xff\xff\xff\xff") for message in conversation.messages)
    assert between == conversation.incoming + dropped


def test_a_message_in_pieces_is_under_way_until_its_last_piece() -> None:
    decoder = Decoder(Role.SERVER)
    first, last = PartialMessage(Part.BEGIN, DOCUMENT.encode(SETUP)[:5]), DOCUMENT.encode(SETUP)[5:]
    assert list(decoder.feed(document(first, KeepAlive()))) == [KeepAlive(b"")]
    assert decoder.is_inside_message
    assert list(decoder.feed(document(PartialMessage(Part.END, last)))) == [SETUP]
    assert decoder.is_inside_message is False


# Between a client and a server


def test_what_a_client_sends_a_server_understands_and_back() -> None:
    client, server = Decoder(Role.CLIENT), Decoder(Role.SERVER)
    request = SetupAppend(WRITER, "seg", "", 1)
    assert list(server.feed(HELLO + VERSIONED.encode(request))) == [Hello(17, 5), request]
    reply = AppendSetup("seg", WRITER, 5, 1)
    assert list(client.feed(HELLO + VERSIONED.encode(reply))) == [Hello(17, 5), reply]


def test_views_stay_as_they_were_handed_out() -> None:
    decoder = Decoder(Role.SERVER, chunk_size=100)
    kept = []
    for number in range(200):
        data = bytes([number]) * 30
        (append,) = decoder.feed(b"".join(encode_append_at(WRITER, data, offset=30 * number)))
        kept.append((append, data))
    for append, data in kept:
        assert b"".join(append.pieces) == data  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 100, 65536, 300_000])
def test_a_block_is_returned_in_few_pieces_however_it_arrived(size: int) -> None:
    data = bytes(size)
    one = b"".join(encode_append(WRITER, data, event_count=1, event_number=1))
    two = VERSIONED.encode(AppendBlock(WRITER, data)) + VERSIONED.encode(AppendBlockEnd(WRITER, size, b"", 1, 1))
    three = document(BeginAppendBlock(WRITER, 0, size), data, EndAppendBlock(WRITER, size, size))
    for stream in (HELLO + one, HELLO + two, three):
        *_, append = Decoder(Role.SERVER, chunk_size=1000).feed(stream)
        assert len(append.pieces) == (1 if size else 0)  # type: ignore[union-attr]
