"""One value to its event time, in plain Python: for what the kernels leave aside, and for other codecs' values."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache

from penstock.protocol.event_time.codes import (
    NOT_A_TIME,
    NULL,
    OUT_OF_RANGE,
    TEXT_MAX,
    TIME,
    TIME_MAX,
    TIME_MIN,
    WRONG_TYPE,
)
from penstock.protocol.event_time.field import ISO, UNITS_US

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?([0-9]+))?")
_EXPONENT_DIGITS_MAX = 5
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_EXACT = Context(prec=2 * TEXT_MAX)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

TEXTS_CACHED = 1 << 16
"""Texts of a strptime format whose times are remembered: such times are often whole seconds, and many events share
one. At most 40 MiB."""


@dataclass(frozen=True, slots=True)
class Found:
    """`kind` is TIME, or a problem."""

    kind: int
    time_us: int = 0


def time_of(value: object, format_: str) -> Found:
    """The time of a decoded value in this format; a `datetime` is a time whatever the format."""
    match value:
        case None:
            return Found(NULL)
        case datetime():
            return _within(_since_epoch(value))
        case str():
            return _of_text(value, format_)
        case bool():
            return Found(WRONG_TYPE)
        case int() | float() if format_ in UNITS_US:
            return _of_number(value, format_)
    return Found(WRONG_TYPE)


def _of_text(text: str, format_: str) -> Found:
    if len(text) > TEXT_MAX:
        return Found(NOT_A_TIME)
    if format_ == ISO:
        return _iso(text)
    return _decimal(text, format_) if format_ in UNITS_US else parsed(text, format_)


def _of_number(value: float, unit: str) -> Found:
    """A binary fraction is rounded to the nearest microsecond: it is rarely the decimal one that was meant."""
    multiplier, divisor = UNITS_US[unit]
    if isinstance(value, int):
        return _within(value * multiplier // divisor)
    us = value * multiplier / divisor
    return _within(round(us)) if math.isfinite(us) else Found(OUT_OF_RANGE)


def _decimal(text: str, unit: str) -> Found:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return Found(NOT_A_TIME)
    number = Decimal(text if len((found[3] or "").lstrip("0")) <= _EXPONENT_DIGITS_MAX else _clamped(text))
    multiplier, divisor = UNITS_US[unit]
    if number.is_zero():
        return Found(TIME)
    if number.adjusted() > len(str(TIME_MAX)) + 3:
        return Found(OUT_OF_RANGE)
    shifted = number.scaleb(len(str(multiplier)) - len(str(divisor)), _EXACT)
    return _within(math.floor(shifted))


def _clamped(text: str) -> str:
    """With an exponent of the same sign that `Decimal` can represent: the time is out of range, or rounds the same."""
    mantissa, _, exponent = text.lower().partition("e")
    return f"{mantissa}e{'-' if exponent.startswith('-') else ''}99999"


def _iso(text: str) -> Found:
    found = _ISO.fullmatch(text)
    if found is None:
        return Found(NOT_A_TIME)
    year, month, day, hour, minute, second = (int(each or 0) for each in found.groups()[:6])
    micros, zone = int((found[7] or "")[:6].ljust(6, "0")), found[8]
    try:
        moment = datetime(year, month, day, hour, minute, second, micros, tzinfo=UTC)
        return _within((moment - _EPOCH) // _US - _offset(zone) // _US)
    except ValueError:
        return Found(NOT_A_TIME)


def _offset(zone: str | None) -> timedelta:
    """Raises ValueError."""
    if zone is None or zone in "Zz":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset


@lru_cache(TEXTS_CACHED)
def parsed(text: str, format_: str) -> Found:
    """The time of a text in a strptime format; without a zone it is in UTC."""
    try:
        return _within(_since_epoch(datetime.strptime(text, format_)))
    except (ValueError, OverflowError):
        return Found(NOT_A_TIME)


def _since_epoch(moment: datetime) -> int:
    """Subtracts the offset by itself: in UTC, the time may be outside of what `datetime` can represent."""
    offset = moment.utcoffset() or timedelta()
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _US - offset // _US


def _within(time_us: int) -> Found:
    return Found(TIME, time_us) if TIME_MIN <= time_us <= TIME_MAX else Found(OUT_OF_RANGE)
