"""Opens a journal's files: finds the last good record, separates a torn tail from damage, makes the tail durable."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.chapters import chapter_bases, chapter_name, file_offset, read_chain
from penstock.store.files import File, Files
from penstock.store.journal import Damage, Recovered
from penstock.store.record import Entry, Found, is_sound, scan
from penstock.store.spares import OUT_OF_SPACE, make_zeros, spare_names


class Opened(NamedTuple):
    """A journal as it was found and repaired: where to continue writing, and what it contains."""

    bases: tuple[Position, ...]
    file: File
    capacity: int
    end: Position
    chain: int
    term: int
    proved: bool
    """The last record is an empty one, which proves that everything before it was durable."""
    recovered: Recovered


class _Chapter(NamedTuple):
    base: Position
    file: File
    chain: int | None
    """None when the header is damaged."""
    found: list[Found]

    @property
    def name(self) -> str:
        return chapter_name(self.base)

    @property
    def proved(self) -> Position:
        """Everything before this position was durable when a later record was written."""
        return max((f.header.durable for f in self.found if isinstance(f, Entry)), default=Position(0))

    @property
    def end(self) -> Position:
        return self.found[-1].end if self.found else self.base

    def damage(self) -> list[Damage]:
        header = [Damage(self.name, 0, self.base, self.base, None)] if self.chain is None else []
        return header + [self._damage(found) for found in self.found if not is_sound(found)]

    def _damage(self, found: Found) -> Damage:
        entry = found if isinstance(found, Entry) else None
        return Damage(self.name, file_offset(self.base, found.position), found.position, found.end, entry)

    def entries(self) -> list[tuple[Position, Entry]]:
        return [(self.base, f) for f in self.found if isinstance(f, Entry)]


_Read: TypeAlias = Callable[[Files, Position], _Chapter]


class SoundRecords(NamedTuple):
    """What a journal contains, from its last sound snapshot on."""

    entries: list[tuple[Position, Entry]]
    damage: list[Damage]
    torn: int | None
    """File offset at which the last chapter's torn tail starts."""

    @property
    def recovered(self) -> Recovered:
        return Recovered(self.entries, self.damage)


def recover(files: Files, capacity: int) -> Opened | None:
    """None when there is no journal yet. Raises Damaged if the segments cannot be determined from what is left."""
    bases = chapter_bases(files)
    if not bases:
        return None
    chapters = _read_from_snapshot(files, bases, _read_mended)
    found, last = chapters[-1], _without_torn_tail(chapters[-1])
    chapters[-1] = last
    is_torn = len(last.found) < len(found.found)
    if is_torn:
        _clean_spares(files)
    _make_tail_durable(files, last, capacity, is_torn=is_torn)
    records = _records(chapters)
    entry = records.entries[-1][1] if records.entries else None
    return Opened(
        bases=tuple(bases),
        file=last.file,
        capacity=last.file.size(),
        end=last.end,
        chain=entry.header.checksum if entry else 0,
        term=max((entry.header.term for _, entry in records.entries), default=0),
        proved=entry is not None and not entry.operations and entry.header.durable == entry.position,
        recovered=records.recovered,
    )


def sound_records(files: Files, bases: list[Position]) -> SoundRecords:
    """Like `recover`, without repairing anything."""
    chapters = _read_from_snapshot(files, bases, _read)
    found, chapters[-1] = chapters[-1], _without_torn_tail(chapters[-1])
    last = chapters[-1]
    torn = len(last.found) < len(found.found) and not is_sound(found.found[len(last.found)])
    return _records(chapters)._replace(torn=file_offset(last.base, last.end) if torn else None)


def _records(chapters: list[_Chapter]) -> SoundRecords:
    entries = [entry for chapter in chapters for entry in chapter.entries()]
    return SoundRecords(entries, [damage for chapter in chapters for damage in chapter.damage()], None)


def _read_from_snapshot(files: Files, bases: list[Position], read: _Read) -> list[_Chapter]:
    """The last chapter, and those before it back to the last readable snapshot. The very first chapter needs none."""
    chapters = [read(files, bases[-1])]
    while chapters[0].base and not _begins_with_snapshot(chapters[0]):
        chapters.insert(0, _read_before(files, bases, chapters[0], read))
    return chapters


