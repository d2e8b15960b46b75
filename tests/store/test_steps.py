"""A step that fails for lack of room is performed again, as if it had never been tried."""

import errno

import pytest

from penstock.core.errors import StoreFailed
from penstock.testing.faulty_files import FaultyFiles
from penstock.testing.memory_files import os_error
from tests.store.small import commit, journal_of, next_chapter, open_store


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_disk_that_fills_up_during_a_commit_loses_nothing_and_fails_nothing(failing: int) -> None:
    files = FaultyFiles()
    store = open_store(files)
    store.create("a")
    commit(store)
    store.append("a", [b"before the turn"])
    store._turn(0, draining=True)
    store.append("a", [b", and after it"])
    writes = 0

    def full(operation: str) -> None:
        nonlocal writes
        writes += operation.startswith("write")
        if writes == failing:
            raise os_error(errno.ENOSPC)

    files.before_each = full
    assert not journal_of(store).commit()
    store.append("a", [b"!"])
    files.before_each = lambda _: None
    commit(store)
    store = open_store(files.crash())
    assert store.read("a", 0, 99) == b"before the turn, and after it!"


@pytest.mark.parametrize("operation", ["write", "sync", "truncate", "rename", "sync ."])
def test_any_other_disk_error_is_fatal_and_recovery_restores_what_was_acknowledged(operation: str) -> None:
    files = FaultyFiles()
    store = open_store(files)
    store.create("a")
    store.append("a", [b"acknowledged"])
    commit(store)
    store._turn(0, draining=True)

    def broken(performed: str) -> None:
        if performed.startswith(operation):
            raise os_error(errno.EIO)

    files.before_each = broken
    with pytest.raises(StoreFailed):
        journal_of(store).commit()
    files = files.restart()
    files.before_each = lambda _: None
    store = open_store(files)
    assert store.read("a", 0, 99) == b"acknowledged"
    next_chapter(store)
