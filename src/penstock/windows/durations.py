"""Lengths of time as people write them, in whole microseconds."""

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
_HINT = "Write it like '90 seconds', '1 minute', '1 hour 30 minutes' or '500ms', or give a timedelta."


def microseconds(what: str, given: Duration) -> int:
    """Raises RequestError, with `what` in it, for what is no length of time, or none of whole microseconds."""
    if isinstance(given, timedelta):
        return given // timedelta(microseconds=1)
    if not isinstance(given, str):
        raise RequestError(f"{what} is {given!r}, which is no length of time", _HINT)
    text = given.strip().lower()
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text):
        raise RequestError(f"{what} is {given!r}, which is no length of time", _HINT)
    length = sum((Decimal(number) * _unit(what, given, unit) for number, unit in parts), Decimal(0))
    if length != int(length):
        raise RequestError(f"{what} is {given!r}, which is no whole number of microseconds", _HINT)
    return int(length)


def _unit(what: str, given: str, unit: str) -> int:
    if unit.startswith(("month", "year")):
        raise RequestError(f"{what} is {given!r}, but months and years differ in length", "Give it in days.")
    if unit not in _UNITS_US:
        raise RequestError(f"{what} is {given!r}, and there is no unit {unit!r}", _HINT)
    return _UNITS_US[unit]


def written(length_us: int) -> str:
    """In the largest unit that it is a whole number of: 90s, 1h, 500ms."""
    for unit in ("d", "h", "m", "s", "ms"):
        if length_us and length_us % _UNITS_US[unit] == 0:
            return f"{length_us // _UNITS_US[unit]}{unit}"
    return f"{length_us}µs"
