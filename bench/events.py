"""The events that all contenders store: 100 bytes of noise each, the same for all."""

import struct
from random import Random

EVENT_BYTES = 100
HEADER = struct.Struct(">ii")
STORED_BYTES = HEADER.size + EVENT_BYTES
"""An event in a segment, with its header; what the bare loop stores, too."""


def payloads(count: int) -> list[bytes]:
    noise = Random(count)
    return [noise.randbytes(EVENT_BYTES) for _ in range(count)]


def block(count: int) -> bytes:
    """`count` events as they stand in a segment: type 0, length, data."""
    header = HEADER.pack(0, EVENT_BYTES)
    return b"".join(header + payload for payload in payloads(count))


def events_in(block_bytes: int) -> int:
    """How many whole events a block of that size holds; at least one."""
    return max(1, block_bytes // STORED_BYTES)
