"""From a segment's offset to its bytes: runs, then rows, then the journal. Every checksum is verified."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from penstock.core.errors import Damaged
from penstock.core.types import Offset, Position
from penstock.store.index import ChapterIndex, ClosedIndex, OpenIndex, Row, row_of
from penstock.store.journal import Journal
from penstock.store.operations import Append, Move, data_length
from penstock.store.record import HEAD_CHECKSUM_BYTES, TRAILER_BYTES, Entry, head_checksum
from penstock.store.segment import Segment

# Small records lie close together: one read fetches them with the heads between them.
_SPAN_GAP_BYTES = 4096
_SPAN_BYTES_MAX = 4 << 20
# Heads are read without the data between them, unless these are so few bytes that a separate read would cost more.
_HEAD_GAP_BYTES = 8192


class Piece(NamedTuple):
    """Bytes [skip, skip + take) of one row; `offset` is the place of its first byte in the segment."""

    chapter: Position
    row: Row
    offset: Offset
    skip: int
    take: int


class IndexNotLoaded(Exception):
    """The index of a chapter is not in memory."""

    def __init__(self, chapter: Position) -> None:
        super().__init__(chapter)
        self.chapter = chapter


class Indexes:
    """The index of any chapter: the open one is in memory, closed ones come from a cache of bounded size."""

    def __init__(self, journal: Journal, cache_bytes: int) -> None:
        self._journal = journal
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[Position, ClosedIndex] = OrderedDict()
        self._size = 0
        self._pinned: dict[Position, Position] = {}
        """Closed chapters that cannot be read from disk until the journal is durable up to the given position."""
        self._moved: dict[Position, tuple[Position, Row]] = {}
        self.open = OpenIndex()

    def of(self, chapter: Position) -> ChapterIndex:
        """Reads it if it is not in memory."""
        try:
            return self.loaded(chapter)
        except IndexNotLoaded:
            return self.put(chapter, self.load(chapter))

    def loaded(self, chapter: Position) -> ChapterIndex:
        """Raises IndexNotLoaded, or LookupError if there is no such chapter."""
        if chapter == self._journal.chapter:
            return self.open
        if chapter not in self._cached:
            if chapter not in self._journal.chapters:
                raise LookupError(f"{self._journal.locate(chapter, chapter)} is missing")
            raise IndexNotLoaded(chapter)
        self._cached.move_to_end(chapter)
        return self._cached[chapter]

    def close_chapter(self, encoded: bytes) -> None:
        """The open chapter has been closed with this index, and the next one started."""
        chapter = self._journal.chapters[-2]
        self._pinned[chapter] = self._journal.end
        self.put(chapter, ClosedIndex(encoded))
        self.open = OpenIndex()

    def forget(self, chapter: Position) -> None:
        if (index := self._cached.pop(chapter, None)) is not None:
            self._size -= index.size_bytes

    def note_move(self, position: Position, piece: Piece) -> None:
        """The piece's row moves to `position`. Until that is durable, it is read from its old place."""
        self._moved[position] = piece.chapter, piece.row

    def settle(self, durable: Position) -> None:
        """Forget the moves before `durable`: they are complete."""
        while self._moved and (first := next(iter(self._moved))) < durable:
            del self._moved[first]

    def place(self, chapter: Position, row: Row) -> tuple[Position, Row]:
        """Where the row can be read now."""
        return self._moved.get(row.position, (chapter, row)) if self._moved else (chapter, row)

    def is_here(self, chapter: Position) -> bool:
        """Whether `load` need not wait for a network: it may read the whole chapter."""
        chapters = self._journal.chapters
        after = bisect_right(chapters, chapter)
        end = chapters[after] if after < len(chapters) else self._journal.end
        return self._journal.is_here(chapter, chapter, end - chapter + TRAILER_BYTES)

    def load(self, chapter: Position) -> ClosedIndex:
        """Read it, in any thread; `put` keeps it."""
        try:
            return self._read_index(chapter)
        except (Damaged, ValueError):
            return ClosedIndex(rebuild_index(self._journal, chapter).encode())

    def _read_index(self, chapter: Position) -> ClosedIndex:
        try:
            return ClosedIndex(self._journal.read_index(chapter))
        except (Damaged, ValueError):
            if not self._journal.mend(chapter):
                raise
        return ClosedIndex(self._journal.read_index(chapter))

    def put(self, chapter: Position, index: ClosedIndex) -> ClosedIndex:
        self.forget(chapter)
        self._cached[chapter] = index
        self._size += index.size_bytes
        self._shrink(chapter)
        return index

    def _shrink(self, needed: Position) -> None:
        durable = self._journal.durable
        self._pinned = {chapter: end for chapter, end in self._pinned.items() if end > durable}
        for chapter in [*self._cached]:
            if self._size <= self._cache_bytes:
                break
            if chapter != needed and chapter not in self._pinned:
                self.forget(chapter)


