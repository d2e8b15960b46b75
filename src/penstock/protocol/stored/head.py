"""The head of an ingest record: for each stream in it the last event id and the highest event time, and the marks.

`[ids, last ids, highest times, marks, count]` in msgpack: three columns of little-endian 64-bit numbers, a list of
`[stream id, mark, name]`, behind which a value and a number of segments may stand, the number of events in the record.
What may be acknowledged at a cut, and the watermark there, are folds over these heads: see `HeadFold`. The store
keeps each head's own checksum with it.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

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


def encode_head(columns: StreamColumns, marks: Sequence[Mark], count: int) -> bytes:
    packed: bytes = msgpack.packb([*columns, [*map(_written, marks)], count])
    return packed


def _written(mark: Mark) -> tuple[Any, ...]:
    """Without what it does not have at its end."""
    if mark.segments is not None:
        return mark
    return mark[:3] if mark.value is None else mark[:4]


def unpack_head(data: Buffer) -> PackedHead | None:
    """None for a record without a head: somebody else has written it, over the segment protocol. Raises Damaged."""
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


# Many heads of one segment, in order, as one: each stream's last event id and highest event time, and all the marks.
#
# With numpy a fold costs a sort of the columns, without it a dict's update for each stream of each head; the results
# are the same.

if TYPE_CHECKING:
    import numpy as np

    HAS_NUMPY: bool
else:
    try:
        import numpy as np

        HAS_NUMPY = True
    except ImportError:
        HAS_NUMPY = False


@dataclass(frozen=True, slots=True)
class HeadFold:
    """Of each stream, in ascending order of ids. `count` is how many events there are in all the records."""

    stream_ids: "array[int]"
    last_ids: "array[int]"
    highest_times: "array[int]"
    marks: list[Mark]
    count: int

    @property
    def last(self) -> dict[int, int]:
        return dict(zip(self.stream_ids, self.last_ids, strict=True))

    @property
    def highest(self) -> dict[int, int]:
        return dict(zip(self.stream_ids, self.highest_times, strict=True))


def fold_heads(segment: str, heads: Iterable[tuple[int, Buffer]]) -> HeadFold:
    """Fold what `store.heads` gives of a segment: heads, each with the offset at which its record ends.
    Records without a head say nothing. Raises Damaged for a head that cannot be read.
    """
    packed: list[PackedHead] = []
    for end, data in heads:
        try:
            head = unpack_head(data)
        except Damaged as error:
            raise Damaged(f"segment {segment!r}, the record that ends at {end}: {error}") from None
        if head is not None:
            packed.append(head)
    return fold_packed(packed)


def fold_packed(heads: Sequence[PackedHead]) -> HeadFold:
    joined = NO_COLUMNS
    if heads:
        joined = StreamColumns(*map(b"".join, zip(*(head.columns for head in heads), strict=True)))
    columns = fold_fast(joined) if HAS_NUMPY else fold_plainly(joined)
    return HeadFold(*columns, list(chain.from_iterable(h.marks for h in heads)), sum(h.count for h in heads))


Folded = tuple["array[int]", "array[int]", "array[int]"]


def fold_plainly(columns: StreamColumns) -> Folded:
    """Ids in ascending order, the last one's last id, the highest of the highest times."""
    ids, last_ids = numbers("Q", columns.stream_ids), numbers("Q", columns.last_ids)
    last = dict(zip(ids, last_ids, strict=True))
    highest: dict[int, int] = {}
    for stream_id, time in zip(ids, numbers("q", columns.highest_times), strict=True):
        if time > highest.get(stream_id, time - 1):
            highest[stream_id] = time
    order = sorted(last)
    return array("Q", order), array("Q", map(last.__getitem__, order)), array("q", map(highest.__getitem__, order))


def fold_fast(columns: StreamColumns) -> Folded:
    """As `fold_plainly`, with numpy."""
    if not columns.stream_ids:
        return array("Q"), array("Q"), array("q")
    ids = np.frombuffer(columns.stream_ids, "<u8")
    order = ids.argsort(kind="stable")
    ids = ids[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    final = np.append(first[1:], len(ids)) - 1
    last_ids = np.frombuffer(columns.last_ids, "<u8")[order[final]]
    highest = np.maximum.reduceat(np.frombuffer(columns.highest_times, "<i8")[order], first)
    return (
        array("Q", ids[first].astype("=u8").tobytes()),
        array("Q", last_ids.astype("=u8").tobytes()),
        array("q", highest.astype("=i8").tobytes()),
    )
