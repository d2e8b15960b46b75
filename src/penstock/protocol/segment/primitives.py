"""The kinds of fields in payloads. Each writes one attribute of a message, and reads it back.

Reading never goes past the payload: anything missing or malformed is a ProtocolError that names what was wrong
(`dialect.py` adds message and field). Data is read as a view, never copied.
"""

import re
from abc import ABC, abstractmethod
from struct import Struct
from typing import Any, ClassVar

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.segment.frame import EVENT, HEADER_SIZE, PAYLOAD_SIZE_MAX, pack_header, unpack_header
from penstock.protocol.segment.messages import AttributeUpdate, LocatedFile, LocatedObject, LocatedRow, Part

# Java's modified UTF-8, both ways: NUL is two bytes, characters beyond U+FFFF are two surrogates of three bytes each.
#
# Strict where Java's own reader is not: a zero byte, an overlong form other than NUL's and a surrogate without its
# other half are refused. A name that Python cannot encode as UTF-8 would fail later, and far from its
# sender.

_NUL = b"\xc0\x80"
_ILLEGAL_BYTE = re.compile(rb"[\x00\xf0-\xff]")
_BEYOND_U_FFFF = re.compile("[\U00010000-\U0010ffff]")


def encode_text(text: str) -> bytes:
    """Raises RequestError if the text contains half a surrogate pair."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"half a surrogate pair at character {error.start} of a text") from None
    return _BEYOND_U_FFFF.sub(_pair, text).encode("utf-8", "surrogatepass").replace(b"\0", _NUL)


def decode_text(data: bytes) -> str:
    """Raises ProtocolError, with the position, if the bytes are not modified UTF-8."""
    if data.isascii() and b"\0" not in data:
        return data.decode("ascii")
    if illegal := _ILLEGAL_BYTE.search(data):
        at = illegal.start()
        raise ProtocolError(f"byte {at} of a text is {data[at]:#04x}, which modified UTF-8 never has")
    try:
        halves = data.replace(_NUL, b"\0").decode("utf-8", "surrogatepass")
        return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text is not modified UTF-8: {error.reason}") from None


def _pair(match: re.Match[str]) -> str:
    code = ord(match[0]) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


TEXT_SIZE_MAX = 2**16 - 1

UPDATES_MAX = 1024
"""Attribute updates in one merge: as objects they are far larger than on the wire."""

LOCATED_ROWS_MAX = 4096
"""Rows in one reply to LocateSegment, and files: finding a row takes a worker some microseconds."""

_U16 = Struct(">H")
_I32 = Struct(">i")
_I64 = Struct(">q")
_UPDATE = Struct(">16sbqq")
_IDENTITY = Struct(">QQ")
_ROW = Struct(">IQIIIII")


class Field(ABC):
    """`optional`: a payload may end before this field, which then keeps the message's default."""

    size_min: ClassVar[int] = 0
    """If fewer bytes than this are left, an optional field is absent."""

    __slots__ = ("name", "optional")

    def __init__(self, name: str, *, optional: bool = False) -> None:
        self.name = name
        self.optional = optional

    @abstractmethod
    def write(self, message: Any, parts: list[Buffer]) -> None:
        """Add the field's bytes to the parts."""

    @abstractmethod
    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        """Add the field that starts at `at` to the values; returns where the next one starts."""


def end_of(payload: memoryview, at: int, size: int) -> int:
    """Where `size` bytes at `at` end."""
    end = at + size
    if not at <= end <= len(payload):
        raise ProtocolError(f"{size} bytes expected, {len(payload) - at} are left")
    return end


class _Fixed(Field):
    __slots__ = ()
    layout: ClassVar[Struct]

    def __init_subclass__(cls) -> None:
        cls.size_min = cls.layout.size

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(self.layout.pack(getattr(message, self.name)))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        end = end_of(payload, at, self.layout.size)
        values[self.name] = self.layout.unpack_from(payload, at)[0]
        return end


class I8(_Fixed):
    __slots__ = ()
    layout = Struct(">b")


