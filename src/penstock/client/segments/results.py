"""What goes into the clients' methods and comes out of them."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from penstock.core.errors import RequestError
from penstock.protocol.segment import HEADER_SIZE, WRITER_ID_SIZE


class _Any(Enum):
    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any.ANY
"""As an expected value: whatever it is now."""

Expected: TypeAlias = int | Literal[_Any.ANY] | None
"""The value that an attribute must have to be changed; None: it must not be there."""

Key: TypeAlias = UUID | bytes
"""16 bytes: the name of an attribute, or of a writer."""


def key_bytes(key: Key) -> bytes:
    data = key.bytes if isinstance(key, UUID) else bytes(key)
    if len(data) != WRITER_ID_SIZE:
        raise RequestError(f"{key!r} has {len(data)} bytes", f"Give a uuid.UUID or {WRITER_ID_SIZE} bytes.")
    return data


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The bytes from `start` to `length` are there to be read; those before `start` were truncated."""

    name: str
    start: int
    length: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`data` is a view of a receive buffer that it keeps in memory: copy what is kept for long.

    `at_tail`: there was no more when the worker answered. `end_of_segment`: nor will there be, the segment is sealed.
    """

    data: memoryview
    at_tail: bool
    end_of_segment: bool


class Event(NamedTuple):
    """`offset` is where the event begins in its segment, `end` where the next one does: the place to go on from."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + HEADER_SIZE + len(self.data)


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """A change of the target's attribute that goes with a merge: both happen, or neither."""

    key: Key
    value: int
    expected: Expected = ANY
