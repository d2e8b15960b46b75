"""Messages about segments as a whole. The document has none of them; they exist in the versioned dialect only."""

from dataclasses import dataclass, field

from penstock.protocol.segment.messages import NO_REQUEST, Reply, Request


@dataclass(frozen=True, slots=True)
class GetSegmentInfo(Request):
    segment: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentInfo(Reply):
    segment: str
    exists: bool
    sealed: bool
    deleted: bool
    modified: int
    write_offset: int
    start_offset: int = 0
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class CreateSegment(Request):
    segment: str
    target_rate: int = 0
    scale_type: int = 0
    rollover_size: int = 0
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentCreated(Reply):
    segment: str
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SealSegment(Request):
    segment: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentSealed(Reply):
    """Answers SealSegment; SegmentIsSealed is the error."""

    segment: str
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class DeleteSegment(Request):
    segment: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentDeleted(Reply):
    segment: str
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class GetAttribute(Request):
    segment: str
    attribute_id: bytes
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class Attribute(Reply):
    value: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class UpdateAttribute(Request):
    segment: str
    attribute_id: bytes
    value: int
    expected: int
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class AttributeUpdated(Reply):
    success: bool
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class TruncateSegment(Request):
    segment: str
    offset: int
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentTruncated(Reply):
    """Answers TruncateSegment; SegmentIsTruncated is the error."""

    segment: str
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """One of the updates that go with a merge. `kind`: 1 replaces, 4 replaces if the value is `expected`."""

    attribute_id: bytes
    kind: int
    value: int
    expected: int


@dataclass(frozen=True, slots=True)
class MergeSegments(Request):
    target: str
    source: str
    updates: tuple[AttributeUpdate, ...] = ()
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentsMerged(Reply):
    target: str
    source: str
    write_offset: int = -1
    request_id: int = NO_REQUEST
