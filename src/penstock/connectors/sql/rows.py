"""JSON objects as rows of a table: their values in the types of its columns, and what replaces what. No database."""

import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sa

from penstock.connectors.tables import BOUNDS, REPLACES, applies_replaces

Fields: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]

_decode = msgspec.json.Decoder(dict, float_hook=Decimal).decode
"""Decimals keep the digits as they are written."""
_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadRow(ValueError):
    """A value that cannot become a row of the table."""


class UnknownField(BadRow):
    """Its text is the name of a field that has no column."""


def parse(value: bytes) -> Fields:
    """Raises BadRow."""
    try:
        return _decode(value)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRow(f"it is not a JSON object: {error}") from None


# Values.


def _time(value: Any, has_zone: bool) -> Any:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC) if has_zone else found
    return found if has_zone else found.astimezone(UTC).replace(tzinfo=None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


def _plain(value: Any) -> Any:
    """Without decimals, for a library that encodes it again."""
    return msgspec.json.decode(_encode(value))


_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    str: _text,
    int: int,
    float: float,
    Decimal: lambda value: Decimal(str(value)),
    bool: bool,
    bytes: b64decode,
    date: date.fromisoformat,
    time: time.fromisoformat,
    uuid.UUID: uuid.UUID,
    dict: _plain,
    list: _plain,
}


def converter(column: sa.Column[Any]) -> Callable[[Any], Any]:
    """From JSON to what the driver needs for the column; NULL is not converted."""
    try:
        kind = column.type.python_type
    except NotImplementedError:  # a type of the database's own: the driver decides
        return _plain
    if kind is datetime:
        has_zone = bool(getattr(column.type, "timezone", False))
        return lambda value: _time(value, has_zone)
    if isinstance(column.type, sa.JSON):
        return _plain
    return _CONVERTERS.get(kind, _plain)


@dataclass(slots=True)
class Change:
    """What a block of rows changes: first the deletions, then the rows, the last one of each key."""

    deletions: list[Key] = field(default_factory=list)
    rows: list[Fields] = field(default_factory=list)


class RowPlan:
    """How the rows of one table are converted and identified."""

    def __init__(self, table: sa.Table, upsert: Sequence[str], fold: Callable[[str], str], *, refuses: bool) -> None:
        self._columns = {fold(column.name): (column.name, converter(column)) for column in table.columns}
        self._fold = fold
        self._refuses = refuses
        self._replaces = applies_replaces(upsert)
        self.keys = tuple(self._name(name) for name in upsert)

    def _name(self, field_name: str) -> str:
        return self._columns[self._fold(field_name)][0]

    def change(self, rows: Sequence[Mapping[str, Any]]) -> Change:
        """Raises BadRow."""
        if not self.keys:
            return Change(rows=[self._row(row) for row in rows])
        last: dict[Key, Fields] = {}
        gone: dict[Key, None] = {}
        for given in rows:
            row = self._row(given)
            key = self._key(row)
            for replaced in self._replaced(given, row):
                last.pop(replaced, None)
                gone[replaced] = None
            if None in key:  # to a unique index two nulls differ, so that nothing would be replaced
                gone[key] = None
            last.pop(key, None)
            last[key] = row
        return Change([*gone], [*last.values()])

    def _key(self, row: Fields) -> Key:
        return tuple(row.get(name) for name in self.keys)

    def _row(self, given: Mapping[str, Any]) -> Fields:
        row: Fields = {}
        for name, value in given.items():
            found = self._columns.get(self._fold(name))
            if found is None:
                if self._refuses and not (name == REPLACES and self._replaces):
                    raise UnknownField(name)
                continue
            row[found[0]] = _converted(*found, value)
        return row

    def _replaced(self, given: Mapping[str, Any], row: Fields) -> Iterator[Key]:
        """The keys of the panes that a pane replaces: its own, with other bounds."""
        if not self._replaces:
            return
        for bounds in given.get(REPLACES) or ():
            yield self._key(row | self._row({name: bounds[name] for name in BOUNDS if name in bounds}))


def _converted(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else convert(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BadRow(f"its field {name!r} cannot be converted: {error}") from None
