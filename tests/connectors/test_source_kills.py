"""The worker is killed while sources send that need no server: each event is stored once, and none is left out."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import IO

import pytest

from penstock.client.coordinator.client import ApplicationClient
from penstock.protocol.api.deployment import ConnectorSpec, InterceptorSpec
from penstock.protocol.stored import StoredEvent
from tests.application.deployments import connector, deployed, link, pipeline
from tests.support.stored_events import stored_events
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.process

KILLS = 3
SEED = 5


@contextmanager
def reading(data: Path, *sources: ConnectorSpec) -> Iterator[WorkerProcess]:
    """A worker with these sources, whose events stay stored: nothing completes them."""
    with WorkerProcess(data) as worker:
        links = [link(f"connector/{source.name}/out", "pipeline/p/in") for source in sources]
        with ApplicationClient(f"127.0.0.1:{worker.http_port}") as client:
            client.apply(deployed(*sources, pipeline("p"), *links), "app.yaml")
        yield worker


def events_of(worker: WorkerProcess, name: str) -> list[StoredEvent]:
    return [event for events in stored_events(worker.address, name).values() for event in events]


def until_more(worker: WorkerProcess, *names: str) -> None:
    """Each of them has stored another event."""
    for name in names:
        before = len(events_of(worker, name))
        until(lambda name=name, before=before: len(events_of(worker, name)) > before)  # type: ignore[misc]


def test_each_number_is_stored_once_and_in_order_although_the_worker_is_killed(tmp_path: Path) -> None:
    sources = (
        connector("clock", "cron", codec="json", config={"expression": "* * * * * *", "missed": "catch_up"}),
        connector("load", "bench", codec="string", config={"size": 10, "rate": 2000, "streams": 2}),
        connector("ticks", "metronome", codec="json", config={"interval": "20ms"}),
    )
    names = [source.name for source in sources]
    with reading(tmp_path / "data", *sources) as worker:
        for _ in range(KILLS):
            until_more(worker, *names)
            worker.kill()
            worker.start()
        until_more(worker, *names)
        times = [json.loads(event.payload)["at_us"] // 1_000_000 for event in events_of(worker, "clock")]
        assert times == [*range(times[0], times[-1] + 1)], "with those at which the worker was down"
        numbers = [[event.event_id for event in events] for events in stored_events(worker.address, "load").values()]
        assert len(numbers) == 2
        assert all(found == [*range(1, len(found) + 1)] for found in numbers)
        ticks = [json.loads(event.payload)["tick"] for event in events_of(worker, "ticks")]
        assert all(earlier < later for earlier, later in pairwise(ticks)), "those that were missed are left out"


class RotatedLog(threading.Thread):
    """Appends lines to a file, one at a time, and renames it and its predecessors as logrotate does."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.lines: list[bytes] = []
        self.ends = threading.Event()
        self._rotations = 0

    def run(self) -> None:
        random = Random(SEED)
        while not self.ends.is_set():
            with self.path.open("ab", buffering=0) as file:
                for _ in range(random.randrange(20, 200)):
                    self._write(file)
                self._rotate()
                self._write(file)  # the program has not noticed yet
            time.sleep(random.uniform(0, 0.05))

    def _write(self, file: IO[bytes]) -> None:
        line = b"%06d of rotation %d" % (len(self.lines), self._rotations)
        file.write(line + b"\n")
        self.lines.append(line)
        time.sleep(0.0005)

    def _rotate(self) -> None:
        for number in range(self._rotations, 0, -1):
            self.path.with_name(f"{self.path.name}.{number}").rename(f"{self.path}.{number + 1}")
        self.path.rename(f"{self.path}.1")
        self._rotations += 1


def test_each_line_of_a_log_is_stored_once_although_it_is_rotated_and_the_worker_is_killed(tmp_path: Path) -> None:
    log = RotatedLog(tmp_path / "app.log")
    lines = connector(
        "lines",
        "file",
        config={"mode": "tail", "path": f"{log.path}*", "poll": "20ms", "linger": "100ms"},
        codec="binary",
        interceptors_in=(InterceptorSpec(type="split"),),
    )
    random = Random(SEED)
    with reading(tmp_path / "data", lines) as worker:
        log.start()
        try:
            for _ in range(KILLS):
                until_more(worker, "lines")
                time.sleep(random.uniform(0, 0.3))
                worker.kill()
                time.sleep(random.uniform(0, 0.2))
                worker.start()
        finally:
            log.ends.set()
            log.join()
        until(lambda: len(events_of(worker, "lines")) >= len(log.lines), lambda: len(events_of(worker, "lines")))
        found = stored_events(worker.address, "lines").values()
        streams = [[event.payload for event in events] for events in found]
    assert sorted(line for stream in streams for line in stream) == log.lines
    assert all(stream == sorted(stream) for stream in streams)
