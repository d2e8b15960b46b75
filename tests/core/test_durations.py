"""Durations are whole microseconds, or an error that shows how to write them."""

from datetime import timedelta

import pytest

from penstock.core.durations import format_duration, parse_duration_ms, parse_duration_us, show_latency, show_seconds
from penstock.core.errors import RequestError


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
    assert parse_duration_us("size", given) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "is not a valid duration"),
        ("minute", "is not a valid duration"),
        ("1", "is not a valid duration"),
        ("1 minute and 2", "is not a valid duration"),
        ("1 fortnight", "'fortnight' is not a unit"),
        ("1 month", "months and years differ in length"),
        ("0.1 us", "is not a whole number of microseconds"),
        (60, "is not a valid duration"),
    ],
)
def test_anything_else_is_refused_with_a_hint(given: str, why: str) -> None:
    with pytest.raises(RequestError, match=f"gap: .*{why}") as caught:
        parse_duration_us("gap", given)
    assert caught.value.hint


def test_they_are_shown_in_their_largest_unit() -> None:
    lengths = (86_400_000_000, 5_400_000_000, 90_000_000, 500_000, 7)
    assert [*map(format_duration, lengths)] == ["1d", "90m", "90s", "500ms", "7µs"]


def test_durations_are_read_as_people_and_as_spark_write_them() -> None:
    texts = {"500ms": 500, "1s": 1000, "1.5s": 1500, "2 m": 120_000, "1h": 3_600_000, "10 seconds": 10_000}
    assert {text: parse_duration_ms(text) for text in texts} == texts
    assert parse_duration_ms("1 minute") == 60_000
    for text in ("", "5", "s", "1 fortnight", "-1s"):
        with pytest.raises(RequestError, match="is not a valid duration"):
            parse_duration_ms(text)


def test_they_are_shown_to_people_in_two_units() -> None:
    lengths = {None: "", 0.4: "0 s", 59.9: "59 s", 185: "3 min 5 s", 7800: "2 h 10 min"}
    assert {seconds: show_seconds(seconds) for seconds in lengths} == lengths
    assert [show_latency(seconds) for seconds in (None, 0.44, 59.9, 185)] == ["", "0.4 s", "59.9 s", "3 min 5 s"]
