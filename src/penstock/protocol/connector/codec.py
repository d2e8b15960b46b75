"""Frames to bytes and back: `u32 length of (tag + body) | u8 tag | body`, everything big-endian."""

from struct import Struct

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector.fields import (
    U32,
    Bytes,
    Flag,
    Layout,
    ManyBytes,
    Number,
    OptionalText,
    Records,
    Rest,
    Text,
)
from penstock.protocol.connector.frames import (
    Ack,
    Acked,
    EndOfStream,
    Error,
    Frame,
    Hello,
    Message,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from penstock.protocol.connector.hello import HelloCheck
from penstock.protocol.connector.two_phase import (
    TWO_PHASE_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    TwoPhase,
)

FRAME_SIZE_MAX = 4 * 2**20
"""The default limit of a frame's length field (tag and body). "Wallaroo would have issues if someone thought it'd be
clever to send 4GiB frames." """

FRAME_SIZE_CEILING = 15 * 2**20
"""How far it may be raised: a stored event must be one Event of the segment protocol, of less than 2^24 bytes."""

HEADER = Struct(">IB")

MESSAGE_FIELDS = Struct(">QQqH")
"""A MESSAGE's body up to its key."""

_STREAM_ID = Number("stream_id", "Q")
_POINT = Number("point_of_reference", "Q")
_TXN_ID = Bytes("txn_id")

FRAMES: dict[int, Layout] = {
    layout.frame.tag: layout
    for layout in (
        Layout(Hello, Text("version"), Bytes("cookie"), Text("program"), Text("instance")),
        Layout(Ok, Number("credits", "I")),
        Layout(Error, Text("text")),
        Layout(Notify, _STREAM_ID, Text("name"), _POINT),
        Layout(NotifyAck, Flag("success"), _STREAM_ID, _POINT),
        Layout(
            Message, _STREAM_ID, Number("message_id", "Q"), Number("event_time", "q"), Bytes("key"), Rest("payload")
        ),
        Layout(Ack, Number("credits", "I"), Records("acked", "QQ", Acked._make)),
        Layout(Restart, OptionalText("address", U32)),
        Layout(EndOfStream, _STREAM_ID, spare=8),  # the document's constructor adds a message id
        Layout(Migrate, Text("host", U32), Number("port", "H")),
        Layout(MigrateAck),
    )
}

TWO_PHASE: dict[int, Layout] = {
    layout.frame.tag: layout
    for layout in (
        Layout(ListUncommitted, Number("rtag", "Q")),
        Layout(ReplyUncommitted, Number("rtag", "Q"), ManyBytes("txn_ids")),
        Layout(Phase1, _TXN_ID, Records("ranges", "QQQ", Range._make)),
        Layout(Reply, _TXN_ID, Flag("commit")),
        Layout(Phase2, _TXN_ID, Flag("commit")),
    )
}


def encode(frame: Frame, *, frame_size_max: int = FRAME_SIZE_MAX) -> bytes:
    """The whole frame, its length first; a two-phase message comes wrapped in its MESSAGE.

    RequestError when a value does not fit its field, LimitExceeded when the frame is larger than a peer takes.
    """
    if isinstance(frame, TwoPhase):
        return encode(wrap(frame), frame_size_max=frame_size_max)
    layout = _layout_of(FRAMES, frame)
    parts = layout.pack(frame)
    size = 1 + sum(map(len, parts))
    if size > frame_size_max:
        raise LimitExceeded(
            f"{frame.wire_name}: {size} bytes are over the limit of {frame_size_max}", "Send smaller frames."
        )
    return b"".join((HEADER.pack(size, frame.tag), *parts))


def decode(tag: int, body: Buffer, *, hello: HelloCheck | None = None) -> Frame:
    """The frame of this tag and body. ProtocolError, naming the frame and what is wrong, for anything malformed.

    With a `hello` check a HELLO's version, then its cookie, are compared "before continuing the decoding".
    """
    layout = FRAMES.get(tag)
    if layout is None:
        raise ProtocolError(f"tag {tag}: there is no such frame")
    if hello is not None and layout.frame is Hello:
        hello.check(body)
    return _read_message(body, layout) if layout.frame is Message else layout.read(body)


def _read_message(body: Buffer, layout: Layout) -> Frame:
    """As the layout reads it, in one step: messages are nearly all there is."""
    if len(body) >= MESSAGE_FIELDS.size:
        stream_id, message_id, event_time, key_size = MESSAGE_FIELDS.unpack_from(body)
        end = MESSAGE_FIELDS.size + key_size
        if end <= len(body):
            return Message(stream_id, message_id, event_time, bytes(body[MESSAGE_FIELDS.size : end]), body[end:])
    return layout.read(body)


def read_length(header: Buffer, at: int, frame_size_max: int) -> int:
    """The length field at `at`, which is one that may be allocated. ProtocolError for any other."""
    length: int = U32.unpack_from(header, at)[0]
    if length == 0:
        raise ProtocolError("a frame of 0 bytes: not even a tag")
    if length > frame_size_max:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {frame_size_max}")
    return length


def wrap(message: TwoPhase) -> Message:
    """The MESSAGE in which a two-phase message travels."""
    parts = _layout_of(TWO_PHASE, message).pack(message)
    return Message(TWO_PHASE_STREAM, 0, 0, b"", b"".join((bytes((message.tag,)), *parts)))


def unwrap(message: Message) -> TwoPhase:
    """The two-phase message in a MESSAGE of stream 0. ProtocolError for anything else in it."""
    if (message.stream_id, message.message_id, message.event_time, message.key) != (TWO_PHASE_STREAM, 0, 0, b""):
        raise ProtocolError(
            f"MESSAGE: a two-phase message has stream 0, id 0, time 0 and no key, not stream {message.stream_id}, "
            f"id {message.message_id}, time {message.event_time} and a key of {len(message.key)} bytes"
        )
    if not message.payload:
        raise ProtocolError("MESSAGE: stream 0 carries two-phase messages, and this payload is empty")
    layout = TWO_PHASE.get(message.payload[0])
    if layout is None:
        raise ProtocolError(f"MESSAGE: tag {message.payload[0]}: there is no such two-phase message")
    unwrapped = layout.read(message.payload[1:])
    assert isinstance(unwrapped, TwoPhase)
    return unwrapped


def _layout_of(table: dict[int, Layout], frame: Frame) -> Layout:
    layout = table.get(getattr(frame, "tag", -1))
    if layout is None or layout.frame is not type(frame):
        raise RequestError(f"{type(frame).__name__} is not a frame that is sent")
    return layout
