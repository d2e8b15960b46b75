"""Texts and numbers as values of a type: what a JSON string, a CSV field or a number may mean, and what not.

The accepted texts are those that Spark's own readers accept, without their guesses: see docs/codecs.md.
"""

import base64
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from penstock.core.kinds import INTEGERS, Kind

_TIME = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)"
    r"(?:[T ](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d+))?)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_SPECIAL = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
"""Texts that are floating-point values, in JSON too: Spark writes these values so."""

_SPECIAL_CSV = _SPECIAL | {"Inf": math.inf, "+Inf": math.inf, "-Inf": -math.inf}

FLOAT_MAX = 3.4028235677973362e38
"""The largest number that is rounded to a value of FLOAT. Spark writes the largest value itself as 3.4028235E38."""

_DIGITS = Context(prec=400, rounding=ROUND_HALF_UP)
"""Enough for any double, so that nothing is rounded before the scale is known."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats after these. Python has no year 0, and Arrow has."""

_SECONDS_MAX = 253_402_300_799
"""The end of the year 9999, in seconds since 1970; the year 1 is about as far on the other side."""

_SECONDS_MIN = -62_135_596_800


class Misfit(ValueError):
    """A document that cannot become a row of the schema; its text is the reason."""


def timestamp(value: object) -> int:
    """Microseconds since 1970: of a time in ISO 8601, in UTC unless it has an offset, of seconds since 1970, or of an
    instant. Digits beyond microseconds are dropped. Raises ValueError.
    """
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError("not a time")
    if isinstance(value, int):
        if not _SECONDS_MIN <= value <= _SECONDS_MAX:
            raise ValueError("out of range")
        return value * 1_000_000
    found = _matched(_TIME, value)
    return _microseconds(found, _offset(found["zone"]))


def local_timestamp(value: str) -> int:
    """As `timestamp`, for a time without an offset."""
    found = _matched(_TIME, value)
    if found["zone"]:
        raise ValueError("it has an offset")
    return _microseconds(found, UTC)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a time")
    return found


def _microseconds(found: re.Match[str], zone: timezone) -> int:
    year, *parts, fraction = found.groups(default="0")[:7]
    whole = datetime(int(year) or _CYCLE_YEARS, *map(int, parts), tzinfo=zone)  # type: ignore[misc,arg-type]
    cycle = timedelta(days=0 if int(year) else _CYCLE_DAYS)
    return (whole - _EPOCH - cycle) // _MICROSECOND + int(fraction[:6].ljust(6, "0"))


def _offset(zone: str | None) -> timezone:
    if zone is None or zone == "Z":
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
    return timezone((1 if zone[0] == "+" else -1) * timedelta(hours=hours, minutes=minutes))


def day(text: str) -> int:
    """Days since 1970. Raises ValueError."""
    year, month, of_month = map(int, _matched(_DATE, text).groups())
    found = date(year or _CYCLE_YEARS, month, of_month).toordinal() - _EPOCH.toordinal()
    return found if year else found - _CYCLE_DAYS


def decimal(value: Decimal | int | float | str, precision: int, scale: int) -> Decimal:
    """Rounded half up to the scale. Raises ValueError for a value with too many digits before the point."""
    try:
        exact = _DIGITS.create_decimal(_number(str(value)))
        rounded = exact.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)
    except InvalidOperation:
        raise ValueError("not a number") from None
    if rounded.adjusted() >= precision - scale and rounded:
        raise ValueError("out of range")
    return rounded


def _number(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a number")
    return text


def single(value: float) -> float:
    """A value of FLOAT. Raises ValueError if it is finite, and too large."""
    if abs(value) > FLOAT_MAX and not math.isinf(value):
        raise ValueError("out of range")
    return value


def special(text: str) -> float:
    """NaN or an infinity. Raises ValueError."""
    found = _SPECIAL.get(text)
    if found is None:
        raise ValueError("not a number")
    return found


def number_or_name(value: float) -> float | str:
    """The name of NaN or an infinity, which `special` reads."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def with_names(value: Any) -> Any:
    """The value with names in place of NaN and infinities, which JSON has no numbers for."""
    match value:
        case float():
            return number_or_name(value)
        case dict():
            return {key: with_names(each) for key, each in value.items()}
        case list() | tuple() | set():
            return [with_names(each) for each in value]
    return value


def unquoted(kind: Kind) -> Callable[[str], Any]:
    """Reads the text of a CSV field. Raises ValueError for a text that is not a value of the type."""
    if kind.name in INTEGERS:
        return lambda text: integer(text, INTEGERS[kind.name])
    match kind.name:
        case "boolean":
            return _boolean
        case "double":
            return _floating
        case "float":
            return lambda text: single(_floating(text))
        case "decimal":
            precision, scale = kind.numbers
            return lambda text: decimal(text, precision, scale)
        case "timestamp":
            return timestamp
        case "timestamp_ntz":
            return local_timestamp
        case "date":
            return day
    return str


def integer(text: str, bits: int) -> int:
    """Raises ValueError."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    return in_range(int(text), bits)


def in_range(number: int, bits: int) -> int:
    """Returns the number. Raises ValueError if it needs more bits."""
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError("out of range")
    return number


def _floating(text: str) -> float:
    if text in _SPECIAL_CSV:
        return _SPECIAL_CSV[text]
    found = float(_number(text))
    if math.isinf(found):
        raise ValueError("out of range")
    return found


def _boolean(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise ValueError("neither true nor false")
    return found


def from_base64(text: str) -> bytes:
    """Raises ValueError."""
    return base64.b64decode(text, validate=True)
