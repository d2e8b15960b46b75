"""The bytes of the transaction log (docs/sinks.md).

A record is `4s "PSNK" · u32 length of the body · u64 number · u64 durable · u32 crc32c · body`, big-endian; checked are
length, number, durable and body. The body is a msgpack array: a number for the kind, then its fields in the order of
the class. Numbers grow by one, over all files of a log; all records below *durable* were synced when this one was
written. The first record of a file is the state. Zeros follow the last one.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import msgpack
from crc32c import crc32c

from penstock.client.sink.log_state import (
    Aborted,
    Applied,
    Bound,
    Committed,
    Ended,
    LogState,
    Record,
    Refused,
    Voted,
)

FORMAT = 1

MAGIC = b"PSNK"
HEADER = Struct(">4sIQQI")
_CHECKED = Struct(">IQQ")

KINDS: dict[int, type[Bound | Voted | Refused | Committed | Aborted | Applied]] = {
    1: Bound,
    2: Voted,
    3: Refused,
    4: Committed,
    5: Aborted,
    6: Applied,
}
"""Kind 0 is the state, behind the number of the format."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}


class BadLog(ValueError):
    """What is wrong, and where."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")


class _Sealed(NamedTuple):
    number: int
    durable: int
    body: bytes


def encode_record(number: int, durable: int, record: Record) -> bytes:
    fields = (0, FORMAT, *record) if isinstance(record, LogState) else (_KIND_OF[type(record)], *record)
    body: bytes = msgpack.packb(fields)
    checksum = crc32c(body, crc32c(_CHECKED.pack(len(body), number, durable)))
    return HEADER.pack(MAGIC, len(body), number, durable, checksum) + body


def decode_records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Numbers and records. What follows the first bad one is a torn tail, of which nobody was told, and is left out.
    BadLog if it was durable, for a good record behind it says so; and for a file whose first record is bad.
    """
    at = 0
    number: int | None = None
    while (found := _record_at(data, at)) is not None and number in (None, found.number):
        yield found.number, _decode_body(at, found.body)
        at += HEADER.size + len(found.body)
        number = found.number + 1
    if number is None:
        raise BadLog(0, "this is not the beginning of a sink's transaction log")
    _check_tail(data, at, number)


def _record_at(data: bytes, at: int) -> _Sealed | None:
    """The record there, if it is sound."""
    if at + HEADER.size > len(data):
        return None
    magic, length, number, durable, checksum = HEADER.unpack_from(data, at)
    body = data[at + HEADER.size : at + HEADER.size + length]
    if magic != MAGIC or len(body) != length:
        return None
    is_sound = crc32c(body, crc32c(_CHECKED.pack(length, number, durable))) == checksum
    return _Sealed(number, durable, body) if is_sound else None


def _check_tail(data: bytes, end: int, number: int) -> None:
    at = end
    while (at := data.find(MAGIC, at)) >= 0:
        later = _record_at(data, at)
        if later is not None and later.durable > number:
            raise BadLog(end, f"record {number} is damaged, and was durable when record {later.number} was written")
        at += 1


def _decode_body(at: int, body: bytes) -> Record:
    kind: Any = None
    try:
        kind, *fields = msgpack.unpackb(body, use_list=False)
        return _state(*fields) if kind == 0 else KINDS[kind](*fields)
    except (KeyError, TypeError, ValueError) as error:
        raise BadLog(at, f"a record of kind {kind} that this version does not read: {error}") from None


def _state(
    form: int,
    instance: str | None,
    last: tuple[bytes, int, int, int] | None,
    is_applied: bool,
    in_doubt: tuple[bytes, int, int, int] | None,
    ended: tuple[tuple[bytes, bool], ...],
) -> LogState:
    if form != FORMAT:
        raise ValueError(f"format {form}, this version reads {FORMAT}")
    return LogState(
        instance,
        None if last is None else Voted(*last),
        is_applied,
        None if in_doubt is None else Voted(*in_doubt),
        tuple(Ended(*one) for one in ended),
    )
