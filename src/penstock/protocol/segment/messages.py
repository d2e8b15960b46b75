"""Every message of the segment protocol, one class each, for both dialects.

A field that a dialect does not have keeps its default there: it is not sent, and comes out of `decode` as the default.
The document calls a writer's id *connection id*; it is `writer_id` here, 16 bytes. Data that was received is a view of
a receive buffer, which stays as it is, and stays in memory, for as long as the message does.

Messages that differ between the dialects are two classes: `BeginAppendBlock`, `EndAppendBlock` and `PartialMessage` are
the document's, `AppendBlock`, `AppendBlockEnd` and `PartialEvent` (the public protocol's names) the versioned one's.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from penstock.core.types import Buffer

NO_REQUEST = -1
"""The request id of a message that carries none."""

NO_EVENT_NUMBER = -(2**63)
"""What AppendSetup acknowledges to a writer that is new (versioned dialect; the document's says 0)."""

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
    """A piece of a message, header included, that was cut up (document's dialect)."""

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
