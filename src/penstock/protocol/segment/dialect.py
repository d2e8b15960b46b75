"""A dialect is a table: type number → the message's class and its fields, in wire order."""

import struct
from collections.abc import Mapping
from enum import Enum
from typing import Any

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import EVENT, pack_header
from penstock.protocol.segment.messages import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Attribute,
    AttributeUpdated,
    AuthTokenCheckFailed,
    BeginAppendBlock,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    EndAppendBlock,
    ErrorMessage,
    Event,
    GetAttribute,
    GetSegmentInfo,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    LocateSegment,
    MergeSegments,
    Message,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    PartialEvent,
    PartialMessage,
    ReadSegment,
    Reply,
    Request,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentLocated,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    TruncateSegment,
    UpdateAttribute,
    WrongHost,
)
from penstock.protocol.segment.primitives import (
    I8,
    I32,
    I64,
    Blob,
    Bool,
    Field,
    Flags,
    FramedEvent,
    LocatedFiles,
    LocatedObjects,
    LocatedRows,
    PartOf,
    Rest,
    Updates,
    Utf,
    Uuid,
    Zeros,
)
from penstock.protocol.segment.table_fields import TableEntries, TableKeys, Versions
from penstock.protocol.segment.table_messages import (
    CreateTable,
    DeleteTable,
    ReadTable,
    ReadTableDelta,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    TableDeltaRead,
    TableEntriesRead,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableNotEmpty,
    TableRead,
    TableUpdated,
    UpdateTable,
)

JOIN_BELOW = 4096
"""Parts smaller than this are copied together: a copy is cheaper than sending one more buffer."""


class Role(Enum):
    """Which side we are: a server receives requests, a client receives replies."""

    SERVER = "server"
    CLIENT = "client"


class Layout:
    """The layout of one message's payload."""

    __slots__ = ("fields", "message")

    def __init__(self, message: type[Message], *fields: Field) -> None:
        self.message = message
        self.fields = fields

    def encode(self, message: Message) -> list[Buffer]:
        parts: list[Buffer] = []
        for field in self.fields:
            try:
                field.write(message, parts)
            except struct.error as error:
                raise RequestError(f"{type(message).__name__}: {field.name}: {error}") from None
            except RequestError as error:
                raise type(error)(f"{type(message).__name__}: {field.name}: {error}", error.hint) from None
        return parts

    def decode(self, payload: memoryview) -> tuple[Message, int]:
        """The message, and how many bytes follow its last field."""
        values: dict[str, Any] = {}
        size = len(payload)
        at = 0
        for field in self.fields:
            if field.optional and size - at < field.size_min:
                break
            try:
                at = field.read(payload, at, values)
            except ProtocolError as error:
                raise ProtocolError(f"{field.name}: {error}") from None
        return self.message(**values), size - at


class Dialect:
    """Messages to bytes and back. `grows`: bytes after a message's last field are a later version's, and skipped."""

    def __init__(self, name: str, table: Mapping[int, Layout], *, grows: bool) -> None:
        self.name = name
        self.table = table
        self._grows = grows
        self._kinds = {layout.message: kind for kind, layout in table.items()}

    def __repr__(self) -> str:
        return f"<the {self.name} dialect>"

    def encode(self, message: Message) -> bytes:
        """The whole message, header included. Raises RequestError if a value does not fit its field."""
        return b"".join(self._encode(message))

    def encode_parts(self, message: Message) -> list[Buffer]:
        """The same bytes as `encode`, in a few buffers: a message's data is not copied, unless it is small."""
        return _join_small(self._encode(message))

    def _encode(self, message: Message) -> list[Buffer]:
        kind = self._kinds.get(type(message))
        if kind is None:
            raise RequestError(f"the {self.name} dialect has no {type(message).__name__}")
        parts = self.table[kind].encode(message)
        try:
            return [pack_header(kind, sum(map(len, parts))), *parts]
        except LimitExceeded as error:
            raise LimitExceeded(f"{type(message).__name__}: {error}", error.hint) from None

    def decode(self, kind: int, payload: memoryview) -> Message:
        """The message of this type and payload. Raises ProtocolError, naming both, for anything malformed."""
        layout = self._layout(kind)
        try:
            message, left = layout.decode(payload)
        except ProtocolError as error:
            raise ProtocolError(f"{self.describe(kind)}: {error}") from None
        if left and not self._grows:
            raise ProtocolError(f"{self.describe(kind)}: {left} bytes after the last field")
        return message

    def check_receiver(self, kind: int, role: Role) -> None:
        """Raises ProtocolError if messages of this type are unknown, or are not for this side."""
        wrong: type[Message] = Reply if role is Role.SERVER else Request
        if issubclass(self._layout(kind).message, wrong):
            raise ProtocolError(f"{self.describe(kind)}: a {wrong.__name__.lower()}, sent to a {role.value}")

    def _layout(self, kind: int) -> Layout:
        layout = self.table.get(kind)
        if layout is None:
            raise ProtocolError(f"{self.describe(kind)}: the {self.name} dialect has no such message")
        return layout

    def has(self, kind: int) -> bool:
        return kind in self.table

    def describe(self, kind: int) -> str:
        """A type in words, for errors."""
        layout = self.table.get(kind)
        return f"type {kind}" if layout is None else f"{layout.message.__name__} (type {kind})"


