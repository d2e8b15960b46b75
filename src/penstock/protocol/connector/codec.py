"""Frames to bytes and back: `u32 length of (tag + body) | u8 tag | body`, everything big-endian."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from struct import Struct, error
from struct import error as StructError  # noqa: N812 (an exception's name)
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector.frames import (
    MIGRATING_VERSION,
    SINK_VERSION,
    SOURCE_VERSION,
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
    Use,
)
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
from penstock.protocol.incremental import MessageReader

# The kinds of fields in bodies, and a Layout: the fields of one frame in wire order.
#
# "Every integer is big-endian." Reading never goes past the body: anything missing or malformed is a ProtocolError that
# names what was wrong, and no count is trusted before the bytes for it have arrived.

T = TypeVar("T")

SHORT_SIZE_MAX = 2**16 - 1
U16, U32 = Struct(">H"), Struct(">I")


def _end(body: Buffer, at: int, size: int) -> int:
    end = at + size
    if end > len(body):
        raise ProtocolError(f"{size} bytes expected, {len(body) - at} are left")
    return end


class Field(ABC, Generic[T]):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def pack(self, value: T) -> Buffer:
        """The field's bytes."""

    @abstractmethod
    def read(self, body: Buffer, at: int) -> tuple[T, int]:
        """The value that starts at `at`, and where the next field starts."""


class Number(Field[int]):
    __slots__ = ("_struct",)

    def __init__(self, name: str, code: str) -> None:
        super().__init__(name)
        self._struct = Struct(">" + code)

    def pack(self, value: int) -> bytes:
        return self._struct.pack(value)

    def read(self, body: Buffer, at: int) -> tuple[int, int]:
        end = _end(body, at, self._struct.size)
        return self._struct.unpack_from(body, at)[0], end


class Flag(Field[bool]):
    """One byte, 1 or 0."""

    __slots__ = ()

    def pack(self, value: bool) -> bytes:
        return b"\1" if value else b"\0"

    def read(self, body: Buffer, at: int) -> tuple[bool, int]:
        end = _end(body, at, 1)
        if body[at] > 1:
            raise ProtocolError(f"{body[at]} is neither 0 nor 1")
        return body[at] == 1, end


class Bytes(Field[bytes]):
    """`sb`: u16 length + bytes."""

    __slots__ = ()

    def pack(self, value: bytes) -> bytes:
        if len(value) > SHORT_SIZE_MAX:
            raise LimitExceeded(f"{len(value)} bytes are over the limit of {SHORT_SIZE_MAX}")
        return U16.pack(len(value)) + value

    def read(self, body: Buffer, at: int) -> tuple[bytes, int]:
        start = _end(body, at, U16.size)
        end = _end(body, start, U16.unpack_from(body, at)[0])
        return bytes(body[start:end]), end


class Text(Field[str]):
    """Text for people as `sb`, or after a u32 length."""

    __slots__ = ("_length",)

    def __init__(self, name: str, length: Struct = U16) -> None:
        super().__init__(name)
        self._length = length

    def pack(self, value: str) -> bytes:
        data = value.encode()
        if self._length is U16 and len(data) > SHORT_SIZE_MAX:
            raise LimitExceeded(f"{len(data)} bytes are over the limit of {SHORT_SIZE_MAX}")
        return self._length.pack(len(data)) + data

    def read(self, body: Buffer, at: int) -> tuple[str, int]:
        start = _end(body, at, self._length.size)
        end = _end(body, start, self._length.unpack_from(body, at)[0])
        return str(body[start:end], "utf-8", "backslashreplace"), end


class OptionalText(Text):
    """The same; empty if the body ends before it."""

    __slots__ = ()

    def read(self, body: Buffer, at: int) -> tuple[str, int]:
        return ("", at) if at == len(body) else super().read(body, at)


class Rest(Field[Buffer]):
    """The rest of the body, not copied."""

    __slots__ = ()

    def pack(self, value: Buffer) -> Buffer:
        return value

    def read(self, body: Buffer, at: int) -> tuple[Buffer, int]:
        return body[at:], len(body)


