"""Backups of a worker that runs, or has stopped, and workers on what was restored from them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.backup.archive import Archive, restore
from penstock.backup.backup import BackupOptions, Taken, back_up
from penstock.backup.manifest import Manifest
from penstock.client import Message, Source
from penstock.client.segments import SegmentClient
from penstock.core.errors import Damaged, DiskFull, RequestError, StoreInUse
from penstock.core.sizes import MIB
from penstock.protocol.connector import stream_id_of
from penstock.store.chapters import chapter_name
from tests.client.source.stored import stored_messages
from tests.support.http import get
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.small_disks import directory_for_images, fill_disk, make_image, mounted
from tests.support.waiting import until

BLOCK = bytes(100_000)


def options(data: Path, worker: RunningWorker | None = None, **others: Any) -> BackupOptions:
    address = None if worker is None else f"127.0.0.1:{worker.ports['http']}"
    return BackupOptions(data=data, worker=address, **{"checkpoints": data / "checkpoints"} | others)


def append(worker: RunningWorker, segment: str, *events: bytes) -> None:
    with SegmentClient(worker.address) as client, client.appender(segment, create=True) as appender:
        for event in events:
            appender.append(event)


def events(worker: RunningWorker, segment: str) -> list[bytes]:
    with SegmentClient(worker.address) as client:
        return [bytes(event.data) for event in client.events(segment)]


def journal(manifest: Manifest) -> dict[str, str]:
    """The chapters, with the digest of each."""
    return {one.path: one.sha256 for one in manifest.files if one.path.startswith("journal/")}


def chapters(data: Path) -> set[str]:
    return {path.name for path in data.glob("journal/*.journal")}


class Gate:
    """A backup in a thread that has fixed its position and copied the first bytes; `finish` lets it copy the rest."""

    def __init__(self, archive: Archive, chosen: BackupOptions) -> None:
        self._is_copying, self._may_finish = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._taken = self._pool.submit(back_up, archive, chosen, self._on_bytes)
        self._taken.add_done_callback(lambda _: self._is_copying.set())
        self._is_copying.wait()
        assert not self._taken.done(), self._taken.exception()

    def _on_bytes(self, _: int) -> None:
        self._is_copying.set()
        self._may_finish.wait()

    def finish(self) -> Taken:
        self._may_finish.set()
        self._pool.shutdown()
        return self._taken.result()


def test_a_restored_worker_has_everything_up_to_the_position_and_sources_resume(tmp_path: Path) -> None:
    """Events are sent while the backup is taken: a prefix of them is in it, and the source sends the rest again."""
    data, archive, count = tmp_path / "data", Archive(tmp_path / "backup"), 3000
    may_end = threading.Event()

    def numbers(after: int | None) -> Iterator[Message]:
        for number in range(1 if after is None else after + 1, count + 1):
            if number == count:
                may_end.wait()
            yield Message(number, b"%d" % number + bytes(1000))

    def sending(worker: RunningWorker) -> threading.Thread:
        source = Source(f"127.0.0.1:{worker.ports['connector']}", source="numbers")
        source.stream("s", numbers)
        thread = threading.Thread(target=source.run, daemon=True)
        thread.start()
        return thread

    def stored(worker: RunningWorker) -> list[int]:
        return [one.id for one in stored_messages(worker.address, "numbers")[stream_id_of("s")]]

    with running_worker(data) as worker:
        thread = sending(worker)
        until(lambda: len(stored(worker)) > 100)
        taken = back_up(archive, options(data, worker))
        may_end.set()
        thread.join()
        original = get(worker.ports["http"], "/status")["id"]
        restore(archive, taken.manifest, tmp_path / "restored")
        with running_worker(tmp_path / "restored") as again:  # beside the original
            status = get(again.ports["http"], "/status")
            assert status["id"] != original
            assert status["problems"] == []
            before = stored(again)
            assert before == [*range(1, len(before) + 1)]
            assert 100 < len(before) <= count
            sending(again).join()
            assert stored(again) == [*range(1, count + 1)]


def test_a_second_backup_copies_only_new_chapters(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker:
        append(worker, "s", *[BLOCK] * 35)
        first = back_up(archive, options(data, worker))
        append(worker, "s", *[BLOCK] * 15)
        second = back_up(archive, options(data, worker))
    *closed, _ = journal(first.manifest)
    assert len(closed) >= 3
    assert {path: journal(second.manifest)[path] for path in closed} == {
        path: journal(first.manifest)[path] for path in closed
    }
    new = sum(one.size for one in second.manifest.files if one.path not in closed)
    assert second.copied_bytes == new < first.copied_bytes
    for taken, expected in ((first, 35), (second, 50)):
        restore(archive, taken.manifest, tmp_path / taken.name)
        with running_worker(tmp_path / taken.name) as again:
            assert events(again, "s") == [BLOCK] * expected


def test_a_backup_of_a_worker_that_has_changed_nothing_copies_nothing(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker:
        append(worker, "s", b"one")
    back_up(archive, options(data))
    assert back_up(archive, options(data)).copied_bytes == 0


def test_chapters_that_become_dead_while_they_are_copied_stay_until_the_end(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker, SegmentClient(worker.address) as client:
        append(worker, "s", *[b"%d" % number + BLOCK for number in range(35)])
        pinned = chapters(data)
        gate = Gate(archive, options(data, worker))
        client.truncate("s", client.info("s").length)
        append(worker, "t", *[BLOCK] * 45)
        later = chapters(data) - pinned
        client.truncate("t", client.info("t").length)
        append(worker, "u", *[BLOCK] * 35)
        until(lambda: not later <= chapters(data))  # compaction removes what the backup does not need
        assert pinned <= chapters(data)
        taken = gate.finish()
        until(lambda: not pinned & chapters(data))
    restore(archive, taken.manifest, tmp_path / "restored")
    with running_worker(tmp_path / "restored") as again:
        assert events(again, "s") == [b"%d" % number + BLOCK for number in range(35)]


def test_a_stopped_worker_is_backed_up_and_none_starts_meanwhile(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker:
        append(worker, "s", *[BLOCK] * 15, b"last")
    gate = Gate(archive, options(data))
    with pytest.raises(StoreInUse), running_worker(data):
        pass
    taken = gate.finish()
    restore(archive, taken.manifest, tmp_path / "restored")
    with running_worker(tmp_path / "restored") as again:
        assert events(again, "s") == [*[BLOCK] * 15, b"last"]


def test_a_worker_that_is_not_asked_refuses_a_backup_of_its_files(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data"), pytest.raises(StoreInUse):
        back_up(Archive(tmp_path / "backup"), options(tmp_path / "data"))


def test_a_damaged_chapter_never_replaces_a_sound_copy(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data) as worker:
        append(worker, "s", *[BLOCK] * 25)
    sound = back_up(archive, options(data))
    file = data / "journal" / chapter_name(0)  # type: ignore[arg-type]
    with file.open("r+b") as opened:
        opened.seek(50_000)
        opened.write(b"damage")
    with pytest.raises(Damaged, match=rf"{file.name} is damaged at offset"):
        back_up(archive, options(data))
    assert archive.names() == [sound.name]
    restore(archive, archive.manifest(sound.name), tmp_path / "restored")


def test_a_full_disk_leaves_the_earlier_backup_usable(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    images = directory_for_images(tmp_path_factory)
    with mounted(make_image(images / "small.img", 16 * MIB), images / "small") as disk:
        data, archive = tmp_path / "data", Archive(disk / "backup")
        with running_worker(data) as worker:
            append(worker, "s", *[BLOCK] * 15)
            taken = back_up(archive, options(data, worker))
            append(worker, "s", *[BLOCK] * 15)
            rest = fill_disk(disk)
            with pytest.raises(DiskFull, match="the disk of the backup is full"):
                back_up(archive, options(data, worker))
            restore(archive, archive.manifest(*archive.names()), tmp_path / "restored")
            rest.unlink()
            assert journal(back_up(archive, options(data, worker)).manifest).keys() > journal(taken.manifest).keys()
    with running_worker(tmp_path / "restored") as again:
        assert events(again, "s") == [BLOCK] * 15


def test_secrets_are_left_out_on_demand(tmp_path: Path) -> None:
    data, archive = tmp_path / "data", Archive(tmp_path / "backup")
    with running_worker(data):
        pass
    (data / "token").write_text("secret")
    (data / "application.json").write_text("{}")
    paths = [{one.path for one in back_up(archive, options(data, has_secrets=one)).manifest.files} for one in (0, 1)]
    assert paths[1] - paths[0] == {"token"}
    assert "application.json" in paths[0]


def test_a_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no journal"):
        back_up(Archive(tmp_path / "backup"), options(tmp_path))
