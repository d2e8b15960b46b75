"""MessagePack in Spark's Python workers: Arrow columns in, Arrow columns out, row by row."""

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgpack
import msgspec
import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import DATA
from penstock.spark.codecs.json_writer import is_json

_INT_MIN, _INT_END = -(2**63), 2**64
"""The range of MessagePack's integers; others become floats, as JSON readers return them."""


def packed_metadata(rows: pa.Array) -> pa.Array:
    """Each row's `metadata` (a map, a struct or the JSON of one), with the row's `content_type` unless it has its own;
    null if there is neither.
    """
    values = rows.to_pylist(maps_as_pydicts="strict")
    return pa.array([_metadata(one["metadata"], one["content_type"]) for one in values], pa.binary())


def _metadata(given: Any, content_type: str | None) -> bytes | None:
    own = json.loads(given, parse_int=_number) if isinstance(given, str) else given
    if own is not None and not isinstance(own, dict):
        raise RequestError(f"`metadata` is {own!r:.100}, not a map", "Use names: parse_json('{\"status\": 404}')")
    found = {"content_type": content_type} | {name: value for name, value in (own or {}).items() if value is not None}
    found = {name: value for name, value in found.items() if value is not None}
    return msgpack.packb(found, default=_other, datetime=True) if found else None


def as_json(data: bytes) -> str | None:
    """The value as JSON text; None for bytes that are not valid MessagePack, or that JSON cannot represent."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False, timestamp=3, ext_hook=_no_extension)
        return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None


def _no_extension(code: int, data: bytes) -> Any:  # noqa: ARG001  msgpack's
    raise ValueError(f"extension {code}")


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def _other(value: object) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date | time | datetime):
        return value.isoformat()
    return str(value)


def _number(text: str) -> int | float:
    number = int(text)
    return number if _INT_MIN <= number < _INT_END else float(number)


class Packing:
    """Writes rows: a map of the columns, or a single column `data` that is nested. Bytes stay bytes and instants
    timestamps; other times and decimals are texts.
    """

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._is_whole = columns.names == [DATA] and (is_json(columns[0]) or pa.types.is_nested(columns[0].type))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values = [_values(array, field) for array, field in zip(rows.columns, self._columns, strict=True)]
        if self._is_whole:
            whole = values[0]
        else:
            names = self._columns.names
            whole = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        return pa.array([*map(_pack, whole)], pa.binary())


_pack = msgspec.msgpack.Encoder().encode


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        naive = column.cast(pa.timestamp(column.type.unit)).to_pylist()  # five times as fast as with a time zone
        return [None if one is None else one.replace(tzinfo=UTC) for one in naive]
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    if is_json(field):
        return [None if one is None else json.loads(one, parse_int=_number) for one in found]
    return found
