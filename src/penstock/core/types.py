"""Types that several packages share."""

from enum import Enum
from typing import NewType, TypeAlias

Position = NewType("Position", int)
"""A place in a journal: bytes of records before it, over all files, since the journal was created."""

Offset = NewType("Offset", int)
"""A place in a segment: bytes before it since the segment was created, including truncated ones."""

SegmentId = NewType("SegmentId", int)
"""A segment's number in its journal. Unlike its name, it is never reused."""

Buffer: TypeAlias = bytes | bytearray | memoryview


# What a sink guarantees for every epoch, and a source for every event.


class Guarantee(Enum):
    """What a connector promises at a port."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    """It may receive the same data twice; the result is the same as once."""
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    """For a source whose peer cannot resend: data in transit are lost with the connection."""


NO_EPOCH = -1
"""Stands for "no epoch yet". The first epoch is 0, like Spark's first batch."""

# Attributes of segments that have a meaning: 16-byte keys, i64 values.

QUOTA = b"penstock.quota\0\0"
"""A segment's own quota in bytes."""

INCARNATION = b"penstock.incarn\0"
"""On a connector's table of streams: how often ids were reassigned to streams that cannot resume."""

OWN_TIMES = b"penstock.owntime"
"""On a connector's table of streams: 1 once an event has arrived with its own time; 0 if all events since recording
began got their time of arrival; absent while that is unknown.
"""

TABLE = b"penstock.table\0\0"
"""On a table segment: the version of its format. Its bytes are entries, which only requests about tables read and
write.
"""

NO_VALUE = -(2**63)
"""Means that an attribute is absent. No attribute can have this value."""
