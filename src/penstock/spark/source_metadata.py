"""What events tell besides, as columns: their metadata's content type, and all of it as JSON. Each different map is
unpacked once for a batch: those of a connection are mostly the same.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.stored.layout import SOURCE, STREAM

CONTENT_TYPE = "content_type"

_ORIGIN = (SOURCE, STREAM)


def content_types(metadata: Any) -> Any:
    """Of each event; null where none is told."""
    return _each(metadata, _content_type)


def metadata_json(metadata: Any) -> Any:
    """The map as a JSON object, without the event's origin; null where nothing else is told. Bytes are in base64."""
    return _each(metadata, _as_json)


def _each(metadata: Any, make: Callable[[Mapping[Any, Any]], str | None]) -> Any:
    distinct = metadata.dictionary_encode()
    made = pa.array([make(_unpacked(one)) for one in distinct.dictionary.to_pylist()], pa.string())
    return pc.take(made, distinct.indices)


def _unpacked(data: bytes) -> Mapping[Any, Any]:
    """Empty for what is no map: whoever wrote it has told nothing."""
    try:
        found = msgpack.unpackb(data, strict_map_key=False) if data else {}
    except (ValueError, msgpack.UnpackException):
        return {}
    return found if isinstance(found, dict) else {}


def _content_type(told: Mapping[Any, Any]) -> str | None:
    found = told.get(CONTENT_TYPE)
    return found if isinstance(found, str) else None


def _as_json(told: Mapping[Any, Any]) -> str | None:
    others = {str(key): value for key, value in told.items() if key not in _ORIGIN}
    return json.dumps(others, default=_plain) if others else None


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
