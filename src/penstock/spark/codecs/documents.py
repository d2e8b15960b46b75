"""Documents of a schema, whatever their format: msgspec decodes each into a row that has the schema's fields, and the
rows become columns. Rows that msgspec refuses are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Required, TypedDict, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from penstock.core.kinds import INTEGERS, TEXTS, Fields, Kind, arrow_type
from penstock.spark.codecs.api import Columns
from penstock.spark.codecs.columns import column, converter
from penstock.spark.codecs.scalars import FLOAT_MAX, Misfit
from penstock.spark.codecs.variants import BAD

T = TypeVar("T")

Closely = Callable[[bytes], list[Any]]
"""Looks at a document that msgspec has refused: its values by field, as Arrow takes them. Raises Misfit."""


def without(documents: Sequence[T], failed: dict[int, str], decode: Callable[[Sequence[T]], Columns]) -> Columns:
    """Decodes the documents except those that have failed before."""
    if not failed:
        return decode(documents)
    left = [row for row in range(len(documents)) if row not in failed]
    found = decode([documents[row] for row in left])
    return Columns(found.arrays, failed | {left[row]: reason for row, reason in found.failed.items()})


class Documents:
    """Decodes documents with `decode`, which returns rows made by `row_type`."""

    def __init__(self, fields: Fields, decode: Callable[[bytes], Any], closely: Closely) -> None:
        self._fields = fields
        self._decode = decode
        self._closely = closely
        self._get = [attrgetter(_attribute(number)) for number in range(len(fields))]
        converters = [converter(field.kind) for field in fields]
        self._checks = [(get, each) for get, each in zip(self._get, converters, strict=True) if each is not None]

    def columns(self, documents: Sequence[bytes]) -> Columns:
        """Each document is decoded the same whatever else is in the batch."""
        try:
            rows = [*map(self._decode, documents)]
            return Columns([self._column(number, rows) for number in range(len(self._fields))])
        except (*BAD, ValueError, pa.ArrowException):
            return self._one_by_one(documents)

    def _column(self, number: int, rows: Sequence[Any]) -> pa.Array:
        return column([*map(self._get[number], rows)], self._fields[number].kind)

    def _one_by_one(self, documents: Sequence[bytes]) -> Columns:
        """Most of them are good: their columns are built at once."""
        good: list[Any] = []
        numbers: list[int] = []
        closer: dict[int, list[Any]] = {}
        failed: dict[int, str] = {}
        for number, document in enumerate(documents):
            try:
                row = self._decode(document)
                self._check(row)
                good.append(row)
                numbers.append(number)
            except (*BAD, ValueError):
                try:
                    closer[number] = self._closely(document)
                except Misfit as error:
                    failed[number] = str(error)
        arrays = [self._column(number, good) for number in range(len(self._fields))]
        return Columns(self._with(arrays, numbers, closer) if closer else arrays, failed)

    def _check(self, row: Any) -> None:
        """Raises ValueError for a value that its column would refuse."""
        for get, convert in self._checks:
            if (value := get(row)) is not None:
                convert(value)

    def _with(self, arrays: list[pa.Array], numbers: list[int], closer: dict[int, list[Any]]) -> list[pa.Array]:
        order = pa.array(np.argsort([*numbers, *closer]))
        more = zip(*closer.values(), strict=True)
        return [
            pa.concat_arrays([array, pa.array(values, arrow_type(field.kind))]).take(order)
            for array, values, field in zip(arrays, more, self._fields, strict=True)
        ]


def row_type(fields: Fields, plain_type: Callable[[Kind], Any]) -> type[msgspec.Struct]:
    """A struct with an attribute for each field, in order. `plain_type` returns the types of values that are not
    nested.
    """
    return msgspec.defstruct(
        "Row",
        [
            (
                _attribute(number),
                _python_type(field.kind, plain_type) if not field.nullable else _optional(field.kind, plain_type),
                msgspec.field(name=field.name) if not field.nullable else msgspec.field(name=field.name, default=None),
            )
            for number, field in enumerate(fields)
        ],
        kw_only=True,
        gc=False,
    )


def _attribute(number: int) -> str:
    return f"f{number}"


def _optional(kind: Kind, plain_type: Callable[[Kind], Any]) -> Any:
    if kind.name == "void":
        return None
    return _python_type(kind, plain_type) if kind.name == "variant" else _python_type(kind, plain_type) | None


def _python_type(kind: Kind, plain_type: Callable[[Kind], Any]) -> Any:
    match kind.name:
        case "array":
            return list[_optional(kind.of[0], plain_type)]  # type: ignore[misc]
        case "map":
            return dict[str, _optional(kind.of[1], plain_type)]  # type: ignore[misc]
        case "struct":
            members = {
                field.name: _optional(field.kind, plain_type)
                if field.nullable
                else Required[_python_type(field.kind, plain_type)]
                for field in kind.fields
            }
            return _typed_dict(members)
    return plain_type(kind)


def _typed_dict(members: dict[str, Any]) -> Any:
    make: Any = TypedDict
    return make("Inner", members, total=False)


def number_type(kind: Kind) -> Any:
    """The types of numbers, booleans and texts, which are the same in every format; None for others."""
    if kind.name in INTEGERS:
        end = 1 << INTEGERS[kind.name] - 1
        return Annotated[int, Meta(ge=-end, le=end - 1)]
    if kind.name in TEXTS:
        return str
    match kind.name:
        case "boolean":
            return bool
        case "double":
            return float
        case "float":
            return Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
    return None
