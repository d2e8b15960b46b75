"""JSON objects as rows of a table: their values in the types of its columns, and what replaces what. No database."""

import re
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain, groupby
from types import NoneType
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.connectors.tables import BOUNDS, REPLACES, applies_replaces

Fields: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]

_decode = msgspec.json.Decoder(dict).decode
_decode_exactly = msgspec.json.Decoder(dict, float_hook=Decimal).decode
"""Decimals keep the digits as they are written, at several times the cost of a float."""
_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadRow(ValueError):
    """A value that cannot become a row of the table."""


class NotAnObject(BadRow):
    """The value is not a JSON object."""


class UnknownField(BadRow):
    """Its text is the name of a field that has no column."""


class _DigitsMatter(Exception):
    """A number was decoded as a float, and its column could show the difference."""


def _parsed(values: Iterable[bytes], *, exactly: bool) -> list[Fields]:
    """Raises NotAnObject."""
    try:
        return [*map(_decode_exactly if exactly else _decode, values)]
    except (msgspec.DecodeError, ValueError) as error:
        raise NotAnObject(f"it is not a JSON object: {error}") from None


# Values.
#
# Each converter raises ValueError, TypeError or ArithmeticError for what the column could not show as it is: nothing is
# rounded, and nothing is taken for a boolean that is none.


