"""A decoder yields the same frames however the bytes are cut, and buffers no more than one of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import Ack, Decoder, Frame, HelloCheck, Message, Ok, Use, encode

from .strategies import frames, messages, two_phase
from .vectors import VECTORS

STREAM = b"".join(bytes.fromhex(text) for _, text in VECTORS)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 60), min_size=1))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[Frame], sizes: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder = Decoder(Use.SOURCE)
    came: list[Frame] = []
    at = number = 0
    while at < len(stream):
        size = sizes[number % len(sizes)]
        came += decoder.feed(stream[at : at + size])
        at, number = at + size, number + 1
    assert came == sent
    assert decoder.buffered_bytes == 0


@given(st.lists(two_phase | messages.filter(lambda m: m.stream_id > 0), max_size=8))
def test_a_sink_s_messages_come_out_unwrapped(sent: list[Frame]) -> None:
    assert list(Decoder(Use.SINK).feed(b"".join(map(encode, sent)))) == sent


@given(
    st.lists(
        two_phase
        | messages.filter(lambda m: m.stream_id > 0).map(lambda m: replace(m, stream_id=m.stream_id % 3 or 3)),
        max_size=12,
    ),
    st.lists(st.integers(1, 200), min_size=1),
    st.tuples(st.integers(0, 2000), st.integers(1, 255)),
    st.booleans(),
)
def test_messages_taken_together_are_those_that_come_one_by_one(
    sent: list[Frame], sizes: list[int], flip: tuple[int, int], is_mutated: bool
) -> None:
    stream = bytearray(b"".join(map(encode, sent)))
    if is_mutated and flip[0] < len(stream):
        stream[flip[0]] ^= flip[1]
    one_by_one, together = Decoder(Use.SINK), Decoder(Use.SINK)
    came: tuple[list[Frame], list[Frame]] = ([], [])
    at = number = 0
    ended: list[str | None] = [None, None]
    while at < len(stream) and ended == [None, None]:
        piece = bytes(stream[at : at + sizes[number % len(sizes)]])
        at, number = at + len(piece), number + 1
        ended = [_drain(one_by_one, piece, came[0], takes=False), _drain(together, piece, came[1], takes=True)]
    assert came[0] == came[1]
    assert ended[0] == ended[1]
    assert one_by_one.buffered_bytes == together.buffered_bytes


def _drain(decoder: Decoder, piece: bytes, came: list[Frame], *, takes: bool) -> str | None:
    """Returns what is wrong with the bytes."""
    try:
        frames = decoder.feed(piece)
        while True:
            if takes:
                came += [Message(1, i, time, key, payload) for i, payload, time, key in decoder.take_messages(1)]
            frame = next(frames, None)
            if frame is None:
                return None
            came.append(frame)
    except ProtocolError as error:
        return str(error)


def test_stream_0_of_a_source_is_a_stream_like_any_other() -> None:
    message = Message(0, 0, 0, b"", b"not two-phase")
    assert list(Decoder(Use.SOURCE).feed(encode(message))) == [message]
    with pytest.raises(ProtocolError, match="unknown two-phase message"):
        list(Decoder(Use.SINK).feed(encode(message)))


def test_byte_by_byte() -> None:
    decoder = Decoder(Use.SOURCE)
    came = [frame for byte in STREAM for frame in decoder.feed(bytes((byte,)))]
    assert came == [frame for frame, _ in VECTORS]


def test_what_is_not_taken_comes_the_next_time() -> None:
    decoder = Decoder(Use.SOURCE)
    assert next(decoder.feed(encode(Ok(1)) + encode(Ok(2)))) == Ok(1)
    assert list(decoder.feed(encode(Ok(3)))) == [Ok(2), Ok(3)]


def test_a_length_over_the_limit_is_refused_before_its_bytes_arrive() -> None:
    decoder = Decoder(Use.SOURCE, frame_size_max=100)
    assert list(decoder.feed(encode(Message(1, 1, 1, b"", bytes(73)))))
    with pytest.raises(ProtocolError, match="a frame of 101 bytes is over the limit of 100"):
        list(decoder.feed(b"\0\0\0\x65"))


def test_a_frame_without_a_tag_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a frame of 0 bytes"):
        list(Decoder(Use.SOURCE).feed(bytes(4)))


def test_an_error_comes_after_everything_valid_and_is_final() -> None:
    decoder = Decoder(Use.SOURCE)
    came = decoder.feed(encode(Ok(1)) + b"\0\0\0\1\x09" + encode(Ok(2)))
    assert next(came) == Ok(1)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="tag 9"):
            next(came)
    with pytest.raises(ProtocolError, match="tag 9"):
        decoder.feed(encode(Ok(3)))
    assert decoder.buffered_bytes == 0


def test_an_acceptor_s_decoder_checks_the_hello() -> None:
    with pytest.raises(ProtocolError, match="cookie is wrong"):
        list(Decoder(Use.SOURCE, hello=HelloCheck(Use.SOURCE, b"secret")).feed(STREAM))


def test_frames_own_their_bytes() -> None:
    data = bytearray(encode(Message(1, 1, 1, b"key", b"payload")) + encode(Ack(1))[:3])
    (message,) = Decoder(Use.SOURCE).feed(data)
    data[:] = bytes(len(data))
    assert message == Message(1, 1, 1, b"key", b"payload")
