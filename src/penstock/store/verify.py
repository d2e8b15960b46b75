"""Verifies every checksum of a journal's files and reports damage. Takes no lock and writes nothing, so it may run
beside a worker: what the worker is writing or dropping meanwhile is not reported as damage.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from penstock.core.errors import Damaged, UnreadableFormat
from penstock.core.types import Position, SegmentId
from penstock.store.chapters import chapter_bases, chapter_name, file_offset, read_header, read_index
from penstock.store.files import File, Files
from penstock.store.index import ClosedIndex, OpenIndex, Row
from penstock.store.journal import Damage
from penstock.store.reader import add_rows
from penstock.store.record import TRAILER_BYTES, Entry, Found, is_sound, scan
from penstock.store.recovery import SoundRecords, sound_records
from penstock.store.replay import replay
from penstock.store.table import SegmentTable

# The last chapter grows while it is read: only what is wrong in every pass is damage.
_TRIES = 3

Progress = Callable[[int, int], None]
"""Called with the number of bytes read so far, and the total."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage at one place. `segments` have bytes there, or may have lost some."""

    file: str
    offset: int
    what: str
    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        touched = f"; segments: {', '.join(self.segments)}" if self.segments else "; no segment has bytes there"
        return f"{self.file} at offset {self.offset}: {self.what}{touched}"


