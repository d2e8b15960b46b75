"""The head of an ingest record: for each stream in it the last event id and the highest event time, and the marks.

`[ids, last ids, highest times, marks, count]` in msgpack: three columns of little-endian 64-bit numbers, a list of
`[stream id, mark, name]`, behind which a value and a number of segments may stand, the number of events in the record.
What may be acknowledged at a cut, and the watermark there, are folds over these heads (`head_fold.py`). The store
keeps each head's own checksum with it.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from penstock.core.errors import Damaged
from penstock.core.types import Buffer


class StreamColumns(NamedTuple):
    """Little-endian 64-bit numbers, one for each stream: its id, its last event id, its highest event time."""

    stream_ids: Buffer
    last_ids: Buffer
    highest_times: Buffer


NO_COLUMNS = StreamColumns(b"", b"", b"")


class MarkKind(IntEnum):
    """STARTED, ACTIVE_AGAIN and WATERMARK stand before the events of their record, the others behind them."""

    STARTED = 1
    ENDED = 2
    IDLE = 3
    """It has sent nothing for so long that nobody waits for it."""
    ACTIVE_AGAIN = 4
    FINISHED = 5
    """The source has ended for good: not of a stream, but once in each of its segments."""
    WATERMARK = 6
    """No more events before `value` come on the stream: somebody has said so who knows."""
    CLOCK = 7
    """No more events before `value` come on any stream of the source: their times are those of their arrival, and the
    worker's clock has come so far. Not of a stream, but once in each of the source's segments."""
    IDLE_CLOCK = 8
    """While no stream of the source is active, its watermark is `value`. Once in each segment, as CLOCK."""


OF_SEGMENTS = frozenset({MarkKind.FINISHED, MarkKind.CLOCK, MarkKind.IDLE_CLOCK})
"""Marks of a whole source: in the place of a stream's id they have the number of their segment."""


class Mark(NamedTuple):
    """Something that happened to a stream, at this place in its segment."""

    stream_id: int
    """Of OF_SEGMENTS: the number of the segment."""
    kind: MarkKind
    name: str = ""
    value: int | None = None
    """Of WATERMARK, CLOCK and IDLE_CLOCK: an event time in microseconds. Of FINISHED: in how many segments it stands.
    Of STARTED: 1 if the stream was active before, and is opened again.
    """
    segments: int | None = None
    """Of CLOCK and IDLE_CLOCK: in how many segments it stands."""

    @property
    def was_open(self) -> bool:
        """Of STARTED."""
        return self.kind is MarkKind.STARTED and bool(self.value)


@dataclass(frozen=True, slots=True)
class PackedHead:
    """A head whose columns are still bytes: what a fold over very many of them needs."""

    columns: StreamColumns
    marks: list[Mark]
    count: int


@dataclass(frozen=True, slots=True)
class Head:
    """`last` has the last event id of each stream, `highest` the highest event time, in microseconds."""

    last: dict[int, int]
    highest: dict[int, int]
    marks: list[Mark]
    count: int
    """Events in the record; those that only carry marks do not count."""


def encode_head(columns: StreamColumns, marks: Sequence[Mark], count: int) -> bytes:
    packed: bytes = msgpack.packb([*columns, [*map(_written, marks)], count])
    return packed


def _written(mark: Mark) -> tuple[Any, ...]:
    """Without what it does not have at its end."""
    if mark.segments is not None:
        return mark
    return mark[:3] if mark.value is None else mark[:4]


def decode_head(data: Buffer) -> Head | None:
    """None for a record without a head: somebody else has written it, over the segment protocol. Raises Damaged."""
    packed = unpack_head(data)
    if packed is None:
        return None
    ids, last, highest = packed.columns
    keys = numbers("Q", ids)
    return Head(
        dict(zip(keys, numbers("Q", last), strict=True)),
        dict(zip(keys, numbers("q", highest), strict=True)),
        packed.marks,
        packed.count,
    )


def unpack_head(data: Buffer) -> PackedHead | None:
    """As `decode_head`, with the columns left as they are."""
    if not data:
        return None
    try:
        *columns, marks, count = msgpack.unpackb(data)
        packed = StreamColumns(*columns)
        if len({len(column) for column in packed}) != 1 or len(packed.stream_ids) % 8:
            raise ValueError("its columns are not of the same length")
        return PackedHead(packed, [Mark(mark[0], MarkKind(mark[1]), *mark[2:]) for mark in marks], count)
    except (ValueError, TypeError, LookupError) as error:
        raise Damaged(f"the head of a record cannot be read: {error}") from None


def numbers(code: str, data: Buffer) -> "array[int]":
    """A column's bytes as numbers; `code` is "Q", or "q" where they have a sign."""
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
