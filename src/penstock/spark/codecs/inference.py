"""Proposes a schema for samples of events: their fields, with types that all samples fit."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from penstock.core.errors import RequestError
from penstock.core.kinds import STRING, Field, Fields, Kind
from penstock.spark.codecs.scalars import day, timestamp, unquoted

FIELDS_MAX = 200
"""An object with more names than this, all of whose values have one type, is a map."""

_BIGINT, _DOUBLE, _VOID = Kind("bigint"), Kind("double"), Kind("void")
_BIG = Kind("decimal", (38, 0))
_BIG_MAX = 10**38

_UNITS = (
    ("s", "seconds", 1),
    ("ms", "milliseconds", 10**3),
    ("us", "microseconds", 10**6),
    ("ns", "nanoseconds", 10**9),
)
_EPOCH_FROM, _EPOCH_TO = 978_307_200, 4_102_444_800
"""2001 and 2100, in seconds since 1970: numbers between them may be times."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A field that may hold the event time."""

    field: str
    format: str
    """`iso`, or the unit of its numbers: `s`, `ms`, `us`, `ns`."""


@dataclass(frozen=True, slots=True)
class Inferred:
    codec: str
    samples: int
    unreadable: int
    """Samples that the codec cannot read, or that are not objects."""
    fields: Fields
    missing: dict[str, int]
    """Field → in how many samples it is missing or null; without fields that are always there."""
    conflicts: dict[str, dict[str, int]]
    """Field, with its path → the types that were found and their counts, where one type had to be widened to STRING."""
    left_out: dict[str, str]
    """Name → why it cannot be a column."""
    candidates: tuple[Candidate, ...]


@dataclass(slots=True)
class _Seen:
    """All values of one field, or of one element of lists."""

    kinds: Counter[str] = field(default_factory=Counter)
    members: dict[str, _Seen] = field(default_factory=dict)
    elements: _Seen | None = None
    low: int | None = None
    high: int | None = None

    def add(self, value: Any, is_text: bool) -> None:
        kind = _kind_name(value, is_text)
        self.kinds[kind] += 1
        if kind == "struct":
            for name, inner in value.items():
                self.members.setdefault(str(name), _Seen()).add(inner, is_text)
        elif kind == "array":
            self.elements = self.elements or _Seen()
            for inner in value:
                self.elements.add(inner, is_text)
        elif kind == "bigint":
            number = int(value)
            self.low = number if self.low is None else min(self.low, number)
            self.high = number if self.high is None else max(self.high, number)

    def kind(self) -> Kind:
        """A type that all values fit: STRING takes any of them as text."""
        found = {name for name in self.kinds if name != "null"}
        if found <= {"bigint", "double"} and found:
            return _DOUBLE if "double" in found else self._integer()
        if found <= {"date", "timestamp"} and found:
            return Kind("timestamp" if "timestamp" in found else "date")
        match [*found]:
            case ["struct"]:
                return self._struct()
            case ["array"]:
                assert self.elements is not None
                return Kind("array", of=(_known(self.elements.kind()),))
            case [one]:
                return Kind(one)
            case []:
                return _VOID
        return STRING

    def _integer(self) -> Kind:
        assert self.low is not None
        assert self.high is not None
        if self.low >= -(2**63) and self.high < 2**63:
            return _BIGINT
        return _BIG if self.low > -_BIG_MAX and self.high < _BIG_MAX else STRING

    def _struct(self) -> Kind:
        if len(self.members) > FIELDS_MAX:
            values = {_known(seen.kind()) for seen in self.members.values()}
            return Kind("map", of=(STRING, values.pop() if len(values) == 1 else STRING))
        return Kind("struct", fields=tuple(Field(name, _known(seen.kind())) for name, seen in self.members.items()))

    def conflicts(self, path: str) -> Iterator[tuple[str, dict[str, int]]]:
        kinds = {name: count for name, count in self.kinds.items() if name != "null"}
        if self.kind() == STRING and [*kinds] != ["string"]:
            yield path, kinds
            return
        for name, seen in self.members.items():
            yield from seen.conflicts(f"{path}.{name}" if path else name)
        if self.elements is not None:
            yield from self.elements.conflicts(f"{path}[]")


def _known(kind: Kind) -> Kind:
    """STRING for a field that was always null: it takes whatever comes."""
    return STRING if kind == _VOID else kind


def _kind_name(value: Any, is_text: bool) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "bigint"
        case float() | Decimal():
            return "double"
        case dict():
            return "struct"
        case list():
            return "array"
        case bytes():
            return "binary"
        case datetime():
            return "timestamp"
        case str() if is_text:
            return _text_kind(value)
    return _time_kind(value)


