"""The event times of lines that `penstock send` sends: the time of sending, or a field of each line."""

import json
import math
import time
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from penstock.cli.event_times import parse_event_time
from penstock.core.errors import RequestError
from penstock.protocol.connector.event_time import EventTimeUnit

LineTime: TypeAlias = Callable[[bytes, int], int]
"""Of a line and its number: its event time, in the source's unit. Raises RequestError that names the line."""

_FIELD = "field="

_UNITS_US = ((10**11, Decimal(1_000_000)), (10**14, Decimal(1000)), (10**17, Decimal(1)))
"""Numbers below the first limit are seconds, which ends in the year 5138; then ms, µs, and beyond the last one ns."""

_TIMES = "A time is ISO 8601, like 2026-01-31T12:00:00Z, or a number since 1970 in s, ms, µs or ns."


_ON_ARRIVAL = 0


def line_times(given: str, unit: EventTimeUnit, *, ingest: bool = False) -> LineTime:
    """`now`, or `field=NAME`. With `ingest` the worker gives lines without a time that of their arrival: `now` leaves
    it to the worker, for a time of the line's own would keep windows from closing by the clock. Raises RequestError.
    """
    if given == "now" and ingest:
        return lambda _, __: _ON_ARRIVAL
    if given == "now":
        return lambda _, __: _in_unit(time.time_ns() // 1000, unit)
    if given.startswith(_FIELD) and (name := given.removeprefix(_FIELD)):
        return lambda line, number: _in_unit(_field_us(line, number, name), unit)
    raise RequestError(f"--event-time {given!r} is not valid", "Write now, or field=NAME for a field of JSON lines.")


def _in_unit(us: int, unit: EventTimeUnit) -> int:
    multiplier, divisor = unit.value
    return us * divisor // multiplier


def _field_us(line: bytes, number: int, name: str) -> int:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _wrong(number, f"is not JSON: {error}", f"--event-time field={name} takes lines of JSON.") from None
    if not isinstance(found, dict):
        raise _wrong(number, "is not a JSON object", f"--event-time field={name} takes a JSON object on each line.")
    if name not in found:
        has = f"It has: {', '.join(map(str, found))}." if found else _TIMES
        raise _wrong(number, f"has no field {name!r}", has)
    try:
        return time_us(found[name])
    except RequestError:
        raise _wrong(number, f"has no time in its field {name!r}: {found[name]!r:.100}", _TIMES) from None


def time_us(given: Any) -> int:
    """Microseconds since 1970. Raises RequestError."""
    if isinstance(given, str) and not _is_number(given):
        return parse_event_time(given)
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise RequestError(f"{given!r:.100} is not a time")
    if isinstance(given, float) and not math.isfinite(given):
        raise RequestError(f"{given} is not a time")
    number = Decimal(str(given))
    scale = next((scale for limit, scale in _UNITS_US if abs(number) < limit), Decimal("0.001"))
    return math.floor(number * scale)


def _is_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _wrong(number: int, what: str, hint: str) -> RequestError:
    sent = "nothing was sent" if number == 1 else "the lines before it are sent"
    return RequestError(f"line {number} {what}; {sent}", hint)
