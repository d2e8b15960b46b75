"""Blocks as the bytes of PostgreSQL's binary COPY: the columns number, message_id, event_time, key, value.

Compiled where numba is installed, else plain Python with the same results.
"""

from struct import Struct
from typing import TYPE_CHECKING

from penstock.connectors.sink_api import Block
from penstock.core.types import Buffer
from penstock.protocol.stored.event import NO_TIME

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, flags, length of an extension."""

TRAILER = b"\xff\xff"

EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts its microseconds from 2000."""

TIME_US_MIN = -210_866_803_200_000_000
"""PostgreSQL's first instant, in 4714 BC; its last one is behind all that an event time can be."""

OUT_OF_RANGE = -(2**63) + 1
"""What PostgreSQL refuses as a time, in place of one that it does not have."""

NUMBERS = Struct(">hiqiq")
"""The count of fields, and the two numbers, each with its length."""
TIME = Struct(">iq")
LENGTH = Struct(">i")

if TYPE_CHECKING:
    HAS_KERNEL: bool

    def compiled(block: Block, number: int) -> Buffer: ...
else:
    try:
        from penstock.connectors.postgres.copy_kernel import compiled

        HAS_KERNEL = True
    except ImportError:
        HAS_KERNEL = False


def encode(block: Block, number: int) -> Buffer:
    """A whole COPY of the block, whose first row has this number."""
    return compiled(block, number) if HAS_KERNEL else plain(block, number)


def plain(block: Block, number: int) -> bytes:
    parts, message_id = [HEADER], block.first_id
    for time, key, value in zip(block.times.tolist(), block.keys.rows(), block.values.rows(), strict=True):
        parts.append(NUMBERS.pack(5, 8, number, 8, message_id))
        parts.append(LENGTH.pack(-1) if time == NO_TIME else TIME.pack(8, _since_2000(time)))
        parts += (LENGTH.pack(len(key)), key, LENGTH.pack(len(value)), value)
        number += 1
        message_id += len(value)
    return b"".join([*parts, TRAILER])


def _since_2000(time: int) -> int:
    return time - EPOCH_US if time >= TIME_US_MIN else OUT_OF_RANGE


def message_out_of_range(block: Block) -> int | None:
    """The id of the first message whose time PostgreSQL does not have."""
    for row, time in enumerate(block.times.tolist()):
        if NO_TIME < time < TIME_US_MIN:
            offsets = block.values.offsets
            return block.first_id + int(offsets[row]) - int(offsets[0])
    return None
