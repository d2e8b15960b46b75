"""Schemas as plain values: the types of columns, in Spark's words and in Arrow's. Nothing here needs Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = frozenset(("string", "char", "varchar"))
"""Types whose values are texts. A length is not checked, as in Spark's readers."""

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Name → bits."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type. `name` is Spark's: `int`, `array`, `struct` …"""

    name: str
    numbers: tuple[int, ...] = ()
    """Precision and scale of a decimal, the length of a char."""
    of: tuple[Kind, ...] = ()
    """The elements of an array; the keys and values of a map."""
    fields: tuple[Field, ...] = ()
    """Of a struct."""

    def __str__(self) -> str:
        """As Spark writes it."""
        if self.name == "struct":
            return f"struct<{','.join(f'{field.name}:{field.kind}' for field in self.fields)}>"
        if self.of:
            return f"{self.name}<{','.join(map(str, self.of))}>"
        return f"{self.name}({','.join(map(str, self.numbers))})" if self.numbers else self.name

    def parts(self) -> tuple[Kind, ...]:
        """The types that it consists of."""
        return (*self.of, *(field.kind for field in self.fields))

    def holds(self, *names: str) -> bool:
        """Whether it is one of these types, or has one inside."""
        return self.name in names or any(part.holds(*names) for part in self.parts())


@dataclass(frozen=True, slots=True)
class Field:
    """A field of events, with its type."""

    name: str
    kind: Kind
    nullable: bool = True


Fields: TypeAlias = tuple[Field, ...]

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

STRING = Kind("string")
VARIANT = Kind("variant")


def ddl(fields: Iterable[Field]) -> str:
    """The fields as Spark's DDL, as people write it."""
    return ", ".join(_column(field, " ") for field in fields)


def _column(field: Field, sign: str) -> str:
    return f"{_quoted(field.name)}{sign}{_written(field.kind)}{'' if field.nullable else ' NOT NULL'}"


def _written(kind: Kind) -> str:
    if kind.name == "struct":
        return f"STRUCT<{', '.join(_column(field, ':') for field in kind.fields)}>"
    return f"{kind.name.upper()}<{', '.join(map(_written, kind.of))}>" if kind.of else str(kind).upper()


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


@cache
def arrow_type(kind: Kind) -> pa.DataType:
    """Exactly what Spark expects: it refuses other widths. A VARIANT is the text of its JSON, which the frame parses.
    Raises RequestError for a type that no codec can decode.
    """
    import pyarrow as pa

    match kind.name:
        case "array":
            return pa.list_(arrow_type(kind.of[0]))
        case "map":
            return pa.map_(*map(arrow_type, kind.of))
        case "struct":
            return pa.struct([arrow_field(field) for field in kind.fields])
        case "decimal":
            return pa.decimal128(*kind.numbers)
    plain = _plain_types()
    if kind.name not in plain:
        raise RequestError(
            f"codecs cannot decode {kind}", "Declare the field as STRING, and convert it in the function."
        )
    return plain[kind.name]


def arrow_field(field: Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.kind), field.nullable)


@cache
def _plain_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        **dict.fromkeys(("string", "char", "varchar", "variant"), pa.string()),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "void": pa.null(),
    }
