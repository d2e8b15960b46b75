"""Every message of the segment protocol, one class each, for both dialects.

A field that a dialect does not have keeps its default there: it is not sent, and `decode` returns the default.
The document calls a writer's id *connection id*; it is `writer_id` here, 16 bytes. Received data is a view of
a receive buffer, which is unchanged, and stays in memory, for as long as the message exists.

Messages that differ between the dialects are two classes: `BeginAppendBlock`, `EndAppendBlock` and `PartialMessage` are
the document's, `AppendBlock`, `AppendBlockEnd` and `PartialEvent` (the public protocol's names) the versioned one's.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.core.errors import ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import FRAME_SIZE_MAX, HEADER_SIZE, unpack_header

NO_REQUEST = -1
"""The request id of a message that carries none."""

NO_EVENT_NUMBER = -(2**63)
"""What AppendSetup acknowledges to a new writer (versioned dialect; the document's uses 0)."""

WRITER_ID_SIZE = 16


class Message:
    """Legal in both directions, unless it is a Request or a Reply."""

    __slots__ = ()


class Request(Message):
    """From a client to a server."""

    __slots__ = ()


class Reply(Message):
    """From a server to a client."""

    __slots__ = ()


class Failure(Reply):
    """The request it answers changed nothing."""

    __slots__ = ()


# General


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The versions that the sender speaks, both included. As the first message it chooses the versioned dialect."""

    high: int
    low: int


@dataclass(frozen=True, slots=True)
class Padding(Message):
    """Bytes without meaning."""

    length: int


class Part(IntEnum):
    """Which piece of a message a PartialMessage is."""

    BEGIN = 0
    MIDDLE = 1
    END = 2


@dataclass(frozen=True, slots=True)
class PartialMessage(Message):
    """A piece of a split message, header included (document's dialect)."""

    part: Part
    data: Buffer


@dataclass(frozen=True, slots=True)
class PartialEvent(Message):
    """The first part of an event, at the end of a block; the rest is AppendBlockEnd's data (versioned dialect)."""

    data: Buffer


@dataclass(frozen=True, slots=True)
class KeepAlive(Message):
    """Echoed. `data` is the document's; the versioned dialect sends none."""

    data: Buffer = b""


@dataclass(frozen=True, slots=True)
class UnknownRequest(Request):
    """A request of a type that this version does not have. It is in no table: only a server's decoder makes it."""

    kind: int
    request_id: int = NO_REQUEST


# Appending


@dataclass(frozen=True, slots=True)
class Event(Request):
    """Legal inside a block only; there its header is stored with it."""

    data: Buffer


@dataclass(frozen=True, slots=True)
class SetupAppend(Request):
    writer_id: bytes
    segment: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class AppendSetup(Reply):
    """`acknowledged`: the writer's last event number (document's dialect: connection offset) that is stored."""

    segment: str
    writer_id: bytes
    acknowledged: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class BeginAppendBlock(Request):
    """`length` bytes follow, then EndAppendBlock. `offset`: what this writer has written before the block."""

    writer_id: bytes
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class EndAppendBlock(Request):
    """`offset`: what this writer has written, the block included."""

    writer_id: bytes
    offset: int
    block_length: int


@dataclass(frozen=True, slots=True)
class AppendBlock(Request):
    """Whole events, then at most one Padding or PartialEvent. AppendBlockEnd follows."""

    writer_id: bytes
    data: Buffer


@dataclass(frozen=True, slots=True)
class AppendBlockEnd(Request):
    """Ends the block before it; without one, `data` is all there is to append."""

    writer_id: bytes
    size_of_whole_events: int
    data: Buffer
    event_count: int
    event_number: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ConditionalAppend(Request):
    """`event` with its 8-byte header, as it is stored."""

    writer_id: bytes
    event_number: int
    expected_offset: int
    event: Buffer
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ConditionalBlockEnd(Request):
    writer_id: bytes
    event_number: int
    expected_offset: int
    data: Buffer
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class DataAppended(Reply):
    """Everything up to `acknowledged` is stored; `previous` is what was acknowledged before this one."""

    writer_id: bytes
    acknowledged: int
    previous: int = -1
    segment_offset: int = -1
    request_id: int = NO_REQUEST


# Reading


@dataclass(frozen=True, slots=True)
class ReadSegment(Request):
    segment: str
    offset: int
    suggested_length: int
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentRead(Reply):
    """Exactly one answers a ReadSegment in the versioned dialect, one or more in the document's."""

    segment: str
    offset: int
    at_tail: bool
    end_of_segment: bool
    data: Buffer
    request_id: int = NO_REQUEST


# Messages about segments as a whole. The document has none of them; they exist in the versioned dialect only.


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
class CreateTransientSegment(Request):
    """Create a segment beside `segment`, for a large event that is written in parts and then merged into it. Its name
    is in SegmentCreated. It is deleted with the connection, unless it was merged.
    """

    writer_id: bytes
    segment: str
    token: str = field(default="", repr=False)
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


# Short-circuit reads: messages of our own, which no version of the public protocol has.


class LocatedFile(NamedTuple):
    """A file of the journal: a reader opens `path`, and has found the file if device and inode are these."""

    path: str
    device: int
    inode: int


class LocatedObject(NamedTuple):
    """Where bytes of a file are in a bucket. URL and key are empty if they are in none."""

    url: str
    """Without credentials: the reader has its own."""
    key: str
    shift: int = 0
    """Offset n of the file is offset n − `shift` of the object."""


class LocatedRow(NamedTuple):
    """Stored bytes: `head_length` + `length` of them at offset `position` of a file, which is given by its number in
    the reply. The checksum is the CRC-32C of them all. The segment has `take` bytes of them, after the head and `skip`
    more.
    """

    file: int
    position: int
    head_length: int
    length: int
    checksum: int
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class LocateSegment(Request):
    """Where up to `length` durable bytes at `offset` are. `machine`: the sender's, as `core.address.this_machine`.
    `objects`: whether the sender reads objects of a bucket, too.
    """

    segment: str
    offset: int
    length: int
    machine: str
    token: str = field(default="", repr=False)
    request_id: int = NO_REQUEST
    objects: bool = False


@dataclass(frozen=True, slots=True)
class SegmentLocated(Reply):
    """The bytes from `offset` on, row by row; no rows if there are none now. A file that a reader cannot find on its
    machine has an empty path. `objects`: one for each file, which is named once for each object that has bytes of it;
    none if nothing has asked for them.
    """

    segment: str
    offset: int
    files: tuple[LocatedFile, ...]
    rows: tuple[LocatedRow, ...]
    request_id: int = NO_REQUEST
    objects: tuple[LocatedObject, ...] = ()


# Reassembles messages that were split into pieces (document's dialect).


class PartialMessages:
    """At most one message is in pieces at a time; its pieces are copied, so it keeps no receive buffer in memory."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: bytearray | None = None

    @property
    def size(self) -> int:
        """Bytes of pieces that wait for the last one."""
        return len(self._pieces or b"")

    def add(self, piece: PartialMessage) -> bytearray | None:
        """The whole message, header included, once its last piece has arrived. Raises ProtocolError for a piece out
        of order.
        """
        pieces = self._expecting(piece.part)
        if len(pieces) + len(piece.data) > FRAME_SIZE_MAX:
            raise ProtocolError(f"PartialMessage: the pieces are over the limit of {FRAME_SIZE_MAX} bytes")
        pieces += piece.data
        self._pieces = None if piece.part is Part.END else pieces
        return _whole(pieces) if piece.part is Part.END else None

    def _expecting(self, part: Part) -> bytearray:
        """The pieces so far."""
        if part is Part.BEGIN:
            # "It is not valid to attempt to start a new partial message before completing the previous one."
            if self._pieces is not None:
                raise ProtocolError("PartialMessage: begin before the end of the previous one")
            return bytearray()
        if self._pieces is None:
            raise ProtocolError(f"PartialMessage: {part.name.lower()} without a begin")
        return self._pieces


def _whole(message: bytearray) -> bytearray:
    if len(message) < HEADER_SIZE:
        raise ProtocolError(f"PartialMessage: {len(message)} bytes in all are not a message")
    kind, length = unpack_header(message)
    if length != len(message) - HEADER_SIZE:
        raise ProtocolError(
            f"PartialMessage: {len(message) - HEADER_SIZE} bytes in all for a message of type {kind} that has {length}"
        )
    return message


# Numbers inside messages that have a meaning of their own.

VERSION_HIGH = 17
VERSION_LOW = 5
"""The versions of the public protocol that we speak; a client's range must overlap."""


class ErrorCode(IntEnum):
    """What an ErrorMessage is about. The first two are the public protocol's, the others our own."""

    UNSPECIFIED = -1
    ILLEGAL_ARGUMENT = 0
    PROTOCOL_ERROR = 7001
    QUOTA_REACHED = 7002
    DISK_FULL = 7003
    DAMAGED = 7004
    LIMIT_EXCEEDED = 7005
    CONDITION_FAILED = 7006
    FENCED = 7007


class AuthCode(IntEnum):
    """Why an AuthTokenCheckFailed refuses."""

    UNSPECIFIED = -1
    """The token is valid, and does not allow this."""
    TOKEN_CHECK_FAILED = 0
    TOKEN_EXPIRED = 1


class AttributeUpdateKind(IntEnum):
    """How a merge changes an attribute."""

    REPLACE = 1
    REPLACE_IF_EQUALS = 4


# Errors, as replies. The document's dialect has no ConditionalCheckFailed, and the others without their request ids.
#
# `stack_trace` is the public protocol's name for text that is meant for people.


@dataclass(frozen=True, slots=True)
class ConditionalCheckFailed(Failure):
    """The segment did not end at the expected offset; nothing was appended."""

    writer_id: bytes
    event_number: int
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class WrongHost(Failure):
    segment: str
    correct_host: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentIsSealed(Failure):
    """`offset`: where the segment ends."""

    segment: str
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentAlreadyExists(Failure):
    segment: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class NoSuchSegment(Failure):
    """`offset`: the one that was asked for."""

    segment: str
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class InvalidEventNumber(Failure):
    writer_id: bytes
    stack_trace: str = ""
    event_number: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class SegmentIsTruncated(Failure):
    """`offset` was asked for, `start_offset` is the first one still there."""

    segment: str
    start_offset: int
    stack_trace: str = ""
    offset: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class OperationUnsupported(Failure):
    operation: str
    stack_trace: str = ""
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class AuthTokenCheckFailed(Failure):
    """`error_code` is an AuthCode. It answers a missing token, too."""

    stack_trace: str = ""
    error_code: int = -1
    request_id: int = NO_REQUEST


@dataclass(frozen=True, slots=True)
class ErrorMessage(Failure):
    """Any other error. `error_code`: -1 unspecified, 0 an illegal argument."""

    segment: str
    message: str
    error_code: int = -1
    request_id: int = NO_REQUEST