def _join_small(parts: list[Buffer]) -> list[Buffer]:
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            small.append(part)
            continue
        joined += (b"".join(small), part)
        small = []
    return [*joined, b"".join(small)] if small else joined


# The versioned dialect, byte by byte: the public protocol, versions 5 to 17.
#
# Messages grow at the end. Fields that a version between 5 and 17 added may be missing, and get the default of the
# public protocol; what a later version may add is skipped.

HELLO = -127
PADDING = -1
PARTIAL_EVENT = -2
APPEND_BLOCK = 3
APPEND_BLOCK_END = 4
CONDITIONAL_APPEND = 5
CONDITIONAL_BLOCK_END = 89

_REQUEST = I64("request_id")
_LATE_REQUEST = I64("request_id", optional=True)
_WRITER = Uuid("writer_id")
_SEGMENT = Utf("segment")
_TOKEN = Utf("token")
_TRACE = Utf("stack_trace", optional=True)
_LATE_OFFSET = I64("offset", optional=True)

VERSIONED = Dialect(
    "versioned",
    {
        HELLO: Layout(Hello, I32("high"), I32("low")),
        PADDING: Layout(Padding, Zeros("length")),
        PARTIAL_EVENT: Layout(PartialEvent, Rest("data")),
        EVENT: Layout(Event, Rest("data")),
        1: Layout(SetupAppend, _REQUEST, _WRITER, _SEGMENT, _TOKEN),
        2: Layout(AppendSetup, _REQUEST, _SEGMENT, _WRITER, I64("acknowledged")),
        APPEND_BLOCK: Layout(AppendBlock, _WRITER, Rest("data")),
        APPEND_BLOCK_END: Layout(
            AppendBlockEnd,
            _WRITER,
            I32("size_of_whole_events"),
            Blob("data"),
            I32("event_count"),
            I64("event_number"),
            _LATE_REQUEST,
        ),
        CONDITIONAL_APPEND: Layout(
            ConditionalAppend,
            _WRITER,
            I64("event_number"),
            I64("expected_offset"),
            FramedEvent("event"),
            _LATE_REQUEST,
        ),
        7: Layout(
            DataAppended,
            _WRITER,
            I64("acknowledged"),
            I64("previous", optional=True),
            _LATE_REQUEST,
            I64("segment_offset", optional=True),
        ),
        8: Layout(ConditionalCheckFailed, _WRITER, I64("event_number"), _LATE_REQUEST),
        9: Layout(ReadSegment, _SEGMENT, I64("offset"), I32("suggested_length"), _TOKEN, _LATE_REQUEST),
        10: Layout(
            SegmentRead,
            _SEGMENT,
            I64("offset"),
            Bool("at_tail"),
            Bool("end_of_segment"),
            Blob("data"),
            _LATE_REQUEST,
        ),
        11: Layout(GetSegmentInfo, _REQUEST, _SEGMENT, _TOKEN),
        12: Layout(
            SegmentInfo,
            _REQUEST,
            _SEGMENT,
            Bool("exists"),
            Bool("sealed"),
            Bool("deleted"),
            I64("modified"),
            I64("write_offset"),
            I64("start_offset", optional=True),
        ),
        20: Layout(
            CreateSegment,
            _REQUEST,
            _SEGMENT,
            I32("target_rate"),
            I8("scale_type"),
            _TOKEN,
            I64("rollover_size", optional=True),
        ),
        21: Layout(SegmentCreated, _REQUEST, _SEGMENT),
        28: Layout(SealSegment, _REQUEST, _SEGMENT, _TOKEN),
        29: Layout(SegmentSealed, _REQUEST, _SEGMENT),
        30: Layout(DeleteSegment, _REQUEST, _SEGMENT, _TOKEN),
        31: Layout(SegmentDeleted, _REQUEST, _SEGMENT),
        34: Layout(GetAttribute, _REQUEST, _SEGMENT, Uuid("attribute_id"), _TOKEN),
        35: Layout(Attribute, _REQUEST, I64("value")),
        36: Layout(
            UpdateAttribute,
            _REQUEST,
            _SEGMENT,
            Uuid("attribute_id"),
            I64("value"),
            I64("expected"),
            _TOKEN,
        ),
        37: Layout(AttributeUpdated, _REQUEST, Bool("success")),
        38: Layout(TruncateSegment, _REQUEST, _SEGMENT, I64("offset"), _TOKEN),
        39: Layout(SegmentTruncated, _REQUEST, _SEGMENT),
        40: Layout(CreateTransientSegment, _REQUEST, _WRITER, _SEGMENT, _TOKEN),
        50: Layout(WrongHost, _REQUEST, _SEGMENT, Utf("correct_host"), _TRACE),
        51: Layout(SegmentIsSealed, _REQUEST, _SEGMENT, _TRACE, _LATE_OFFSET),
        52: Layout(SegmentAlreadyExists, _REQUEST, _SEGMENT, _TRACE),
        53: Layout(NoSuchSegment, _REQUEST, _SEGMENT, _TRACE, _LATE_OFFSET),
        55: Layout(InvalidEventNumber, _WRITER, _REQUEST, _TRACE, I64("event_number", optional=True)),
        56: Layout(SegmentIsTruncated, _REQUEST, _SEGMENT, I64("start_offset"), _TRACE, _LATE_OFFSET),
        57: Layout(OperationUnsupported, _REQUEST, Utf("operation"), _TRACE),
        58: Layout(MergeSegments, _REQUEST, Utf("target"), Utf("source"), _TOKEN, Updates("updates", optional=True)),
        59: Layout(SegmentsMerged, _REQUEST, Utf("target"), Utf("source"), I64("write_offset", optional=True)),
        60: Layout(AuthTokenCheckFailed, _REQUEST, _TRACE, I32("error_code", optional=True)),
        61: Layout(ErrorMessage, _REQUEST, _SEGMENT, Utf("message"), I32("error_code")),
        70: Layout(CreateTable, _REQUEST, _SEGMENT, _TOKEN),
        71: Layout(DeleteTable, _REQUEST, _SEGMENT, Bool("must_be_empty"), _TOKEN),
        74: Layout(UpdateTable, _REQUEST, _SEGMENT, _TOKEN, TableEntries("entries"), _LATE_OFFSET),
        75: Layout(TableUpdated, _REQUEST, Versions("versions")),
        76: Layout(RemoveTableKeys, _REQUEST, _SEGMENT, _TOKEN, TableKeys("keys"), _LATE_OFFSET),
        77: Layout(TableKeysRemoved, _REQUEST, _SEGMENT),
        78: Layout(ReadTable, _REQUEST, _SEGMENT, _TOKEN, TableKeys("keys")),
        79: Layout(TableRead, _REQUEST, _SEGMENT, TableEntries("entries")),
        80: Layout(TableNotEmpty, _REQUEST, _SEGMENT, _TRACE),
        81: Layout(TableKeyDoesNotExist, _REQUEST, _SEGMENT, _TRACE),
        82: Layout(TableKeyBadVersion, _REQUEST, _SEGMENT, _TRACE),
        83: Layout(ReadTableKeys, _REQUEST, _SEGMENT, _TOKEN, I32("count"), Blob("continuation")),
        84: Layout(TableKeysRead, _REQUEST, _SEGMENT, TableKeys("keys"), Blob("continuation")),
        85: Layout(ReadTableEntries, _REQUEST, _SEGMENT, _TOKEN, I32("count"), Blob("continuation")),
        86: Layout(TableEntriesRead, _REQUEST, _SEGMENT, TableEntries("entries"), Blob("continuation")),
        87: Layout(
            TableDeltaRead,
            _REQUEST,
            _SEGMENT,
            TableEntries("entries"),
            Bool("should_clear"),
            Bool("reached_end"),
            I64("position"),
        ),
        88: Layout(ReadTableDelta, _REQUEST, _SEGMENT, _TOKEN, I64("position"), I32("count")),
        CONDITIONAL_BLOCK_END: Layout(
            ConditionalBlockEnd,
            _WRITER,
            I64("event_number"),
            I64("expected_offset"),
            Blob("data"),
            _REQUEST,
        ),
        100: Layout(KeepAlive),
        # Our own, beside the public protocol's: 1000 more than the messages that they resemble.
        1009: Layout(
            LocateSegment,
            _SEGMENT,
            I64("offset"),
            I64("length"),
            Utf("machine"),
            _TOKEN,
            _REQUEST,
            Bool("objects", optional=True),
        ),
        1010: Layout(
            SegmentLocated,
            _SEGMENT,
            I64("offset"),
            LocatedFiles("files"),
            LocatedRows("rows"),
            _REQUEST,
            LocatedObjects("objects", optional=True),
        ),
    },
    grows=True,
)

