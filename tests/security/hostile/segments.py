"""Very many segments: no snapshot of theirs, and no garbage collection, stops the worker's event loop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.access.file import create_private_directory
from penstock.client.segments import SegmentClient
from penstock.store.file_journal import FileJournal
from penstock.store.files import RealFiles
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.worker.loop_watch import STALL_SECONDS
from tests.security.hostile.target import Process
from tests.support import http

SEGMENTS = 300_000
NEW_SEGMENTS = 20_000
"""Created while the worker runs: these are not in what it has frozen at its start."""
SNAPSHOTS = 3
CHAPTER_MIB = 8
_COMMIT_EVERY = 1000
_EVENT = b"x" * 1000
_EVENTS_PER_ROUND = 2000


@dataclass(frozen=True, slots=True)
class Stalls:
    segments: int
    snapshots: int
    stalls: int
    """Of more than STALL_SECONDS, as the worker itself counts them."""
    longest_seconds: float
    health_requests: int
    log: str

    def __str__(self) -> str:
        return (
            f"{self.segments:,} segments, {self.snapshots} snapshots, {self.health_requests:,} requests of /health: "
            f"{self.stalls} stalls of the event loop over {STALL_SECONDS * 1000:.0f} ms, the longest "
            f"{self.longest_seconds * 1000:.0f} ms"
        )


def create_segments(data: Path, count: int) -> None:
    """As a worker would have, which does not run yet."""
    create_private_directory(data)
    settings = StoreSettings(chapter_bytes=CHAPTER_MIB << 20, reserve_bytes=CHAPTER_MIB << 20)
    journal = FileJournal(RealFiles(data / "journal"), settings)
    store = SegmentStore(journal, settings)
    for number in range(count):
        store.create(name := f"many/{number // 1000}/{number}")
        store.append(name, [_EVENT[:40]])
        if number % _COMMIT_EVERY == 0:
            journal.commit()
    journal.commit()
    journal.close()


class _HealthProbe(threading.Thread):
    """Asks for /health again and again."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.requests = 0
        self._port = port
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.01):
            http.ask(self._port, "GET", "/health")
            self.requests += 1

    def stop(self) -> None:
        self._done.set()
        self.join()


@contextmanager
def _probed(port: int) -> Iterator[_HealthProbe]:
    probe = _HealthProbe(port)
    probe.start()
    try:
        yield probe
    finally:
        probe.stop()


def measure_stalls(directory: Path, segments: int = SEGMENTS, new_segments: int = NEW_SEGMENTS) -> Stalls:
    """A worker with so many segments makes some snapshots while a client creates more and appends."""
    size = f"{CHAPTER_MIB}MiB"
    worker = Process(directory, "--chapter-size", size, "--reserve", size)
    create_segments(worker.data, segments)
    with worker, SegmentClient(worker.address) as client, _probed(worker.http_port) as probe:
        first, created = _chapters(worker), 0
        while _chapters(worker) - first < SNAPSHOTS or created < new_segments:
            for number in range(created, min(created + 500, new_segments)):
                client.create(f"new/{number}")
            created = min(created + 500, new_segments)
            with client.appender("events", create=True) as appender:
                appender.append_many(_EVENT for _ in range(_EVENTS_PER_ROUND))
        status = http.get(worker.http_port, "/status")
        loop, made = status["loop"], _chapters(worker) - first
        log = worker.log.read_text(errors="replace")
        return Stalls(
            status["store"]["segments"], made, loop["stalls"], loop["longest_stall_seconds"], probe.requests, log
        )


def _chapters(worker: Process) -> int:
    """Ever begun: with each a snapshot is written."""
    store = http.get(worker.http_port, "/status")["store"]
    chapters: int = store["chapters"] + store["chapters_dropped"]
    return chapters
