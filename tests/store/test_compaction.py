"""Disk space of truncated bytes is freed, and one slow segment does not pin it."""

import threading

from penstock.store.chapters import chapter_name
from penstock.store.compaction import Compactor
from penstock.store.file_journal import FileJournal
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles
from tests.store.small import commit, compact_step, flip, heads, journal_of, next_chapter, open_store


def compact(store: SegmentStore, compactor: Compactor | None = None) -> Compactor:
    compactor = compactor or Compactor(store)
    while compact_step(compactor) or settle(store, compactor):
        pass
    return compactor


def settle(store: SegmentStore, compactor: Compactor) -> bool:
    """Finish what a step began, once it is durable."""
    commit(store)
    return compact_step(compactor)


def slow_and_fast(files: FaultyFiles, chapters: int = 4) -> SegmentStore:
    """A few bytes of `slow` in every chapter, many of `fast`, which is then truncated."""
    store = open_store(files)
    store.create("slow")
    store.create("fast")
    for number in range(chapters):
        store.append("slow", [b"slow%d" % number], head=b"head%d" % number)
        store.append("fast", [bytes(4000)])
        next_chapter(store)
    store.truncate("fast", store.length("fast"))
    commit(store)
    return store


def test_a_chapter_without_live_bytes_is_deleted() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    store.delete("slow")
    commit(store)
    before = store.journal.chapters
    assert compact(store).moved_bytes == 0
    assert store.journal.chapters == before[-3:]
    assert [name for name in files.list() if name.endswith(".journal")] == [chapter_name(c) for c in before[-3:]]


def test_the_live_bytes_of_a_nearly_dead_chapter_are_moved_with_their_heads() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    before = store.journal.chapters
    compactor = compact(store)
    assert store.journal.chapters == before[-3:]
    assert compactor.dropped_chapters == 2
    for _ in range(2):
        assert b"".join(store.read("slow", 5 * n, 5) for n in range(4)) == b"slow0slow1slow2slow3"
        assert heads(store, "slow") == [(5 * n + 5, b"head%d" % n) for n in range(4)]
        store = open_store(files.crash())


def test_a_chapter_is_kept_and_read_until_the_move_is_durable() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    compactor = Compactor(store)
    while compact_step(compactor):
        assert store.read("slow", 0, 5) == b"slow0"
    assert compactor.moved_bytes
    assert not compactor.dropped_chapters
    assert open_store(files.crash()).read("slow", 0, 5) == b"slow0"


def test_a_row_that_begins_below_the_truncation_leaves_no_dead_run_behind() -> None:
    store = slow_and_fast(FaultyFiles())
    store.truncate("slow", 7)
    compact(store)
    segment = store.table.named("slow")
    assert segment is not None
    assert {run.chapter for run in segment.runs} <= set(store.journal.chapters)
    assert store.read("slow", 7, 3) == b"ow1"
    assert sum(store.table.live.values()) == 13


def test_merged_bytes_are_moved_under_the_name_of_their_new_owner() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    store.create("target")
    store.append("target", [b"own"])
    store.merge([("target", "slow")])
    compact(store)
    current = open_store(files.crash())
    parts = [current.read("target", 0, 3), *(current.read("target", 3 + 5 * n, 5) for n in range(4))]
    assert b"".join(parts) == b"ownslow0slow1slow2slow3"


def test_moving_many_small_rows_leaves_room_for_the_index_of_their_new_chapter() -> None:
    store = open_store(FaultyFiles(), chapter_bytes=64 * 1024, compact_below=0.9)
    store.create("slow")
    store.create("fast")
    for _ in range(400):
        store.append("slow", [b"x"])
    store.append("fast", [bytes(20_000)])
    for _ in range(3):
        next_chapter(store)
    store.truncate("fast", 20_000)
    compact(store)
    assert store.read("slow", 399, 9) == b"x"
    next_chapter(store)


def test_a_damaged_chapter_is_left_until_its_segment_is_gone() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    chapter = store.journal.chapters[0]
    row = next(store.indexes.of(chapter).rows(store.table.named("slow").id, 0))  # type: ignore[union-attr, arg-type]
    flip(files, chapter, row.position)
    compactor = compact(store)
    assert chapter in store.journal.chapters
    store.delete("slow")
    commit(store)
    compact(store, compactor)
    assert chapter not in store.journal.chapters


def test_a_dropped_chapter_that_reappears_after_a_power_cut_is_dropped_again() -> None:
    files = FaultyFiles()
    store = slow_and_fast(files)
    compact(store)
    for _ in range(10):
        again = open_store(files.crash())
        compact(again)
        assert len(again.journal.chapters) <= 3


def with_dropped(files: FaultyFiles) -> FileJournal:
    """A journal that has dropped chapters whose files still exist."""
    store = slow_and_fast(files)
    compactor = Compactor(store)
    while compactor.step() or not journal_of(store).has_dropped:
        commit(store)
    return journal_of(store)


def test_the_directory_is_locked_until_a_dropped_chapter_is_removed() -> None:
    """Otherwise the next process may find a file that is about to disappear."""
    files, removing, answers = FaultyFiles(), threading.Event(), threading.Event()
    journal = with_dropped(files)

    def before(operation: str) -> None:
        if operation.startswith("remove 0"):
            removing.set()
            answers.wait()

    files.before_each = before
    threads = [threading.Thread(target=act) for act in (journal.remove_dropped, journal.close)]
    threads[0].start()
    removing.wait()
    threads[1].start()
    try:
        threads[1].join(0.5)
        assert threads[1].is_alive()
    finally:
        answers.set()
        for thread in threads:
            thread.join()


def test_a_dropped_chapter_whose_file_is_already_gone_counts_as_removed() -> None:
    files = FaultyFiles()
    journal = with_dropped(files)
    for chapter in journal._dropped:
        files.remove(chapter_name(chapter))
    journal.remove_dropped()
    assert not journal.has_dropped
