"""What each operation does, and what it refuses."""

from contextlib import suppress

import pytest

from penstock.core.errors import (
    ConditionFailed,
    DiskFull,
    LimitExceeded,
    NoSuchSegment,
    QuotaReached,
    SegmentExists,
    SegmentSealed,
    SegmentTruncated,
    StoreFailed,
)
from penstock.core.sizes import KIB
from penstock.core.types import NO_VALUE, QUOTA
from penstock.store.compaction import Compactor
from penstock.store.plan import AttributeUpdate
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles
from penstock.testing.memory_files import MemoryFiles
from tests.store.small import commit, compact_step, entries, heads, journal_of, next_chapter, open_store

WRITER = b"w" * 16
KEY = b"k" * 16


@pytest.fixture
def store() -> SegmentStore:
    store = open_store(MemoryFiles())
    store.create("a")
    return store


class TestAppend:
    def test_readers_see_only_what_is_durable(self, store: SegmentStore) -> None:
        store.append("a", [b"one"])
        assert store.info("a").length == 0
        assert store.read("a", 0, 99) == b""
        commit(store)
        assert store.info("a").length == 3
        assert store.grown() == {"a"}
        assert store.read("a", 0, 99) == b"one"

    def test_a_repeated_number_is_acknowledged_again_and_not_stored(self, store: SegmentStore) -> None:
        first = store.append("a", [b"one"], writer=WRITER, number=5)
        again = store.append("a", [b"one"], writer=WRITER, number=5)
        older = store.append("a", [b"old"], writer=WRITER, number=4)
        assert (first.stored, again.stored, older.stored) == (True, False, False)
        assert again.end == 3
        assert again.position >= first.position

    def test_a_repeated_number_is_acknowledged_after_a_restart_and_after_a_seal(self) -> None:
        files = MemoryFiles()
        store = open_store(files)
        store.create("a")
        store.append("a", [b"one"], writer=WRITER, number=5)
        store.seal("a")
        commit(store)
        store.journal.close()
        store = open_store(files)
        assert not store.append("a", [b"one"], writer=WRITER, number=5).stored
        with pytest.raises(SegmentSealed):
            store.append("a", [b"two"], writer=WRITER, number=6)

    def test_a_conditional_append_is_refused_at_another_offset(self, store: SegmentStore) -> None:
        store.append("a", [b"one"], expected_offset=0)
        with pytest.raises(ConditionFailed, match="ends at 3, not 0"):
            store.append("a", [b"two"], expected_offset=0)

    def test_an_append_may_be_larger_than_a_chapter(self, store: SegmentStore) -> None:
        data = bytes(range(256)) * 200
        store.append("a", [data[:100], data[100:]])
        store.append("a", [b"next"])
        commit(store)
        assert store.read("a", 0, len(data)) == data
        assert store.read("a", len(data), 9) == b"next"

    def test_an_exceeded_limit_is_named(self, store: SegmentStore) -> None:
        with pytest.raises(LimitExceeded, match="append_bytes_max"):
            store.append("a", [bytes(store.settings.append_bytes_max + 1)])
        with pytest.raises(LimitExceeded, match="name_bytes_max"):
            store.create("n" * 1025)
        with pytest.raises(LimitExceeded, match="the limit is 256"):
            store.create("b", {bytes([n // 256, n % 256]): 0 for n in range(257)})
        with pytest.raises(LimitExceeded, match="the limit is 256"):
            store.update_attributes([AttributeUpdate("a", bytes([n // 256, n % 256]), 0) for n in range(257)])

    def test_a_quota_applies_to_appends_and_not_to_merges(self, store: SegmentStore) -> None:
        store.create("small", {QUOTA: 10})
        store.append("small", [bytes(10)])
        with pytest.raises(QuotaReached, match="10 of 10"):
            store.append("small", [b"1"])
        store.append("a", [bytes(20)])
        store.merge([("small", "a")])
        store.truncate("small", 21)
        store.append("small", [b"1"])


class TestMerge:
    def test_many_segments_are_merged_into_many_in_one_record(self, store: SegmentStore) -> None:
        for name in ("b", "x", "y", "z"):
            store.create(name)
        for name in ("a", "x", "y", "z"):
            store.append(name, [name.encode() * 2])
        before = len(entries(store))
        store.merge([("a", "z"), ("b", "x"), ("a", "y")], [AttributeUpdate("b", KEY, 9)])
        commit(store)
        assert store.read("a", 0, 2) + store.read("a", 2, 2) + store.read("a", 4, 9) == b"aazzyy"
        assert store.read("b", 0, 99) == b"xx"
        assert store.attribute("b", KEY) == 9
        assert not any(map(store.exists, "xyz"))
        assert before < len(entries(store))
        assert len(entries(store)[-1].operations) == 4

    @pytest.mark.parametrize(
        "merges", [[("a", "a")], [("a", "b"), ("c", "b")], [("a", "b"), ("b", "c")], [("a", "missing")]]
    )
    def test_an_invalid_merge_changes_nothing(self, store: SegmentStore, merges: list[tuple[str, str]]) -> None:
        store.create("b")
        store.create("c")
        end = store.journal.end
        with pytest.raises((ConditionFailed, NoSuchSegment)):
            store.merge(merges)
        assert store.journal.end == end

    def test_an_attribute_of_the_merged_segment_cannot_be_set_in_the_same_record(self, store: SegmentStore) -> None:
        store.create("b")
        end = store.journal.end
        with pytest.raises(ConditionFailed):
            store.merge([("a", "b")], [AttributeUpdate("b", KEY, 1)])
        assert store.journal.end == end
        assert store.exists("b")

    def test_a_failed_condition_stops_the_whole_merge(self, store: SegmentStore) -> None:
        store.create("b")
        with pytest.raises(ConditionFailed):
            store.merge([("a", "b")], [AttributeUpdate("a", KEY, 1, expected=5)])
        assert store.exists("b")
        store.merge([("a", "b")], [AttributeUpdate("a", KEY, 1, expected=NO_VALUE)])
        assert store.attribute("a", KEY) == 1

    def test_a_truncated_segment_cannot_be_merged(self, store: SegmentStore) -> None:
        store.create("b")
        store.append("b", [b"12"])
        store.truncate("b", 1)
        with pytest.raises(ConditionFailed, match="truncated"):
            store.merge([("a", "b")])

    def test_a_name_may_be_reused_after_a_merge(self, store: SegmentStore) -> None:
        store.create("b")
        store.append("b", [b"old"])
        store.merge([("a", "b")])
        store.create("b")
        store.append("b", [b"new"])
        commit(store)
        assert (store.read("a", 0, 9), store.read("b", 0, 9)) == (b"old", b"new")


class TestReading:
    def test_reading_below_the_start_is_an_error_that_reports_it(self, store: SegmentStore) -> None:
        store.append("a", [b"0123456789"])
        store.truncate("a", 4)
        commit(store)
        with pytest.raises(SegmentTruncated, match="starts at 4") as error:
            store.read("a", 3, 1)
        assert error.value.start == 4
        with pytest.raises(SegmentTruncated):
            store.heads("a", 0, 10)
        assert store.read("a", 4, 99) == b"456789"

    def test_reading_at_the_tail_is_not_an_error_and_beyond_it_is(self, store: SegmentStore) -> None:
        assert store.locate("a", 0, 10) == ([], True, False)
        with pytest.raises(ConditionFailed, match="ends at 0, before 1"):
            store.locate("a", 1, 10)

    def test_a_segment_ends_only_when_its_seal_is_durable(self, store: SegmentStore) -> None:
        store.append("a", [b"one"])
        store.seal("a")
        assert not store.locate("a", 0, 10).end_of_segment
        commit(store)
        assert not store.locate("a", 0, 2).end_of_segment
        assert store.locate("a", 0, 3).end_of_segment

    def test_a_truncation_may_reach_beyond_what_is_durable(self, store: SegmentStore) -> None:
        store.append("a", [b"0123"])
        store.truncate("a", 3)
        assert (store.info("a").start, store.info("a").length) == (3, 3)
        assert store.read("a", 3, 9) == b""
        commit(store)
        assert store.read("a", 3, 9) == b"3"

    def test_each_head_is_returned_with_the_end_of_its_bytes(self, store: SegmentStore) -> None:
        store.create("b")
        store.append("a", [b"12"], head=b"first")
        store.append("b", [b"345"], head=b"second")
        store.append("b", [b"6"])
        store.merge([("a", "b")])
        commit(store)
        assert heads(store, "a") == [(2, b"first"), (5, b"second"), (6, b"")]
        assert heads(store, "a", 2, 5) == [(5, b"second")]


def take_what_is_freed(files: FaultyFiles) -> None:
    """A full disk on which another program takes each byte that is freed."""

    def used() -> int:
        return sum(len(file.content) for file in files._directory.files.values())

    least = used()

    def before_each(_: str) -> None:
        nonlocal least
        least = min(least, used())
        files.set_space(least)

    files.before_each = before_each


class TestRoom:
    def full_store(self) -> tuple[FaultyFiles, SegmentStore]:
        """A store that was filled until an append was refused."""
        files = FaultyFiles()
        store = open_store(files)
        store.create("a")
        files.set_space(64 * KIB)
        with suppress(DiskFull):
            for _ in range(100):
                store.append("a", [bytes(1000)])
                commit(store)
        return files, store

    def test_a_full_disk_refuses_appends_and_reads_continue(self) -> None:
        _, store = self.full_store()
        with pytest.raises(DiskFull, match="no room"):
            store.append("a", [bytes(5000)])
        assert store.read("a", 0, 99) == bytes(99)

    def test_a_record_that_is_larger_than_a_chapter_names_what_it_needs(self) -> None:
        files = FaultyFiles()
        store = open_store(files)
        store.create("a")
        files.set_space(0)
        with pytest.raises(DiskFull, match=r"the journal needs 1[0-9]\.\d KiB, and 0 B is free, so free at least"):
            store.append("a", [bytes(16 * KIB)])

    def test_the_reserve_is_only_for_draining(self) -> None:
        _, store = self.full_store()
        with suppress(DiskFull):
            for number in range(10_000):
                store.create(f"b{number}")
        with suppress(DiskFull):
            for number in range(10_000):
                store.update_attributes([AttributeUpdate("a", KEY, number)])
        assert journal_of(store)._spares.reserve_is_whole

    def test_a_full_store_drains_and_appends_resume_by_themselves(self) -> None:
        _, store = self.full_store()
        with pytest.raises(DiskFull):
            store.append("a", [bytes(5000)])
        store.truncate("a", store.length("a"))
        compactor = Compactor(store)
        for _ in range(9):
            commit(store)
            compact_step(compactor)
        store.append("a", [bytes(5000)])
        commit(store)
        assert store.read("a", store.length("a") - 5000, 9999) == bytes(5000)

    def test_the_reserve_is_recounted_after_a_restart(self) -> None:
        files, store = self.full_store()
        while journal_of(store)._spares.reserve_is_whole:
            next_chapter(store)
        with pytest.raises(DiskFull):
            store.append("a", [b"1"])
        store = open_store(files.restart())
        with pytest.raises(DiskFull):
            store.append("a", [b"1"])
        files.restart().set_space(None)

    def test_a_full_disk_keeps_its_reserve_across_any_number_of_restarts(self) -> None:
        files, store = self.full_store()
        chapters = journal_of(store).chapters
        for _ in range(20):
            files = files.restart()
            take_what_is_freed(files)
            store = open_store(files)
            assert journal_of(store)._spares.reserve_is_whole
            with pytest.raises(DiskFull, match="so free at least"):
                store.append("a", [bytes(5000)])
        assert journal_of(store).chapters == chapters
        assert store.read("a", 0, 99) == bytes(99)

    def test_spares_of_another_size_are_replaced(self) -> None:
        files = FaultyFiles()
        open_store(files)
        files = files.restart()
        store = open_store(files, chapter_bytes=4 * KIB)
        sizes = {files.open(name).size() for name in files.list() if name.startswith("spare-")}
        assert sizes == {4 * KIB}
        assert journal_of(store)._spares.reserve_is_whole

    def test_a_snapshot_may_be_larger_than_a_chapter_and_leaves_room_for_records(self) -> None:
        store = open_store(MemoryFiles())
        for number in range(500):
            store.create(f"segment-with-a-long-name-{number:05d}")
        commit(store)
        next_chapter(store)
        chapters = len(store.journal.chapters)
        for number in range(100):
            store.append(f"segment-with-a-long-name-{number:05d}", [bytes(100)])
        assert len(store.journal.chapters) <= chapters + 1

    def test_with_a_large_snapshot_a_full_disk_drains_using_the_reserve(self) -> None:
        files = FaultyFiles()
        store = open_store(files)
        for number in range(500):
            store.create(f"segment-with-a-long-name-{number:05d}")
        commit(store)
        files.set_space(sum(files.open(name).size() for name in files.list()))
        next_chapter(store)
        store.delete("segment-with-a-long-name-00000")
        commit(store)
        assert len(store.table) == 499


def test_after_a_failed_fsync_everything_raises_the_failure() -> None:
    files = FaultyFiles()
    store = open_store(files)
    store.create("a")
    files.fail_next_sync()
    with pytest.raises(StoreFailed):
        journal_of(store).commit()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="fsync"):
            store.append("a", [b"x"])
        with pytest.raises(StoreFailed):
            journal_of(store).commit()
    with pytest.raises(StoreFailed):
        store.journal.wait(store.journal.end)


class TestRecords:
    def test_the_append_that_contains_a_byte_is_found_also_after_a_merge(self) -> None:
        store = open_store(FaultyFiles())
        for name in ("a", "b"):
            store.create(name)
        ends = [store.append("b", [bytes(10)], head=b"head").end for _ in range(3)]
        store.append("a", [bytes(7)])
        store.merge([("a", "b")])
        commit(store)
        assert [store.record("a", at) for at in (0, 6, 7, 16, 17, 36)] == [
            (0, 7), (0, 7), (7, 17), (7, 17), (17, 27), (27, 37)
        ]  # fmt: skip
        assert ends == [10, 20, 30]
        with pytest.raises(ConditionFailed, match="before offset 37"):
            store.record("a", 37)
        store.truncate("a", 9)
        assert store.record("a", 9) == (7, 17), "as a whole"
        with pytest.raises(SegmentTruncated):
            store.record("a", 8)

    def test_only_what_is_durable_counts(self, store: SegmentStore) -> None:
        store.append("a", [b"12"])
        with pytest.raises(ConditionFailed):
            store.record("a", 0)


class TestNotes:
    def test_a_note_is_appended_in_the_record_of_the_merges(self) -> None:
        store = open_store(FaultyFiles())
        for name in ("target", "source", "notes"):
            store.create(name)
        store.append("source", [b"data"])
        commit(store)
        before = len(entries(store))
        store.merge([("target", "source")], note=("notes", b"merged"))
        commit(store)
        assert len(entries(store)) == before + 1
        assert (store.read("target", 0, 9), store.read("notes", 0, 9)) == (b"data", b"merged")

    def test_a_note_cannot_go_to_a_segment_of_its_merge(self) -> None:
        store = open_store(FaultyFiles())
        for name in ("target", "source", "sealed"):
            store.create(name)
        store.seal("sealed")
        for name, error in (("target", ConditionFailed), ("source", ConditionFailed), ("sealed", SegmentSealed)):
            with pytest.raises(error):
                store.merge([("target", "source")], note=(name, b"1"))
        assert store.exists("source")


def test_segments_with_an_indexed_prefix_are_listed_like_all_others(store: SegmentStore) -> None:
    store.create("x/1")
    store.table.follow("x/")
    for name in ("x/2", "x/3", "y/1"):
        store.create(name)
    store.delete("x/2")
    assert [info.name for info in store.segments("x/")] == ["x/1", "x/3"]
    assert [info.name for info in store.segments("x/3")] == ["x/3"]
    assert [info.name for info in store.segments("x")] == ["x/1", "x/3"]
    assert [info.name for info in store.segments("y/")] == ["y/1"]
    store.table.restore(store.table.encode())
    assert [info.name for info in store.segments("x/")] == ["x/1", "x/3"]


def test_a_segment_cannot_be_created_twice(store: SegmentStore) -> None:
    with pytest.raises(SegmentExists):
        store.create("a")
    store.delete("a")
    with pytest.raises(NoSuchSegment):
        store.append("a", [b"x"])
    store.create("a")
    assert store.length("a") == 0
