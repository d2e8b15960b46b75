"""What a client sends as one append, a server receives as one append."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LimitExceeded
from penstock.protocol.segment import (
    BLOCK_SIZE_MAX,
    AppendByNumber,
    AppendByOffset,
    Decoder,
    Role,
    encode_append,
)
from tests.support.segment_bytes import encode_append_at

from .streams import HELLO, receive, stored
from .vectors import WRITER


@given(data=st.binary(max_size=1000))
def test_an_append_arrives_in_the_versioned_dialect(data: bytes) -> None:
    parts = encode_append(WRITER, data, event_count=3, event_number=42, request_id=7)
    (append,) = receive(HELLO + b"".join(parts))
    assert append == AppendByNumber(WRITER, 42, 3, (memoryview(data),) if data else (), 7)


@given(data=st.binary(max_size=1000))
def test_a_conditional_append_arrives(data: bytes) -> None:
    parts = encode_append(WRITER, data, event_count=3, event_number=42, request_id=7, expected_offset=0)
    (append,) = receive(HELLO + b"".join(parts))
    assert isinstance(append, AppendByNumber)
    assert (append.event_number, append.event_count, append.expected_offset) == (42, 1, 0)
    assert stored(append) == data


@given(data=st.binary(max_size=1000), offset=st.integers(0, 2**62))
def test_an_append_arrives_in_the_document_s_dialect(data: bytes, offset: int) -> None:
    (append,) = receive(b"".join(encode_append_at(WRITER, data, offset=offset)))
    assert append == AppendByOffset(WRITER, offset, offset + len(data), (memoryview(data),) if data else ())


def test_large_data_is_not_copied() -> None:
    data = bytes(100_000)
    assert encode_append(WRITER, data, event_count=1, event_number=1)[1] is data
    assert encode_append_at(WRITER, data, offset=0)[1] is data


def test_the_largest_append_is_taken_by_a_server_with_the_default_limits() -> None:
    data = bytes(BLOCK_SIZE_MAX)
    numbered = encode_append(WRITER, data, event_count=1, event_number=1)
    conditional = encode_append(WRITER, data, event_count=1, event_number=1, expected_offset=0)
    *_, first, second = Decoder(Role.SERVER).feed(HELLO + b"".join(numbered + conditional))
    (third,) = Decoder(Role.SERVER).feed(b"".join(encode_append_at(WRITER, data, offset=0)))
    assert {len(stored(append)) for append in (first, second, third)} == {BLOCK_SIZE_MAX}


def test_a_larger_append_is_refused() -> None:
    data = bytes(BLOCK_SIZE_MAX + 1)
    with pytest.raises(LimitExceeded, match=f"an append of {len(data)} bytes is over the limit of {BLOCK_SIZE_MAX}"):
        encode_append(WRITER, data, event_count=1, event_number=1)