def _time(text: str, has_zone: bool) -> Any:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC) if has_zone else found
    return found if has_zone else found.astimezone(UTC).replace(tzinfo=None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


def _plain(value: Any) -> Any:
    """Without decimals, for a library that encodes it again."""
    return msgspec.json.decode(_encode(value))


def _expected(what: str, value: Any) -> ValueError:
    return ValueError(f"expected {what}, found {_encode(value).decode()[:_FOUND_CHARACTERS]}")


def _from_text(what: str, convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    def converted(value: Any) -> Any:
        if not isinstance(value, str):
            raise _expected(what, value)
        return convert(value)

    return converted


def _number_in(value: Any) -> Any:
    """A number, also one that is written as a text; of whole ones, any that `int` takes."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _expected("a number", value)
    return value


def _whole(value: Any) -> int:
    number = _number_in(value)
    if isinstance(number, int):
        return number
    exact = Decimal(number)
    if not exact.is_finite() or exact.adjusted() > _DIGITS_MAX or exact != exact.to_integral_value():
        raise _expected("a whole number", value)
    return int(exact)


def _whole_or_boolean(value: Any) -> int:
    return int(value) if isinstance(value, bool) else _whole(value)


def _float(value: Any) -> float:
    return float(_number_in(value))


def _decimal(value: Any) -> Decimal:
    return Decimal(str(_number_in(value)))


def _boolean(value: Any) -> bool:
    if isinstance(value, bool) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise _expected("true or false", value)


_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?|[+-]?(?:NaN|Infinity)", re.ASCII)
"""As a text. JSON has no other way to write the last two."""

_DIGITS_MAX = 100
"""Of a whole number that is written with an exponent: it could have millions."""

_FOUND_CHARACTERS = 100
"""How much of a value that does not fit is shown."""

_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    float: _float,
    Decimal: _decimal,
    bool: _boolean,
    bytes: _from_text("base64", lambda text: b64decode(text, validate=True)),
    date: _from_text("a date", date.fromisoformat),
    time: _from_text("a time", time.fromisoformat),
    uuid.UUID: _from_text("a UUID", uuid.UUID),
    dict: _plain,
    list: _plain,
}

_BOOLEANS: dict[str, type[sa.types.TypeEngine[Any]]] = {
    "mysql": mysql.TINYINT,
    "mariadb": mysql.TINYINT,
    "oracle": sa.Integer,
}
"""Of the dialects whose BOOLEAN is a whole number: its type as it is read from the database."""


_AS_THEY_ARE: dict[Callable[[Any], Any], frozenset[type]] = {
    **{_CONVERTERS[kind]: frozenset({kind, NoneType}) for kind in (int, float, bool)},
    _whole_or_boolean: frozenset({int, NoneType}),
    _text: frozenset({str, NoneType}),
    _plain: frozenset({str, int, float, bool, NoneType}),
}
"""By converter: the types of values that it would return unchanged."""

_HAVE_DIGITS = frozenset({float, dict, list})
"""The types of values that have numbers with a fraction, unless they are decimals."""


def converter(column: sa.Column[Any], dialect: str = "") -> Callable[[Any], Any]:
    """From JSON to what the driver needs for the column; NULL is not converted."""
    try:
        kind = column.type.python_type
    except NotImplementedError:  # a type of the database's own: the driver decides
        return _plain
    if kind is datetime:
        has_zone = bool(getattr(column.type, "timezone", False))
        return _from_text("a time", lambda text: _time(text, has_zone))
    if isinstance(column.type, sa.JSON):
        return _plain
    if kind is int and dialect in _BOOLEANS and isinstance(column.type, _BOOLEANS[dialect]):
        return _whole_or_boolean
    return _CONVERTERS.get(kind, _plain)


@dataclass(slots=True)
class Change:
    """What a block of rows changes: first the deletions, then the rows, the last one of each key."""

    deletions: list[Key] = field(default_factory=list)
    runs: list[list[Fields]] = field(default_factory=list)
    """The rows in their order; those of a run have the same fields."""

    @property
    def rows(self) -> list[Fields]:
        return [*chain.from_iterable(self.runs)]


class RowPlan:
    """How the rows of one table are converted and identified.

    A block is converted column by column, and a column whose values have the type that it needs is left as it is.
    Numbers are decoded as floats until a block has one whose digits matter, such as one for a decimal column.
    """

    def __init__(
        self,
        table: sa.Table,
        upsert: Sequence[str],
        fold: Callable[[str], str],
        *,
        refuses: bool,
        dialect: str = "",
    ) -> None:
        self._columns = {fold(column.name): (column.name, converter(column, dialect)) for column in table.columns}
        self._fold = fold
        self._refuses = refuses
        self._replaces = applies_replaces(upsert)
        self._is_exact = False
        self.keys = tuple(self._name(name) for name in upsert)

    def _name(self, field_name: str) -> str:
        return self._columns[self._fold(field_name)][0]

    def change(self, values: Sequence[bytes]) -> Change:
        """From JSON. Raises BadRow."""
        if not self._is_exact:
            try:
                return self._change(_parsed(values, exactly=False))
            except _DigitsMatter:
                self._is_exact = True
            except NotAnObject:
                """It may only have a number that is too large for a float."""
        return self._change(_parsed(values, exactly=True))

    def _change(self, given: Sequence[Fields]) -> Change:
        runs = self._runs(given)
        if not self.keys:
            return Change(runs=runs)
        rows = chain.from_iterable(runs)
        last: dict[Key, Fields] = {}
        gone: dict[Key, None] = {}
        for fields, row in zip(given, rows, strict=True):
            key = self._key(row)
            for replaced in self._replaced(fields, row):
                last.pop(replaced, None)
                gone[replaced] = None
            if None in key:  # to a unique index two nulls differ, so that nothing would be replaced
                gone[key] = None
            last.pop(key, None)
            last[key] = row
        return Change([*gone], [[*run] for _, run in groupby(last.values(), key=tuple)])

    def _key(self, row: Fields) -> Key:
        return tuple(row.get(name) for name in self.keys)

    def _runs(self, given: Sequence[Fields]) -> list[list[Fields]]:
        return [self._run(names, [*run]) for names, run in groupby(given, key=tuple)]

    def _run(self, names: tuple[str, ...], run: list[Fields]) -> list[Fields]:
        """Rows with the same fields."""
        found: dict[str, Sequence[Any]] = {}
        is_same = True
        for name, values in zip(names, zip(*map(dict.values, run), strict=True), strict=True):
            column = self._columns.get(self._fold(name))
            if column is not None:
                found[column[0]] = converted = self._converted(*column, values)
                is_same = is_same and converted is values and column[0] == name
            elif self._refuses and not (name == REPLACES and self._replaces):
                raise UnknownField(name)
            else:
                is_same = False
        if is_same:
            return run
        if not found:
            return [{} for _ in run]
        return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]

    def _converted(self, name: str, convert: Callable[[Any], Any], values: Sequence[Any]) -> Sequence[Any]:
        others = set(map(type, values)) - _AS_THEY_ARE.get(convert, _NULL)
        if not others:
            return values
        if not (self._is_exact or convert is _plain or _HAVE_DIGITS.isdisjoint(others)):
            raise _DigitsMatter
        try:
            return [None if value is None else convert(value) for value in values]
        except (ValueError, TypeError, ArithmeticError) as error:
            raise BadRow(f"its field {name!r} cannot be converted: {error}") from None

    def _replaced(self, given: Mapping[str, Any], row: Fields) -> Iterator[Key]:
        """The keys of the panes that a pane replaces: its own, with other bounds."""
        if not self._replaces:
            return
        for bounds in given.get(REPLACES) or ():
            ((changed,),) = self._runs([{name: bounds[name] for name in BOUNDS if name in bounds}])
            yield self._key(row | changed)


_NULL = frozenset({NoneType})