def _read_mended(files: Files, base: Position) -> _Chapter:
    """Nothing counts as torn or damaged that there is another copy of. A disk that has lost the last records may return
    zeros for them, so that the chapter only seems to end earlier.
    """
    chapter = _read(files, base)
    if _is_whole(files, chapter) or not files.mend(chapter.name):
        return chapter
    chapter = _read(files, base)
    if not _is_intact_behind(files, chapter):
        raise OSError(errno.EIO, "the disk returns other bytes than were written", chapter.name)
    return chapter


def _is_whole(files: Files, chapter: _Chapter) -> bool:
    are_records_sound = chapter.chain is not None and all(map(is_sound, chapter.found))
    return are_records_sound and _is_intact_behind(files, chapter)


def _is_intact_behind(files: Files, chapter: _Chapter) -> bool:
    """The records have their own checksums; what is behind the last one has none."""
    return files.is_intact(chapter.name, file_offset(chapter.base, chapter.end))


def _read(files: Files, base: Position) -> _Chapter:
    file = files.open(chapter_name(base))
    with _named(chapter_name(base)):
        chain = read_chain(file, base)
        return _Chapter(base, file, chain, list(scan(file, base, chain, chapter_name(base))))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of the disk name the file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or name) from error


def _read_before(files: Files, bases: list[Position], chapter: _Chapter, read: _Read) -> _Chapter:
    """The chapter before one whose snapshot is damaged; it must end where that one starts."""
    number = bases.index(chapter.base)
    before = read(files, bases[number - 1]) if number else None
    if before is None or before.end != chapter.base:
        raise Damaged(
            f"{chapter.name} is damaged at offset {file_offset(chapter.base, chapter.base)}: "
            "its snapshot cannot be read, and the chapter before it is missing"
        )
    return before


def _begins_with_snapshot(chapter: _Chapter) -> bool:
    first = chapter.found[0] if chapter.found else None
    return isinstance(first, Entry) and first.sound and first.opens_chapter()


def _without_torn_tail(chapter: _Chapter) -> _Chapter:
    """Only bytes that were never acknowledged are a torn tail: a bad record at or beyond what is proved durable, and an
    index that was to close the chapter if the next one was not started. The snapshot was durable before the chapter got
    its name, so it cannot be torn.
    """
    proved = max(chapter.proved, chapter.base + 1)
    for number, found in enumerate(chapter.found):
        torn = not is_sound(found) and found.position >= proved
        if torn or (isinstance(found, Entry) and found.closes_chapter()):
            return chapter._replace(found=chapter.found[:number])
    return chapter


def _clean_spares(files: Files) -> None:
    """The next chapter is written to a spare after the index that closes the last one. If that was interrupted, the
    index is a torn tail and a spare may contain bytes. Clear the spare first, while the index still shows the
    interruption. It is overwritten in place: on a full disk, another program could take space that is freed even
    briefly.
    """
    for name in spare_names(files):
        file = files.open(name)
        with _named(name):
            make_zeros(file, 0)
            file.sync()
        file.close()


def _make_tail_durable(files: Files, chapter: _Chapter, capacity: int, *, is_torn: bool) -> None:
    """Zero the torn bytes, and rewrite those that are not proved durable: after a failed fsync the kernel may consider
    pages clean that never reached the disk. The directory is synced too, because file names may exist in the page cache
    only.
    """
    end = file_offset(chapter.base, chapter.end)
    proved = min(file_offset(chapter.base, chapter.proved), end) if chapter.proved > chapter.base else 0
    with _named(chapter.name):
        if is_torn:
            make_zeros(chapter.file, end)
        _allocate(files, chapter.file, capacity)
        chapter.file.write(proved, [chapter.file.read(proved, end - proved)])
        chapter.file.sync()
    files.sync()


def _allocate(files: Files, file: File, capacity: int) -> None:
    """Reserve the rest of the last chapter again, from spares if necessary: without it the chapter could
    not be closed.
    """
    spares = spare_names(files)
    while True:
        try:
            return file.allocate(capacity)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            if not spares:
                return None
            files.remove(spares.pop())
