"""The head of an ingest record: for each stream in it the last event id and the highest event time, and the marks.

`[ids, last ids, highest times, marks, count]` in msgpack: three columns of little-endian 64-bit numbers, a list of
`[stream id, mark, name]`, optionally with a value and a number of segments, and the number of events in the record; in
a shard of a cluster also when the record arrived, in microseconds, so that pipelines can read shards in that order.
Folds over these heads determine what may be acknowledged at a cut, and the watermark there: see `HeadFold`. The store
keeps a checksum of each head.
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
    """STARTED, ACTIVE_AGAIN and WATERMARK come before the events of their record, the others after them."""

    STARTED = 1
    ENDED = 2
    IDLE = 3
    """It has sent nothing for so long that nothing waits for it any more."""
    ACTIVE_AGAIN = 4
    FINISHED = 5
    """The source has ended for good. Not for a stream, but once in each of the source's segments."""
    WATERMARK = 6
    """No more events before `value` will arrive on the stream: its source or an operator has declared it."""
    CLOCK = 7
    """No more events before `value` will arrive on any stream of the source: event times are arrival times, and the
    worker's clock has reached `value`. Not for a stream, but once in each of the source's segments."""
    IDLE_CLOCK = 8
    """While no stream of the source is active, its watermark is `value`. Once in each segment, as CLOCK."""


OF_SEGMENTS = frozenset({MarkKind.FINISHED, MarkKind.CLOCK, MarkKind.IDLE_CLOCK})
"""Marks of a whole source: instead of a stream's id they contain the number of their segment."""


class Mark(NamedTuple):
    """Something that happened to a stream, at this position in its segment."""

    stream_id: int
    """For OF_SEGMENTS: the number of the segment."""
    kind: MarkKind
    name: str = ""
    value: int | None = None
    """For WATERMARK, CLOCK and IDLE_CLOCK: an event time in microseconds. For FINISHED: how many segments contain it.
    For STARTED: 1 if the stream was active before, and is opened again.
    """
    segments: int | None = None
    """For CLOCK and IDLE_CLOCK: how many segments contain it."""

    @property
    def was_open(self) -> bool:
        """For STARTED."""
        return self.kind is MarkKind.STARTED and bool(self.value)


@dataclass(frozen=True, slots=True)
class PackedHead:
    """A head whose columns are still bytes, for folds over very many heads."""

    columns: StreamColumns
    marks: list[Mark]
    count: int
    arrival_us: int = 0
    """0: not known."""


def encode_head(columns: StreamColumns, marks: Sequence[Mark], count: int, arrival_us: int = 0) -> bytes:
    arrival = (arrival_us,) if arrival_us else ()
    packed: bytes = msgpack.packb([*columns, [*map(_written, marks)], count, *arrival])
    return packed


def _written(mark: Mark) -> tuple[Any, ...]:
    """The mark's fields, without unset ones at the end."""
    if mark.segments is not None:
        return mark
    return mark[:3] if mark.value is None else mark[:4]


def unpack_head(data: Buffer) -> PackedHead | None:
    """None for a record without a head, which was written over the segment protocol. Raises Damaged."""
    if not data:
        return None
    try:
        ids, last_ids, times, marks, count, *arrival = msgpack.unpackb(data)
        packed = StreamColumns(ids, last_ids, times)
        if len({len(column) for column in packed}) != 1 or len(packed.stream_ids) % 8:
            raise ValueError("its columns are not of the same length")
        return PackedHead(packed, [Mark(mark[0], MarkKind(mark[1]), *mark[2:]) for mark in marks], count, *arrival)
    except (ValueError, TypeError, LookupError) as error:
        raise Damaged(f"the head of a record cannot be read: {error}") from None


def numbers(code: str, data: Buffer) -> "array[int]":
    """A column's bytes as numbers; `code` is "Q", or "q" for signed ones."""
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


# Many heads of one segment, in order, folded into one: each stream's last event id and highest event time, and all
# marks.
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
    """Values per stream, in ascending order of ids. `count` is the number of events in all records."""

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
    """Fold the heads of a segment from `store.heads`, each with the offset at which its record ends.
    Records without a head are ignored. Raises Damaged for a head that cannot be read.
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
    """Ids in ascending order, each with its latest last id and its highest time."""
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
