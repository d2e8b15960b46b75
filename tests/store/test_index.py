"""Rows by key and offset, open and closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.types import Offset, Position, SegmentId
from penstock.store.index import INDEX_BYTES_PER_ROW_MAX, ClosedIndex, OpenIndex, Row

KEY = SegmentId(7)


def row(offset: int, length: int = 10) -> Row:
    return Row(Offset(offset), Position(1000 + offset), 3, length, 99)


@given(order=st.permutations(range(8)), offset=st.integers(0, 79))
def test_rows_in_any_order_are_found_by_offset_before_and_after_closing(order: list[int], offset: int) -> None:
    index = OpenIndex()
    for number in order:
        index.add(KEY, row(10 * number))
        index.add(SegmentId(6 + number % 3), row(100 + number))
    wanted = [row(10 * number) for number in range(offset // 10, 8)]
    closed = ClosedIndex(index.encode())
    assert [r for r in index.rows(KEY, Offset(offset)) if r.offset < 100] == wanted
    assert list(closed.rows(KEY, Offset(offset))) == list(index.rows(KEY, Offset(offset)))


def test_the_encoded_size_is_known_before_and_grows_by_a_bounded_amount() -> None:
    index = OpenIndex()
    for number in range(20):
        before = index.encoded_bytes
        index.add(SegmentId(number // 2), row(number))
        assert len(index.encode()) == index.encoded_bytes
        assert index.encoded_bytes - before <= INDEX_BYTES_PER_ROW_MAX


def test_an_unknown_key_has_no_rows() -> None:
    index = OpenIndex()
    index.add(KEY, row(0))
    closed = ClosedIndex(index.encode())
    assert list(index.rows(SegmentId(8), Offset(0))) == list(closed.rows(SegmentId(8), Offset(0))) == []
    assert list(closed.all()) == [(KEY, row(0))]


def test_an_index_with_a_wrong_length_is_refused() -> None:
    index = OpenIndex()
    index.add(KEY, row(0))
    with pytest.raises(ValueError, match="does not match its counts"):
        ClosedIndex(index.encode()[:-8])
