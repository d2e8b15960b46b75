"""The head of an ingest record: for each stream in it the last event id and the highest event time, and the marks.

`[ids, last ids, highest times, marks]` in msgpack: three columns of little-endian 64-bit numbers, then a list of
`[stream id, mark, name]`. What may be acknowledged at a cut, and the watermark there, are folds over these heads.
"""

import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgpack

from penstock.core.types import Buffer
from penstock.protocol.connector.bulk import StreamColumns

NO_COLUMNS = StreamColumns(b"", b"", b"")


class MarkKind(IntEnum):
    STARTED = 1
    ENDED = 2
    IDLE = 3
    ACTIVE_AGAIN = 4


class Mark(NamedTuple):
    """Something that happened to a stream, at this place in its segment."""

    stream_id: int
    kind: MarkKind
    name: str = ""


class Head(NamedTuple):
    """`last` has the last event id of each stream, `highest` the highest event time, in microseconds."""

    last: dict[int, int]
    highest: dict[int, int]
    marks: list[Mark]


def encode_head(columns: StreamColumns, marks: Sequence[Mark]) -> bytes:
    packed: bytes = msgpack.packb([*columns, marks])
    return packed


def decode_head(data: Buffer) -> Head:
    ids, last, highest, marks = msgpack.unpackb(data)
    keys = _numbers("Q", ids)
    return Head(
        dict(zip(keys, _numbers("Q", last), strict=True)),
        dict(zip(keys, _numbers("q", highest), strict=True)),
        [Mark(stream_id, MarkKind(kind), name) for stream_id, kind, name in marks],
    )


def _numbers(code: str, data: bytes) -> "array[int]":
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
