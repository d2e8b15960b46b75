"""The frame that both dialects share: `i32 type | i32 length | payload`, big-endian."""

from struct import Struct

from penstock.core.errors import LimitExceeded, ProtocolError

HEADER = Struct(">ii")

HEADER_SIZE = HEADER.size

EVENT = 0
"""The type of an Event, in both dialects: its header is the one that is stored."""

FRAME_SIZE_MAX = 2**24 - 1
"""Header and payload together: "Messages should be less than 2^24, but the upper bits remain zero"."""

PAYLOAD_SIZE_MAX = FRAME_SIZE_MAX - HEADER_SIZE


def pack_header(kind: int, length: int) -> bytes:
    """The 8 bytes before a payload of `length` bytes. LimitExceeded when the message would not be one."""
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
            f"a message of type {kind} says it has {length & 0xFFFFFFFF} bytes, the limit is {PAYLOAD_SIZE_MAX}"
        )
    return kind, length
