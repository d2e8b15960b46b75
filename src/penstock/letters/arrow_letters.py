"""Letters made of rows of Arrow batches: as `making.py` has it, for rows that a Python function could not take."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.letters.halving import Poison
from penstock.spark.letter import ERR, LETTER, LETTER_FIELDS, letter_arrow


def letters_of(batch: pa.RecordBatch, poison: Sequence[Poison]) -> pa.StructArray:
    """The rows as letters for the port `err`, of the columns of their events that are there. Without a `value` of bytes
    or text the letter has the JSON of the row: then its segment and offset are not told, for what lies there are other
    bytes.
    """
    rows = batch.take(pa.array([one.row for one in poison], pa.int64()))
    kinds = {field.name: field.type for field in letter_arrow()}
    found = {name: _taken(rows, name, kinds[name]) for name in LETTER_FIELDS if name in rows.schema.names}
    columns = {name: column for name, column in found.items() if column is not None}
    if "value" not in columns:
        columns = {name: column for name, column in columns.items() if name not in ("segment", "offset")}
        columns["value"] = pa.array(_as_json(rows), pa.binary())
    columns["value"] = columns["value"].fill_null(b"")
    columns["port"] = pa.array([ERR] * len(poison), pa.string())
    columns["reason"] = pa.array([one.reason for one in poison], pa.string())
    arrays = [columns.get(name, pa.nulls(len(poison), kind)) for name, kind in kinds.items()]
    return pa.StructArray.from_arrays(arrays, fields=list(letter_arrow()))


def _taken(rows: pa.RecordBatch, name: str, kind: Any) -> Any:
    """The column as a letter has it; None if it is something else that has its name."""
    column = rows.column(name)
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if pa.types.is_timestamp(kind):
        alike = pa.types.is_timestamp(column.type) and column.type.tz is not None
    elif pa.types.is_binary(kind):
        alike = is_text or is_bytes
    else:
        alike = is_text if pa.types.is_string(kind) else column.type == kind
    return column.cast(kind) if alike else None


def _as_json(rows: pa.RecordBatch) -> list[bytes]:
    names = [name for name in rows.schema.names if name != LETTER]
    columns = zip(*(_values(rows.column(name)) for name in names), strict=True)
    told = (dict(zip(names, row, strict=True)) for row in columns)
    return [json.dumps(row, default=_plain, ensure_ascii=False).encode() for row in told]


def _values(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # times beyond Python's calendar
        values = column.cast(pa.string()).to_pylist()
    return values


def _plain(value: object) -> str:
    """What JSON does not have: bytes in base64, as Spark writes them, times and numbers as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
