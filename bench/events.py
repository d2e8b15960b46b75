"""The events that all contenders store: 100 bytes of noise each, the same for all."""

import json
import struct
from datetime import UTC, datetime, timedelta
from random import Random

EVENT_BYTES = 100
HEADER = struct.Struct(">ii")
STORED_BYTES = HEADER.size + EVENT_BYTES
"""An event in a segment, with its header; what the bare loop stores, too."""


def payloads(count: int) -> list[bytes]:
    noise = Random(count)
    return [noise.randbytes(EVENT_BYTES) for _ in range(count)]


def json_payloads(count: int) -> list[bytes]:
    """JSON documents of the same size, each with a time of its own."""
    noise, began = Random(count), datetime(2026, 1, 31, 12, tzinfo=UTC)
    return [_document(began + timedelta(milliseconds=number), noise) for number in range(count)]


def _document(moment: datetime, noise: Random) -> bytes:
    fields = {
        "user": noise.randrange(10_000),
        "ts": moment.isoformat(timespec="milliseconds"),
        "amount": round(noise.random() * 1000, 2),
    }
    room = EVENT_BYTES - len(json.dumps({**fields, "shop": ""}))
    return json.dumps({**fields, "shop": noise.randbytes(room).hex()[:room]}).encode()


def block(count: int) -> bytes:
    """`count` events as they stand in a segment: type 0, length, data."""
    header = HEADER.pack(0, EVENT_BYTES)
    return b"".join(header + payload for payload in payloads(count))


def events_in(block_bytes: int) -> int:
    """How many whole events a block of that size holds; at least one."""
    return max(1, block_bytes // STORED_BYTES)
