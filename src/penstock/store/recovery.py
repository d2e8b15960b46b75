"""Opens a journal's files: finds the last good record, tells a torn tail from damage, and makes the tail durable."""

from typing import NamedTuple

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.chapters import (
    OUT_OF_SPACE,
    chapter_bases,
    chapter_name,
    file_offset,
    read_header,
)
from penstock.store.files import File, Files
from penstock.store.journal import Damage, Recovered
from penstock.store.record import ChapterHeader
from penstock.store.scan import Entry, Found, is_sound, scan


class Opened(NamedTuple):
    """A journal as it was found and mended: where to go on writing, and what it holds."""

    bases: tuple[Position, ...]
    file: File
    capacity: int
    end: Position
    chain: int
    term: int
    recovered: Recovered


class _Chapter(NamedTuple):
    base: Position
    name: str
    file: File
    chain: int
    found: list[Found]

    @property
    def proved(self) -> Position:
        """Everything before it was durable while a later record was written."""
        return max((f.header.durable for f in self.found if isinstance(f, Entry)), default=self.base)

    def damage(self, found: Found) -> Damage:
        entry = found if isinstance(found, Entry) else None
        offset = file_offset(self.base, found.position)
        return Damage(self.name, offset, found.position, found.end, entry)

    def entries(self) -> list[tuple[Position, Entry]]:
        return [(self.base, f) for f in self.found if isinstance(f, Entry)]


def recover(files: Files, capacity: int) -> Opened | None:
    """None when there is no journal yet. Raises Damaged when what is left cannot tell which segments there are."""
    bases = chapter_bases(files)
    if not bases:
        return None
    last = _read(files, bases[-1])
    whole = _without_torn_tail(last)
    chapters = [whole]
    while not _begins_with_snapshot(chapters[0]):
        chapters.insert(0, _read_before(files, bases, chapters[0]))
    mended = _make_tail_durable(last, whole, capacity)
    entry = next((f for f in reversed(whole.found) if isinstance(f, Entry)), None)
    damage = [c.damage(f) for c in chapters for f in c.found if not is_sound(f)]
    return Opened(
        bases=tuple(bases),
        file=whole.file,
        capacity=mended,
        end=_end(whole),
        chain=entry.header.checksum if entry else whole.chain,
        term=max((e.header.term for c in chapters for _, e in c.entries()), default=0),
        recovered=Recovered([e for c in chapters for e in c.entries()], damage),
    )


def _read(files: Files, base: Position) -> _Chapter:
    name = chapter_name(base)
    file = files.open(name)
    chain = read_header(file, name, base)
    return _Chapter(base, name, file, chain, list(scan(file, ChapterHeader(chain, base))))


def _read_before(files: Files, bases: list[Position], chapter: _Chapter) -> _Chapter:
    """The chapter before one whose snapshot is damaged; it must end where that one begins."""
    number = bases.index(chapter.base)
    before = _read(files, bases[number - 1]) if number else None
    if before is None or _end(before) != chapter.base:
        raise Damaged(
            f"{chapter.name} is damaged at offset {file_offset(chapter.base, chapter.base)}: "
            "its snapshot cannot be read, and the chapter before it is not there to stand in"
        )
    return before


def _begins_with_snapshot(chapter: _Chapter) -> bool:
    first = chapter.found[0] if chapter.found else None
    return isinstance(first, Entry) and first.sound and first.opens_chapter()


def _without_torn_tail(chapter: _Chapter) -> _Chapter:
    """Only bytes that were never acknowledged are a torn tail: what fails at or beyond what is proved durable,
    and an index that was to close the chapter, since the next one was not begun.
    """
    proved = chapter.proved
    for number, found in enumerate(chapter.found):
        torn = not is_sound(found) and found.position >= proved
        if torn or (isinstance(found, Entry) and found.closes_chapter()):
            return chapter._replace(found=chapter.found[:number])
    return chapter


def _end(chapter: _Chapter) -> Position:
    return chapter.found[-1].end if chapter.found else chapter.base


def _make_tail_durable(found: _Chapter, whole: _Chapter, capacity: int) -> int:
    """Cut what is torn, and write again what is not proved: after a failed fsync the kernel may call pages clean
    that never reached the disk. Returns the size that the file has now.
    """
    end = file_offset(whole.base, _end(whole))
    proved = min(file_offset(whole.base, found.proved), end)
    unproved = whole.file.read(proved, end - proved)
    if len(whole.found) < len(found.found):
        whole.file.truncate(end)
    try:
        whole.file.allocate(max(capacity, whole.file.size()))
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
    whole.file.write(proved, [unproved])
    whole.file.sync()
    return whole.file.size()
