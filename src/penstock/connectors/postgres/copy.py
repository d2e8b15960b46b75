"""PostgreSQL's binary COPY: the columns number, message_id, event_time, key, value. The kernel encodes blocks."""

from penstock.connectors.sink_api import Block
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


def message_out_of_range(block: Block) -> int | None:
    """The id of the first message whose time PostgreSQL does not have."""
    for row, time in enumerate(block.times.tolist()):
        if NO_TIME < time < TIME_US_MIN:
            offsets = block.values.offsets
            return block.first_id + int(offsets[row]) - int(offsets[0])
    return None
