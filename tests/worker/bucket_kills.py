"""A worker on a bucket under load, killed and started on another, empty machine each time; or its store is killed."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from penstock.bucket.stores import open_bucket
from penstock.client.segments import SegmentClient
from penstock.cluster.places import PLACES
from penstock.cluster.records import ShardRecord, read_record, shard_key, worker_key
from penstock.cluster.secret import SECRET
from penstock.store.bucket_files import BucketFiles
from penstock.testing.memory_files import MemoryFiles
from penstock.testing.seaweedfs import SeaweedFS
from tests.ingest.killed_programs import (
    HELD,
    INSTANCES,
    STREAMS,
    Pipeline,
    Program,
    Stored,
    acked_by,
    held_by,
    running,
    segments_of,
    wait_for_acks,
)
from tests.support.bucket_worker import BucketWorker
from tests.support.http import get
from tests.support.waiting import until

_TRIES = 3
"""Failed requests after which an append that could succeed would have."""


class Load:
    """Programs that send without pause, and a pipeline that completes what one of them sends."""

    def __init__(self, worker: BucketWorker, folder: Path, random: Random) -> None:
        self.worker = worker
        self.programs = [Program(name, worker.connector_port, folder, random.randrange(2**32)) for name in INSTANCES]
        self.stored = Stored(worker.address)
        self._stop_file = folder / "stop"
        self.pipeline = Pipeline(HELD, self.stored)
        self.pipeline.start(worker.http_port)

    def wait_for_acks(self) -> None:
        """Each program has a new one."""
        wait_for_acks(self.programs, acked_by(self.programs), self.pipeline)

    def check(self) -> None:
        """Everything acknowledged until now is stored, and everything stored once and in order."""
        with ExitStack() as stack:
            for program in self.programs:
                stack.enter_context(program.paused())
            acked = acked_by(self.programs)
            self.stored.look()
        self.stored.check_holds(acked)
        self.stored.check_completed(held_by(self.programs), self.pipeline.completed)

    def check_nothing_is_stored(self) -> None:
        """While the store is away: several tries later, the worker considers nothing more as durable."""
        before, tries = durable_bytes(self.worker), failures(self.worker)
        until(lambda: failures(self.worker) >= tries + _TRIES)
        assert durable_bytes(self.worker) == before

    def read_stored(self) -> None:
        """What was stored before the store went away."""
        with SegmentClient(self.worker.address) as segments:
            assert any(segments.read(name, 0, 1000).data for name in segments_of(INSTANCES[0]))

    def finish(self) -> int:
        """The programs end their streams. Returns how many messages there were."""
        self._stop_file.touch()
        assert [program.finish(self.pipeline.step) for program in self.programs] == [0] * len(INSTANCES)
        self.stored.look()
        acked = acked_by(self.programs)
        assert {s: self.stored.last[s] for s in acked} == acked, "the last acknowledgement is of the last message"
        assert len(acked) == len(INSTANCES) * STREAMS
        return sum(acked.values())


@contextmanager
def load(folder: Path, url: str, random: Random) -> Iterator[Load]:
    with ExitStack() as stack:
        worker = stack.enter_context(BucketWorker(folder / "worker", url))
        made = Load(worker, folder, random)
        stack.callback(made.pipeline.close)
        stack.enter_context(running(made.programs))
        yield made


def kill_workers(folder: Path, url: str, kills: int, random: Random, report: Callable[[str], None] = print) -> None:
    """Every acknowledged message is there once, in order. Every third start waits for the lease."""
    with load(folder, url, random) as under:
        for number in range(kills):
            under.wait_for_acks()
            time.sleep(random.uniform(0, 0.5))
            under.worker.kill()
            began = time.monotonic()
            takes_over = number % 3 != 0
            under.worker.start(*(["--take-over"] if takes_over else []))
            under.pipeline.start(under.worker.http_port)
            under.wait_for_acks()
            how = "" if takes_over else ", with the lease"
            report(f"kill {number + 1}: all programs acknowledged again after {time.monotonic() - began:.1f} s{how}")
            under.check()
        report(f"{under.finish():,} messages, each stored once and in order")
        check_bucket(url)


def kill_stores(
    folder: Path, store: SeaweedFS, prefix: str, kills: int, random: Random, report: Callable[[str], None] = print
) -> None:
    """While the store is away, nothing is acknowledged, the status names it, and what is in the cache can be read.
    Afterwards everything goes on by itself.
    """
    with load(folder, store.url(prefix), random) as under:
        for number in range(kills):
            under.wait_for_acks()
            time.sleep(random.uniform(0, 0.5))
            store.kill()
            try:
                until(lambda: blockage(under.worker), lambda: get(under.worker.http_port, "/status"))
                assert "blocked by the object store: " in blockage(under.worker)
                under.read_stored()
                under.check_nothing_is_stored()
            finally:
                store.start()
            under.wait_for_acks()
            until(lambda: not blockage(under.worker))
            under.check()
            report(f"kill {number + 1}: acknowledged again")
        report(f"{under.finish():,} messages, each stored once and in order")
        assert under.worker.is_running
        check_bucket(store.url(prefix))


def durable_bytes(worker: BucketWorker) -> int:
    """Which alone is acknowledged."""
    return int(get(worker.http_port, "/status")["store"]["bucket"]["bytes"])


def failures(worker: BucketWorker) -> int:
    """How many requests to the store have failed."""
    return sum(get(worker.http_port, "/status")["store"]["bucket"]["failures"].values())


def blockage(worker: BucketWorker) -> str:
    """What the status says about the object store; "" if nothing."""
    found = [one["text"] for one in get(worker.http_port, "/status")["blockages"] if one["link"] == "the object store"]
    return found[0] if found else ""


def check_bucket(url: str) -> None:
    """A worker tidies up after its predecessors, and after itself, while nobody sends: in the end, every object has its
    purpose.
    """
    until(lambda: not unneeded_objects(url), lambda: unneeded_objects(url))


def unneeded_objects(url: str) -> set[str]:
    """Objects of the journal and records of workers that nothing needs, and those that are missing."""
    bucket = open_bucket(url)
    files = BucketFiles(bucket, MemoryFiles(), read_only=True)
    log = files._shard.log
    wanted = {log.keys.log(number) for number in (*log.take_overs, *log._deletable)} | (
        files._shard._used_at_start or set()
    )
    found = {each.key for each in bucket.list("")} - {log.keys.head, shard_key(0), SECRET}
    found = {key for key in found if not key.startswith(PLACES)}  # as long as the cluster: small, and never changed
    owner = read_record(bucket, shard_key(0), ShardRecord)
    if owner is not None:
        found.discard(worker_key(owner[0].owner))
    return found ^ wanted
