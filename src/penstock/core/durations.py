"""Durations as people write them: 500ms, 1s, 2m, 1 minute, 1 hour 30 minutes."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from penstock.core.errors import RequestError

Duration: TypeAlias = str | timedelta

_UNITS_US = {
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000_000),
}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")
_HINT = "Write it like 500ms, 90s, '1 minute' or '1 hour 30 minutes'."


def parse_duration_ms(text: str) -> int:
    """The duration, rounded to milliseconds; zero is allowed. Raises RequestError for a negative or invalid one."""
    length_us = _parse_us(text)
    if length_us < 0:
        raise RequestError(f"{text!r} is not a valid duration: it is negative", _HINT)
    return round(length_us / 1000)


def parse_duration_us(name: str, value: Duration) -> int:
    """The duration in microseconds. Raises RequestError, naming the option, unless it is a whole number of them."""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    try:
        length_us = _parse_us(value)
    except RequestError as error:
        raise RequestError(f"{name}: {error}", error.hint) from None
    if length_us != int(length_us):
        raise RequestError(f"{name}: {value!r} is not a whole number of microseconds", _HINT)
    return int(length_us)


def _parse_us(value: object) -> Decimal:
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text):
        raise RequestError(f"{value!r} is not a valid duration", _HINT)
    return sum((Decimal(number) * _unit_us(value, unit) for number, unit in parts), Decimal(0))


def _unit_us(value: object, unit: str) -> int:
    if unit.startswith(("month", "year")):
        raise RequestError(f"{value!r} is not a valid duration: months and years differ in length", "Use days.")
    if unit not in _UNITS_US:
        raise RequestError(f"{value!r} is not a valid duration: {unit!r} is not a unit", _HINT)
    return _UNITS_US[unit]


def format_duration(length_us: int) -> str:
    """The duration in the largest unit that divides it: 90s, 1h, 500ms."""
    for unit in ("d", "h", "m", "s", "ms"):
        if length_us and length_us % _UNITS_US[unit] == 0:
            return f"{length_us // _UNITS_US[unit]}{unit}"
    return f"{length_us}µs"


def show_seconds(seconds: float | None) -> str:
    """The duration for people, in its two largest units: 12 s, 3 min 5 s, 2 h 10 min. Nothing for None."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def show_latency(seconds: float | None) -> str:
    """As `show_seconds`, with tenths of a second under a minute."""
    return f"{seconds:.1f} s" if seconds is not None and seconds < 60 else show_seconds(seconds)
