"""The table of segments: the result of all operations so far. No I/O.

The same `apply` runs when a record is written and when it is replayed, so that the table is the same after a crash.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeAlias

import msgpack

from penstock.core.types import Buffer, Offset, Position, SegmentId
from penstock.store.index import OpenIndex, row_of
from penstock.store.operations import (
    NO_WRITER,
    Append,
    Create,
    Delete,
    Index,
    Merge,
    Move,
    Operation,
    Seal,
    SetAttribute,
    Snapshot,
    Truncate,
    data_length,
)
from penstock.store.segment import Damage, Run, Runs, Segment

# The rows of the next snapshot, encoded a few at a time before it is due.
#
# A snapshot of 300,000 segments takes seconds to encode. The rows of all segments are encoded little by little while
# the chapter fills up, those that change after that are encoded again, and when the chapter turns only the last changes
# are left. Each write does its part, and between writes a background task does more, so that one large write need not
# do much at once. The bytes are the same as if everything were encoded at the turn.

BEGIN_AT = 0.5
"""The share of a chapter that is filled when encoding begins: before that, rows would change again."""
DONE_AT = 0.9
"""The share at which all rows are encoded, except for the last changes."""
STEP_ROWS = 1000
"""Rows per step in the background: about 5 ms."""
WRITE_ROWS_MAX = 5000
"""Rows per write, however large the write is: about 25 ms."""


class EncodedRows:
    """`row` returns what to encode for a segment; None if it no longer exists."""

    def __init__(self, ids: Iterable[SegmentId], next_id: SegmentId, row: Callable[[SegmentId], object | None]) -> None:
        """For these segments, and for those that are created later, numbered from `next_id` on."""
        self._to_do = [*ids][::-1]
        self._first_new = next_id
        self._row = row
        self._rows: dict[SegmentId, bytes] = {}
        self._changed: dict[SegmentId, None] = {}
        self._pack: Callable[[object], bytes] = msgpack.Packer().pack
        self._filled = BEGIN_AT

    def change(self, segment: SegmentId) -> None:
        """The segment is new, or has changed."""
        if segment in self._rows or segment >= self._first_new:
            self._changed[segment] = None

    def remove(self, segment: SegmentId) -> None:
        self._rows.pop(segment, None)
        self._changed.pop(segment, None)

    def step(self, filled: float, left_max: int) -> None:
        """The chapter is filled to this share: encode enough rows for all but `left_max` to be done in time, up to the
        limit per write.
        """
        before, self._filled = self._filled, max(filled, self._filled)
        share = 1.0 if self._filled >= DONE_AT else (self._filled - before) / (DONE_AT - before)
        self._encode(min(ceil(self._due(left_max) * share), WRITE_ROWS_MAX))

    def step_ahead(self, left_max: int) -> bool:
        """Encode some rows, however full the chapter is; False if all but `left_max` are done."""
        rows = min(self._due(left_max), STEP_ROWS)
        self._encode(rows)
        return rows > 0

    def _due(self, left_max: int) -> int:
        return len(self._to_do) + max(0, len(self._changed) - left_max)

    def finish(self) -> list[bytes]:
        """All rows as they are now, in the order in which the segments were created."""
        self._encode(len(self._to_do) + len(self._changed))
        return [*self._rows.values()]

    def _encode(self, count: int) -> None:
        for _ in range(count):
            # New segments come after all others, as in the table.
            segment = self._to_do.pop() if self._to_do else next(iter(self._changed))
            self._changed.pop(segment, None)
            row = self._row(segment)
            if row is not None:
                self._rows[segment] = self._pack(row)


Includes: TypeAlias = Callable[[str], bool]
"""Whether a measure includes the segment with this name. Equal predicates share one measure."""


@dataclass(slots=True, eq=False)
class Measure:
    """The number and the bytes of the segments that it includes. Always current, without a scan."""

    count: int = 0
    size: int = 0


class SegmentTable:
    """All segments, by name and by number, and the live bytes of each chapter."""

    def __init__(self, writers_per_segment_max: int) -> None:
        self._writers_max = writers_per_segment_max
        self._next_id = 1
        self._by_id: dict[SegmentId, Segment] = {}
        self._by_name: dict[str, Segment] = {}
        self._followed: dict[str, set[str]] = {}
        self._measures: dict[Includes, Measure] = {}
        self._measured: dict[SegmentId, tuple[Measure, ...]] = {}
        # Many segments share few combinations of measures: one tuple per combination spares the garbage collector a
        # tuple per segment.
        self._combinations: dict[tuple[Measure, ...], tuple[Measure, ...]] = {}
        self._ahead: EncodedRows | None = None
        self.live: Counter[Position] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_id.values())

    def names(self, prefix: str = "") -> Iterable[str]:
        """A superset of the names with this prefix: a small one if `follow` was called for the prefix."""
        for followed, names in self._followed.items():
            if prefix.startswith(followed):
                return names
        return self._by_name

    def follow(self, prefix: str) -> None:
        """Index the names that start with `prefix`, so that finding them costs the same however many others
        there are.
        """
        if prefix not in self._followed:
            self._followed[prefix] = {name for name in self._by_name if name.startswith(prefix)}

    def measure(self, includes: Includes) -> Measure:
        """The measure, kept for the lifetime of the table. The first call scans all segments."""
        if (known := self._measures.get(includes)) is not None:
            return known
        measure = self._measures[includes] = Measure()
        for segment in self._by_id.values():
            if includes(segment.name):
                self._set_measures(segment.id, (*self._measured.get(segment.id, ()), measure))
                measure.count += 1
                measure.size += segment.length - segment.start
        return measure

    def _set_measures(self, segment_id: SegmentId, measures: tuple[Measure, ...]) -> None:
        self._measured[segment_id] = self._combinations.setdefault(measures, measures)

    def _resize(self, segment_id: SegmentId, change: int) -> None:
        for measure in self._measured.get(segment_id, ()):
            measure.size += change

    def named(self, name: str) -> Segment | None:
        return self._by_name.get(name)

    def numbered(self, segment_id: SegmentId) -> Segment | None:
        return self._by_id.get(segment_id)

    def next_id(self) -> SegmentId:
        return SegmentId(self._next_id)

    def skip_id(self, segment_id: SegmentId) -> None:
        """Never assign this number to a segment."""
        self._next_id = max(self._next_id, segment_id + 1)

    def apply(self, operations: Sequence[Operation], data: Position, chapter: Position, index: OpenIndex) -> None:
        """Apply one record's operations. Its data start at `data` in `chapter`, whose rows go into `index`."""
        for operation in operations:
            self._apply(operation, data, chapter, index)
            if self._ahead is not None and not isinstance(operation, Snapshot | Index):
                self._ahead.change(operation.target if isinstance(operation, Merge) else operation.segment)
            data = Position(data + data_length(operation))

    def _apply(self, operation: Operation, data: Position, chapter: Position, index: OpenIndex) -> None:
        match operation:
            case Append():
                self._append(operation, data, chapter, index)
            case Create():
                self._create(operation)
            case Seal():
                self._by_id[operation.segment].sealed = True
            case Truncate():
                self._truncate(self._by_id[operation.segment], operation.offset)
            case Delete():
                self._delete(self._by_id[operation.segment])
            case SetAttribute():
                self._set_attribute(operation)
            case Merge():
                self._merge(operation)
            case Move():
                self._move(operation, data, chapter, index)
            case Snapshot() | Index():
                pass

    def _create(self, create: Create) -> None:
        if (old := self._by_name.get(create.name)) is not None:  # its end was in damaged bytes
            self._delete(old)
        segment = Segment(create.segment, create.name)
        self._add(segment)
        self.skip_id(segment.id)

    def _append(self, append: Append, data: Position, chapter: Position, index: OpenIndex) -> None:
        segment = self._by_id[append.segment]
        if append.writer != NO_WRITER:
            segment.remember(append.writer, append.number, self._writers_max)
        if append.length:
            segment.runs.add(Run(append.offset, chapter, segment.id, append.offset))
            segment.length = Offset(append.offset + append.length)
            self.live[chapter] += append.length
            self._resize(segment.id, append.length)
            index.add(segment.id, row_of(append, data))

    def _move(self, move: Move, data: Position, chapter: Position, index: OpenIndex) -> None:
        segment = self._by_id[move.segment]
        end = Offset(move.offset + move.length)
        self._count(segment, move.offset, end, -1)
        run = Run(move.offset, chapter, segment.id, move.offset)
        segment.runs.replace(move.offset, end, run, segment.length)
        segment.runs.drop_before(segment.start)  # the row may have started below it
        self._count(segment, move.offset, end, +1)
        index.add(segment.id, row_of(move, data))

    def _truncate(self, segment: Segment, offset: Offset) -> None:
        self._count(segment, segment.start, offset, -1)
        self._resize(segment.id, segment.start - min(offset, segment.length))
        segment.start = offset
        segment.durable = max(segment.durable, offset)
        if segment.damage and segment.damage.end <= offset:
            segment.damage = None
        if offset >= segment.length:  # beyond it when bytes were lost
            segment.length = offset
            segment.runs = Runs()
        else:
            segment.runs.drop_before(offset)

    def _delete(self, segment: Segment) -> None:
        self._count(segment, segment.start, segment.length, -1)
        self._forget(segment)

    def _merge(self, merge: Merge) -> None:
        target, source = self._by_id[merge.target], self._by_id[merge.source]
        for run in source.runs:
            target.runs.add(run._replace(start=Offset(merge.offset + run.start)))
        target.length = Offset(merge.offset + merge.length)
        self._resize(target.id, merge.length)
        self._forget(source)

    def _set_attribute(self, operation: SetAttribute) -> None:
        segment = self._by_id[operation.segment]
        if segment.attributes is None:
            segment.attributes = {}
        segment.attributes[operation.key] = operation.value

    def _add(self, segment: Segment) -> None:
        self._by_id[segment.id] = self._by_name[segment.name] = segment
        if found := tuple(measure for includes, measure in self._measures.items() if includes(segment.name)):
            self._set_measures(segment.id, found)
            for measure in found:
                measure.count += 1
            self._resize(segment.id, segment.length - segment.start)
        for prefix, names in self._followed.items():
            if segment.name.startswith(prefix):
                names.add(segment.name)

    def _forget(self, segment: Segment) -> None:
        self._resize(segment.id, segment.start - segment.length)
        for measure in self._measured.pop(segment.id, ()):
            measure.count -= 1
        del self._by_id[segment.id]
        del self._by_name[segment.name]
        for names in self._followed.values():
            names.discard(segment.name)
        if self._ahead is not None:
            self._ahead.remove(segment.id)

    def _count(self, segment: Segment, start: Offset, end: Offset, sign: int) -> None:
        """Add the segment's bytes in [start, end) to each chapter's live bytes, or subtract them."""
        start = max(start, segment.start)
        if start >= end:
            return
        for number in range(max(segment.runs.find(start), 0), len(segment.runs)):
            run = segment.runs[number]
            if run.start >= end:
                break
            overlap = min(end, segment.runs.end(number, segment.length)) - max(start, run.start)
            self.live[run.chapter] += sign * overlap
            if not self.live[run.chapter]:
                del self.live[run.chapter]

    def encode(self) -> bytes:
        """The whole table, for a snapshot: {"next": …, "segments": [row, …]}."""
        rows = (self._ahead or self._encoded_rows()).finish()
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(2)
        packer.pack("next")
        packer.pack(self._next_id)
        packer.pack("segments")
        packer.pack_array_header(len(rows))
        return b"".join([packer.bytes(), *rows])

    def encode_ahead(self, filled: float, left_max: int) -> None:
        """Encode a part of the table if it is time, with the chapter filled to this share. `encode` then finds at most
        `left_max` rows left, unless writes are so large and fast that `encode_step` cannot keep up.
        """
        if ahead := self._rows_ahead(filled):
            ahead.step(filled, left_max)

    def encode_step(self, filled: float, left_max: int) -> bool:
        """Encode a part between writes; False if there is nothing to do now."""
        ahead = self._rows_ahead(filled)
        return ahead is not None and ahead.step_ahead(left_max)

    def _rows_ahead(self, filled: float) -> EncodedRows | None:
        if self._ahead is None and filled > BEGIN_AT:
            self._ahead = self._encoded_rows()
        return self._ahead

    def forget_encoded(self) -> None:
        """What `encode` returned is the snapshot of the next chapter."""
        self._ahead = None

    def _encoded_rows(self) -> EncodedRows:
        return EncodedRows(self._by_id, self.next_id(), self._row)

    def _row(self, segment_id: SegmentId) -> object | None:
        segment = self._by_id.get(segment_id)
        return None if segment is None else _to_row(segment)

    def restore(self, data: Buffer) -> None:
        """Replace everything in the table by a snapshot."""
        self._by_id.clear()
        self._by_name.clear()
        for names in self._followed.values():
            names.clear()
        self.live.clear()
        self._measured.clear()
        for measure in self._measures.values():
            measure.count = measure.size = 0
        if not data:  # the snapshot of a new journal
            return
        unpacked: dict[str, Any] = msgpack.unpackb(data)
        self._next_id = unpacked["next"]
        for row in unpacked["segments"]:
            segment = _from_row(row)
            self._add(segment)
            self._count(segment, segment.start, segment.length, +1)


def _to_row(segment: Segment) -> tuple[object, ...]:
    writers = [*segment.writers.items()] if segment.writers else None
    return (
        segment.id,
        segment.name,
        segment.start,
        segment.length,
        segment.sealed,
        segment.runs.flat(),
        writers,
        segment.attributes,
        segment.damage,
    )


def _from_row(row: Sequence[Any]) -> Segment:
    segment = Segment(SegmentId(row[0]), row[1])
    segment.start, segment.length, segment.durable = row[2], row[3], row[3]
    segment.sealed = row[4]
    segment.runs = Runs.of(row[5])
    segment.writers = dict(row[6]) if row[6] else None
    segment.attributes = row[7]
    segment.damage = Damage(*row[8]) if row[8] else None
    return segment
