"""`verify` checks every checksum, distinguishes a torn tail from damage, and changes nothing."""

from pathlib import Path

import pytest

from penstock.core.types import Position
from penstock.store.chapters import chapter_name, file_offset
from penstock.store.compaction import Compactor
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.store import SegmentStore
from penstock.store.verify import verify
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import SETTINGS, compact_step, entries, flip, journal_of, next_chapter, open_store, prove


def three_chapters(files: FaultyFiles) -> SegmentStore:
    store = open_store(files)
    store.create("a")
    store.create("b")
    for letter in b"xyz":
        store.append("a", [bytes([letter]) * 100])
        store.append("b", [b"b" * 50])
        if letter != b"z"[0]:
            next_chapter(store)
    prove(store)
    return store


def test_an_intact_journal_is_read_completely() -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    seen: list[tuple[int, int]] = []
    report = verify(files, lambda done, total: seen.append((done, total)))
    assert report.is_sound
    assert report.chapters == 3
    assert report.records == sum(len(entries(store, chapter)) for chapter in store.journal.chapters)
    assert not report.torn
    assert seen[-1][0] == seen[-1][1] == sum(files.open(chapter_name(c)).size() for c in store.journal.chapters)


def test_verifying_without_a_journal_finds_no_problem() -> None:
    assert verify(FaultyFiles()).chapters == 0


def test_a_torn_tail_is_not_damage() -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    offset = file_offset(store.journal.chapter, store.journal.end)
    files.open(chapter_name(store.journal.chapter)).write(offset, [b"half a rec"])
    report = verify(files)
    assert report.is_sound
    assert report.torn == f"{chapter_name(store.journal.chapter)} at offset {offset}"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damaged_bytes_are_named_with_file_offset_and_segment(number: int) -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    chapter = store.journal.chapters[number]
    record = next(e for e in entries(store, chapter) if e.header.data_length == 100)
    flip(files, chapter, record.end - 1)
    (problem,) = verify(files).problems
    assert problem.file == chapter_name(chapter)
    assert problem.offset == file_offset(chapter, record.position)
    assert problem.segments == ("a",)


def test_damage_names_the_owner_after_a_merge_and_no_segment_after_a_deletion() -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    record = next(e for e in entries(store, Position(0)) if e.header.data_length == 100)
    flip(files, Position(0), record.end - 1)
    store.merge([("b", "a")])
    prove(store)
    assert [problem.segments for problem in verify(files).problems] == [("b",)]
    store.delete("b")
    prove(store)
    (problem,) = verify(files).problems
    assert problem.segments == ()
    assert "no segment" in str(problem)


def test_an_index_that_contradicts_the_records_is_a_problem() -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    chapter = store.journal.chapters[0]
    flip(files, chapter, entries(store, chapter)[-1].end - 1)
    assert any("the index" in problem.what for problem in verify(files).problems)


def test_a_missing_file_is_a_problem_of_its_segments() -> None:
    files = FaultyFiles()
    store = three_chapters(files)
    files.remove(chapter_name(store.journal.chapters[1]))
    (problem,) = verify(files).problems
    assert (problem.what, problem.segments) == ("the file is missing", ("a", "b"))


def test_nothing_is_written_and_no_lock_is_taken() -> None:
    files = FaultyFiles()
    three_chapters(files)
    operations: list[str] = []
    files.before_each = operations.append
    verify(files)
    assert {operation.split()[0] for operation in operations} == {"list", "open", "read"}


def test_a_journal_that_is_being_written_verifies(tmp_path: Path) -> None:
    files = RealFiles(tmp_path / "journal")
    store = SegmentStore(FileJournal(files, SETTINGS), SETTINGS)
    committer, compactor = Committer(journal_of(store), 0.001), Compactor(store)
    committer.start()
    store.create("a")
    for number in range(60):
        for _ in range(20):
            store.append("a", [bytes(range(200))])
        store.truncate("a", store.length("a") - 2000)
        compact_step(compactor)
        if number % 3 == 0:
            report = verify(RealFiles(tmp_path / "journal", create=False))
            assert report.is_sound, [*map(str, report.problems)]
    committer.stop()
    store.journal.close()
