"""The kinds of field that bodies are made of, and a Layout: the fields of one frame in the order of the wire.

"Every integer is big-endian." Reading never goes past the body: what is missing or malformed is a ProtocolError that
says what was wrong, and no count is believed before the bytes for it are there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 (an exception's name)
from typing import Any, Generic, TypeVar

from penstock.core.errors import LimitExceeded, ProtocolError, RequestError
from penstock.core.types import Buffer
from penstock.protocol.connector.frames import Frame

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
        """The value that begins at `at`, and where the next field begins."""


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
    """Text for people as `sb`, or behind a u32 length."""

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
    """The same, and a body that ends before it has an empty one."""

    __slots__ = ()

    def read(self, body: Buffer, at: int) -> tuple[str, int]:
        return ("", at) if at == len(body) else super().read(body, at)


class Rest(Field[Buffer]):
    """All that is left of the body, not copied."""

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
        _end(body, at, count * U16.size)  # each has a length at least
        values = []
        for _ in range(count):
            value, at = _ONE.read(body, at)
            values.append(value)
        return tuple(values), at


_ONE = Bytes("")


class Layout:
    """How one frame lies in its body. `spare` more bytes at the end are ignored, any other number is malformed."""

    __slots__ = ("fields", "frame", "spare")

    def __init__(self, frame: type[Frame], *fields: Field[Any], spare: int = 0) -> None:
        self.frame = frame
        self.fields = fields
        self.spare = spare

    def pack(self, frame: Frame) -> list[Buffer]:
        """The body in parts. RequestError, naming frame and field, when a value does not fit."""
        parts: list[Buffer] = []
        for field in self.fields:
            try:
                parts.append(field.pack(getattr(frame, field.name)))
            except (StructError, UnicodeEncodeError) as error:
                raise RequestError(f"{frame.wire_name}: {field.name}: {error}") from None
            except RequestError as error:
                raise type(error)(f"{frame.wire_name}: {field.name}: {error}", error.hint) from None
        return parts

    def read(self, body: Buffer) -> Frame:
        """The frame of this body. ProtocolError, naming frame and field, for whatever is wrong with it."""
        values, at = {}, 0
        for field in self.fields:
            try:
                values[field.name], at = field.read(body, at)
            except ProtocolError as error:
                raise ProtocolError(f"{self.frame.wire_name}: {field.name}: {error}") from None
        if (left := len(body) - at) and left != self.spare:
            raise ProtocolError(f"{self.frame.wire_name}: {left} bytes after the last field")
        return self.frame(**values)
