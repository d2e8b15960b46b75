"""Points of reference of columns that grow, and rows that are committed out of order. No database."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.api import Lost
from penstock.connectors.growing import (
    REREAD_US,
    ROW_BYTES_MAX,
    Rows,
    Settling,
    TimeIds,
    check_positive,
    check_sizes,
    time_literal,
)
from penstock.core.errors import RequestError


@given(st.lists(st.integers(1, 2**52), min_size=1).map(sorted), st.integers(0, 100))
def test_ids_of_times_grow_and_a_restart_reads_everything_that_was_not_stored(times: list[int], stored: int) -> None:
    ids = TimeIds().of(times)
    assert all(one < other for one, other in pairwise(ids))
    stored = min(stored, len(times) - 1)
    again = TimeIds(ids[stored])
    start = again.start_us()
    assert start is not None
    assert all(time >= start for time in times[stored:])
    assert again.of(times[stored:])[0] > ids[stored], "a row that is read again is another event"


def test_many_rows_with_the_same_time_use_numbers_that_a_restart_reads_again() -> None:
    ids = TimeIds().of([10**15] * 1_000_000)
    start = TimeIds(ids[-1]).start_us()
    assert start is not None
    assert 10**15 - REREAD_US <= start <= 10**15
    assert TimeIds().start_us() is None


def test_a_number_is_settled_when_all_who_wrote_then_are_gone() -> None:
    settling = Settling()
    settling.note(7, frozenset({"a", "b"}))
    assert settling.settled == 0
    settling.note(9, frozenset({"b", "c"}))
    assert settling.settled == 0, "b may still commit a number below 7"
    settling.note(9, frozenset({"c", "d"}))
    assert settling.settled == 7, "new writers draw higher numbers"
    settling.note(9, frozenset({"d"}))
    assert settling.settled == 7
    settling.note(9, frozenset())
    assert settling.settled == 9


def test_without_writers_everything_is_settled_at_once() -> None:
    settling = Settling(3)
    settling.note(9, frozenset())
    assert settling.settled == 9
    settling.note(0, frozenset({"a"}))
    assert settling.settled == 9, "an empty table changes nothing"


@given(st.data())
def test_no_row_appears_at_or_below_what_is_settled(data: st.DataObject) -> None:
    """Writers lock, draw a number, and commit, in any order; the reader looks at any time."""
    settling, running, drawn, visible = Settling(), {}, 0, set[int]()
    for step in range(data.draw(st.integers(1, 40))):
        act = data.draw(st.sampled_from(["begin", "commit", "look"]))
        if act == "begin":
            drawn += 1
            running[f"w{step}"] = drawn
        elif act == "commit" and running:
            number = running.pop(data.draw(st.sampled_from(sorted(running))))
            assert number > settling.settled
            visible.add(number)
        else:
            settling.note(max(visible, default=0), frozenset(running))


def test_a_row_that_is_too_large_and_a_number_below_one_are_named() -> None:
    with pytest.raises(Lost, match="the row 7 has"):
        check_sizes(Rows([b"x" * (ROW_BYTES_MAX + 1)], [7], True))
    check_positive(None, "id")
    check_positive(1, "id")
    with pytest.raises(RequestError, match="the value 0"):
        check_positive(0, "id")
    assert time_literal(1_500_000) == "1970-01-01 00:00:01.500000+00:00"
