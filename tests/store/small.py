"""Small stores for tests: tiny chapters, explicit commits."""

from dataclasses import replace

from penstock.core.sizes import KIB
from penstock.core.types import Position
from penstock.store.chapters import chapter_name, file_offset
from penstock.store.compaction import Compactor
from penstock.store.file_journal import FileJournal
from penstock.store.files import Files
from penstock.store.record import Entry
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles

SETTINGS = StoreSettings(chapter_bytes=8 * KIB, reserve_bytes=16 * KIB, snapshot_rows_max=3)


def open_store(files: Files, **changes: object) -> SegmentStore:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return SegmentStore(FileJournal(files, settings), settings)


def journal_of(store: SegmentStore) -> FileJournal:
    assert isinstance(store.journal, FileJournal)
    return store.journal


def commit(store: SegmentStore) -> None:
    assert journal_of(store).commit()


def prove(store: SegmentStore) -> None:
    """Make everything durable, with a record that proves it."""
    commit(store)
    journal_of(store).prove()
    commit(store)


def compact_step(compactor: Compactor) -> bool:
    """One step with its file operations, as in the worker."""
    busy = compactor.step()
    compactor._store.journal.remove_dropped()
    return busy


def next_chapter(store: SegmentStore) -> Position:
    """Close the chapter. Returns its position."""
    chapter = store.journal.chapter
    store._turn(0, draining=True)
    commit(store)
    return chapter


def entries(store: SegmentStore, chapter: Position | None = None) -> list[Entry]:
    found = store.journal.scan(store.journal.chapter if chapter is None else chapter)
    return [entry for entry in found if isinstance(entry, Entry)]


def flip(files: FaultyFiles, chapter: Position, position: int, count: int = 1) -> None:
    """Damage the bytes at a position."""
    files.flip_bits(chapter_name(chapter), file_offset(chapter, position), count)


def heads(store: SegmentStore, name: str, start: int = 0, end: int = 1 << 60) -> list[tuple[int, bytes]]:
    return [(int(at), bytes(head)) for at, head in store.heads(name, start, end)]
