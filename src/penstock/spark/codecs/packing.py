"""MessagePack in Spark's Python workers: Arrow columns in, Arrow columns out, row by row."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgpack
import msgspec
import pyarrow as pa

from penstock.core.errors import RequestError
from penstock.spark.codecs.codec import DATA
from penstock.spark.codecs.json_writer import is_json
from penstock.spark.codecs.scalars import with_names

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
        try:
            return _json(value)
        except ValueError:  # perhaps NaN or an infinity
            return _json(with_names(value))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)


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
        self._row = _row_type(columns.names)
        self._is_whole = columns.names == [DATA] and (is_json(columns[0]) or pa.types.is_nested(columns[0].type))

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        values = [_values(array, field) for array, field in zip(rows.columns, self._columns, strict=True)]
        packed = map(_pack, values[0] if self._is_whole else map(self._row, *values))
        return pa.array([*packed] if values else [_pack({})] * len(rows), pa.binary())


_pack = msgspec.msgpack.Encoder().encode


def _row_type(names: Sequence[str]) -> type[msgspec.Struct]:
    """A row, which is a map with these names: three times as fast to make and write as a dict."""
    fields = [(f"f{number}", Any, msgspec.field(name=name)) for number, name in enumerate(names)]
    return msgspec.defstruct("Row", fields, gc=False)


def _values(column: pa.Array, field: pa.Field) -> list[Any]:
    if is_json(field):
        return [None if one is None else json.loads(one, parse_int=_number) for one in column.to_pylist()]
    return python_values(column)


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column; maps are dicts. `maps_as_pydicts` is ten times as slow, also for columns without maps.
    Raises KeyError for a map that has a key twice.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        naive = column.cast(pa.timestamp(kind.unit)).to_pylist()  # five times as fast as with a time zone
        return [None if one is None else one.replace(tzinfo=UTC) for one in naive]
    if not _has_maps(kind):
        plain: list[Any] = column.to_pylist()
        return plain
    if pa.types.is_map(kind) and not _has_maps(kind.item_type):
        return [None if pairs is None else _mapping(pairs) for pairs in column.to_pylist()]
    found: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return found


def _has_maps(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) or any(_has_maps(kind.field(number).type) for number in range(kind.num_fields))


def _mapping(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError("a map has a key twice")
    return found
