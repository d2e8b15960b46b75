"""From an offset to the bytes: indexes are loaded and evicted, and every checksum is verified."""

import pytest

from penstock.core.errors import Damaged
from penstock.core.types import Position
from penstock.store.chapters import chapter_name
from penstock.store.compaction import Compactor
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import commit, compact_step, entries, flip, next_chapter, open_store


def store_of_chapters(files: FaultyFiles, chapters: int = 5, **changes: object) -> SegmentStore:
    """Ten bytes of `a` in each chapter: the chapter's number, ten times."""
    store = open_store(files, **changes)
    store.create("a")
    for number in range(chapters):
        store.append("a", [b"%d" % number * 10])
        next_chapter(store)
    return store


def read_all(store: SegmentStore) -> bytes:
    return b"".join(store.read("a", 10 * number, 10) for number in range(5))


WANTED = b"".join(b"%d" % number * 10 for number in range(5))


def test_the_cache_of_indexes_is_bounded() -> None:
    store = store_of_chapters(FaultyFiles(), index_cache_bytes=100, open_files_max=2)
    assert read_all(store) == WANTED
    assert store.indexes._size <= 100


def test_a_damaged_index_is_rebuilt_from_the_records() -> None:
    files = FaultyFiles()
    chapter = store_of_chapters(files).journal.chapters[1]
    for what in ("trailer", "index", "header"):
        again = files.crash()
        store = open_store(again)
        index = entries(store, chapter)[-1]
        place = {"trailer": index.end + 3, "index": index.end - 1, "header": index.position}[what]
        flip(again, chapter, place)
        assert read_all(open_store(again.crash())) == WANTED


def test_the_index_of_a_chapter_that_is_not_written_yet_stays_in_memory() -> None:
    files = FaultyFiles()
    store = store_of_chapters(files, compact_below=1.0, index_cache_bytes=1)
    compactor = Compactor(store)
    while compact_step(compactor):
        pass
    for _ in range(4):
        store._turn(0, draining=True)
    assert read_all(store) == WANTED
    commit(store)
    assert read_all(store) == WANTED


def test_a_read_that_ends_inside_an_append_checks_the_whole_append() -> None:
    files = FaultyFiles()
    store = store_of_chapters(files)
    chapter = store.journal.chapters[2]
    row = entries(store, chapter)[1]
    flip(files, chapter, row.end - 1)
    with pytest.raises(Damaged, match=chapter_name(chapter)):
        store.read("a", 20, 1)
    assert store.read("a", 10, 10) == b"1" * 10
    assert store.read("a", 30, 10) == b"3" * 10


def test_what_was_located_before_a_chapter_was_dropped_must_be_located_again() -> None:
    store = store_of_chapters(FaultyFiles(), compact_below=1.0, open_files_max=1)
    located = store.locate("a", 0, 10)
    compactor = Compactor(store)
    for _ in range(20):
        compact_step(compactor)
        commit(store)
    assert Position(0) not in store.journal.chapters
    with pytest.raises(LookupError):
        store.fetch(located)
    assert read_all(store) == WANTED


def test_a_missing_file_is_damage_of_its_segments() -> None:
    files = FaultyFiles()
    chapter = store_of_chapters(files).journal.chapters[1]
    files = files.restart()
    files.remove(chapter_name(chapter))
    store = open_store(files)
    with pytest.raises(Damaged, match=f"{chapter_name(chapter)} at offset 32 is missing"):
        store.read("a", 10, 10)
    assert store.read("a", 20, 10) == b"2" * 10
