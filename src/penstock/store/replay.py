"""Rebuilds the table of segments from the records that were found, and marks the segments that damage touches.

Without damage this is `table.apply`, record by record. Damage leaves holes, and records after a hole may not fit those
before it: a segment that was never created, bytes that do not join. None of that may count as intact.
"""

import logging
from collections.abc import Callable

from penstock.core.types import Offset, Position, SegmentId
from penstock.store.index import OpenIndex
from penstock.store.journal import Damage as Found
from penstock.store.journal import Recovered
from penstock.store.operations import Append, Index, Merge, Move, Operation, Snapshot, data_length
from penstock.store.record import Entry
from penstock.store.segment import Damage, Segment
from penstock.store.table import SegmentTable

log = logging.getLogger(__name__)


def replay(recovered: Recovered, table: SegmentTable, read_snapshot: Callable[[Position, Entry], bytes]) -> OpenIndex:
    """Fill the table; returns the index of the last chapter."""
    return _Replay(recovered, table, read_snapshot).run()


class _Replay:
    def __init__(
        self,
        recovered: Recovered,
        table: SegmentTable,
        read_snapshot: Callable[[Position, Entry], bytes],
    ) -> None:
        self._entries = recovered.entries
        self._damage = sorted(recovered.damage, key=lambda damage: damage.position)
        self._table = table
        self._read_snapshot = read_snapshot
        self._index = OpenIndex()
        self._suspects: dict[SegmentId, str] = {}
        """Segments that may have lost their last bytes, and why: until a later record proves their end."""

    def run(self) -> OpenIndex:
        base = None
        for chapter, entry in self._entries:
            if chapter != base:
                base, self._index = chapter, OpenIndex()
            while self._damage and self._damage[0].end <= entry.position:
                self._suspect(self._damage.pop(0))
            if entry.opens_chapter():
                self._restore(chapter, entry)
            else:
                self._apply(entry, chapter)
        for damage in self._damage:
            self._suspect(damage)
        self._finish()
        return self._index

    def _restore(self, chapter: Position, entry: Entry) -> None:
        if entry.sound:
            self._table.restore(self._read_snapshot(chapter, entry))
            self._suspects.clear()

    def _suspect(self, damage: Found) -> None:
        """If bytes of an unknown segment are lost, any segment that is not sealed may have lost its last bytes."""
        log.error("%s", damage)
        if damage.entry is None and damage.position < damage.end:
            self._suspects |= {s.id: str(damage) for s in self._table if not s.sealed}

    def _apply(self, entry: Entry, chapter: Position) -> None:
        reason = "" if entry.sound else self._reason(entry)
        data = entry.header.data_position
        for operation in entry.operations:
            self._prove(operation)
            try:
                self._table.apply([operation], data, chapter, self._index)
            except KeyError:
                self._miss(entry, operation)
            if reason and isinstance(operation, Append | Move) and operation.length:
                self._lose(operation.segment, operation.offset + operation.length, reason)
            data = Position(data + data_length(operation))

    def _reason(self, entry: Entry) -> str:
        return next(str(damage) for damage in self._damage if damage.position == entry.position)

    def _prove(self, operation: Operation) -> None:
        """Bytes that continue where the segment ends prove it intact; a gap before them shows what was lost."""
        match operation:
            case Append():
                self._join(operation.segment, operation.offset)
            case Merge():
                self._join(operation.source, operation.length)
                self._join(operation.target, operation.offset)
                self._pass_on_damage(operation)
            case Move():
                self._reach(operation.segment, operation.offset + operation.length)
            case _:
                pass

    def _join(self, segment_id: SegmentId, end: int) -> None:
        segment = self._table.numbered(segment_id)
        reason = self._suspects.pop(segment_id, "its records do not join")
        if segment is not None and segment.length != end:
            segment.length = Offset(end)
            self._lose(segment_id, end, reason)

    def _reach(self, segment_id: SegmentId, end: int) -> None:
        """The segment has bytes at least up to `end`."""
        segment = self._table.numbered(segment_id)
        if segment is not None and segment.length < end:
            segment.length = Offset(end)
            self._lose(segment_id, end, self._suspects.get(segment_id, "its records do not join"))

    def _pass_on_damage(self, merge: Merge) -> None:
        source = self._table.numbered(merge.source)
        if source is not None and source.damage is not None:
            self._lose(merge.target, merge.offset + source.damage.end, source.damage.reason)

    def _miss(self, entry: Entry, operation: Operation) -> None:
        """The operation's segment was created in damaged bytes, so not even its name is left."""
        if isinstance(operation, Snapshot | Index):
            return
        if isinstance(operation, Merge):
            self._miss_source(operation)
        else:
            self._table.skip_id(operation.segment)
        log.error("position %s: %s of a segment that was created in damaged bytes", entry.position, operation)

    def _miss_source(self, merge: Merge) -> None:
        self._table.skip_id(max(merge.target, merge.source))
        target = self._table.numbered(merge.target)
        if target is not None:
            target.length = Offset(merge.offset + merge.length)
            self._lose(target.id, target.length, "a segment that was merged into it is lost")

    def _lose(self, segment_id: SegmentId, end: int, reason: str) -> None:
        segment = self._table.numbered(segment_id)
        if segment is not None and end > segment.start:
            before = segment.damage.end if segment.damage else 0
            segment.damage = Damage(reason, Offset(max(end, before)), known=True)

    def _finish(self) -> None:
        for segment_id, reason in self._suspects.items():
            segment = self._table.numbered(segment_id)
            if segment is not None:
                segment.damage = _doubt(segment, reason)
        for segment in self._table:
            segment.durable = segment.length


def _doubt(segment: Segment, reason: str) -> Damage:
    return Damage(segment.damage.reason if segment.damage else reason, segment.length, known=False)