@dataclass(slots=True)
class VerifyReport:
    chapters: int = 0
    records: int = 0
    bytes_read: int = 0
    torn: str = ""
    """Where the last file's tail is torn or still being written. It contains nothing acknowledged."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify(files: Files, progress: Progress = lambda _done, _total: None) -> VerifyReport:
    """Check all chapters that exist now. Raises UnreadableFormat for data of another version."""
    return _Verify(files, progress).run()


class _Verify:
    def __init__(self, files: Files, progress: Progress) -> None:
        self._files = files
        self._progress = progress
        self._report = VerifyReport()
        self._table = SegmentTable(writers_per_segment_max=1 << 32)
        self._bases = chapter_bases(files)
        self._sizes = {base: self._size(base) for base in self._bases}

    def run(self) -> VerifyReport:
        if self._bases:
            last = self._last_chapter()
            for base in self._bases[:-1]:
                self._check_closed(base)
            self._add_last(last)
            self._check_missing()
        self._report.problems.sort(key=lambda problem: (problem.file, problem.offset))
        return self._report

    def _size(self, base: Position) -> int:
        try:
            return self._files.open(chapter_name(base)).size()
        except FileNotFoundError:
            return 0

    # The last chapter names the segments that exist.

    def _last_chapter(self) -> SoundRecords:
        base = self._bases[-1]
        tries = [sound_records(self._files, self._bases) for _ in range(_TRIES)]
        lasting = set.intersection(*({damage.position for damage in records.damage} for records in tries))
        last = tries[-1]
        last = last._replace(damage=[damage for damage in last.damage if damage.position in lasting])
        replay(last.recovered, self._table, self._snapshot)
        self._count(self._sizes[base], sum(chapter == base for chapter, _ in last.entries))
        return last

    def _snapshot(self, chapter: Position, entry: Entry) -> bytes:
        file = self._files.open(chapter_name(chapter))
        return file.read(file_offset(chapter, entry.header.data_position), entry.header.data_length)

    def _add_last(self, last: SoundRecords) -> None:
        if last.torn is not None:
            self._report.torn = f"{chapter_name(self._bases[-1])} at offset {last.torn}"
        for damage in last.damage:
            if damage.file == chapter_name(self._bases[-1]):
                self._problem(damage.file, damage.offset, _what(damage), self._touched_by(damage))

    def _touched_by(self, damage: Damage) -> set[str]:
        return {s.name for s in self._table if s.damage is not None and s.damage.reason == str(damage)}

    # The others are checked against their own index.

    def _check_closed(self, base: Position) -> None:
        try:
            file = self._files.open(chapter_name(base))
        except FileNotFoundError:
            return
        watched = _Watched(file, lambda read: self._progress(self._report.bytes_read + read, sum(self._sizes.values())))
        found = list(scan(watched, base, self._chain(file, base), chapter_name(base)))
        self._count(self._sizes[base], sum(isinstance(f, Entry) for f in found))
        rows = _rows_of(found)
        self._check_index(file, base, found, rows)
        for flawed in found:
            if not is_sound(flawed):
                self._add_flaw(file, base, flawed, rows)

    def _chain(self, file: File, base: Position) -> int | None:
        try:
            return read_header(file, base)
        except UnreadableFormat:
            raise
        except Damaged as error:
            self._problem(chapter_name(base), 0, str(error), set())
            return None

    def _check_index(
        self, file: File, base: Position, found: Sequence[Found], rows: list[tuple[SegmentId, Row]]
    ) -> None:
        """Check that the index, if readable, has the same rows as the records. Without records, the index is all there
        is.
        """
        end = max(file.size() - TRAILER_BYTES, 0)
        try:
            indexed = list(ClosedIndex(read_index(file, base)).all())
        except (Damaged, ValueError) as error:
            self._problem(chapter_name(base), end, f"the index will be rebuilt when it is needed: {error}", set())
            return
        if all(map(is_sound, found)) and sorted(rows) != sorted(indexed):
            self._problem(chapter_name(base), end, "the index does not agree with the records", set())
        rows[:] = indexed

    def _add_flaw(self, file: File, base: Position, flaw: Found, rows: list[tuple[SegmentId, Row]]) -> None:
        touched: set[str] = set()
        for key, row in rows:
            length = row.head_length + row.length
            if row.position < flaw.end and row.position + length > flaw.position:
                stored = file.read(file_offset(base, row.position), length)
                if crc32c(stored) != row.checksum:
                    touched.update(self._owners(base, key, row))
        what = f"{flaw.end - flaw.position} bytes fail their checksum"
        self._problem(chapter_name(base), file_offset(base, flaw.position), what, touched)

    def _owners(self, base: Position, key: SegmentId, row: Row) -> Iterator[str]:
        """The segments that now have bytes of this row. After a merge, that is not the segment they were
        appended to.
        """
        for segment in self._table:
            for number, run in enumerate(segment.runs):
                start = max(run.start, segment.start) - run.start + run.key_start
                end = segment.runs.end(number, segment.length) - run.start + run.key_start
                if run.chapter == base and run.key == key and row.offset < end and row.end > start:
                    yield segment.name

    def _check_missing(self) -> None:
        """Check that every chapter with live bytes exists."""
        for base in self._table.live.keys() - set(self._bases):
            names = {s.name for s in self._table if any(run.chapter == base for run in s.runs)}
            self._problem(chapter_name(base), 0, "the file is missing", names)

    def _problem(self, name: str, offset: int, what: str, segments: set[str]) -> None:
        self._report.problems.append(Problem(name, offset, what, tuple(sorted(segments))))

    def _count(self, size: int, records: int) -> None:
        self._report.chapters += 1
        self._report.records += records
        self._report.bytes_read += size
        self._progress(self._report.bytes_read, sum(self._sizes.values()))


def _what(damage: Damage) -> str:
    if damage.position == damage.end:
        return "the header fails its checksum"
    return f"{damage.end - damage.position} bytes fail their checksum"


def _rows_of(found: Sequence[Found]) -> list[tuple[SegmentId, Row]]:
    index = OpenIndex()
    for entry in found:
        if isinstance(entry, Entry):
            add_rows(index, entry)
    return list(ClosedIndex(index.encode()).all())


class _Watched:
    """A file that reports the progress of reading."""

    def __init__(self, file: File, report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report

    def read(self, offset: int, length: int) -> bytes:
        data = self._file.read(offset, length)
        self._report(offset + len(data))
        return data

    def size(self) -> int:
        return self._file.size()
