"""The types that cross the borders between parts."""

from typing import NewType, TypeAlias

Position = NewType("Position", int)
"""A place in a journal: bytes of records before it, over all files, since the journal began."""

Offset = NewType("Offset", int)
"""A place in a segment: bytes before it since the segment began, truncated ones included."""

SegmentId = NewType("SegmentId", int)
"""A segment's number inside its journal; never used again, unlike its name."""

Buffer: TypeAlias = bytes | bytearray | memoryview
