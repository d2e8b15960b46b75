"""The columns of the source, as Spark and as Arrow know them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {
    "source": "string",
    "stream": "string",
    "stream_id": "bigint",
    "message_id": "bigint",
    "event_time": "timestamp",
    "key": "binary",
    "value": "binary",
    "segment": "string",
    "offset": "bigint",
}
"""Name → Spark's name of its type."""

_HINT = f"There are: {', '.join(COLUMNS)}."


def check_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, as they are. Raises RequestError for one that is unknown or there twice, or if there are none."""
    for number, name in enumerate(names):
        if name not in COLUMNS:
            raise RequestError(f"there is no column {name!r}", _HINT)
        if name in names[:number]:
            raise RequestError(f"the column {name!r} is named twice", "Name each once.")
    if not names:
        raise RequestError("no columns are named", _HINT)
    return names


def spark_schema(columns: tuple[str, ...]) -> str:
    """As DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a reader is to give: those of our schema, or of one that the user wrote down.
    Raises RequestError for one that the source cannot give.
    """
    for field in schema:
        kind = COLUMNS.get(field.name)
        if kind is not None and field.dataType.simpleString() != kind:
            raise RequestError(
                f"the column {field.name!r} is {kind}, not {field.dataType.simpleString()}", "Leave .schema(…) out."
            )
    return check_columns(tuple(schema.fieldNames()))


@cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Exactly what Spark expects for these columns: other widths of the same types are refused by it."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }
    return pa.schema([pa.field(name, kinds[COLUMNS[name]]) for name in columns])
