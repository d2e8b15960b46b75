"""Returns truncated bytes to the disk: dead chapters are dropped, the live bytes of nearly dead ones are moved."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from penstock.core.errors import Damaged, DiskFull
from penstock.core.types import Buffer, Offset, Position
from penstock.store.operations import Move
from penstock.store.reader import Piece, fetch_rows, pieces
from penstock.store.segment import Segment
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

# A damaged snapshot is rebuilt from the preceding chapter, which must therefore exist.
_KEEP_CLOSED = 2
_STEP_BYTES = 1 << 20
# Segments that are looked at in one step: some 10 ms.
_STEP_SEGMENTS = 20_000


class Compactor:
    """Works in small steps between the store's other calls, and may use the reserve."""

    def __init__(self, store: SegmentStore, pinned: Callable[[], Collection[Position]] = tuple) -> None:
        """`pinned`: chapters that stay for now, because they are being copied."""
        self._store = store
        self._pinned = pinned
        self._dropping: deque[tuple[Position, Position]] = deque()
        self._moving: Position | None = None
        self._unseen: Iterator[Segment] = iter(())
        self._owner: Segment | None = None
        self._stuck: set[Position] = set()
        self._sizes: dict[Position, int] = {}
        self.moved_bytes = 0
        self.dropped_chapters = 0

    def step(self) -> bool:
        """Do a small amount of work; False when there is none now. `journal.remove_dropped` deletes the files of
        dropped chapters.
        """
        if self._moving is None:
            self._schedule_dead()
        dropped = self._drop_settled()
        if self._moving is None:
            self._moving = self._nearly_dead()
            if self._moving is None:
                return dropped
            self._unseen, self._owner = iter([*self._store.table]), None
        try:
            self._move_some(self._moving)
        except DiskFull:
            self._moving = None
            return dropped
        return True

    def _drop_settled(self) -> bool:
        """Drop a chapter only when the records that made it dead are durable."""
        journal, dropped, pinned = self._store.journal, False, self._pinned()
        waiting: deque[tuple[Position, Position]] = deque()
        self._store.indexes.settle(journal.durable)
        while self._dropping and self._dropping[0][0] <= journal.durable:
            dead = self._dropping.popleft()
            _, chapter = dead
            if chapter in pinned:
                waiting.append(dead)
                continue
            journal.drop(chapter)
            self._store.indexes.forget(chapter)
            self._sizes.pop(chapter, None)
            self._stuck.discard(chapter)
            self.dropped_chapters += 1
            dropped = True
        self._dropping = waiting + self._dropping
        return dropped

    def _candidates(self) -> list[Position]:
        """Closed chapters that may be dropped once they are dead. They must already be written under their
        final name.
        """
        waiting = {chapter for _, chapter in self._dropping}
        chapters, durable = self._store.journal.chapters, self._store.journal.durable
        closed = list(pairwise(chapters))[:-_KEEP_CLOSED]
        return [c for c, following in closed if following < durable and c not in waiting]

    def _schedule_dead(self) -> None:
        live, end = self._store.table.live, self._store.journal.end
        self._dropping.extend((end, c) for c in self._candidates() if not live.get(c))

    def _nearly_dead(self) -> Position | None:
        live, share = self._store.table.live, self._store.settings.compact_below
        for chapter in self._candidates():
            if chapter not in self._stuck and live.get(chapter, 0) < share * self._size(chapter):
                return chapter
        return None

    def _give_up(self, chapter: Position, error: Damaged) -> None:
        """Leave the chapter as it is until the next start, and compact the others."""
        log.error("%s cannot be compacted: %s", self._store.journal.locate(chapter, chapter), error)
        self._stuck.add(chapter)
        self._moving = None

    def _size(self, chapter: Position) -> int:
        if chapter not in self._sizes:
            try:
                self._sizes[chapter] = self._store.journal.chapter_bytes(chapter)
            except Damaged as error:
                self._give_up(chapter, error)
                return 0
        return self._sizes[chapter]

    def _find_owner(self, chapter: Position) -> Segment | None:
        """The next segment with bytes in the chapter. Ends the move if no segment is left."""
        for _ in range(_STEP_SEGMENTS):
            segment = next(self._unseen, None)
            if segment is None:
                self._moving = None
                return None
            if segment.runs.touch(chapter):
                return segment
        return None

    def _move_some(self, chapter: Position) -> None:
        segment = self._owner = self._owner or self._find_owner(chapter)
        if segment is None:
            return
        try:
            found = self._next_pieces(segment, chapter)
            if found:
                self._move(segment, found)
            else:
                self._owner = None
        except Damaged as error:
            self._store.note_damage(segment.name, error)
            self._give_up(chapter, error)

    def _next_pieces(self, segment: Segment, chapter: Position) -> list[Piece]:
        """Some of the segment's live rows in the chapter; empty when there are no more."""
        if self._store.table.numbered(segment.id) is not segment:
            return []
        for number, run in enumerate(segment.runs):
            start = max(run.start, segment.start)
            end = segment.runs.end(number, segment.length)
            if run.chapter == chapter and start < end:
                return self._some(segment, Offset(start), end)
        return []

    def _some(self, segment: Segment, start: Offset, end: Offset) -> list[Piece]:
        found, size = [], 0
        for piece in pieces(self._store.indexes, segment, start, end):
            found.append(piece)
            size += piece.row.head_length + piece.row.length
            if size >= _STEP_BYTES:
                break
        return found

    def _move(self, segment: Segment, found: list[Piece]) -> None:
        buffers: list[Buffer] = []
        moves = []
        for piece, view in fetch_rows(self._store.journal, found):
            row = piece.row
            moves.append(Move(segment.id, piece.offset, row.head_length, row.length, row.checksum))
            buffers.append(view)
        length = sum(map(len, buffers))
        at = self._store.write(moves, buffers, length) - length
        for piece, buffer in zip(found, buffers, strict=True):
            self._store.indexes.note_move(Position(at), piece)
            at += len(buffer)
        self.moved_bytes += length
