"""A whole append, however its block was split into messages: what a server stores, and how a client sends it."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.errors import LimitExceeded
from penstock.core.types import Buffer
from penstock.protocol.segment.dialect import VERSIONED
from penstock.protocol.segment.messages import (
    NO_REQUEST,
    AppendBlockEnd,
    ConditionalBlockEnd,
    Message,
)

BLOCK_SIZE_MAX = 9 * 2**20
"""Bytes between a block's start and its end, and after it: they wait in memory until the block is complete.
Public clients send events of up to 8 MiB, and a header with them."""


@dataclass(frozen=True, slots=True)
class AppendByOffset:
    """A block of the document's dialect: the writer's bytes from `offset` to `end_offset`, as it counts them itself.

    The pieces are exactly that many bytes, in order, and do not change while they are referenced.
    """

    writer_id: bytes
    offset: int
    end_offset: int
    pieces: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        return self.end_offset - self.offset


@dataclass(frozen=True, slots=True)
class AppendByNumber:
    """An append of the versioned dialect: `event_count` events, the last of which is the writer's `event_number`.

    The pieces are the bytes to store, in order, and do not change while they are referenced. With an `expected_offset`
    it is stored only if the segment ends there.
    """

    writer_id: bytes
    event_number: int
    event_count: int
    pieces: tuple[memoryview, ...]
    request_id: int
    expected_offset: int | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


Incoming: TypeAlias = Message | AppendByOffset | AppendByNumber
"""What a decoder returns."""


def encode_append(
    writer_id: bytes,
    data: Buffer,
    *,
    event_count: int,
    event_number: int,
    request_id: int = NO_REQUEST,
    expected_offset: int | None = None,
) -> list[Buffer]:
    """Events with their headers (`frame_events`) as one append of the versioned dialect; large data is not copied.

    Raises LimitExceeded if it is more than a server accepts at once. With an `expected_offset` the append counts as one
    event at the server: the message has no field for the count.
    """
    _check_size(data)
    if expected_offset is not None:
        return VERSIONED.encode_parts(ConditionalBlockEnd(writer_id, event_number, expected_offset, data, request_id))
    return VERSIONED.encode_parts(AppendBlockEnd(writer_id, 0, data, event_count, event_number, request_id))


def _check_size(data: Buffer) -> None:
    if len(data) > BLOCK_SIZE_MAX:
        raise LimitExceeded(
            f"an append of {len(data)} bytes is over the limit of {BLOCK_SIZE_MAX}",
            "Append fewer events at a time.",
        )
