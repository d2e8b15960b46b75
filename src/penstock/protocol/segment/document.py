"""The document's dialect, byte by byte. A payload ends with its last field: extra bytes are an error.

The document lists its fields but no numbers: they are those of the public protocol. It has no errors either; ours are
the public protocol's, with the same numbers, without the request ids, which the document does not have.
"""

from penstock.protocol.segment.dialect import Dialect, Layout
from penstock.protocol.segment.frame import EVENT
from penstock.protocol.segment.messages import (
    AppendSetup,
    AuthTokenCheckFailed,
    BeginAppendBlock,
    DataAppended,
    EndAppendBlock,
    ErrorMessage,
    Event,
    InvalidEventNumber,
    KeepAlive,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    PartialMessage,
    ReadSegment,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SetupAppend,
    WrongHost,
)
from penstock.protocol.segment.primitives import I32, I64, Flags, PartOf, Rest, Utf, Uuid, Zeros

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
