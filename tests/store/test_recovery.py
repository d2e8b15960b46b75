"""Recovery: what is cut, what is damage, and what is made durable before anything is served."""

import errno
from collections.abc import Callable

import pytest

from penstock.core.errors import Damaged, StoreFailed, UnreadableFormat
from penstock.core.types import Position
from penstock.store.chapters import chapter_name, file_offset
from penstock.store.record import CHAPTER_HEADER_BYTES, checksum
from penstock.store.store import SegmentStore
from penstock.testing.faulty_files import FaultyFiles, SimulatedCrash
from penstock.testing.memory_files import os_error
from tests.store.small import commit, entries, flip, journal_of, next_chapter, open_store, prove


def begin(files: FaultyFiles, *names: str) -> SegmentStore:
    store = open_store(files)
    for name in names or ("a",):
        store.create(name)
    return store


def tear(files: FaultyFiles, position: int) -> None:
    """Write bytes that are not a record at a position of the first chapter."""
    file = files.open(chapter_name(Position(0)))
    file.write(file_offset(Position(0), position), [b"torn"])


class TestTornTail:
    def test_a_torn_tail_is_cut_and_overwritten_with_zeros(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"whole"])
        commit(store)
        end = store.journal.end
        tear(files, end)
        store = open_store(files.restart())
        assert not store.damage
        assert store.read("a", 0, 99) == b"whole"
        assert journal_of(store).read(Position(0), end, 100) == bytes(100)

    def test_an_unproved_record_whose_data_fail_their_checksum_is_a_torn_tail(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        prove(store)
        store.append("a", [b"never acknowledged"])
        commit(store)
        flip(files, Position(0), entries(store)[-1].header.data_position)
        store = open_store(files.restart())
        assert not store.damage
        assert store.length("a") == 0

    def test_an_index_without_a_next_chapter_is_cut_like_a_torn_tail(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"whole"])
        prove(store)
        store._turn(0, draining=True)
        files.before_each = stop_at("rename")
        with pytest.raises(SimulatedCrash):
            journal_of(store).commit()
        files = files.restart()
        files.before_each = lambda _: None
        store = open_store(files)
        assert store.journal.chapters == (0,)
        assert store.read("a", 0, 99) == b"whole"
        store.append("a", [b" and more"])
        prove(store)
        assert open_store(files.crash()).read("a", 0, 99) == b"whole and more"

    def test_an_interrupted_turn_leaves_no_bytes_in_a_spare(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store._turn(0, draining=True)
        files.before_each = stop_at("rename")
        with pytest.raises(SimulatedCrash):
            journal_of(store).commit()
        files = files.restart()
        files.before_each = lambda _: None
        open_store(files)
        for name in files.list():
            if name.startswith("spare-"):
                file = files.open(name)
                assert not any(file.read(0, file.size()))

    def test_on_a_full_disk_the_last_chapter_still_gets_its_full_size(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store._turn(0, draining=True)
        files.before_each = stop_at("rename")
        with pytest.raises(SimulatedCrash):
            journal_of(store).commit()
        files = files.restart()
        files.before_each = lambda _: None
        files.set_space(sum(files.open(name).size() for name in files.list()))
        store = open_store(files)
        assert journal_of(store)._capacity == store.settings.chapter_bytes
        store.delete("a")
        store._turn(0, draining=True)
        commit(store)


def stop_at(word: str) -> Callable[[str], None]:
    def check(operation: str) -> None:
        if operation.startswith(word):
            raise SimulatedCrash(operation)

    return check


class TestFailedSync:
    def test_after_a_failed_fsync_the_unproved_tail_is_written_again_and_synced(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        prove(store)
        store.append("a", [b"the kernel says clean"])
        files.fail_next_sync()
        with pytest.raises(StoreFailed):
            journal_of(store).commit()
        files = files.restart()
        assert open_store(files).read("a", 0, 99) == b"the kernel says clean"
        assert open_store(files.crash()).read("a", 0, 99) == b"the kernel says clean"

    def test_a_chapter_name_that_was_not_synced_is_made_durable(self) -> None:
        for _ in range(20):
            files = FaultyFiles(seed=_)
            store = begin(files)
            store._turn(0, draining=True)
            files.before_each = stop_at("sync .")
            with pytest.raises(SimulatedCrash):
                journal_of(store).commit()
            files = files.restart()
            files.before_each = lambda _: None
            store = open_store(files)
            store.append("a", [b"acknowledged"])
            commit(store)
            assert open_store(files.crash()).read("a", 0, 99) == b"acknowledged"

    def test_the_header_of_a_chapter_that_has_just_begun_is_written_again(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        next_chapter(store)
        assert max(entry.header.durable for entry in entries(store)) < store.journal.chapter
        assert open_store(files.crash()).exists("a")

    def test_a_disk_failure_on_opening_is_a_failed_store_and_releases_the_lock(self) -> None:
        files = FaultyFiles()
        begin(files)
        files = files.restart()
        files.fail_next_sync()
        with pytest.raises(StoreFailed):
            open_store(files)
        open_store(files)


class TestDamage:
    def test_a_bad_record_below_the_proved_position_is_damage_that_names_file_and_offset(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"acknowledged"])
        prove(store)
        record = entries(store)[-2]
        flip(files, Position(0), record.header.data_position)
        store = open_store(files.restart())
        offset = CHAPTER_HEADER_BYTES + record.position
        assert [f"{chapter_name(Position(0))} is damaged at offset {offset}" in d for d in store.damage] == [True]
        with pytest.raises(Damaged, match=chapter_name(Position(0))):
            store.read("a", 0, 99)

    def test_only_segments_with_damaged_data_are_refused(self) -> None:
        files = FaultyFiles()
        store = begin(files, "a", "b")
        store.append("a", [b"hit"])
        store.append("b", [b"not hit"])
        prove(store)
        flip(files, Position(0), entries(store)[-3].header.data_position)
        store = open_store(files.restart())
        with pytest.raises(Damaged):
            store.append("a", [b"more"])
        store.append("b", [b"more"])
        assert store.read("b", 0, 7) == b"not hit"

    def test_a_lost_record_is_found_by_the_gap_before_the_next_append(self) -> None:
        files = FaultyFiles()
        store = begin(files, "a", "b")
        for name, data in (("a", b"one"), ("a", b"two"), ("a", b"three"), ("b", b"whole")):
            store.append(name, [data])
        prove(store)
        flip(files, Position(0), entries(store)[-4].position)
        store = open_store(files.restart())
        assert store.info("b").damage is None
        assert store.read("a", 0, 3) == b"one"
        assert store.read("a", 6, 5) == b"three"
        with pytest.raises(Damaged, match="from 3 on"):
            store.read("a", 3, 99)

    def test_a_loss_of_the_first_bytes_of_a_segment_is_detected(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"one"])
        store.append("a", [b"two"])
        prove(store)
        flip(files, Position(0), entries(store)[-3].position)
        store = open_store(files.restart())
        with pytest.raises(Damaged):
            store.read("a", 0, 99)
        assert store.read("a", 3, 99) == b"two"

    def test_a_segment_that_may_have_lost_its_end_is_readable_only_up_to_there(self) -> None:
        files = FaultyFiles()
        store = begin(files, "a", "sealed")
        store.append("a", [b"known"])
        store.seal("sealed")
        store.append("a", [b"lost"])
        prove(store)
        flip(files, Position(0), entries(store)[-2].position)
        store = open_store(files.restart())
        located = store.locate("a", 0, 99)
        assert (b"".join(store.fetch(located)), located.at_tail) == (b"known", False)
        with pytest.raises(Damaged, match="may have lost bytes from 5 on"):
            store.locate("a", 5, 1)
        assert store.info("sealed").damage is None

    def test_damage_is_cleared_by_a_new_truncation_and_not_by_an_old_one_after_it(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"known"])
        store.append("a", [b"lost"])
        store.truncate("a", 5)
        prove(store)
        flip(files, Position(0), entries(store)[-3].position)
        store = open_store(files.restart())
        assert store.info("a").damage
        store.truncate("a", 5)
        assert store.info("a").damage is None
        commit(store)
        store = open_store(files.restart())
        assert not store.damage
        assert store.info("a").damage is None

    def test_a_merge_of_a_lost_segment_marks_its_target_as_damaged(self) -> None:
        files = FaultyFiles()
        store = begin(files, "target")
        store.create("source")
        store.append("source", [b"staged"])
        store.merge([("target", "source")])
        prove(store)
        flip(files, Position(0), entries(store)[-4].position)
        store = open_store(files.restart())
        assert store.length("target") == 6
        with pytest.raises(Damaged):
            store.read("target", 0, 99)

    def test_the_number_of_a_lost_segment_is_not_reused(self) -> None:
        files = FaultyFiles()
        store = begin(files, "a")
        store.create("lost")
        number = store.table.named("lost")
        store.append("lost", [b"x"])
        prove(store)
        flip(files, Position(0), entries(store)[-3].position)
        store = open_store(files.restart())
        assert not store.exists("lost")
        assert number is not None
        assert store.table.next_id() > number.id

    def test_recreating_a_segment_proves_that_the_old_one_was_deleted(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"old"])
        store.delete("a")
        store.create("a")
        store.append("a", [b"new"])
        prove(store)
        flip(files, Position(0), entries(store)[-4].position)
        store = open_store(files.restart())
        assert store.read("a", 0, 99) == b"new"
        assert len(store.table) == 1
        assert dict(store.table.live) == {0: 3}


