"""The columns of the source, for Spark and for Arrow."""

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
"""Name → Spark type."""

ASKED_COLUMNS = {"metadata": "binary", "content_type": "string", "metadata_json": "string"}
"""Returned only if the load's option `columns` names them: a map in msgpack, and columns derived from it."""

CONTROL_COLUMNS = {
    "bucket": "int",
    "epoch": "bigint",
    "before": "bigint",
    "watermark": "bigint",
}
"""The columns of a control-only load: its rows contain the pipeline's watermark before and after a batch."""

STATE_COLUMNS = {
    "bucket": "int",
    "kind": "int",
    "data": "binary",
    "epoch": "bigint",
    "before": "bigint",
    "watermark": "bigint",
}
"""What enters the state of an operator that follows control rows: these rows, and what becomes of events."""

FUSED_COLUMNS = STATE_COLUMNS | {"events": "bigint"}
"""The columns of a control load whose readers run its operator. In a row that has nothing else, `events` is how many
events a task has read: Spark counts rows."""

_HINT = f"Available: {', '.join(COLUMNS | ASKED_COLUMNS)}."


def check_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names unchanged. Raises RequestError for an unknown or duplicate name, or if there are none."""
    for number, name in enumerate(names):
        if name not in COLUMNS | ASKED_COLUMNS:
            raise RequestError(f"column {name!r} not found", _HINT)
        if name in names[:number]:
            raise RequestError(f"the column {name!r} is named twice", "Name each once.")
    if not names:
        raise RequestError("no columns are named", _HINT)
    return names


POSITION = "position of the event in the journal"
"""The comment of the columns that are one. Spark keeps it for a column that is selected or renamed, not for one that is
computed.
"""


def source_schema(columns: tuple[str, ...]) -> str:
    """Of events, as DDL."""
    return ", ".join(
        f"{spark_schema((name,))} COMMENT '{POSITION}'" if name in ("segment", "offset") else spark_schema((name,))
        for name in columns
    )


def spark_schema(columns: tuple[str, ...]) -> str:
    """As DDL."""
    known = COLUMNS | ASKED_COLUMNS | FUSED_COLUMNS
    return ", ".join(f"`{name}` {known[name]}" for name in columns)


def check_control(schema: StructType, *, is_fused: bool = False) -> tuple[str, ...]:
    """The columns of a control load. Raises RequestError if the user declared others."""
    own = FUSED_COLUMNS if is_fused else CONTROL_COLUMNS
    if {field.name: field.dataType.simpleString() for field in schema} != own:
        raise RequestError("control rows have columns of their own", "Leave .schema(…) out.")
    return tuple(own)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a reader returns: those of our schema, or of one that the user declared. Raises RequestError for
    a column that the source does not have.
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
    """Exactly what Spark expects for these columns: it refuses other widths of the same types."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
    }
    known = COLUMNS | ASKED_COLUMNS | FUSED_COLUMNS
    return pa.schema([pa.field(name, kinds[known[name]]) for name in columns])
