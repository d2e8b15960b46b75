"""One fdatasync for many appends, in a separate thread; a failed one is fatal and reported."""

import errno
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.errors import StoreFailed, StoreInUse
from penstock.store.bucket_files import BucketFiles
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFile, RealFiles
from penstock.store.store import SegmentStore
from penstock.testing.faulty_bucket import FaultyBucket
from penstock.testing.memory_files import MemoryFiles, os_error
from tests.store.small import SETTINGS, entries, journal_of
from tests.support.waiting import SECONDS_MAX


class Syncs:
    """Counts the syncs of real files, and makes them fail or wait on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.failing = False
        self.gate = threading.Event()
        self.gate.set()
        original = RealFile.sync

        def sync(file: RealFile) -> None:
            self.count += 1
            self.gate.wait(SECONDS_MAX)
            if self.failing:
                raise os_error(errno.EIO)
            original(file)

        monkeypatch.setattr(RealFile, "sync", sync)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, syncs: Syncs) -> Iterator[SegmentStore]:
    store = SegmentStore(FileJournal(RealFiles(tmp_path / "journal"), SETTINGS), SETTINGS)
    committer = Committer(journal_of(store), idle_proof_seconds=0.01)
    committer.start()
    yield store
    committer.stop()
    store.journal.close()


def test_appends_that_come_during_an_fsync_share_the_next_one(store: SegmentStore, syncs: Syncs) -> None:
    store.journal.wait(store.create("a"), 10)
    syncs.gate.clear()
    before = syncs.count
    positions = [store.append("a", [b"x" * 10]).position for _ in range(100)]
    assert store.journal.durable < positions[0]
    syncs.gate.set()
    store.journal.wait(positions[-1], 10)
    assert syncs.count - before <= 8
    assert store.info("a").length == 1000


def test_a_new_chapter_starts_while_records_are_written(store: SegmentStore, syncs: Syncs) -> None:
    store.create("a")
    for number in range(300):
        store.append("a", [b"%04d" % number * 50])
    store.journal.wait(store.journal.end, 10)
    assert len(store.journal.chapters) > 5
    found = b"".join(store.read("a", 200 * number, 200) for number in range(300))
    assert found == b"".join(b"%04d" % number * 50 for number in range(300))
    assert syncs.count < 300


def test_a_failed_fsync_is_fatal_and_waiting_calls_raise(
    store: SegmentStore, syncs: Syncs, caplog: pytest.LogCaptureFixture
) -> None:
    store.journal.wait(store.create("a"), 10)
    notified = threading.Event()
    store.journal.on_change(notified.set)
    syncs.failing = True
    position = store.append("a", [b"lost"]).position
    with caplog.at_level(logging.CRITICAL), pytest.raises(StoreFailed, match="fsync"):
        store.journal.wait(position, 10)
    assert notified.wait(SECONDS_MAX)
    assert store.journal.failed
    with pytest.raises(StoreFailed):
        store.append("a", [b"refused"])


def test_a_committer_thread_that_ends_for_any_reason_fails_the_journal(
    store: SegmentStore, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(journal_of(store), "commit", broken)
    with pytest.raises(StoreFailed, match="a bug"):
        store.journal.wait(store.create("a"), 10)


def test_a_failing_listener_blocks_no_append(
    store: SegmentStore, syncs: Syncs, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    store.journal.on_change(broken)
    store.journal.wait(store.create("a"), 10)
    store.journal.wait(store.append("a", [b"x"]).position, 10)
    assert "a listener to the journal failed" in caplog.text


def test_when_idle_an_empty_record_proves_the_last_ones_durable(store: SegmentStore, syncs: Syncs) -> None:
    position = store.create("a")
    store.journal.wait(position, 10)
    proof = threading.Event()
    store.journal.on_change(proof.set)
    assert proof.wait(SECONDS_MAX)
    assert not entries(store)[-1].operations
    assert entries(store)[-1].header.durable == position


def test_stopping_writes_and_proves_what_is_queued(tmp_path: Path) -> None:
    for number in range(20):
        journal = FileJournal(RealFiles(tmp_path / str(number)), SETTINGS)
        store = SegmentStore(journal, SETTINGS)
        committer = Committer(journal, idle_proof_seconds=60)
        committer.start()
        position = store.create("a")
        committer.stop()
        assert journal.durable >= position
        assert journal.proved
        journal.close()


def test_in_a_bucket_a_lone_append_is_one_object_and_all_that_comes_meanwhile_another() -> None:
    client, began, gate = FaultyBucket(), threading.Event(), threading.Event()
    gate.set()

    def hold(request: str) -> None:
        if request.startswith("create shards/0/log"):
            began.set()
            assert gate.wait(SECONDS_MAX)

    journal = FileJournal(BucketFiles(client, MemoryFiles()), SETTINGS)
    store = SegmentStore(journal, SETTINGS)
    committer = Committer(journal, idle_proof_seconds=None)
    committer.start()
    journal.wait(store.create("a"), SECONDS_MAX)
    client.before_each = hold
    for _ in range(3):
        with new_objects(client) as sizes:
            journal.wait(store.append("a", [b"alone"]).position, SECONDS_MAX)
        assert len(sizes) == 1
    with new_objects(client) as sizes:
        gate.clear()
        began.clear()
        positions = [store.append("a", [b"the first"]).position]
        assert began.wait(SECONDS_MAX), "it waits for no company"
        positions += [store.append("a", [b"company"]).position for _ in range(40)]
        gate.set()
        journal.wait(positions[-1], SECONDS_MAX)
    assert len(sizes) == 2
    assert sizes[1] > 10 * sizes[0]
    committer.stop()
    assert journal.proved
    journal.close()


@contextmanager
def new_objects(client: FaultyBucket) -> Iterator[list[int]]:
    """The sizes of the objects of the log that are created meanwhile, in order."""
    sizes: list[int] = []
    before = dict(client.objects.objects)
    yield sizes
    created = sorted(key for key in client.objects.objects.keys() - before if key.startswith("shards/0/log"))
    sizes += [len(client.objects.objects[key].data) for key in created]


def test_a_second_process_is_refused(store: SegmentStore, tmp_path: Path) -> None:
    with pytest.raises(StoreInUse):
        FileJournal(RealFiles(tmp_path / "journal"), SETTINGS)
