"""Messages encoded by the batch are those encoded one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded, RequestError
from penstock.protocol.connector import Decoder, Message, Use, encode, encode_messages

from .strategies import blobs, i64s, u64s


@given(u64s, st.lists(st.tuples(u64s, i64s, blobs, blobs)))
def test_a_batch_is_its_messages_one_after_the_other(
    stream_id: int, messages: list[tuple[int, int, bytes, bytes]]
) -> None:
    data = encode_messages(stream_id, messages)
    expected = [Message(stream_id, *message) for message in messages]
    assert data == b"".join(map(encode, expected))
    assert list(Decoder(Use.SOURCE).feed(data)) == expected


def test_a_payload_may_be_any_buffer() -> None:
    assert encode_messages(1, [(1, 2, b"k", memoryview(b"abc"))]) == encode(Message(1, 1, 2, b"k", b"abc"))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ((2**64, 0, b"", b""), RequestError),
        ((-1, 0, b"", b""), RequestError),
        ((0, 2**63, b"", b""), RequestError),
        ((0, 0, bytes(2**16), b""), RequestError),
        ((0, 0, b"", bytes(4 * 2**20)), LimitExceeded),
    ],
    ids=["id", "negative id", "time", "key", "payload"],
)
def test_what_does_not_fit_is_not_encoded(message: tuple[int, int, bytes, bytes], error: type[RequestError]) -> None:
    with pytest.raises(error, match=r"^MESSAGE "):
        encode_messages(1, [(0, 0, b"", b""), message])
