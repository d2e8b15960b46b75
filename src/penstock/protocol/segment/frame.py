"""The frame that both dialects share: `i32 type | i32 length | payload`, big-endian."""

from collections.abc import Iterable
from struct import Struct

from penstock.core.errors import LimitExceeded, ProtocolError
from penstock.core.types import Buffer

HEADER = Struct(">ii")

HEADER_SIZE = HEADER.size

EVENT = 0
"""The type of an Event, in both dialects: its header is the one that is stored."""

FRAME_SIZE_MAX = 2**24 - 1
"""Header and payload together: "Messages should be less than 2^24, but the upper bits remain zero"."""

PAYLOAD_SIZE_MAX = FRAME_SIZE_MAX - HEADER_SIZE


def pack_header(kind: int, length: int) -> bytes:
    """The 8 bytes before a payload of `length` bytes. Raises LimitExceeded if the message would be too large."""
    if length > PAYLOAD_SIZE_MAX:
        raise LimitExceeded(
            f"a message of {length} bytes is over the limit of {PAYLOAD_SIZE_MAX}",
            "Send fewer bytes at a time.",
        )
    return HEADER.pack(kind, length)


def unpack_header(header: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Type and length of the payload that follows; the length is one that may be allocated."""
    kind, length = HEADER.unpack_from(header)
    if not 0 <= length <= PAYLOAD_SIZE_MAX:
        raise ProtocolError(
            f"a message of type {kind} claims {length & 0xFFFFFFFF} bytes, the limit is {PAYLOAD_SIZE_MAX}"
        )
    return kind, length


# Events as stored in a segment: each one's data after an 8-byte header, type 0 and length.


def frame_events(events: Iterable[Buffer]) -> bytes:
    """The events one after the other, each with its header."""
    parts: list[Buffer] = []
    for event in events:
        if len(event) > PAYLOAD_SIZE_MAX:
            raise LimitExceeded(f"an event of {len(event)} bytes is over the limit of {PAYLOAD_SIZE_MAX}")
        parts += (HEADER.pack(EVENT, len(event)), event)
    return b"".join(parts)


def take_events(data: Buffer) -> tuple[list[memoryview], memoryview]:
    """The whole events at the start, and the bytes after them: the start of one more event, or nothing."""
    view = memoryview(data)
    events = []
    at, size = 0, len(view)
    while at + HEADER_SIZE <= size:
        kind, length = HEADER.unpack_from(view, at)
        if kind != EVENT or not 0 <= length <= PAYLOAD_SIZE_MAX:
            raise ProtocolError(
                f"no event starts at byte {at}: type {kind}, length {length}",
                "Read from an offset where an event starts.",
            )
        end = at + HEADER_SIZE + length
        if end > size:
            break
        events.append(view[at + HEADER_SIZE : end])
        at = end
    return events, view[at:]
