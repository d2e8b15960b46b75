"""What simulations may rely on. Outcomes are random, so each test looks at many."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from penstock.store.files import File
from penstock.testing.faulty_files import FaultyFiles, SimulatedCrash

SEEDS = range(200)
OLD, NEW = b"o" * 2000, b"n" * 2000


def content(file: File) -> bytes:
    return file.read(0, file.size())


def found(files: FaultyFiles) -> dict[str, bytes]:
    return {name: content(files.open(name)) for name in files.list()}


def durable(files: FaultyFiles, name: str, data: bytes) -> File:
    file = files.create(name)
    file.write(0, [data])
    file.sync()
    files.sync()
    return file


def outcomes(prepare: Callable[[FaultyFiles], object]) -> list[dict[str, bytes]]:
    """What a power cut after `prepare` leaves, for many seeds."""
    disks = []
    for seed in SEEDS:
        files = FaultyFiles(seed)
        prepare(files)
        disks.append(found(files.crash()))
    return disks


class TestPowerCut:
    def test_synced_bytes_survive_a_power_cut_unchanged(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            durable(files, "a", OLD)
            durable(files, "b", NEW)

        assert all(disk == {"a": OLD, "b": NEW} for disk in outcomes(prepare))

    def test_unsynced_bytes_may_survive_a_power_cut_entirely_in_part_or_not_at_all(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            durable(files, "a", OLD).write(0, [NEW])

        disks = [disk["a"] for disk in outcomes(prepare)]
        assert set(disks) > {OLD, NEW}

    def test_a_synced_file_in_an_unsynced_directory_may_survive_or_not(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            file = files.create("a")
            file.write(0, [NEW])
            file.sync()

        disks = outcomes(prepare)
        assert {} in disks
        assert {"a": NEW} in disks
        assert all(disk in ({}, {"a": NEW}) for disk in disks)

    def test_an_unsynced_file_in_a_synced_directory_survives_but_may_be_empty(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            durable(files, "current", OLD)
            files.create("new").write(0, [NEW])
            files.rename("new", "current")
            files.sync()

        disks = outcomes(prepare)
        assert {"current": b""} in disks
        assert all(list(disk) == ["current"] for disk in disks)

    def test_what_survives_a_crash_is_durable(self) -> None:
        for seed in SEEDS:
            files = FaultyFiles(seed)
            durable(files, "a", OLD).write(0, [NEW])
            files.create("b").write(0, [NEW])
            after = files.crash()
            assert found(after) == found(after.crash())

    def test_the_same_power_cut_can_be_repeated_with_another_outcome(self) -> None:
        files = FaultyFiles()
        durable(files, "a", OLD).write(0, [NEW])
        assert len({found(files.crash())["a"] for _ in range(50)}) > 3

    def test_the_same_seed_leaves_the_same_disk(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            durable(files, "a", OLD).write(0, [NEW])
            files.create("b").write(100, [NEW])
            files.rename("a", "c")

        assert outcomes(prepare) == outcomes(prepare)


class TestRestart:
    def test_after_a_process_restart_all_writes_are_visible_but_unsynced(self) -> None:
        lost = 0
        for seed in SEEDS:
            files = FaultyFiles(seed)
            durable(files, "a", OLD).write(0, [NEW])
            files.rename("a", "b")
            after = files.restart()
            assert found(after) == {"b": NEW}
            lost += found(after.crash()) != {"b": NEW}
        assert 0 < lost < len(SEEDS)

    def test_a_sync_after_a_restart_covers_the_writes_before_it(self) -> None:
        for seed in SEEDS:
            files = FaultyFiles(seed)
            files.create("a").write(0, [NEW])
            after = files.restart()
            after.open("a").sync()
            after.sync()
            assert found(after.crash()) == {"a": NEW}

    def test_after_a_restart_the_previous_process_can_do_nothing(self) -> None:
        files = FaultyFiles()
        file = files.create("a")
        files.lock()
        files.restart().lock()
        for act in (lambda: file.write(0, [b"x"]), file.size, files.list, files.lock):
            with pytest.raises(SimulatedCrash):
                act()
        file.close()
        files.close()


class TestFailedSync:
    def test_after_a_failed_sync_bytes_are_readable_but_no_later_sync_makes_them_durable(self) -> None:
        for seed in SEEDS:
            files = FaultyFiles(seed)
            file = durable(files, "a", OLD)
            file.write(0, [NEW, b"and more"])
            files.fail_next_sync()
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
            assert content(file) == NEW + b"and more"
            file.sync()
            assert content(files.restart().open("a")) == NEW + b"and more"
            assert found(files.crash())["a"] == OLD + bytes(8)

    def test_bytes_written_again_are_durable_after_the_next_sync(self) -> None:
        for seed in SEEDS:
            files = FaultyFiles(seed)
            file = durable(files, "a", OLD)
            file.write(0, [NEW])
            files.fail_next_sync()
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
            file.write(600, [NEW[:100]])
            file.sync()
            assert found(files.crash())["a"] == OLD[:512] + NEW[512:1024] + OLD[1024:]

    def test_the_requested_number_of_syncs_fail(self) -> None:
        files = FaultyFiles()
        file = files.create("a")
        files.fail_next_sync(2)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
        file.sync()

    def test_a_directory_that_cannot_be_synced_leaves_names_undurable(self) -> None:
        def prepare(files: FaultyFiles) -> None:
            durable(files, "a", OLD)
            durable(files, "b", NEW)
            files.rename("b", "a")
            files.fail_next_directory_sync()
            with pytest.raises(OSError, match="space"):
                files.sync()
            assert found(files) == {"a": NEW}

        disks = outcomes(prepare)
        assert {"a": OLD, "b": NEW} in disks
        assert {"a": NEW} in disks

    def test_some_syncs_fail_with_a_given_probability(self) -> None:
        files = FaultyFiles()
        files.fail_sync_with_probability(0.3)
        file = files.restart().create("a")
        failed = 0
        for _ in range(100):
            try:
                file.sync()
            except OSError:
                failed += 1
        assert 10 < failed < 60


class TestDamage:
    def test_flipped_bits_are_seen_at_once_and_after_a_crash(self) -> None:
        files = FaultyFiles()
        file = durable(files, "a", OLD)
        files.flip_bits("a", 700, 3)
        damaged = content(file)
        assert [at for at in range(2000) if damaged[at] != OLD[at]] == [700, 701, 702]
        file.sync()
        assert found(files.crash()) == {"a": damaged}


class TestSpace:
    def test_a_write_without_room_may_be_partial(self) -> None:
        sizes = set()
        for seed in SEEDS:
            files = FaultyFiles(seed, space=1000)
            file = files.create("a")
            with pytest.raises(OSError, match="No space left"):
                file.write(0, [NEW])
            assert content(file) == NEW[: file.size()]
            sizes.add(file.size())
        assert max(sizes) <= 1000
        assert len(sizes) > 50

    def test_room_can_be_taken_and_returned_at_any_time(self) -> None:
        files = FaultyFiles()
        file = durable(files, "a", OLD)
        files.set_space(1000)
        assert files.free_bytes() == 0
        file.write(0, [NEW])
        with pytest.raises(OSError, match="No space left"):
            file.allocate(2001)
        assert content(file) == NEW
        files.set_space(None)
        file.allocate(3000)
        assert file.size() == 3000


def replace(files: FaultyFiles, sync_file: bool = True) -> None:
    """Replace a file correctly, or, without the sync, incorrectly."""
    file = files.create("next")
    file.write(0, [NEW])
    if sync_file:
        file.sync()
    files.rename("next", "current")
    files.sync()


def current_after_each_crash(replace: Callable[[FaultyFiles], object]) -> Iterator[bytes]:
    for seed in SEEDS:
        for operation in range(1, 6):
            files = FaultyFiles(seed)
            durable(files, "current", OLD)
            files.crash_at(files.operations + operation)
            with suppress(SimulatedCrash):
                replace(files)
            yield found(files.crash())["current"]


class TestCrashPoint:
    def test_after_the_crash_point_every_operation_raises(self) -> None:
        files = FaultyFiles()
        file = files.create("a")
        files.crash_at(3)
        file.write(0, [NEW])
        for act in (file.sync, file.sync, files.sync, files.free_bytes):
            with pytest.raises(SimulatedCrash):
                act()
        assert files.operations == 3
        assert files.crash().operations == 0

    def test_a_write_at_the_crash_point_may_be_cut_anywhere(self) -> None:
        lengths = set()
        for seed in SEEDS:
            files = FaultyFiles(seed)
            file = files.create("a")
            files.crash_at(2)
            with pytest.raises(SimulatedCrash):
                file.write(0, [NEW])
            after = content(files.restart().open("a"))
            assert after == NEW[: len(after)]
            lengths.add(len(after))
        assert len(lengths) > 100

    def test_any_other_operation_at_the_crash_point_is_done_or_not(self) -> None:
        names = set()
        for seed in SEEDS:
            files = FaultyFiles(seed)
            files.create("a")
            files.crash_at(2)
            with pytest.raises(SimulatedCrash):
                files.rename("a", "b")
            names.add(tuple(files.restart().list()))
        assert names == {("a",), ("b",)}

    def test_a_correct_replacement_leaves_the_old_file_or_the_new_one(self) -> None:
        assert set(current_after_each_crash(replace)) == {OLD, NEW}

    def test_an_incorrect_replacement_is_detected(self) -> None:
        left = set(current_after_each_crash(lambda files: replace(files, sync_file=False)))
        assert b"" in left
        assert left > {OLD, NEW}

    def test_handlers_of_exceptions_do_not_catch_a_simulated_crash(self) -> None:
        assert not issubclass(SimulatedCrash, Exception)


class TestHook:
    def test_the_hook_receives_each_operation(self) -> None:
        seen: list[str] = []
        files = FaultyFiles()
        files.before_each = seen.append
        durable(files, "a", OLD).read(0, 1)
        files.rename("a", "b")
        file = files.restart().open("b")
        file.allocate(1)
        file.truncate(0)
        assert seen == [
            *("create a", "write a", "sync a", "sync .", "read a", "rename a b"),
            *("open b", "allocate b", "truncate b"),
        ]

    def test_an_error_of_the_hook_fails_the_operation_before_anything_is_done(self) -> None:
        def fail(operation: str) -> None:
            if operation == "write a":
                raise OSError(5, "worn out")

        files = FaultyFiles()
        file = files.create("a")
        files.before_each = fail
        with pytest.raises(OSError, match="worn out"):
            file.write(0, [NEW])
        assert content(file) == b""

    def test_a_crash_raised_by_the_hook_ends_the_process(self) -> None:
        def crash(operation: str) -> None:
            if operation.startswith("rename"):
                raise SimulatedCrash(operation)

        files = FaultyFiles()
        files.create("a")
        files.before_each = crash
        for act in (lambda: files.rename("a", "b"), files.list):
            with pytest.raises(SimulatedCrash):
                act()
        assert files.restart().list() in (["a"], ["b"])
