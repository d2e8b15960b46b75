"""The types that cross the borders between parts."""

from enum import Enum
from typing import NewType, TypeAlias

Position = NewType("Position", int)
"""A place in a journal: bytes of records before it, over all files, since the journal was created."""

Offset = NewType("Offset", int)
"""A place in a segment: bytes before it since the segment was created, including truncated ones."""

SegmentId = NewType("SegmentId", int)
"""A segment's number inside its journal; never used again, unlike its name."""

Buffer: TypeAlias = bytes | bytearray | memoryview


# What a sink guarantees for every epoch, and a source for every event.


class Guarantee(Enum):
    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    """It may get the same thing twice, with the same result."""
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    """For a source whose peer cannot send again: what it had not handed over is lost with the connection."""


NO_EPOCH = -1
"""In place of an epoch where there is none yet. The first epoch is 0, as Spark's first batch is."""

# Attributes of segments that have a meaning: 16-byte keys, i64 values.

QUOTA = b"penstock.quota\0\0"
"""A segment's own quota in bytes."""

INCARNATION = b"penstock.incarn\0"
"""Of a connector's table of streams: how often ids have been assigned again to streams that cannot resume."""

OWN_TIMES = b"penstock.owntime"
"""Of a connector's table of streams: 1 once an event has arrived with its own time; 0 while all events since this is
recorded got their time of arrival; absent while that is unknown."""

NO_VALUE = -(2**63)
"""Means that an attribute is absent. No attribute can have this value."""
