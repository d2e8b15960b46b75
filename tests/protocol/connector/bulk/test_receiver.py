"""A receiver yields what the plain decoder yields, however the bytes arrive, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ProtocolError
from penstock.protocol.connector import Ack, Frame, HelloCheck, Message, Ok, Use, encode
from penstock.protocol.connector.bulk import Columns, Receiver
from tests.protocol.connector.strategies import frames
from tests.protocol.connector.vectors import VECTORS

STREAM = b"".join(bytes.fromhex(text) for _, text in VECTORS)


def receive(receiver: Receiver, data: bytes, piece: int) -> list[Frame]:
    came: list[Frame] = []
    while data:
        room = receiver.get_buffer()
        count = min(piece, len(room), len(data))
        room[:count], data = data[:count], data[count:]
        for incoming in receiver.received(count):
            if isinstance(incoming, Columns):
                came += [incoming.message(index) for index in range(len(incoming))]
            else:
                came.append(incoming)
    return came


@given(st.lists(frames, max_size=12), st.integers(1, 300))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent: list[Frame], piece: int) -> None:
    receiver = Receiver(chunk_size=64)
    assert receive(receiver, b"".join(map(encode, sent)), piece) == sent


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 31, 64, 1000])
def test_every_frame(piece: int) -> None:
    assert receive(Receiver(chunk_size=64), STREAM, piece) == [frame for frame, _ in VECTORS]


def test_a_run_of_messages_comes_as_one() -> None:
    receiver = Receiver()
    data = 100 * encode(Message(1, 1, 1, b"k", b"p")) + encode(Ok(1)) + 50 * encode(Message(1, 1, 1, b"k", b"p"))
    receiver.get_buffer()[: len(data)] = data
    first, other, second = receiver.received(len(data))
    assert isinstance(first, Columns)
    assert isinstance(second, Columns)
    assert (len(first), other, len(second)) == (100, Ok(1), 50)


def test_a_large_frame_gets_its_room_and_gives_it_back() -> None:
    receiver = Receiver(chunk_size=1000)
    large = Message(1, 1, 1, b"k", bytes(100_000))
    assert receive(receiver, encode(large)[:-1], 333) == []
    assert receiver.buffered_bytes == len(encode(large))
    assert receive(receiver, encode(large)[-1:] + encode(Ok(1)), 333) == [large, Ok(1)]
    receiver.get_buffer()
    assert receiver.buffered_bytes == 1000


def test_a_length_over_the_limit_is_refused_before_its_bytes_arrive() -> None:
    receiver = Receiver(frame_size_max=100, chunk_size=64)
    with pytest.raises(ProtocolError, match="a frame of 101 bytes is over the limit of 100"):
        receive(receiver, b"\0\0\0\x65", 4)
    assert receiver.buffered_bytes == 64


def test_an_error_comes_after_everything_valid_and_is_final() -> None:
    receiver = Receiver()
    message = encode(Message(1, 1, 1, b"k", b"p"))
    data = message + b"\0\0\0\1\5" + message
    receiver.get_buffer()[: len(data)] = data
    came = receiver.received(len(data))
    assert isinstance(next(came), Columns)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="MESSAGE: stream_id"):
            next(came)
    with pytest.raises(ProtocolError, match="MESSAGE: stream_id"):
        receiver.get_buffer()


def test_the_hello_is_checked() -> None:
    with pytest.raises(ProtocolError, match="cookie is wrong"):
        receive(Receiver(hello=HelloCheck(Use.SOURCE, b"secret")), STREAM, 1000)


def test_other_frames_own_their_bytes() -> None:
    receiver = Receiver(chunk_size=64)
    first = receive(receiver, encode(Ack(7)), 100)
    receive(receiver, encode(Ack(8)), 100)
    assert first == [Ack(7)]
