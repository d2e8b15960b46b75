"""A seeded simulation of damage: bits flip in bytes that were proved durable.

Whatever is damaged, no read ever returns a wrong byte: it returns the right ones or raises Damaged. Segments that the
damage does not touch are unchanged, and a truncation or a deletion makes the others usable again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.errors import Damaged
from penstock.core.types import Position, SegmentId
from penstock.store.chapters import chapter_name, file_offset
from penstock.store.reader import pieces
from penstock.store.record import CHAPTER_HEADER_BYTES, Entry
from penstock.store.segment import Segment
from penstock.store.verify import verify
from tests.store import model
from tests.store.driver import Action, Simulation, plan

STEPS = 120
BYTES_MAX = 20


@dataclass(frozen=True, slots=True)
class Hit:
    chapter: Position
    start: Position
    """The first position that is hit, or below the chapter's own one for its header."""
    end: Position
    is_last: bool
    touched: frozenset[str]
    """The segments whose stored bytes are hit."""
    whole_records: bool
    """Only data are damaged: the boundaries of all records in the chapter are intact."""


class DamageSimulation(Simulation):
    def __init__(self, seed: int) -> None:
        self.contents: dict[SegmentId, bytes] = {}
        """All bytes that a segment ever had, by the number that is never used again."""
        super().__init__(seed)

    def actions(self) -> tuple[list[Action], list[Action], list[Action]]:
        usual, rare, _ = super().actions()
        return [*usual, self.commit, self.commit], rare, []

    def changed(self) -> None:
        super().changed()
        for name, segment in self.state.items():
            self.contents[self.number_of(name)] = segment.data

    def number_of(self, name: str) -> SegmentId:
        segment = self.store.table.named(name)
        assert segment is not None
        return segment.id

    def run(self, steps: int = STEPS) -> None:
        for action in plan(self.random, self, self.random.randint(1, steps)):
            action()
        self.commit()
        self.prove()
        self.commit()
        self.store.grown()  # settles what is durable now
        hit = self.choose()
        numbers = {segment.id for segment in self.snapshot()}
        old = {name for name in self.state if self.number_of(name) in numbers}
        self.stop(kill=False)
        self.files.flip_bits(chapter_name(hit.chapter), file_offset(hit.chapter, hit.start), hit.end - hit.start)
        named = self.check_report(hit)
        self.open()
        self.check(hit, old)
        lost = {name for name in hit.touched if not self.store.exists(name)}
        assert hit.touched - lost <= named, "only a name whose creation was lost cannot be reported"
        self.mend()

    def snapshot(self) -> list[Segment]:
        """The segments in the snapshot of the last chapter."""
        chapter = self.journal.chapter
        first = next(f for f in self.journal.scan(chapter) if isinstance(f, Entry))
        table = type(self.store.table)(9)
        table.restore(self.journal.read(chapter, first.header.data_position, first.header.data_length))
        return list(table)

    def choose(self) -> Hit:
        chapters = self.journal.chapters
        chapter = self.random.choice((chapters[-1], self.random.choice(chapters)))
        if self.proved(chapters[-1]) <= chapter:
            chapter = chapters[0]
        is_last = chapter == chapters[-1]
        found = [f for f in self.journal.scan(chapter) if isinstance(f, Entry)]
        size = self.journal.chapter_bytes(chapter) - CHAPTER_HEADER_BYTES
        limit = self.proved(chapter) if is_last else chapter + size
        start = self.random.randint(chapter - CHAPTER_HEADER_BYTES, limit - 1)
        end = min(limit, start + self.random.randint(1, BYTES_MAX))
        touched = {
            segment.name
            for segment in self.store.table
            for at, length in self.places(segment, chapter)
            if start < at + length and end > at
        }
        whole = any(f.header.data_position <= start and end <= f.end for f in found)
        return Hit(chapter, Position(start), Position(end), is_last, frozenset(touched), whole)

    def proved(self, chapter: Position) -> int:
        return max(f.header.durable for f in self.journal.scan(chapter) if isinstance(f, Entry))

    def places(self, segment: Segment, chapter: Position) -> Iterator[tuple[Position, int]]:
        for piece in pieces(self.store.indexes, segment, segment.start, segment.length):
            if piece.chapter == chapter:
                yield piece.row.position, piece.row.head_length + piece.row.length

    def check_report(self, hit: Hit) -> set[str]:
        """Check that `verify` names the file, the position and the segments. Returns the segments."""
        name, start = chapter_name(hit.chapter), file_offset(hit.chapter, hit.start)
        problems = verify(self.files).problems
        # If the record of a move or a truncation is damaged, its segment's bytes are looked up in a file that is gone.
        gone = {problem.file for problem in problems} - set(self.files.list())
        assert {problem.file for problem in problems} - gone == {name}
        assert hit.is_last or not gone
        assert min(problem.offset for problem in problems if problem.file == name) <= start
        named = {segment for problem in problems for segment in problem.segments}
        if self.is_contained(hit):
            assert hit.touched == named
        return named

    def is_contained(self, hit: Hit) -> bool:
        """Whether the damage can be attributed to segments."""
        return not hit.is_last or (hit.whole_records and hit.start >= hit.chapter)

    def check(self, hit: Hit, old: set[str]) -> None:
        assert hit.is_last == bool(self.store.damage), (
            "damage in the last chapter is reported at once, other damage when it is read"
        )
        for segment in self.store.table:
            self.check_bytes(segment)
        missing = {name for name in self.state if not self.store.exists(name)}
        contained = self.is_contained(hit)
        assert not contained or not missing
        assert not missing & old, "the snapshot has these"
        if contained:
            for name in self.state.keys() - hit.touched:
                self.check_untouched(name)
            for name in hit.touched:
                self.check_refused(name)

    def check_bytes(self, segment: Segment) -> None:
        """Right bytes or Damaged; and a reader that reaches the tail without an error has read everything."""
        wanted, offset = self.contents[segment.id], int(segment.start)
        while True:
            try:
                located = self.store.locate(segment.name, offset, 100)
                part = b"".join(self.store.fetch(located))
            except Damaged:
                return
            assert part == wanted[offset : offset + len(part)]
            offset += len(part)
            if located.at_tail:
                assert offset == len(wanted), "bytes are missing, and nobody reports it"
                return

    def check_untouched(self, name: str) -> None:
        wanted = model.comparable(self.state)[name]
        assert model.observed_segment(self.store, name) == wanted
        assert self.store.info(name).damage is None

    def check_refused(self, name: str) -> None:
        segment = self.state[name]
        try:
            found = model.read_all(self.store, name, segment.start)
        except Damaged:
            return
        raise AssertionError(f"{len(found)} damaged bytes of {name} were read")

    def mend(self) -> None:
        """Truncating past the damage clears it permanently."""
        for info in self.store.segments():
            if info.damage:
                self.store.truncate(info.name, self.store.length(info.name))
                if not info.sealed:
                    self.store.append(info.name, [b"more"])
        self.journal.commit()
        self.stop(kill=True)
        self.open()
        assert not self.store.damage
        assert not any(info.damage for info in self.store.segments())