class TestSnapshotAndHeader:
    @pytest.mark.parametrize("where", [0, 50])
    def test_a_damaged_snapshot_is_restored_from_the_previous_chapter(self, where: int) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"before"])
        next_chapter(store)
        store.append("a", [b" and after"])
        prove(store)
        chapter = store.journal.chapter
        flip(files, chapter, chapter + where)
        store = open_store(files.restart())
        assert len(store.damage) == 1
        assert (store.read("a", 0, 6), store.read("a", 6, 99)) == (b"before", b" and after")
        assert dict(store.table.live) == {0: 6, chapter: 10}

    def test_a_damaged_snapshot_is_not_a_torn_tail_even_if_nothing_follows_it(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        next_chapter(store)
        chapter = store.journal.chapter
        files = files.crash()
        flip(files, chapter, chapter + 50)
        store = open_store(files)
        assert store.damage
        assert store.exists("a")

    def test_without_the_previous_chapter_a_damaged_snapshot_is_an_error(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        first = next_chapter(store)
        chapter = store.journal.chapter
        files = files.restart()
        files.remove(chapter_name(first))
        flip(files, chapter, chapter + 50)
        with pytest.raises(Damaged, match=r"its snapshot cannot be read.*is missing"):
            open_store(files)

    def test_a_damaged_chapter_header_is_reported_and_affects_no_segment(self) -> None:
        files = FaultyFiles()
        store = begin(files)
        store.append("a", [b"fine"])
        prove(store)
        files = files.restart()
        files.flip_bits(chapter_name(Position(0)), 9)
        store = open_store(files)
        assert "offset 0" in store.damage[0]
        assert store.read("a", 0, 99) == b"fine"
        store.append("a", [b"!"])

    @pytest.mark.parametrize(
        ("other", "version"),
        [
            (1, r"a development version before 0\.1 \(format 1; this version reads format 2\)"),
            (3, r"a newer version of Penstock \(format 3; this version reads format 2\)"),
        ],
    )
    def test_a_journal_of_another_format_is_refused_and_left_unchanged(self, other: int, version: str) -> None:
        files = FaultyFiles()
        begin(files)
        files = files.restart()
        file = files.open(chapter_name(Position(0)))
        front = file.read(0, CHAPTER_HEADER_BYTES - 4)
        changed = front[:8] + other.to_bytes(4, "little") + front[12:]
        file.write(0, [changed, checksum([changed]).to_bytes(4, "little")])
        before = file.read(0, file.size())
        with pytest.raises(
            UnreadableFormat, match=f"{chapter_name(Position(0))}.* was written by {version}"
        ) as refused:
            open_store(files)
        assert refused.value.hint
        assert file.read(0, file.size()) == before

    def test_files_that_are_not_chapters_are_left_alone(self) -> None:
        files = FaultyFiles()
        begin(files)
        files = files.restart()
        for name in ("notes.journal", "spare-part", "00000000000000000000.journal.bak"):
            files.create(name).write(0, [b"mine"])
        open_store(files)
        assert files.open("notes.journal").read(0, 9) == files.open("spare-part").read(0, 9) == b"mine"


def test_an_interrupted_new_journal_is_created_again() -> None:
    for operation in range(1, 12):
        files = FaultyFiles(seed=operation)
        files.crash_at(operation)
        with pytest.raises(SimulatedCrash):
            begin(files)
        open_store(files.crash()).create("a")


def test_a_restart_without_changes_does_not_fill_the_chapter() -> None:
    files = FaultyFiles()
    begin(files)
    ends = set()
    for _ in range(50):
        files = files.restart()
        store = open_store(files)
        commit(store)
        ends.add(store.journal.end)
    assert len(ends) == 1


def test_a_read_error_of_the_disk_names_the_file() -> None:
    files = FaultyFiles()
    store = begin(files)
    store.append("a", [b"whole"])
    commit(store)
    files = files.restart()
    reads = 0

    def count(operation: str) -> None:
        nonlocal reads
        reads += operation.startswith("read")

    files.before_each = count
    open_store(files)
    for number in range(1, reads + 1):
        files = files.restart()
        left = number

        def fail(operation: str) -> None:
            nonlocal left
            left -= operation.startswith("read")
            if not left:
                raise os_error(errno.EIO)

        files.before_each = fail
        with pytest.raises((StoreFailed, Damaged), match=r"0{20}\.journal"):
            open_store(files)
