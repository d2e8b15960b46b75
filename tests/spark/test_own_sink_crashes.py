"""A driver with one of Spark's own sinks is killed with SIGKILL between registration, Spark's commit and the listener.

Spark commits such an epoch by itself: the sink's files first, then its own log, then it calls the listener. Side
outputs are merged when the worker knows of the commit, by whichever driver finds out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.protocol.stored.events import stored
from tests.spark.crashes.tripwire import Tripwire, Wire
from tests.spark.sending import outputs
from tests.spark.stored_data import store_events
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).parent / "crashes" / "archiving.py"
EPOCHS = 5
SECONDS_MAX = 300.0
REGISTERED = Wire("archiving", "side-register", answered=True)
COMMITTED = Wire("archiving", "complete", answered=False)


class Driver:
    """`penstock run` on the pipeline, with a proxy before the worker."""

    def __init__(self, worker: RunningWorker, folder: Path) -> None:
        self.folder = folder
        self.proxy = Tripwire(lambda: worker.ports["http"])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "driver.log"

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "run", str(PIPELINE), "--available-now"]
        command += ["--worker", f"127.0.0.1:{self.proxy.port}", "--checkpoint", str(self.folder / "checkpoint")]
        environment = os.environ | {"ARCHIVE": str(self.archive)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        return self._process

    def kill(self) -> None:
        """With its JVM and its Python processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_at(self, wire: Wire) -> None:
        killed = threading.Event()

        def kill() -> None:
            self.kill()
            killed.set()

        self.proxy.arm(wire, kill)
        self.start()
        assert killed.wait(SECONDS_MAX), self.log.read_text()[-4000:]

    def kill_when(self, sign: Callable[[], bool]) -> None:
        process = self.start()
        until(lambda: sign() or process.poll() is not None, lambda: self.log.read_text()[-4000:], SECONDS_MAX)
        self.kill()

    def run_to_the_end(self) -> None:
        assert self.start().wait(SECONDS_MAX) == 0, self.log.read_text()[-4000:]

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    def committed_files(self) -> int:
        """The epochs whose files are part of the archive."""
        return len([*self.archive.glob("_spark_metadata/[0-9]*")])

    def archived(self) -> list[tuple[int, int]]:
        """Message and share of each row, as Spark reads the archive: files that its log does not name do not count."""
        logs = [one for one in self.archive.glob("_spark_metadata/*") if one.name.isdigit()]
        entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
        tables = [pq.read_table(one["path"].removeprefix("file://")) for one in entries]
        return sorted((row["message_id"], row["share"]) for table in tables for row in table.to_pylist())


@pytest.fixture
def driver(worker: RunningWorker, tmp_path: Path) -> Iterator[Driver]:
    running = Driver(worker, tmp_path)
    yield running
    running.kill()
    running.proxy.stop()


def test_each_event_is_in_the_archive_or_in_err_once_wherever_the_driver_is_killed(
    worker: RunningWorker, driver: Driver
) -> None:
    rows, bad = list[tuple[int, int]](), list[tuple[int, bytes]]()
    for epoch in range(EPOCHS):
        number = 10 * epoch
        payloads = [b'{"n": %d}' % (epoch + 1), b"poison %d" % epoch, b'{"n": 0}']
        rows.append((number, 12 // (epoch + 1)))
        bad += [(number + 1, payloads[1]), (number + 2, payloads[2])]
        store_events(
            worker,
            "connector/attic/0",
            [stored(7, number + place, number, payload=payload) for place, payload in enumerate(payloads)],
        )
    driver.kill_at(REGISTERED)
    driver.kill_at(COMMITTED)
    driver.run_to_the_end()
    assert driver.archived() == rows
    left = [(event.event_id, event.payload) for event in outputs(worker.address, "archiving", "err")]
    assert sorted(left) == bad