def rebuild_index(journal: Journal, chapter: Position) -> OpenIndex:
    """Rebuild a chapter's index from its records, if the index record is damaged."""
    index = OpenIndex()
    for found in journal.scan(chapter):
        if isinstance(found, Entry):
            add_rows(index, found)
    return index


def add_rows(index: OpenIndex, entry: Entry) -> None:
    data = entry.header.data_position
    for operation in entry.operations:
        if isinstance(operation, Append | Move) and operation.length:
            index.add(operation.segment, row_of(operation, data))
        data = Position(data + data_length(operation))


def pieces(
    indexes: Indexes, segment: Segment, start: Offset, end: Offset, *, loaded_only: bool = False
) -> Iterator[Piece]:
    """The segment's bytes [start, end), row by row. Raises Damaged where some are missing; with `loaded_only`,
    IndexNotLoaded instead of reading an index.
    """
    index_of = indexes.loaded if loaded_only else indexes.of
    number = segment.runs.find(start)
    while start < end:
        if number < 0:
            raise Damaged(_missing(segment, start))
        run = segment.runs[number]
        run_end = min(segment.runs.end(number, segment.length), end)
        shift = run.start - run.key_start
        for row in index_of(run.chapter).rows(run.key, Offset(start - shift)):
            skip = start - shift - row.offset
            take = min(row.end + shift, run_end) - start
            if skip < 0 or take <= 0:
                break
            yield Piece(*indexes.place(run.chapter, row), Offset(row.offset + shift), skip, take)
            start = Offset(start + take)
            if start == run_end:
                break
        if start < run_end:
            raise Damaged(_missing(segment, start))
        number += 1


def _missing(segment: Segment, offset: Offset) -> str:
    why = f": {segment.damage.reason}" if segment.damage else ""
    return f"the bytes of segment {segment.name!r} from {offset} on cannot be read{why}"


def fetch(journal: Journal, located: list[Piece]) -> list[memoryview]:
    """The bytes of the pieces; each row's checksum is verified. Any thread may call it. Raises Damaged, or LookupError
    if a chapter was dropped in the meantime: locate the bytes again.
    """
    return [view[piece.row.head_length + piece.skip :][: piece.take] for piece, view in fetch_rows(journal, located)]


def is_here(journal: Journal, located: list[Piece]) -> bool:
    """Whether `fetch` need not wait for a network."""
    for span in _spans(located, _is_same_chapter):
        first, last = span[0].row, span[-1].row
        length = last.position + last.head_length + last.length - first.position
        if not journal.is_here(span[0].chapter, first.position, length):
            return False
    return True


def fetch_heads(journal: Journal, located: list[Piece]) -> list[tuple[Offset, memoryview]]:
    """Each row's head, with the offset at which the row's bytes end; empty if the row has no head. Reads only the
    heads, and verifies their own checksums. Otherwise like `fetch`.
    """
    found: list[tuple[Offset, memoryview]] = []
    for span in _spans(located, _near_heads):
        first, last = span[0].row, span[-1].row
        length = last.position + last.head_length - first.position
        view = _read_span(journal, span, length) if length else memoryview(b"")
        for piece in span:
            start = piece.row.position - first.position
            sealed = view[start : start + piece.row.head_length]
            found.append((Offset(piece.offset + piece.row.length), _opened(journal, piece, sealed)))
    return found


def _opened(journal: Journal, piece: Piece, sealed: memoryview) -> memoryview:
    if not _is_sound_head(sealed):
        sealed = _read_again(journal, piece, piece.row.head_length, _is_sound_head)
    return sealed[HEAD_CHECKSUM_BYTES:]


