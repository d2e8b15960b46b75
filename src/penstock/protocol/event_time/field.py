"""Which field of an event is its event time, how the time is written, and what happens to events without one."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from penstock.core.errors import RequestError
from penstock.core.suggestions import suggestion

ISO = "iso"
UNITS_US: Mapping[str, tuple[int, int]] = {"s": (10**6, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
"""Multiplier and divisor from a number in this unit to microseconds."""

SCANNED_CODECS = ("json", "csv", "msgpack")
"""Codecs whose fields a compiled scanner finds."""

STEPS_MAX = 16
"""Nesting of a field; documents that people write are not nested more deeply."""

Missing = Literal["arrival", "dead-letter"]
"""An event without a usable time gets its arrival time, or is a dead letter."""

_YEAR = re.compile(r"%(?:%|[YyGcxD])")
_SAMPLE = datetime(2026, 10, 31, 22, 58, 59, 987654, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeField:
    """Plain values, as deployed. `checked` validates them."""

    field: str
    """Names of nested fields, separated by dots. For CSV the name of a column, or its number, starting with 0."""
    format: str = ISO
    """`iso`; a number since 1970 in `s`, `ms`, `us` or `ns`; or a format of Python's `strptime`, like `%d/%b/%Y`."""
    missing: Missing = "dead-letter"
    codec: str | None = None
    """How events are encoded; None: the codec has no fields, so only content types in `codec_map` have them."""
    codec_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Content type → codec, as for a connector."""
    column: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The number of the column in CSV."""

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(self.field.split("."))

    @property
    def is_dead_letter(self) -> bool:
        return self.missing == "dead-letter"


def checked_field(name: str) -> str:
    """Raises RequestError for a field that cannot exist."""
    steps = name.split(".")
    if not all(steps) or not name.isprintable():
        raise RequestError(f"{name!r} is not a valid field", "Write a name, or nested names like order.time.")
    if len(steps) > STEPS_MAX:
        raise RequestError(f"{name!r} has {len(steps)} steps; the limit is {STEPS_MAX}")
    return name


def checked_format(text: str) -> str:
    """Raises RequestError for a format that no time can have."""
    if text == ISO or text in UNITS_US:
        return text
    if "%" not in text:
        hint = suggestion(text, (ISO, *UNITS_US)) or "Write iso, s, ms, us, ns, or a strptime format like %d/%b/%Y."
        raise RequestError(f"{text!r} is not a format of times", hint)
    if all(found == "%%" for found in _YEAR.findall(text)):
        raise RequestError(f"{text!r} has no year", "Without one all events would be in 1900: add %Y.")
    try:
        datetime.strptime(_SAMPLE.strftime(text), text)
    except (ValueError, re.error) as error:
        raise RequestError(f"{text!r} is not a valid strptime format: {error}", "Use Python's directives.") from None
    return text


def check_column(spec: EventTimeField) -> None:
    """Raises RequestError if a field of CSV is not resolved to a column."""
    if spec.column is None and "csv" in (spec.codec, *spec.codec_map.values()):
        raise RequestError(f"{spec.field!r} is not a column", "Write the number of the column, starting with 0.")
