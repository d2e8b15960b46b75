"""A worker on a full disk: it starts, serves reads, drains, names what it needs, and continues automatically."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest

from penstock.client import Message, Source
from penstock.client.segments import SegmentClient
from penstock.core.errors import DiskFull
from penstock.core.sizes import MIB
from penstock.protocol.connector import stream_id_of
from tests.client.source.stored import stored_messages
from tests.support.http import ask, get
from tests.support.small_disks import directory_for_images, fill_disk, make_image, mounted
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

RESTARTS = 20
COUNT = 6000
PAYLOAD = bytes(1000)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directory_for_images(tmp_path_factory)


def numbers(after: int | None) -> Iterator[Message]:
    return (Message(number, PAYLOAD) for number in range(1 if after is None else after + 1, COUNT + 1))


def spare_sizes(data: Path) -> list[int]:
    return [path.stat().st_size for path in (data / "journal").glob("spare-*")]


def health(worker: WorkerProcess) -> tuple[int, str]:
    code, body = ask(worker.http_port, "GET", "/health")
    return code, body.decode()


def run_source(worker: WorkerProcess) -> Callable[[], None]:
    """A program that sends everything, however long it must wait; the result waits for its end."""
    source = Source(f"127.0.0.1:{worker.connector_port}", source="numbers", retry_seconds=inf)
    source.stream("s", numbers)
    thread = threading.Thread(target=source.run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(120)
        assert not thread.is_alive(), health(worker)

    return join


def append_until_full(address: str) -> None:
    client = SegmentClient(address, retry_seconds=0)
    with client, suppress(DiskFull), client.appender("old", create=True) as appender:
        while True:
            appender.append(bytes(10_000))
            appender.flush()


@pytest.mark.slow
def test_a_worker_on_a_full_disk_starts_serves_reads_drains_and_continues_by_itself(images: Path) -> None:
    image = make_image(images / "small.img", 24 * MIB)
    with mounted(image, images / "small") as disk, WorkerProcess(disk / "data", "--source-quota", "none") as worker:
        append_until_full(worker.address)
        rest = fill_disk(disk)
        spares = spare_sizes(disk / "data")
        assert spares == [MIB, MIB], "--reserve"
        join = run_source(worker)
        client = SegmentClient(worker.address)
        for number in range(RESTARTS):
            worker.stop() if number % 2 else worker.kill()
            fill_disk(disk)
            worker.start()
            assert spare_sizes(disk / "data") == spares
            code, text = health(worker)
            assert code == 503
            assert "the journal needs 1.0 MiB, and 0 B is free, so free at least 1.0 MiB" in text
            assert json.loads((disk / "data" / "ports.json").read_text())["http"] == worker.http_port
            assert len(client.read("old", 0, 100).data) == 100
        until(lambda: [one["state"] for one in get(worker.http_port, "/status")["sessions"]] == ["Waiting for room"])
        client.delete("old")
        join()
        rest.unlink()
        until(lambda: health(worker)[0] == 200, lambda: health(worker))
        found = stored_messages(worker.address, "numbers")[stream_id_of("s")]
        assert [one.id for one in found] == [*range(1, COUNT + 1)]
        client.close()


def test_a_source_continues_when_another_program_frees_the_disk(images: Path) -> None:
    image = make_image(images / "other.img", 24 * MIB)
    with mounted(image, images / "other") as disk, WorkerProcess(disk / "data", "--source-quota", "none") as worker:
        rest = fill_disk(disk)
        join = run_source(worker)
        until(lambda: health(worker)[0] == 503)
        rest.unlink()
        join()
        until(lambda: health(worker)[0] == 200, lambda: health(worker))
        assert len(stored_messages(worker.address, "numbers")[stream_id_of("s")]) == COUNT


@pytest.mark.slow
def test_a_new_worker_without_room_for_its_journal_reports_what_it_needs(images: Path) -> None:
    image = make_image(images / "new.img", 8 * MIB)
    with mounted(image, images / "new") as disk:
        command = [sys.executable, "-m", "penstock", "worker", "--data", str(disk / "data"), "--http-port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        told = " ".join(done.stderr.split())
        assert "the disk has no room for a new journal: its first file needs 64.0 MiB" in told
        assert "Free space on the disk" in told
        assert "Choose another" not in told