class I32(_Fixed):
    __slots__ = ()
    layout = _I32


class I64(_Fixed):
    __slots__ = ()
    layout = Struct(">q")


class Uuid(_Fixed):
    """16 bytes, as bytes."""

    __slots__ = ()
    layout = Struct(">16s")

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(_uuid(getattr(message, self.name)))


def _uuid(value: bytes) -> bytes:
    if len(value) != Uuid.layout.size:  # struct would silently truncate or pad it
        raise RequestError(f"an id has 16 bytes, not {len(value)}")
    return value


class Bool(_Fixed):
    __slots__ = ()
    layout = Struct(">B")

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(b"\1" if getattr(message, self.name) else b"\0")

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        end = end_of(payload, at, 1)
        if payload[at] > 1:
            raise ProtocolError(f"a bool is 0 or 1, not {payload[at]}")
        values[self.name] = payload[at] == 1
        return end


class Flags(Field):
    """One byte, a bit for each name, the first in bit 0."""

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        super().__init__(" and ".join(names))
        self.names = names

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(bytes([sum(bool(getattr(message, name)) << bit for bit, name in enumerate(self.names))]))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        end = end_of(payload, at, 1)
        if payload[at] >> len(self.names):
            raise ProtocolError(f"flags {payload[at]:#04x} have a bit that means nothing")
        values.update({name: bool(payload[at] >> bit & 1) for bit, name in enumerate(self.names)})
        return end


class PartOf(Field):
    """One byte: begin, middle or end."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(bytes([getattr(message, self.name)]))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        end = end_of(payload, at, 1)
        if payload[at] > Part.END:
            raise ProtocolError(f"a part is begin (0), middle (1) or end (2), not {payload[at]}")
        values[self.name] = Part(payload[at])
        return end


class Utf(Field):
    """u16 length and modified UTF-8."""

    __slots__ = ()
    size_min = 1  # as the public protocol has it: any byte left means that the text is there

    def write(self, message: Any, parts: list[Buffer]) -> None:
        text = encode_text(getattr(message, self.name))
        if len(text) > TEXT_SIZE_MAX:
            raise LimitExceeded(f"a text of {len(text)} bytes is over the limit of {TEXT_SIZE_MAX}")
        parts.append(_U16.pack(len(text)) + text)

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        start = end_of(payload, at, _U16.size)
        end = end_of(payload, start, _U16.unpack_from(payload, at)[0])
        values[self.name] = decode_text(bytes(payload[start:end]))
        return end


class Blob(Field):
    """i32 length and bytes."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        data = getattr(message, self.name)
        parts += (_I32.pack(len(data)), data)

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        start = end_of(payload, at, _I32.size)
        end = end_of(payload, start, _I32.unpack_from(payload, at)[0])
        values[self.name] = payload[start:end]
        return end


class Rest(Field):
    """All remaining bytes."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        parts.append(getattr(message, self.name))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        values[self.name] = payload[at:]
        return len(payload)


class Zeros(Field):
    """As many zeros as the attribute specifies. When reading, the bytes are ignored: they have no meaning."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        count = getattr(message, self.name)
        if not 0 <= count <= PAYLOAD_SIZE_MAX:
            raise LimitExceeded(f"{count} zeros are over the limit of {PAYLOAD_SIZE_MAX}")
        parts.append(bytes(count))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        values[self.name] = len(payload) - at
        return len(payload)


