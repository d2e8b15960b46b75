"""Lengths of time are whole microseconds, or an error that says how to write them."""

from datetime import timedelta

import pytest

from penstock.core.errors import RequestError
from penstock.windows.durations import microseconds, written


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1 minute", 60_000_000),
        ("90 seconds", 90_000_000),
        ("500ms", 500_000),
        ("1.5 s", 1_500_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("  2 Days ", 172_800_000_000),
        ("-1 hour", -3_600_000_000),
        ("1 week", 604_800_000_000),
        ("7 us", 7),
        ("0.000001 seconds", 1),
        (timedelta(minutes=1, microseconds=1), 60_000_001),
    ],
)
def test_they_are_written_as_people_do(given: str | timedelta, expected: int) -> None:
    assert microseconds("the size", given) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "no length of time"),
        ("minute", "no length of time"),
        ("1", "no length of time"),
        ("1 minute and 2", "no length of time"),
        ("1 fortnight", "there is no unit 'fortnight'"),
        ("1 month", "months and years differ in length"),
        ("0.1 us", "no whole number of microseconds"),
        (60, "no length of time"),
    ],
)
def test_what_is_none_is_refused_with_a_hint(given: str, why: str) -> None:
    with pytest.raises(RequestError, match=f"the gap is .*{why}") as caught:
        microseconds("the gap", given)
    assert caught.value.hint


def test_they_are_shown_in_their_largest_unit() -> None:
    lengths = (86_400_000_000, 5_400_000_000, 90_000_000, 500_000, 7)
    assert [*map(written, lengths)] == ["1d", "90m", "90s", "500ms", "7µs"]
