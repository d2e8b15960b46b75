"""The versioned dialect, byte by byte: the public protocol, versions 5 to 17.

Messages grow at the end. Fields that a version between 5 and 17 added may be missing, and get the value that the public
protocol gives them; what a later version may add is skipped.
"""

from penstock.protocol.segment.dialect import Dialect, Layout
from penstock.protocol.segment.frame import EVENT
from penstock.protocol.segment.messages import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Attribute,
    AttributeUpdated,
    AuthTokenCheckFailed,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    Event,
    GetAttribute,
    GetSegmentInfo,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    MergeSegments,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    PartialEvent,
    ReadSegment,
    SealSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentInfo,
    SegmentIsSealed,
    SegmentIsTruncated,
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
    FramedEvent,
    Rest,
    Updates,
    Utf,
    Uuid,
    Zeros,
)

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
        CONDITIONAL_BLOCK_END: Layout(
            ConditionalBlockEnd,
            _WRITER,
            I64("event_number"),
            I64("expected_offset"),
            Blob("data"),
            _REQUEST,
        ),
        100: Layout(KeepAlive),
    },
    grows=True,
)
