"""A pipeline moves from machine to machine, which are killed: a new, empty one goes on where the last one stopped.

A machine is a `penstock run` with a checkpoint folder of its own. The worker, whose bucket is a directory, lives on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bucket.checkpoints import read_manifest
from penstock.bucket.objects import Bucket
from penstock.bucket.stores import open_bucket
from penstock.coordinator.settings import CoordinatorSettings
from penstock.spark.run.checkpoint_mirror import MARKER
from penstock.spark.run.checkpoints import LocalCheckpoint
from tests.protocol.stored.events import stored
from tests.spark.crashes.tripwire import Tripwire, Wire
from tests.spark.sending import outputs, send
from tests.spark.stored_data import store_events
from tests.spark.test_own_sink_crashes import Driver as ArchivingDriver
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).parent / "crashes" / "moving.py"
SECONDS_MAX = 300.0
KILL_SECONDS_MAX = 30.0
"""Between the end of a process that is killed and that of all others."""
MESSAGES = [b"%d" % number for number in range(1, 301)]
AT_ONCE = 50
"""A record of the source, which an epoch does not divide: there are twelve epochs."""
SWEPT = CoordinatorSettings(checkpoint_sweep_seconds=0.2)

SNAPSHOTS = (
    "spark.sql.streaming.stateStore.maintenanceInterval=200ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot=1",
)
"""Of the state, as often as possible: restored state then rests on some, and not on all its changes."""

MIRRORED = Wire("moving", "merge", answered=False)
"""The checkpoint is in the bucket, and the epoch is not merged."""
MERGED = Wire("moving", "merge", answered=True)
"""The epoch is merged, and Spark does not know it."""
BEFORE_MIRROR = Wire("moving", "mirrored", answered=True, passes=True)
"""The driver knows that it is the newest generation, and mirrors next."""


class Machine:
    """`folder` is its disk. All that it runs can be killed, or suspended, at a wire."""

    def __init__(self, worker: RunningWorker, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.proxy = Tripwire(lambda: worker.ports["http"])
        self._variables = variables or {}
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)

    @property
    def log(self) -> Path:
        return self.folder / "driver.log"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "moving"

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "run", str(PIPELINE), "--available-now"]
        command += ["--worker", f"127.0.0.1:{self.proxy.port}", "--checkpoint", str(self.folder / "checkpoints")]
        command += [part for setting in SNAPSHOTS for part in ("--conf", setting)]
        environment = {**os.environ, **self._variables}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        return self.process

    def send_signal(self, what: signal.Signals) -> None:
        """To all processes of its session: Spark's Python processes have groups of their own."""
        assert self.process is not None
        for pid in processes_of(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def run_until(self, wire: Wire, what: signal.Signals = signal.SIGKILL) -> None:
        reached = threading.Event()

        def pulled() -> None:
            self.send_signal(what)
            reached.set()

        self.proxy.arm(wire, pulled)
        process = self.start()
        until(lambda: reached.is_set() or process.poll() is not None, self.text, SECONDS_MAX)
        assert reached.wait(KILL_SECONDS_MAX), self.text()  # the process may have ended before all others
        if what is signal.SIGKILL:
            process.wait()

    def run_to_the_end(self) -> None:
        assert self.start().wait(SECONDS_MAX) == 0, self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        if self.process is not None:
            self.send_signal(signal.SIGKILL)
            self.process.wait()
        self.proxy.stop()


def processes_of(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(stat.parent.name))
    return found


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket((tmp_path / "bucket").as_uri())


@contextmanager
def worker_with_messages(data: Path, bucket: Bucket | None) -> Iterator[RunningWorker]:
    with running_worker(data, coordinator=SWEPT, bucket=bucket) as worker:
        address = f"127.0.0.1:{worker.ports['connector']}"
        for end in range(AT_ONCE, len(MESSAGES) + 1, AT_ONCE):
            for stream in ("a", "b"):
                send(address, "letters", stream, MESSAGES[:end], key=b"key of " + stream.encode())
        yield worker


@pytest.fixture
def machines(tmp_path: Path, bucket: Bucket) -> Iterator[tuple[RunningWorker, list[Machine]]]:
    with worker_with_messages(tmp_path / "data", bucket) as worker:
        there = [Machine(worker, tmp_path / name) for name in ("first", "second", "third")]
        yield worker, there
        for machine in there:
            machine.stop()


def results(worker: RunningWorker) -> list[bytes]:
    return sorted(event.payload for event in outputs(worker.address, "moving"))


@pytest.fixture
def undisturbed(tmp_path: Path, spark: SparkSession) -> list[bytes]:
    """The output of a run that nothing happens to, without a bucket."""
    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.runner import Runner
    from tests.spark.crashes.moving import moving

    with worker_with_messages(tmp_path / "undisturbed data", None) as worker:
        settings = RunSettings(
            worker=worker.http, checkpoints=str(tmp_path / "undisturbed"), cores=2, available_now=True
        )
        Runner(spark, [moving], settings).run(SECONDS_MAX)
        assert not (tmp_path / "undisturbed" / "moving" / MARKER).exists()
        return results(worker)


def merged(worker: RunningWorker) -> int:
    return pipeline_of(worker)[0]


def pipeline_of(worker: RunningWorker) -> tuple[int, str]:
    """The last merged epoch, and its manifest."""

    async def look() -> tuple[int, str]:
        pipeline = worker.worker.coordinator()._shared.state.pipelines["moving"]
        return -1 if pipeline.last_epoch is None else pipeline.last_epoch, pipeline.manifest

    return worker.call(look())


def test_another_machine_continues_with_the_mirrored_checkpoint_and_the_same_one_with_its_own(
    machines: tuple[RunningWorker, list[Machine]], bucket: Bucket, undisturbed: list[bytes]
) -> None:
    worker, (first, second, third) = machines
    first.run_until(at_epoch(MIRRORED, 3))
    assert merged(worker) == 2
    inode = first.checkpoint.stat().st_ino
    first.run_until(at_epoch(MIRRORED, 5))
    assert first.checkpoint.stat().st_ino == inode, "nothing was restored"
    second.run_until(at_epoch(MERGED, 7))
    assert merged(worker) == 7
    assert LocalCheckpoint(second.checkpoint).committed() == 6
    third.run_to_the_end()
    assert results(worker) == undisturbed
    assert_only_the_last_checkpoint_is_in(bucket, worker)


@pytest.mark.long
def test_an_empty_machine_continues_exactly_once_wherever_the_last_one_was_killed(
    machines: tuple[RunningWorker, list[Machine]], bucket: Bucket, undisturbed: list[bytes]
) -> None:
    worker, (first, second, third) = machines
    first.run_until(at_epoch(MIRRORED, 3))
    assert merged(worker) == 2
    second.run_until(at_epoch(MERGED, 5))
    assert merged(worker) == 5
    assert LocalCheckpoint(second.checkpoint).committed() == 4
    third.run_until(at_epoch(MIRRORED, 6))
    assert merged(worker) == 5
    assert first_change(third.checkpoint) > 1, "it has the state from a snapshot on"
    first.run_until(at_epoch(MERGED, 7))  # it still has its checkpoint, of epoch 3
    assert (first.folder / "checkpoints" / "moving~reset").exists()
    third.run_to_the_end()
    assert results(worker) == undisturbed
    assert_only_the_last_checkpoint_is_in(bucket, worker)


@pytest.mark.long
def test_a_machine_that_was_asleep_spoils_nothing_with_what_it_mirrors_later(
    machines: tuple[RunningWorker, list[Machine]], bucket: Bucket, undisturbed: list[bytes]
) -> None:
    worker, (zombie, second, third) = machines
    zombie.run_until(BEFORE_MIRROR, signal.SIGSTOP)
    second.run_until(at_epoch(MERGED, 4))
    _, manifest = pipeline_of(worker)
    zombie.send_signal(signal.SIGCONT)
    assert zombie.process is not None
    assert zombie.process.wait(SECONDS_MAX) != 0, "it is fenced"
    assert pipeline_of(worker) == (4, manifest)
    third.run_to_the_end()
    assert results(worker) == undisturbed
    assert_only_the_last_checkpoint_is_in(bucket, worker)


def first_change(checkpoint: Path) -> int:
    """The first version of the state whose changes are there."""
    return min(int(file.stem) for file in checkpoint.glob("state/0/*/[0-9]*.changelog"))


def assert_only_the_last_checkpoint_is_in(bucket: Bucket, worker: RunningWorker) -> None:
    """Once the sweep has been there."""
    _, manifest = pipeline_of(worker)
    needed = {manifest, *read_manifest(bucket, manifest).objects}
    until(lambda: {one.key for one in bucket.list("")} == needed)


def at_epoch(wire: Wire, batch: int) -> Wire:
    """For the epoch of this number; the reply names it too."""
    return wire._replace(tells=(b'"epoch":%d' if wire.answered else b'"batch":%d,') % batch)


class ArchivingMachine(ArchivingDriver):
    """With a disk of its own, and an archive that all machines share."""

    def __init__(self, worker: RunningWorker, folder: Path, archive: Path) -> None:
        super().__init__(worker, folder)
        self._archive = archive
        folder.mkdir()

    @property
    def archive(self) -> Path:
        return self._archive


@pytest.mark.long
def test_an_empty_machine_continues_with_one_of_sparks_own_sinks(tmp_path: Path, bucket: Bucket) -> None:
    rows, bad = list[tuple[int, int]](), list[tuple[int, bytes]]()
    with running_worker(tmp_path / "data", coordinator=SWEPT, bucket=bucket) as worker:
        for epoch in range(8):
            events = [b'{"n": %d}' % (epoch + 1), b"poison %d" % epoch]
            rows.append((10 * epoch, 12 // (epoch + 1)))
            bad.append((10 * epoch + 1, events[1]))
            numbered = enumerate(events, 10 * epoch)
            store_events(worker, "connector/attic/0", [stored(7, at, at, payload=event) for at, event in numbered])
        machines = [ArchivingMachine(worker, tmp_path / name, tmp_path / "archive") for name in "abcd"]
        try:
            first, second, third, fourth = machines
            first.kill_when(lambda: first.committed_files() > 2)
            there = second.committed_files()
            second.kill_when(lambda: second.committed_files() > there + 1)
            third.kill_at(Wire("archiving", "mirrored", answered=True, passes=True))
            fourth.run_to_the_end()
            assert fourth.archived() == rows
            left = [(event.event_id, event.payload) for event in outputs(worker.address, "archiving", "err")]
            assert sorted(left) == bad
        finally:
            for machine in machines:
                machine.kill()
                machine.proxy.stop()