class Records(Field[tuple[T, ...]]):
    """u32 n, then n records of the same numbers."""

    __slots__ = ("_make", "_struct")

    def __init__(self, name: str, code: str, make: Callable[[tuple[Any, ...]], T]) -> None:
        super().__init__(name)
        self._struct = Struct(">" + code)
        self._make = make

    def pack(self, value: tuple[Any, ...]) -> bytes:
        return U32.pack(len(value)) + b"".join(self._struct.pack(*record) for record in value)

    def read(self, body: Buffer, at: int) -> tuple[tuple[T, ...], int]:
        start = _end(body, at, U32.size)
        end = _end(body, start, U32.unpack_from(body, at)[0] * self._struct.size)
        return tuple(map(self._make, self._struct.iter_unpack(body[start:end]))), end


class ManyBytes(Field[tuple[bytes, ...]]):
    """u32 n, then n × sb."""

    __slots__ = ()

    def pack(self, value: tuple[bytes, ...]) -> bytes:
        return U32.pack(len(value)) + b"".join(map(_ONE.pack, value))

    def read(self, body: Buffer, at: int) -> tuple[tuple[bytes, ...], int]:
        at, count = _end(body, at, U32.size), U32.unpack_from(body, at)[0]
        _end(body, at, count * U16.size)  # each has at least a length
        values = []
        for _ in range(count):
            value, at = _ONE.read(body, at)
            values.append(value)
        return tuple(values), at


_ONE = Bytes("")


class Layout:
    """The layout of one frame's body. `spare` extra bytes at the end are ignored, any other number is malformed."""

    __slots__ = ("fields", "frame", "spare")

    def __init__(self, frame: type[Frame], *fields: Field[Any], spare: int = 0) -> None:
        self.frame = frame
        self.fields = fields
        self.spare = spare

    def pack(self, frame: Frame) -> list[Buffer]:
        """The body in parts. Raises RequestError, naming frame and field, if a value does not fit."""
        parts: list[Buffer] = []
        for one in self.fields:
            try:
                parts.append(one.pack(getattr(frame, one.name)))
            except (StructError, UnicodeEncodeError) as error:
                raise RequestError(f"{frame.wire_name}: {one.name}: {error}") from None
            except RequestError as error:
                raise type(error)(f"{frame.wire_name}: {one.name}: {error}", error.hint) from None
        return parts

    def read(self, body: Buffer) -> Frame:
        """The frame of this body. Raises ProtocolError, naming frame and field, for anything malformed."""
        values, at = {}, 0
        for one in self.fields:
            try:
                values[one.name], at = one.read(body, at)
            except ProtocolError as error:
                raise ProtocolError(f"{self.frame.wire_name}: {one.name}: {error}") from None
        if (left := len(body) - at) and left != self.spare:
            raise ProtocolError(f"{self.frame.wire_name}: {left} bytes after the last field")
        return self.frame(**values)


# The parts of a HELLO that are checked before the rest is decoded.

VERSIONS = {Use.SOURCE: (SOURCE_VERSION, MIGRATING_VERSION), Use.SINK: (SINK_VERSION,)}
"""The versions that an initiator may send. "Exact matching will be enforced." """

_VERSION, _COOKIE = Text("version"), Bytes("cookie")


