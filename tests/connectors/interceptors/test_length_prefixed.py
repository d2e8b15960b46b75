"""Length-prefixed: in any pieces, one side reads what the other has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.interceptors.length_prefixed import LengthPrefixed, LengthPrefixedOptions
from tests.connectors.interceptors.test_split import cut


def interceptor(**options: object) -> LengthPrefixed:
    return LengthPrefixed(LengthPrefixedOptions.model_validate(options))


@given(
    st.lists(st.binary(max_size=20)),
    st.lists(st.integers(0, 300)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["big", "little"]),
)
def test_records_round_trip_in_any_pieces(records: list[bytes], places: list[int], width: int, order: str) -> None:
    both = interceptor(length_bytes=width, order=order)
    data = b"".join(both.outgoing().feed(records))
    reading = both.incoming()
    found, fed = [], 0
    for piece in cut(data, places):
        found += reading.feed(piece)
        fed += len(piece)
        assert fed - reading.buffered == sum(width + len(record) for record in found)
    assert found == records
    assert reading.finish() == []


def test_a_length_over_the_limit_is_bad_before_its_record_arrives() -> None:
    reading = interceptor(record_bytes_max=10).incoming()
    with pytest.raises(BadBytes, match="record_bytes_max") as raised:
        reading.feed(b"\0\0\0\2ok" + b"\0\0\1\0x")
    assert raised.value.records == [b"ok"]
    assert raised.value.data == b"\0\0\1\0x"


def test_a_truncated_record_is_bad() -> None:
    reading = interceptor().incoming()
    assert reading.feed(b"\0\0\0\5abc") == []
    with pytest.raises(BadBytes) as raised:
        reading.finish()
    assert raised.value.data == b"\0\0\0\5abc"
    assert reading.buffered == 0


def test_a_value_too_long_for_its_length_field_is_refused() -> None:
    with pytest.raises(BadBytes):
        interceptor(length_bytes=1).outgoing().feed([b"x" * 256])
