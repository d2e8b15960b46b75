"""The rule by which a table's columns follow the rows of a pipeline. It is pure: nothing here reads or writes a table.

A column that the table lacks is added, and accepts nulls. A column that the rows lack is null. A type that the table's
column can represent without loss is converted (`int` to `bigint`, `float` to `double`, a decimal with more digits).
Everything else is refused, and the table stays as it is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.connectors.tables import UNKNOWN_ROWS_HINT, RowSchema, UnknownFields
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.kinds import Field, Kind, arrow_type


class Refused(RequestError):
    """The rows cannot be written to the table as it is: a vote of no."""


class Fitted(NamedTuple):
    """What the files of an epoch contain."""

    schema: pa.Schema
    """All columns of the table, those that are to be added at the end."""
    added: tuple[pa.Field, ...]
    """All of them if the table does not exist."""


def schema_of_rows(rows: RowSchema) -> pa.Schema:
    """The names are Spark's, the types those of its `simpleString`. Raises Refused."""
    return pa.schema([pa.field(name, _type_of(name, kind)) for name, kind in rows])


def schema_of_ddl(text: str) -> pa.Schema:
    """Raises RequestError."""
    return pa.schema([pa.field(field.name, _arrow(field.kind), field.nullable) for field in parse_ddl(text)])


def _type_of(name: str, kind: str) -> pa.DataType:
    try:
        (field,) = parse_ddl(f"c {kind}")
        return _arrow(field.kind)
    except RequestError as error:
        raise Refused(f"the type {kind} of the column {name!r} cannot be read: {error}", error.hint) from error


_AS_TEXT = ("interval", "time", "void")
"""Types that JSON has as texts, and tables do not have."""


def _arrow(kind: Kind) -> pa.DataType:
    return arrow_type(_readable(kind))


def _readable(kind: Kind) -> Kind:
    if kind.name in _AS_TEXT:
        return Kind("string")
    fields = tuple(Field(field.name, _readable(field.kind), field.nullable) for field in kind.fields)
    return Kind(kind.name, kind.numbers, tuple(map(_readable, kind.of)), fields)


def fit(
    wanted: pa.Schema | None, found: pa.Schema | None, *, create: bool, unknown: UnknownFields = UnknownFields.REFUSE
) -> Fitted:
    """`wanted` are the columns of the rows, and `found` those of the table; None if they are not known, or it does not
    exist. Raises Refused.
    """
    if found is None:
        if wanted is None:
            raise Refused("it does not exist, and its columns are not known", f"{UNKNOWN_ROWS_HINT} Or set `columns`.")
        if not create:
            raise Refused("it does not exist", "Create it, or let the sink create it: create: true.")
        return Fitted(wanted, tuple(wanted))
    added = [] if wanted is None else [*_missing(wanted, found)]
    if added and not create:
        if unknown is UnknownFields.REFUSE:
            names = ", ".join(repr(field.name) for field in added)
            raise Refused(f"it has no column {names}", "Add it, or let the sink add it: create: true.")
        added = []
    return Fitted(pa.schema([*found, *added]), tuple(added))


def _missing(wanted: pa.Schema, found: pa.Schema) -> list[pa.Field]:
    folded = {name.lower(): name for name in found.names}
    missing = []
    for field in wanted:
        if field.name in found.names:
            _check(field, found.field(field.name))
        elif field.name.lower() in folded:
            raise Refused(f"its column {folded[field.name.lower()]!r} and the field {field.name!r} differ in case only")
        else:
            missing.append(field.with_nullable(True))
    return missing


def _check(field: pa.Field, column: pa.Field) -> None:
    if not widens(field.type, column.type):
        raise Refused(
            f"its column {column.name!r} is {column.type}, and the rows have {field.type} there",
            "Convert the column in the pipeline's function, or give it another name.",
        )


def widens(given: pa.DataType, to: pa.DataType) -> bool:
    """Whether every value of `given` is one of `to`, written as JSON."""
    if given == to:
        return True
    if pa.types.is_integer(given) and pa.types.is_integer(to):
        return bool(given.bit_width <= to.bit_width)
    if pa.types.is_floating(given) and pa.types.is_floating(to):
        return bool(given.bit_width <= to.bit_width)
    if pa.types.is_decimal(given) and pa.types.is_decimal(to):
        return bool(given.scale <= to.scale and given.precision - given.scale <= to.precision - to.scale)
    if pa.types.is_list(given) and pa.types.is_list(to):
        return widens(given.value_type, to.value_type)
    if pa.types.is_map(given) and pa.types.is_map(to):
        return widens(given.key_type, to.key_type) and widens(given.item_type, to.item_type)
    if pa.types.is_struct(given) and pa.types.is_struct(to):
        return all(to.get_field_index(one.name) >= 0 and widens(one.type, to.field(one.name).type) for one in given)
    return False


_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def plain(schema: pa.Schema) -> pa.Schema:
    """The types that Spark's have, whatever widths of offsets and names of time zones a library uses."""
    return pa.schema([field.with_type(_plain(field.type)).remove_metadata() for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)).remove_metadata() for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return _PLAIN.get(kind, kind)


def check_partitions(schema: pa.Schema, by: Sequence[str]) -> None:
    """Raises Refused."""
    for name in by:
        if schema.get_field_index(name) < 0:
            raise Refused(f"partition_by names {name!r}, which the rows do not have", f"They have: {schema.names}.")
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_day(kind)):
            raise Refused(
                f"partition_by names {name!r}, which is {kind}",
                "Partition by texts, whole numbers, booleans or dates, such as the date of a timestamp.",
            )
    if len(by) == len(schema):
        raise Refused("partition_by names all columns", "At least one must be left for the files.")


def _is_day(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind))