@dataclass(frozen=True, slots=True)
class HelloCheck:
    """An acceptor's expectation. An empty cookie means that none is configured. Then a worker accepts any cookie from a
    source, since existing programs always send theirs; a sink accepts none.
    """

    use: Use
    cookie: bytes = field(default=b"", repr=False)
    check_cookie: Callable[[bytes], None] | None = None
    """Decides instead of `cookie`. Raises ProtocolError."""

    def check(self, body: Buffer) -> None:
        """Raises ProtocolError for a wrong version, else for a wrong cookie; checks no more. Never reveals the
        cookie.
        """
        try:
            self._check_cookie(body, self._check_version(body))
        except ProtocolError as error:
            raise ProtocolError(f"HELLO: {error}") from None

    def _check_version(self, body: Buffer) -> int:
        version, at = _VERSION.read(body, 0)
        if version not in VERSIONS[self.use]:
            raise ProtocolError(f"version {version[:32]!r} is not supported, only {' and '.join(VERSIONS[self.use])}")
        return at

    def _check_cookie(self, body: Buffer, at: int) -> None:
        cookie, _ = _COOKIE.read(body, at)
        if self.check_cookie is not None:
            self.check_cookie(cookie)
        elif not compare_digest(cookie, self.cookie):  # in constant time
            raise ProtocolError("the cookie is wrong" if self.cookie else "unexpected cookie")


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
    """The whole frame, including its length; a two-phase message is wrapped in its MESSAGE.

    Raises RequestError if a value does not fit its field, LimitExceeded if the frame is larger than a peer accepts.
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
    """The frame of this tag and body. Raises ProtocolError, naming the frame and the mistake, for anything malformed.

    With a `hello` check a HELLO's version, then its cookie, are compared "before continuing the decoding".
    """
    layout = FRAMES.get(tag)
    if layout is None:
        raise ProtocolError(f"tag {tag}: unknown frame")
    if hello is not None and layout.frame is Hello:
        hello.check(body)
    return _read_message(body, layout) if layout.frame is Message else layout.read(body)


def _read_message(body: Buffer, layout: Layout) -> Frame:
    """As the layout reads it, but in one step: nearly all frames are messages."""
    if len(body) >= MESSAGE_FIELDS.size:
        stream_id, message_id, event_time, key_size = MESSAGE_FIELDS.unpack_from(body)
        end = MESSAGE_FIELDS.size + key_size
        if end <= len(body):
            return Message(stream_id, message_id, event_time, bytes(body[MESSAGE_FIELDS.size : end]), body[end:])
    return layout.read(body)


def read_length(header: Buffer, at: int, frame_size_max: int) -> int:
    """The length field at `at`, if that may be allocated. Raises ProtocolError otherwise."""
    length: int = U32.unpack_from(header, at)[0]
    if length == 0:
        raise ProtocolError("a frame of 0 bytes: not even a tag")
    if length > frame_size_max:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {frame_size_max}")
    return length


def wrap(message: TwoPhase) -> Message:
    """The MESSAGE that contains a two-phase message."""
    parts = _layout_of(TWO_PHASE, message).pack(message)
    return Message(TWO_PHASE_STREAM, 0, 0, b"", b"".join((bytes((message.tag,)), *parts)))


def unwrap(message: Message) -> TwoPhase:
    """The two-phase message in a MESSAGE of stream 0. Raises ProtocolError for anything else."""
    if (message.stream_id, message.message_id, message.event_time, message.key) != (TWO_PHASE_STREAM, 0, 0, b""):
        raise ProtocolError(
            f"MESSAGE: a two-phase message has stream 0, id 0, time 0 and no key, not stream {message.stream_id}, "
            f"id {message.message_id}, time {message.event_time} and a key of {len(message.key)} bytes"
        )
    if not message.payload:
        raise ProtocolError("MESSAGE: stream 0 carries two-phase messages, and this payload is empty")
    layout = TWO_PHASE.get(message.payload[0])
    if layout is None:
        raise ProtocolError(f"MESSAGE: tag {message.payload[0]}: unknown two-phase message")
    unwrapped = layout.read(message.payload[1:])
    assert isinstance(unwrapped, TwoPhase)
    return unwrapped


def _layout_of(table: dict[int, Layout], frame: Frame) -> Layout:
    layout = table.get(getattr(frame, "tag", -1))
    if layout is None or layout.frame is not type(frame):
        raise RequestError(f"{type(frame).__name__} is not a frame that is sent")
    return layout


# Many messages of one stream as bytes and back, for a source or a sink that has only Python.

MESSAGE_HEAD = Struct(">IBQQqH")
"""A MESSAGE up to its key: length, tag, stream id, message id, event time, length of the key."""

LENGTH_SIZE = 4

FIXED_SIZE = MESSAGE_HEAD.size - LENGTH_SIZE
"""What a MESSAGE's length field counts besides key and payload."""


Received: TypeAlias = tuple[int, bytes, int, bytes]
"""Message id, payload, event time, key."""


