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

ASKED_COLUMNS = {"metadata": "binary", "content_type": "string", "metadata_json": "string"}
"""Those that are given only to a load whose option `columns` names them: a map in msgpack, and what is made of it."""

CONTROL_COLUMNS = {
    "bucket": "int",
    "epoch": "bigint",
    "before": "bigint",
    "watermark": "bigint",
}
"""Of a control-only load: its rows say where the pipeline's watermark was before a batch, and where it is behind it."""

_HINT = f"There are: {', '.join(COLUMNS | ASKED_COLUMNS)}."


def check_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, as they are. Raises RequestError for one that is unknown or there twice, or if there are none."""
    for number, name in enumerate(names):
        if name not in COLUMNS | ASKED_COLUMNS:
            raise RequestError(f"column {name!r} not found", _HINT)
        if name in names[:number]:
            raise RequestError(f"the column {name!r} is named twice", "Name each once.")
    if not names:
        raise RequestError("no columns are named", _HINT)
    return names


def spark_schema(columns: tuple[str, ...]) -> str:
    """As DDL."""
    known = COLUMNS | ASKED_COLUMNS | CONTROL_COLUMNS
    return ", ".join(f"`{name}` {known[name]}" for name in columns)


def check_control(schema: StructType) -> tuple[str, ...]:
    """The columns of a control-only load. Raises RequestError if the user wrote down other ones."""
    if {field.name: field.dataType.simpleString() for field in schema} != CONTROL_COLUMNS:
        raise RequestError("control rows have columns of their own", "Leave .schema(…) out.")
    return tuple(CONTROL_COLUMNS)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a reader is to give: those of our schema, or of one that the user wrote down.
    Raises RequestError for one that the source cannot give.
    """
    for field in schema:
        kind = (COLUMNS | ASKED_COLUMNS).get(field.name)
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
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }
    known = COLUMNS | ASKED_COLUMNS | CONTROL_COLUMNS
    return pa.schema([pa.field(name, kinds[known[name]]) for name in columns])