class FramedEvent(Field):
    """One Event with its header, which is part of the value."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        event = getattr(message, self.name)
        if event[:HEADER_SIZE] != pack_header(EVENT, len(event) - HEADER_SIZE):
            raise RequestError("not an event with its header")
        parts.append(event)

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        start = end_of(payload, at, HEADER_SIZE)
        kind, length = unpack_header(payload[at:start])
        if kind != EVENT:
            raise ProtocolError(f"an Event (type {EVENT}) expected, found type {kind}")
        end = end_of(payload, start, length)
        values[self.name] = payload[at:end]
        return end


class Updates(Field):
    """i32 count and as many attribute updates."""

    __slots__ = ()
    size_min = 1  # as in the public protocol: nothing at all after the token means no updates

    def write(self, message: Any, parts: list[Buffer]) -> None:
        updates: tuple[AttributeUpdate, ...] = getattr(message, self.name)
        if len(updates) > UPDATES_MAX:
            raise LimitExceeded(f"{len(updates)} updates are over the limit of {UPDATES_MAX}")
        parts.append(_I32.pack(len(updates)))
        parts += (_UPDATE.pack(_uuid(u.attribute_id), u.kind, u.value, u.expected) for u in updates)

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        start = end_of(payload, at, _I32.size)
        count = _I32.unpack_from(payload, at)[0]
        if count > UPDATES_MAX:
            raise ProtocolError(f"{count} updates are over the limit of {UPDATES_MAX}")
        end = end_of(payload, start, count * _UPDATE.size)
        values[self.name] = tuple(AttributeUpdate(*fields) for fields in _UPDATE.iter_unpack(payload[start:end]))
        return end


def _count(payload: memoryview, at: int, what: str) -> int:
    """An i32 that counts what follows it in a reply to LocateSegment."""
    end_of(payload, at, _I32.size)
    count: int = _I32.unpack_from(payload, at)[0]
    if not 0 <= count <= LOCATED_ROWS_MAX:
        raise ProtocolError(f"{count} {what} are over the limit of {LOCATED_ROWS_MAX}")
    return count


def _text(payload: memoryview, at: int) -> tuple[str, int]:
    """A utf of such a reply, and where it ends."""
    start = end_of(payload, at, _U16.size)
    end = end_of(payload, start, _U16.unpack_from(payload, at)[0])
    return decode_text(bytes(payload[start:end])), end


class LocatedFiles(Field):
    """i32 count and as many files: utf path, u64 device, u64 inode."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        files: tuple[LocatedFile, ...] = getattr(message, self.name)
        parts.append(_I32.pack(len(files)))
        for file in files:
            path = encode_text(file.path)
            parts += (_U16.pack(len(path)), path, _IDENTITY.pack(file.device, file.inode))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        files = []
        count = _count(payload, at, "files")
        at += _I32.size
        for _ in range(count):
            path, end = _text(payload, at)
            at = end_of(payload, end, _IDENTITY.size)
            files.append(LocatedFile(path, *_IDENTITY.unpack_from(payload, end)))
        values[self.name] = tuple(files)
        return at


class LocatedObjects(Field):
    """i32 count and as many objects: utf url, utf key, i64 shift."""

    __slots__ = ()
    size_min = _I32.size

    def write(self, message: Any, parts: list[Buffer]) -> None:
        objects: tuple[LocatedObject, ...] = getattr(message, self.name)
        parts.append(_I32.pack(len(objects)))
        for url, key, shift in objects:
            parts += (_U16.pack(len(text)) + text for text in map(encode_text, (url, key)))
            parts.append(_I64.pack(shift))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        count = _count(payload, at, "objects")
        at += _I32.size
        objects = []
        for _ in range(count):
            url, at = _text(payload, at)
            key, at = _text(payload, at)
            start, at = at, end_of(payload, at, _I64.size)
            objects.append(LocatedObject(url, key, *_I64.unpack_from(payload, start)))
        values[self.name] = tuple(objects)
        return at


class LocatedRows(Field):
    """i32 count and as many rows: u32 file, u64 position, and u32 head length, length, checksum, skip, take."""

    __slots__ = ()

    def write(self, message: Any, parts: list[Buffer]) -> None:
        rows: tuple[LocatedRow, ...] = getattr(message, self.name)
        parts.append(_I32.pack(len(rows)) + b"".join([_ROW.pack(*row) for row in rows]))

    def read(self, payload: memoryview, at: int, values: dict[str, Any]) -> int:
        count = _count(payload, at, "rows")
        start = at + _I32.size
        end = end_of(payload, start, count * _ROW.size)
        values[self.name] = tuple(map(LocatedRow._make, _ROW.iter_unpack(payload[start:end])))
        return end
