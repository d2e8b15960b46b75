"""Workers whose journal is in an object store: their throughput beside a disk's, and how long a take-over takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.bucket_journal import fill
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement, Trials
from bench.contenders.ingest import Ingest
from bench.contenders.penstock import SegmentTarget
from bench.flows import Stage, bench_session, open_stage
from bench.harness import BenchmarkFailed, interleave, workspace
from bench.load import RECEIVE_BYTES_MAX, Generators
from bench.load import Worker as Program
from bench.pipeline_flow import Counted, Events, Sent, Trial
from bench.processes import Server
from penstock.bucket.stores import open_bucket
from penstock.cluster.secret import replace_owner
from penstock.testing.seaweedfs import SeaweedFS

DISK, BUCKET = "disk", "bucket"

CONNECTIONS = 8
STREAMS = 10
KEYS = 1_000
PER_MS = 10
"""Events in a millisecond of event time: as in `script/bench pipeline`."""

WARM_EVENTS = 50_000

Note = Callable[[str], None]


class OnDisk(Ingest):
    name = DISK


class OnBucket(Ingest):
    """Each worker has a prefix of its own, unless one is given."""

    name = BUCKET
    start_seconds_max = 120.0
    """It waits for the lease of a worker that was killed. How long that takes on a busy machine is measured."""

    def __init__(self, store: SeaweedFS, url: str = "") -> None:
        super().__init__(CONNECTIONS, STREAMS)
        self._store = store
        self._url = url

    def start(self, directory: Path) -> Server:
        self.options = ("--shard", "0", "--store", self._url or self._store.url(uuid4().hex))  # type: ignore[misc]
        return super().start(directory)

    def first_ack(self, server: Server) -> None:
        """Append an event, and wait until it is durable."""
        link = SegmentTarget(server.ports["segment"], 1, f"bench/{uuid4().hex}", self._token).connect(0)
        with link.sock:
            for part in link.batch():
                link.sock.sendall(part)
            while not link.acked(link.sock.recv(RECEIVE_BYTES_MAX)):
                pass


# From the kill of a worker to the first acknowledgement of the next one, on a machine that has nothing.


def take_overs(
    store: SeaweedFS, base: Path, gigabytes: Sequence[float], rounds: int, note: Note
) -> dict[str, list[float]]:
    """Seconds, by the size of the journal."""
    found = {}
    for size in gigabytes:
        label, url = f"{size:g} GB", store.url(uuid4().hex)
        note(f"writing {label}")
        with workspace(base) as folder:
            fill(open_bucket(url), folder / "cache", round(size * 1_000_000_000))
            found[label] = _take_overs(OnBucket(store, url), folder, rounds, label, note)
    return found


def _take_overs(worker: OnBucket, folder: Path, rounds: int, label: str, note: Note) -> list[float]:
    """Each worker takes over from the one before it."""
    seconds: list[float] = []
    former = _start(worker, folder / "0")
    try:
        worker.first_ack(former)
        for number in range(1, rounds + 1):
            note(f"take-over {number}: {label}")
            former.process.kill()
            killed = time.monotonic()
            former.process.wait()
            former = _start(worker, folder / str(number))
            worker.first_ack(former)
            seconds.append(time.monotonic() - killed)
    finally:
        former.stop()
    return seconds


def _start(worker: OnBucket, directory: Path) -> Server:
    directory.mkdir()
    return worker.start(directory)


# Throughput, beside a worker on a disk.


def ingest(store: SeaweedFS, base: Path, effort: LoadEffort, note: Note) -> Mapping[str, list[Measurement]]:
    contenders = [OnDisk(CONNECTIONS, STREAMS), OnBucket(store)]
    with Generators() as generators:
        trials = Trials(CONNECTIONS, effort, base, generators)
        return interleave(contenders, effort.rounds, trials.measure, lambda text: note(f"ingest, {text}"))


@dataclass(frozen=True, slots=True)
class Counting:
    name: str
    stage: Stage
    program: Program[Sent]
    events: int

    def count(self) -> Counted:
        events = Events(self.events + WARM_EVENTS, KEYS, PER_MS)
        return Trial(self.stage, self.program, events, WARM_EVENTS, self.stage.unique("count")).run()


def pipeline(
    store: SeaweedFS, directory: Path | None, events: int, rounds: int, note: Note
) -> Mapping[str, list[Counted]]:
    """One session of Spark for both workers; each runs once before it counts."""
    with bench_session(directory) as (spark, base), ExitStack() as stack:
        program: Program[Sent] = Program()
        stack.callback(program.stop)
        disk = stack.enter_context(open_stage(spark, base))
        (base / BUCKET).mkdir()
        url = store.url(uuid4().hex)
        replace_owner(
            open_bucket(url), (base / "data" / "token").read_text().strip()
        )  # Spark's processes have this one
        bucket = stack.enter_context(open_stage(spark, base / BUCKET, OnBucket(store, url)))
        contenders = [Counting(DISK, disk, program, events), Counting(BUCKET, bucket, program, events)]
        found = interleave(contenders, rounds + 1, lambda one: one.count(), lambda text: note(f"pipeline, {text}"))
    if not all(found.values()):
        raise BenchmarkFailed("nothing was counted")
    return {name: rounds[1:] for name, rounds in found.items()}
