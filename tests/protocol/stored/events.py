"""Stored events for tests, made by hand, and both implementations side by side."""

import struct
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgpack

from penstock.protocol.stored.bulk import Bytes, Encoded, Events, codec
from tests.protocol.stored import oracle

IMPLEMENTATIONS = (codec, oracle)

EMPTY_EVENT = bytes(8)
TEXT_COLUMNS = ("keys", "values", "sources", "streams", "metadata")
NUMBER_COLUMNS = ("offsets", "stream_ids", "event_ids", "event_times")


def name_of(implementation: ModuleType) -> str:
    return implementation.__name__.rpartition(".")[2]


def stored(
    stream_id: int = 0,
    event_id: int = 0,
    time: int = 0,
    key: bytes = b"",
    payload: bytes = b"",
    metadata: dict[str, Any] | bytes = b"",
) -> bytes:
    """One event, written down from the architecture's words."""
    packed = msgpack.packb(metadata) if isinstance(metadata, dict) else metadata
    body = struct.pack(">QQqH", stream_id, event_id, time, len(key)) + key
    return raw(body + struct.pack(">H", len(packed)) + packed + payload)


def raw(data: bytes) -> bytes:
    return struct.pack(">ii", 0, len(data)) + data


def column(rows: Sequence[bytes], code: str = "q", skipped: bytes = b"") -> Bytes:
    """The rows; `skipped` lies before the first of them."""
    offsets = array(code, [len(skipped)])
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    return Bytes(offsets, skipped + b"".join(rows))


def shown(events: Events) -> dict[str, Any]:
    """Everything that was decoded, comparable."""
    texts = {name: getattr(events, name) for name in TEXT_COLUMNS}
    numbers = {name: getattr(events, name) for name in NUMBER_COLUMNS}
    return (
        {name: None if text is None else text.rows() for name, text in texts.items()}
        | {name: None if number is None else number.tolist() for name, number in numbers.items()}
        | {"end": events.end, "without_time": events.without_time}
    )


def shown_encoded(encoded: Encoded) -> tuple[bytes, list[int]]:
    return bytes(encoded.data), encoded.starts.tolist()
