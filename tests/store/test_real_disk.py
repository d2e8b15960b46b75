"""Power cuts and full disks on a real filesystem: ext4 in a file, mounted if the user is root."""

import subprocess
from pathlib import Path

import pytest

from penstock.core.errors import DiskFull
from penstock.core.sizes import KIB, MIB
from penstock.store.compaction import Compactor
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from tests.store.small import compact_step, journal_of
from tests.support.small_disks import directory_for_images, fill_disk, make_image, mounted, run

SETTINGS = StoreSettings(chapter_bytes=1 * MIB, reserve_bytes=4 * MIB)
RECORD = 1000


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directory_for_images(tmp_path_factory)


def open_store(directory: Path, settings: StoreSettings = SETTINGS) -> SegmentStore:
    return SegmentStore(FileJournal(RealFiles(directory), settings), settings)


def record(number: int) -> bytes:
    return number.to_bytes(8, "big") * (RECORD // 8)


def append_until(store: SegmentStore, done: "subprocess.Popen[bytes]", first: int) -> int:
    """Within one chapter: `cp` takes its time, and could have a chapter without the end of the one before it. A disk
    that keeps its promises never does.
    """
    number, journal = first, journal_of(store)
    while done.poll() is None:
        if journal.end - journal.chapter > SETTINGS.chapter_bytes // 2:
            done.wait()
            break
        store.append("a", [record(number)])
        number += 1
        if number % 20 == 0:
            store.journal.wait(store.journal.end, 30)
    return number


@pytest.mark.parametrize("round_number", range(3))
def test_everything_acknowledged_before_a_power_cut_survives_it(images: Path, round_number: int) -> None:
    """The image is copied while the store appends: the copy is what a disk has after a power cut, or worse."""
    image = make_image(images / f"disk-{round_number}.img", 96 * MIB)
    copy = images / f"copy-{round_number}.img"
    with mounted(image, images / f"before-{round_number}") as directory:
        store = open_store(directory / "journal")
        committer = Committer(journal_of(store), 0.01)
        committer.start()
        store.create("a")
        acknowledged = 0
        for acknowledged in range(1, 3000 * (round_number + 1)):
            store.append("a", [record(acknowledged - 1)])
            if acknowledged % 100 == 0:
                store.journal.wait(store.journal.end, 30)
        while journal_of(store).end - journal_of(store).chapter > SETTINGS.chapter_bytes // 4:
            store.append("a", [record(acknowledged)])
            acknowledged += 1
        store.journal.wait(store.journal.end, 30)
        copying = subprocess.Popen(["cp", "--sparse=always", str(image), str(copy)])
        issued = append_until(store, copying, acknowledged)
        committer.stop()
        store.journal.close()
    run("bash", "-c", f"e2fsck -fy {copy} || [ $? -le 2 ]")
    with mounted(copy, images / f"after-{round_number}") as directory:
        store = open_store(directory / "journal")
        found = store.info("a").length // RECORD
        assert acknowledged <= found <= issued
        for number in range(found):
            assert store.read("a", number * RECORD, RECORD) == record(number)
        store.journal.close()
    image.unlink()
    copy.unlink()


def test_on_a_full_disk_appends_are_refused_reads_continue_and_the_reserve_lets_it_drain(images: Path) -> None:
    image = make_image(images / "small.img", 32 * MIB)
    with mounted(image, images / "small") as directory:
        store = open_store(directory / "journal")
        committer = Committer(journal_of(store), 0.01)
        committer.start()
        compactor = Compactor(store)
        store.create("a")
        stored = fill(store)
        assert stored * RECORD > 10 * MIB
        (directory / "rest").write_bytes(bytes(max(0, RealFiles(directory).free_bytes() - 64 * KIB)))
        assert store.read("a", 0, RECORD) == record(0)
        with pytest.raises(DiskFull, match="no room"):
            store.append("a", [record(0)])
        store.journal.wait(store.truncate("a", (stored - 10) * RECORD), 30)
        for _ in range(200):
            compact_step(compactor)
            store.journal.wait(store.journal.end, 30)
        assert not store.journal.failed
        store.journal.wait(store.append("a", [record(stored)]).position, 30)
        for number in range(stored - 10, stored + 1):
            assert store.read("a", number * RECORD, RECORD) == record(number)
        committer.stop()
        store.journal.close()


def test_after_any_number_of_restarts_on_a_full_disk_the_reserve_still_lets_it_drain(images: Path) -> None:
    image = make_image(images / "restarts.img", 24 * MIB)
    with mounted(image, images / "restarts") as directory:
        store = open_store(directory / "journal")
        committer = Committer(journal_of(store), 0.01)
        committer.start()
        store.create("a")
        stored = fill(store)
        committer.stop()
        store.journal.close()
        for _ in range(20):
            fill_disk(directory)
            store = open_store(directory / "journal")
            assert journal_of(store)._spares.reserve_is_whole
            with pytest.raises(DiskFull, match=r"needs 1\.0 MiB, and .* is free, so free at least"):
                store.journal.check_room(draining=False)
            store.journal.close()
        assert spares(directory / "journal") == [SETTINGS.chapter_bytes] * SETTINGS.reserve_chapters
        store = open_store(directory / "journal")
        committer = Committer(journal_of(store), 0.01)
        committer.start()
        assert store.read("a", 0, RECORD) == record(0)
        store.truncate("a", (stored - 10) * RECORD)
        compactor = Compactor(store)
        for _ in range(200):
            compact_step(compactor)
            store.journal.wait(store.journal.end, 30)
            store.journal.remove_dropped()
        store.journal.wait(store.append("a", [record(stored)]).position, 30)
        assert store.read("a", stored * RECORD, RECORD) == record(stored)
        committer.stop()
        store.journal.close()


def spares(journal: Path) -> list[int]:
    """The sizes of the spare files."""
    return [path.stat().st_size for path in journal.iterdir() if path.name.startswith("spare-")]


def fill(store: SegmentStore) -> int:
    """Append until there is no room. Returns how many appends were stored."""
    number = 0
    try:
        while True:
            store.append("a", [record(number)])
            number += 1
            if number % 100 == 0:
                store.journal.wait(store.journal.end, 30)
    except DiskFull:
        store.journal.wait(store.journal.end, 30)
        return number