# The document's dialect. A payload ends with its last field: extra bytes are an error.
#
# The document lists its fields but no numbers: they are those of the public protocol. It has no errors either; ours are
# the public protocol's, with the same numbers, without the request ids, which the document does not have.

PARTIAL_MESSAGE = -2
END_APPEND_BLOCK = 4

DOCUMENT = Dialect(
    "document's",
    {
        -1: Layout(Padding, Zeros("length")),
        PARTIAL_MESSAGE: Layout(PartialMessage, PartOf("part"), Rest("data")),
        EVENT: Layout(Event, Rest("data")),
        1: Layout(SetupAppend, Uuid("writer_id"), Utf("segment")),
        2: Layout(AppendSetup, Utf("segment"), Uuid("writer_id"), I64("acknowledged")),
        3: Layout(BeginAppendBlock, Uuid("writer_id"), I64("offset"), I32("length")),
        END_APPEND_BLOCK: Layout(EndAppendBlock, Uuid("writer_id"), I64("offset"), I32("block_length")),
        7: Layout(DataAppended, Uuid("writer_id"), I64("acknowledged")),
        9: Layout(ReadSegment, Utf("segment"), I64("offset"), I32("suggested_length")),
        10: Layout(SegmentRead, Utf("segment"), I64("offset"), Flags("at_tail", "end_of_segment"), Rest("data")),
        50: Layout(WrongHost, Utf("segment"), Utf("correct_host"), Utf("stack_trace")),
        51: Layout(SegmentIsSealed, Utf("segment"), Utf("stack_trace"), I64("offset")),
        52: Layout(SegmentAlreadyExists, Utf("segment"), Utf("stack_trace")),
        53: Layout(NoSuchSegment, Utf("segment"), Utf("stack_trace"), I64("offset")),
        55: Layout(InvalidEventNumber, Uuid("writer_id"), Utf("stack_trace"), I64("event_number")),
        56: Layout(SegmentIsTruncated, Utf("segment"), I64("start_offset"), Utf("stack_trace"), I64("offset")),
        57: Layout(OperationUnsupported, Utf("operation"), Utf("stack_trace")),
        60: Layout(AuthTokenCheckFailed, Utf("stack_trace"), I32("error_code")),
        61: Layout(ErrorMessage, Utf("segment"), Utf("message"), I32("error_code")),
        100: Layout(KeepAlive, Rest("data")),
    },
    grows=False,
)