def _is_sound_head(sealed: memoryview) -> bool:
    return not sealed or head_checksum(sealed[HEAD_CHECKSUM_BYTES:]) == sealed[:HEAD_CHECKSUM_BYTES]


def fetch_rows(journal: Journal, located: list[Piece]) -> Iterator[tuple[Piece, memoryview]]:
    """Each piece with its row's whole head and bytes. Otherwise like `fetch`."""
    for span in _spans(located, _near):
        first, last = span[0].row, span[-1].row
        length = last.position + last.head_length + last.length - first.position
        view = _read_span(journal, span, length)
        for piece in span:
            start, row_length = piece.row.position - first.position, piece.row.head_length + piece.row.length
            row = view[start : start + row_length]
            if crc32c(row) != piece.row.checksum:
                row = _read_again(journal, piece, row_length, lambda read: crc32c(read) == piece.row.checksum)  # noqa: B023
            yield piece, row


def _read_span(journal: Journal, span: list[Piece], length: int) -> memoryview:
    chapter, start = span[0].chapter, span[0].row.position
    try:
        return memoryview(journal.read(chapter, start, length))
    except Damaged:  # the disk has failed, or the file is too short
        if not journal.mend(chapter):
            raise
    return memoryview(journal.read(chapter, start, length))


def _read_again(journal: Journal, piece: Piece, length: int, is_sound: Callable[[memoryview], bool]) -> memoryview:
    """The bytes at the beginning of a row, from another copy of the chapter, if there is one."""
    chapter, position = piece.chapter, piece.row.position
    if journal.mend(chapter):
        found = memoryview(journal.read(chapter, position, length))
        if is_sound(found):
            return found
    what = "the head at " if is_sound is _is_sound_head else ""
    raise Damaged(f"{what}{journal.locate(chapter, position)} fails its checksum")


def _spans(located: list[Piece], near: Callable[[list[Piece], Piece], bool]) -> Iterator[list[Piece]]:
    """Groups pieces that lie close enough together for one read."""
    span: list[Piece] = []
    for piece in located:
        if span and not near(span, piece):
            yield span
            span = []
        span.append(piece)
    if span:
        yield span


def _is_same_chapter(span: list[Piece], piece: Piece) -> bool:
    return piece.chapter == span[-1].chapter and piece.row.position >= span[-1].row.position


def _near(span: list[Piece], piece: Piece) -> bool:
    last = span[-1].row
    gap = piece.row.position - (last.position + last.head_length + last.length)
    total = piece.row.position + piece.row.length - span[0].row.position
    return piece.chapter == span[0].chapter and 0 <= gap <= _SPAN_GAP_BYTES and total <= _SPAN_BYTES_MAX


def _near_heads(span: list[Piece], piece: Piece) -> bool:
    last = span[-1].row
    gap = piece.row.position - (last.position + last.head_length)
    total = piece.row.position + piece.row.head_length - span[0].row.position
    return piece.chapter == span[0].chapter and 0 <= gap <= _HEAD_GAP_BYTES and total <= _SPAN_BYTES_MAX


# What the store's calls return.


class Appended(NamedTuple):
    """`end` is the segment's length after the append; it is durable once the journal is, up to `position`."""

    end: Offset
    position: Position
    stored: bool
    """False for a duplicate: a number that was stored before is acknowledged again, without storing anything."""


class Located(NamedTuple):
    """Where the bytes of a read are. `fetch` reads them, in any thread."""

    pieces: list[Piece]
    at_tail: bool
    end_of_segment: bool


class Record(NamedTuple):
    """Where one append's bytes start and end in their segment, including truncated ones."""

    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    name: str
    number: int
    """Never reused: a segment that is created later under the same name has a different one."""
    start: int
    length: int
    sealed: bool
    writers: int
    attributes: Mapping[bytes, int]
    damage: str | None


def info_of(segment: Segment) -> SegmentInfo:
    return SegmentInfo(
        name=segment.name,
        number=segment.id,
        start=segment.start,
        length=segment.durable,
        sealed=segment.sealed,
        writers=len(segment.writers or ()),
        attributes=dict(segment.attributes or {}),
        damage=segment.damage.reason if segment.damage else None,
    )
