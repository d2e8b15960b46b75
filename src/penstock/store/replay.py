"""Brings the table of segments back from the records that were found, and marks the segments that damage touches."""

import logging
from collections.abc import Callable

from penstock.core.types import Offset, Position
from penstock.store.index import OpenIndex
from penstock.store.journal import Damage as Found
from penstock.store.journal import Recovered
from penstock.store.operations import Append, Merge, Move, Operation, data_length
from penstock.store.scan import Entry
from penstock.store.segment import Damage
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
        self._chapter: Position | None = None

    def run(self) -> OpenIndex:
        for chapter, entry in self._entries:
            if chapter != self._chapter:
                self._chapter, self._index = chapter, OpenIndex()
            while self._damage and self._damage[0].end <= entry.position:
                self._suspect_all(self._damage.pop(0))
            if entry.opens_chapter():
                if entry.sound:
                    self._table.restore(self._read_snapshot(chapter, entry))
            else:
                self._apply(entry)
        for damage in self._damage:
            self._suspect_all(damage)
        for segment in self._table:
            segment.durable = segment.length
        return self._index

    def _suspect_all(self, damage: Found) -> None:
        """Bytes that name no segment are lost: a segment may be cut short until a later record proves its end."""
        log.error("%s", damage)
        if damage.entry is not None:
            return
        for segment in self._table:
            if not segment.sealed:
                segment.damage = segment.damage or Damage(str(damage), segment.length, known=False)

    def _apply(self, entry: Entry) -> None:
        data = entry.header.data_position
        for operation in entry.operations:
            self._prove(operation)
            try:
                self._table.apply([operation], data, self._chapter_now, self._index)
            except KeyError as missing:
                log.error("position %s: segment %s was created in damaged bytes", entry.position, missing)
            data = Position(data + data_length(operation))
        if not entry.sound:
            self._mark(entry)

    @property
    def _chapter_now(self) -> Position:
        assert self._chapter is not None
        return self._chapter

    def _prove(self, operation: Operation) -> None:
        """An append that goes on where the segment ends proves it whole; one that leaves a gap shows what was lost."""
        match operation:
            case Append():
                segment = self._table.numbered(operation.segment)
            case Merge():
                segment = self._table.numbered(operation.target)
            case _:
                return
        if segment is None:
            return
        if operation.offset != segment.length:
            reason = segment.damage.reason if segment.damage else "its records do not join"
            segment.damage = Damage(reason, operation.offset, known=True)
            segment.length = operation.offset
        elif segment.damage and not segment.damage.known:
            segment.damage = None

    def _mark(self, entry: Entry) -> None:
        """The record's data fail their checksum: its segments are refused."""
        damage = next((d for d in self._damage if d.position == entry.position), None)
        for operation in entry.operations:
            if isinstance(operation, Append | Move) and operation.length:
                segment = self._table.numbered(operation.segment)
                if segment is not None:
                    reason = str(damage) if damage else "its bytes fail their checksum"
                    segment.damage = Damage(reason, Offset(operation.offset + operation.length), known=True)