def _text_kind(text: str) -> str:
    """The type of a CSV field, which has only text to show it."""
    for kind in ("bigint", "double", "boolean"):
        if _reads(unquoted(Kind(kind)), text):
            return kind
    return _time_kind(text)


def _time_kind(text: str) -> str:
    if _reads(day, text):
        return "date"
    return "timestamp" if _reads(timestamp, text) else "string"


def _reads(read: Callable[[str], Any], text: str) -> bool:
    try:
        read(text)
        return True
    except ValueError:
        return False


# Samples to values.


def infer(codec: str, samples: Sequence[bytes], columns: Sequence[str] | None = None) -> Inferred:
    """`columns`: the names of CSV fields; c1, c2, … without them. Raises RequestError if no sample can be read."""
    rows = [*_rows(codec, samples, columns)]
    if not rows:
        raise RequestError(
            f"none of {len(samples):,} events is {'an object' if codec != 'csv' else 'a record'} in {codec}",
            "Name another codec with --codec, or leave schema out: the events are then in one column.",
        )
    seen = _Seen()
    for row in rows:
        seen.add(row, is_text=codec == "csv")
    fields, left_out = _columns(seen)
    return Inferred(
        codec,
        len(samples),
        len(samples) - len(rows),
        fields,
        {each.name: lacking for each in fields if (lacking := _lacking(seen.members[each.name], len(rows)))},
        dict(seen.conflicts("")),
        left_out,
        tuple(_candidates(seen, "")),
    )


def _rows(codec: str, samples: Iterable[bytes], columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    for sample in samples:
        row = _record(sample, columns) if codec == "csv" else _document(codec, sample)
        if row is not None:
            yield row


def _document(codec: str, sample: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(sample) if codec == "json" else msgspec.msgpack.decode(sample)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _record(sample: bytes, columns: Sequence[str] | None) -> dict[str, Any] | None:
    fields = record_of(sample)
    if fields is None or (columns is not None and len(fields) != len(columns)):
        return None
    names = columns or [f"c{number}" for number in range(1, len(fields) + 1)]
    return {name: text or None for name, text in zip(names, fields, strict=True)}


def record_of(sample: bytes) -> list[str] | None:
    """The fields of a CSV record; None if it is not one."""
    try:
        found = [*csv.reader(io.StringIO(sample.decode(), newline=""), strict=True)]
    except (UnicodeDecodeError, csv.Error):
        return None
    return found[0] if len(found) == 1 and found[0] else None


def guess_codec(samples: Sequence[bytes]) -> str | None:
    """The codec in which most samples are objects; None if there is none."""
    for codec in ("json", "msgpack"):
        if sum(_document(codec, sample) is not None for sample in samples) * 2 > len(samples):
            return codec
    widths = Counter(len(record_of(sample) or ()) for sample in samples)
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    return "csv" if width > 1 and count * 2 > len(samples) else None


# What is known of each field.


def _columns(seen: _Seen) -> tuple[Fields, dict[str, str]]:
    """The fields that can be columns, and why others cannot."""
    found: dict[str, Field] = {}
    left_out: dict[str, str] = {}
    for name, inner in seen.members.items():
        if name.startswith("__") or not name:
            left_out[name] = "its name is reserved" if name else "it has no name"
        elif name.lower() in found:
            left_out[name] = f"it differs from `{found[name.lower()].name}` only in case"
        else:
            found[name.lower()] = Field(name, _known(inner.kind()))
    return tuple(found.values()), left_out


def _lacking(seen: _Seen, rows: int) -> int:
    return rows - sum(count for name, count in seen.kinds.items() if name != "null")


def _candidates(seen: _Seen, path: str) -> Iterator[Candidate]:
    for name, inner in seen.members.items():
        at = f"{path}.{name}" if path else name
        kind = inner.kind()
        if kind.name == "timestamp":
            yield Candidate(at, "iso")
        elif kind == _BIGINT:
            yield from _epoch_unit(inner, at)
        elif kind.name == "struct":
            yield from _candidates(inner, at)


def _epoch_unit(seen: _Seen, path: str) -> Iterator[Candidate]:
    assert seen.low is not None
    assert seen.high is not None
    for short, _, scale in _UNITS:
        if _EPOCH_FROM * scale <= seen.low and seen.high <= _EPOCH_TO * scale:
            yield Candidate(path, short)


def unit_name(short: str) -> str:
    return next(name for unit, name, _ in _UNITS if unit == short)