def encode_messages(
    stream_id: int,
    messages: Iterable[tuple[int, int, bytes, Buffer]],
    *,
    frame_size_max: int = FRAME_SIZE_MAX,
) -> bytes:
    """MESSAGE frames for these (message id, event time, key, payload), one after the other.

    Raises LimitExceeded for a message that is too large, RequestError for a number or a key that does not fit; then
    nothing is encoded. The caller must have the credits, and ids that increase.
    """
    pack, tag, fixed = MESSAGE_HEAD.pack, Message.tag, FIXED_SIZE
    parts: list[Buffer] = []
    for message_id, event_time, key, payload in messages:
        key_size = len(key)
        size = fixed + key_size + len(payload)
        if size > frame_size_max:
            raise LimitExceeded(f"MESSAGE {message_id}: {size} bytes are over the limit of {frame_size_max}")
        try:
            parts += (pack(size, tag, stream_id, message_id, event_time, key_size), key, payload)
        except error as problem:
            raise RequestError(f"MESSAGE {message_id}: {problem}") from None
    return b"".join(parts)


def decode_messages(
    data: bytearray, start: int, stream_id: int, *, frame_size_max: int = FRAME_SIZE_MAX
) -> tuple[list[Received], int]:
    """The whole MESSAGE frames of this stream from `start` on, one after the other, and where they end. Stops at the
    first frame that is anything else, malformed or incomplete, which is left to the decoder.
    """
    found: list[Received] = []
    unpack, head, tag_of_message = MESSAGE_HEAD.unpack_from, MESSAGE_HEAD.size, Message.tag
    whole = bytes(memoryview(data)[start:])  # whose slices are bytes, without another copy of each
    at, length = 0, len(whole)
    last = length - head
    while at <= last:
        size, tag, stream, message_id, event_time, key_size = unpack(whole, at)
        key = at + head
        payload, end = key + key_size, at + LENGTH_SIZE + size
        if tag != tag_of_message or stream != stream_id or not payload <= end <= length or size > frame_size_max:
            break
        found.append((message_id, whole[payload:end], event_time, whole[key:payload]))
        at = end
    return found, start + at


# Bytes in, frames out: one decoder per connection, at either end. For sources the worker uses `bulk.Receiver`.


class Decoder(MessageReader[Frame]):
    """Feed it the received bytes, in pieces of any size.

    In a sink's session, two-phase messages are returned unwrapped. An acceptor passes a `hello` check. Frames own their
    bytes. At most one frame, and the last piece fed, are buffered: a length is checked as soon as it arrives.
    """

    def __init__(self, use: Use, *, hello: HelloCheck | None = None, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        super().__init__()
        self._use = use
        self._hello = hello
        self._frame_size_max = frame_size_max
        self._buffered = bytearray()
        self._at = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._buffered) - self._at

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """The frames that these bytes complete, in order; frames not taken from the iterator are returned the next
        time.
        """
        self._check_usable()
        self._buffered += data
        return self._each()

    def take_messages(self, stream_id: int) -> list[Received]:
        """The next messages, if of this stream and already received, all at once: many times faster than one by one."""
        found, self._at = decode_messages(self._buffered, self._at, stream_id, frame_size_max=self._frame_size_max)
        return found

    def _discard(self) -> None:
        self._buffered, self._at = bytearray(), 0

    def _read(self) -> Frame | None:
        start = self._at + U32.size
        if start <= len(self._buffered):
            end = start + read_length(self._buffered, self._at, self._frame_size_max)
            if end <= len(self._buffered):
                with memoryview(self._buffered) as view:
                    body = bytes(view[start + 1 : end])
                tag, self._at = self._buffered[start], end
                return self._decode(tag, body)
        del self._buffered[: self._at]
        self._at = 0
        return None

    def _decode(self, tag: int, body: bytes) -> Frame:
        frame = decode(tag, body, hello=self._hello)
        if self._use is Use.SINK and isinstance(frame, Message) and frame.stream_id == TWO_PHASE_STREAM:
            return unwrap(frame)
        return frame
