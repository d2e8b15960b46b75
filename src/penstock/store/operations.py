"""The operations of a record, as named tuples, and their msgpack form in the record's meta."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgpack

from penstock.core.types import Buffer, Offset, SegmentId

NO_WRITER = b""


class Create(NamedTuple):
    segment: SegmentId
    name: str


class Append(NamedTuple):
    segment: SegmentId
    offset: Offset
    writer: bytes
    number: int
    head_length: int
    length: int
    checksum: int


class Seal(NamedTuple):
    segment: SegmentId


class Truncate(NamedTuple):
    segment: SegmentId
    offset: Offset


class Delete(NamedTuple):
    segment: SegmentId


class SetAttribute(NamedTuple):
    segment: SegmentId
    key: bytes
    value: int


class Merge(NamedTuple):
    """`source` becomes the bytes of `target` from `offset` on, and is gone."""

    target: SegmentId
    offset: Offset
    source: SegmentId
    length: int


class Move(NamedTuple):
    """Bytes that the segment already has, at a new place in the journal."""

    segment: SegmentId
    offset: Offset
    head_length: int
    length: int
    checksum: int


class Snapshot(NamedTuple):
    length: int
    checksum: int


class Index(NamedTuple):
    length: int
    checksum: int


Operation: TypeAlias = Create | Append | Seal | Truncate | Delete | SetAttribute | Merge | Move | Snapshot | Index

_BY_NUMBER: dict[int, type[Operation]] = {
    1: Create,
    2: Append,
    3: Seal,
    4: Truncate,
    5: Delete,
    6: SetAttribute,
    7: Merge,
    8: Move,
    9: Snapshot,
    10: Index,
}
_NUMBERS = {operation: number for number, operation in _BY_NUMBER.items()}


class UnknownOperation(ValueError):
    """The record was written by a newer version."""


def pack(operations: Iterable[Operation]) -> bytes:
    packed: bytes = msgpack.packb([(_NUMBERS[type(o)], *o) for o in operations])
    return packed


def unpack(meta: Buffer) -> list[Operation]:
    """Raises UnknownOperation for an operation of a newer version, ValueError for bytes that are not valid meta."""
    return [_operation(*fields) for fields in msgpack.unpackb(meta)]


def _operation(number: int, *fields: object) -> Operation:
    kind = _BY_NUMBER.get(number)
    if kind is None:
        raise UnknownOperation(f"operation {number} is not known to this version")
    return kind(*fields)  # type: ignore[arg-type]


def data_length(operation: Operation) -> int:
    """How many of the record's data bytes belong to this operation."""
    match operation:
        case Append() | Move():
            return operation.head_length + operation.length
        case Snapshot() | Index():
            return operation.length
        case _:
            return 0
