"""The event time of one event, with Python's own decoders: what the kernels must find."""

import csv
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import msgpack

from penstock.protocol.event_time.codes import DEPTH_MAX, TEXT_MAX, TIME_MAX, TIME_MIN

UNITS = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ISO = re.compile(
    r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d([.,](?P<fraction>\d+))?)?([Zz]|(?P<sign>[+-])(?P<zone>\d\d(:?\d\d)?))?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)

csv.field_size_limit(2**31 - 1)


class Number(str):
    """A number as JSON writes it."""

    __slots__ = ()


class Unclear(Exception):
    """Python's decoder refuses the event for a reason of its own."""


def expected(event: bytes, codec: str, field: str, format_: str, column: int = 0) -> int | None:
    """Microseconds since 1970, or None if there is no usable time. Raises Unclear."""
    try:
        found = {"json": of_json, "msgpack": of_msgpack}[codec](event, field.split(".")) if codec != "csv" else None
        found = of_csv(event, column) if codec == "csv" else found
    except (ValueError, LookupError, TypeError, csv.Error):
        return None
    us = time_of(found, format_)
    return us if us is not None and TIME_MIN <= us <= TIME_MAX else None


def of_json(event: bytes, steps: Sequence[str]) -> object:
    text = event.decode("utf-8", "surrogateescape")
    found = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse)
    if _depth(found) > DEPTH_MAX:
        raise ValueError("nested too deeply")
    for step in steps:
        found = found[step] if isinstance(found, dict) else found[None]
    return found


def _refuse(text: str) -> object:
    raise ValueError(text)


def _depth(found: object) -> int:
    inner = [*found.values()] if isinstance(found, dict) else found if isinstance(found, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def of_csv(event: bytes, column: int) -> object:
    return next(csv.reader([event.decode("utf-8", "surrogateescape")], strict=True))[column]


class _Map(list[tuple[object, object]]):
    pass


def of_msgpack(event: bytes, steps: Sequence[str]) -> object:
    limit = len(event) + 1
    try:
        found = msgpack.unpackb(
            event,
            object_pairs_hook=_Map,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            max_map_len=limit,
            max_array_len=limit,
        )
    except (msgpack.StackError, msgpack.FormatError, ValueError) as error:
        if isinstance(error, msgpack.StackError) or "Timestamp" in str(error) or "nanoseconds" in str(error):
            raise Unclear from None
        raise
    for step in steps:
        if not isinstance(found, _Map):
            raise LookupError(step)
        found = [value for key, value in found if type(key) is str and key == step][-1]
    return found


def time_of(found: object, format_: str) -> int | None:
    if isinstance(found, msgpack.Timestamp):
        return int(found.seconds * 10**6 + found.nanoseconds // 1000)
    if isinstance(found, bool) or (isinstance(found, str) and len(found) > TEXT_MAX):
        return None
    if format_ == "iso":
        return iso(found) if isinstance(found, str) and not isinstance(found, Number) else None
    if format_ not in UNITS:
        return strptime(found, format_) if isinstance(found, str) and not isinstance(found, Number) else None
    return number(found, UNITS[format_])


def number(found: object, scale: Fraction) -> int | None:
    """Decimals are rounded down, binary fractions to the nearest microsecond."""
    if isinstance(found, str):
        if _NUMBER.fullmatch(found) is None:
            return None
        exact = Decimal(found)
        if exact.adjusted() > 30:
            return None if exact else 0
        if exact.adjusted() < -30:
            return -1 if exact < 0 else 0
        return math.floor(Fraction(exact) * scale)
    if isinstance(found, int):
        return math.floor(found * scale)
    if isinstance(found, float) and math.isfinite(found):
        us = found * scale.numerator / scale.denominator
        return round(us) if math.isfinite(us) else None
    return None


def iso(text: str) -> int | None:
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    digits = found["fraction"] or ""
    plain = text[:19].upper().replace(" ", "T")
    plain = plain if len(text) == 10 or text[16:17] == ":" else plain[:16]
    try:
        moment = datetime.fromisoformat(plain).replace(tzinfo=UTC)
        zone = (found["zone"] or "").replace(":", "").ljust(4, "0")
        datetime(2000, 1, 1, int(zone[:2]), int(zone[2:]), tzinfo=UTC)
    except ValueError:
        return None
    offset = timedelta(hours=int(zone[:2]), minutes=int(zone[2:])) * (-1 if found["sign"] == "-" else 1)
    since = (moment - EPOCH) // timedelta(microseconds=1) - offset // timedelta(microseconds=1)
    return since + int(digits[:6].ljust(6, "0"))


def strptime(text: str, format_: str) -> int | None:
    try:
        moment = datetime.strptime(text, format_)
    except ValueError:
        return None
    offset = moment.utcoffset() or timedelta()
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) - offset // timedelta(microseconds=1)
