"""Workers whose journal is in an object store: their throughput beside a disk's, and how long a take-over takes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.bucket_journal import fill, fill_log
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement, Trials
from bench.contenders.ingest import Ingest, IngestTarget
from bench.contenders.penstock import SegmentTarget
from bench.flows import Stage, bench_session, open_stage
from bench.harness import BenchmarkFailed, interleave, workspace
from bench.load import RECEIVE_BYTES_MAX, Generators
from bench.load import Worker as Program
from bench.pipeline_flow import Counted, Events, Sent, Trial
from bench.processes import Server
from penstock.bucket.stores import open_bucket
from penstock.cli.connect import get_json
from penstock.cluster.places import Kind, Thing, choose
from penstock.cluster.secret import replace_owner
from penstock.core.errors import PenstockError
from penstock.testing.seaweedfs import SeaweedFS

DISK, BUCKET = "disk", "bucket"

CONNECTIONS = 8
STREAMS = 10
KEYS = 1_000
PER_MS = 10
"""Events in a millisecond of event time: as in `script/bench pipeline`."""

WARM_EVENTS = 50_000

SERVED_SECONDS_MAX = 120.0
"""Until all shards of a worker are served, on a busy machine."""

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


def served_ports(server: Server, shards: int, port: str = "connector") -> tuple[int, ...]:
    """Those of a worker's shards, when all of them are served."""
    deadline = time.monotonic() + SERVED_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(PenstockError):
            found = get_json(f"127.0.0.1:{server.ports['http']}", "/cluster")["shards"]
            ports = tuple(int(one["addresses"][port].rpartition(":")[2]) for one in found if one["addresses"])
            if len(ports) == shards and all(map(_accepts, ports)):
                return ports
        time.sleep(0.1)
    raise BenchmarkFailed(f"not all of {shards} shards are served after {SERVED_SECONDS_MAX:.0f} s")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def sources_of(shards: int) -> list[str]:
    """The name of one that is placed in each shard."""
    names = [f"load-{number}" for number in range(100 * shards)]
    return [next(name for name in names if shard_of(name, shards) == shard) for shard in range(shards)]


def shard_of(source: str, shards: int) -> int:
    """Where it will be placed."""
    return choose(Thing(Kind.SOURCE, source), range(shards))


class OnBucketWithShards(OnBucket):
    """As it is started without `--shard`: a process for each shard, and one for the cluster."""

    def __init__(self, store: SeaweedFS, url: str, shards: int) -> None:
        super().__init__(store, url)
        self._shards = shards

    def start(self, directory: Path) -> Server:
        self.options = ("--shards", str(self._shards), "--store", self._url)  # type: ignore[misc]
        return Ingest.start(self, directory)

    def first_ack(self, server: Server) -> None:
        """In each shard."""
        for port, source in zip(served_ports(server, self._shards), sources_of(self._shards), strict=True):
            link = IngestTarget(port, source, 1, 1).connect(0)
            with link.sock:
                for part in link.batch():
                    link.sock.sendall(part)
                while not link.acked(link.sock.recv(RECEIVE_BYTES_MAX)):
                    pass


# From the kill of a worker to the first acknowledgement of the next one, on a machine that has nothing.


def take_overs(
    store: SeaweedFS, base: Path, gigabytes: Sequence[float], rounds: int, note: Note, shards: int = 0
) -> dict[str, list[float]]:
    """Seconds, by the size of the journal. `shards`: of the worker, which have as much together; 0 for a process that
    serves one.
    """
    found = {}
    for size in gigabytes:
        label, url = f"{size:g} GB", store.url(uuid4().hex)
        note(f"writing {label}")
        worker = OnBucketWithShards(store, url, shards) if shards else OnBucket(store, url)
        with workspace(base) as folder:
            for shard in range(max(shards, 1)):
                share = round(size * 1_000_000_000) // max(shards, 1)
                fill(open_bucket(url), folder / f"cache-{shard}", share, shard)
            found[label] = _take_overs(worker, folder, rounds, label, note)
    return found


def starts(store: SeaweedFS, base: Path, groups: int, rounds: int, note: Note) -> list[float]:
    """Seconds from the start of a process to its first acknowledgement, with a log that nobody has folded, and no lease
    to wait for.
    """
    seconds: list[float] = []
    for number in range(1, rounds + 1):
        note(f"start {number}: a log of {groups} groups")
        url = store.url(uuid4().hex)
        with workspace(base) as folder:
            fill_log(open_bucket(url), folder / "cache", groups)
            worker, began = OnBucket(store, url), time.monotonic()
            with _start(worker, folder / "worker") as server:
                worker.first_ack(server)
                seconds.append(time.monotonic() - began)
    return seconds


def _take_overs(worker: OnBucket, folder: Path, rounds: int, label: str, note: Note) -> list[float]:
    """Each worker takes over from the one before it."""
    seconds: list[float] = []
    former = _start(worker, folder / "0")
    try:
        worker.first_ack(former)
        for number in range(1, rounds + 1):
            note(f"take-over {number}: {label}")
            for pid in former.pids():
                with suppress(ProcessLookupError):  # it has ended with the one that started it
                    os.kill(pid, signal.SIGKILL)
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
