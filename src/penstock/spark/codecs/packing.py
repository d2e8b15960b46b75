"""MessagePack in Spark's Python workers: Arrow columns in, Arrow columns out, row by row."""

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa

from penstock.core.errors import RequestError

_INT_MIN, _INT_END = -(2**63), 2**64
"""The range of MessagePack's integers; others become floats, as JSON readers return them."""


def unpacked(values: pa.Array) -> pa.Array:
    """Each value as JSON text; null for bytes that are not valid MessagePack, or that JSON cannot represent: NaN, keys
    that are bytes, extensions other than timestamps. Bytes are in base64, as Spark reads and writes them.
    """
    return pa.array([None if one is None else _as_json(one) for one in values.to_pylist()], pa.string())


def packed(rows: pa.Array) -> pa.Array:
    """Each row as MessagePack: structs and maps as maps, bytes as bytes, instants as timestamps; other times and
    decimals as text.
    """
    values = rows.to_pylist(maps_as_pydicts="strict")
    return pa.array([msgpack.packb(one, default=_other, datetime=True) for one in values], pa.binary())


def packed_json(texts: pa.Array) -> pa.Array:
    """JSON texts as MessagePack; null is nil."""
    values = (None if one is None else json.loads(one, parse_int=_number) for one in texts.to_pylist())
    return pa.array([msgpack.packb(one) for one in values], pa.binary())


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


def _as_json(data: bytes) -> str | None:
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
