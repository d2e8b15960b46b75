"""How a cluster grows: the requests that it makes when nothing happens, the size of what everybody reads, and the time
to reassign the shards of workers that are lost.

Nothing here is estimated that can be counted. Hosts, owners and standbys are the real ones (`worker.membership`,
`cluster.lease`): each makes one round on a bucket in memory that has as many records as the cluster would have, and its
requests and bytes are counted. Records are encoded, the registry of streams is filled and measured. A reassignment is
played through in simulated time, with the real `LiveHosts` and `assigned`. What is given are the constants below, and
how often each shard looks at the end of its log, and at the settings of its sources.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from penstock.bucket.objects import ListedObject, StoredObject
from penstock.cluster.assignment import Host, LiveHosts, assign, assigned, by_host, by_shard, first_assignment
from penstock.cluster.lease import Lease, ShardCandidate, _Acquisition, _Taken, end_record
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.cluster.records import (
    ASSIGNMENT,
    READERS,
    AssignmentRecord,
    ShardRecord,
    WorkerRecord,
    encode,
    shard_key,
    worker_key,
)
from penstock.core.types import Buffer
from penstock.ingest.partitions import LOOK_SECONDS
from penstock.ingest.stream_claims import Begin, Claim, ClaimId, Relinquish, StreamClaims
from penstock.store.bucket_files import OWNER_SECONDS
from penstock.testing.faulty_bucket import Objects
from penstock.worker.membership import DEAD_MAX, Membership

SHARDS_PER_WORKER = 10
REQUEST_SECONDS = 0.03
"""Of one small request to S3 in the same region."""
START_SECONDS = 1.5
"""From the start of a shard process to its first look at the shard's owner."""
TAKE_OVER_SECONDS = 2.5
"""From the end of the lease to the first acknowledgement: `script/bench bucket`."""
DECLARED_SOURCES = 1
"""Of each shard: sources that an application in another shard declares, and of which the shard has a partition."""
LIST_PAGE = 1000
"""Keys in the reply to one LIST."""
WRITES_MAX, READS_MAX = 3500, 5500
"""Requests per second and prefix that S3 promises: PUT, POST and DELETE; GET and HEAD. LIST counts with GET."""

_AT_ONCE = "at once"
"""Those of all requests of which READERS are made at a time."""

ADDRESSES = {"connector": "10.123.45.67:7100", "segment": "10.123.45.67:7101", "http": "10.123.45.67:7102"}


def name_of(worker: int) -> str:
    """As long as the id of a worker usually is."""
    return f"ip-10-123-{worker // 250}-{worker % 250}.eu-central-1.compute.internal-{worker:012x}"


def process_of(shard: int) -> str:
    return f"{name_of(shard // SHARDS_PER_WORKER)}-{shard}"


class CountedObjects:
    """A bucket in memory that counts. One LIST for each page, as stores count it."""

    url = "memory://growth"

    def __init__(self) -> None:
        self.objects = Objects()
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._caller = threading.current_thread()

    def get(self, key: str) -> StoredObject:
        with self._lock:
            found = self.objects.get(key)
            self.requests["GET"] += 1
            self.bytes["GET"] += len(found.data)
            if threading.current_thread() is not self._caller:
                self.requests[_AT_ONCE] += 1
            return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key).data[start : start + length]

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        self.requests["PUT"] += 1
        return self.objects.create(key, b"".join(buffers))

    def replace(self, key: str, data: bytes, version: str) -> str:
        self.requests["PUT"] += 1
        self.bytes["PUT"] += len(data)
        return self.objects.replace(key, data, version)

    def delete(self, keys: Sequence[str]) -> None:
        self.requests["DELETE"] += 1
        self.objects.delete(keys)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        found = [key for key in self.objects.objects if key.startswith(prefix)]
        self.requests["LIST"] += max(-(-len(found) // LIST_PAGE), 1)
        return iter([ListedObject(key, 0) for key in found])

    @contextmanager
    def counting(self) -> Iterator[Round]:
        self.requests.clear()
        self.bytes.clear()
        made = Round()
        yield made
        made.requests, made.bytes = Counter(self.requests), Counter(self.bytes)


@dataclass
class Round:
    """What one process has asked for, in one round of two seconds."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """How long that takes: one request after the other, unless several are made at once."""
        at_once = self.requests[_AT_ONCE]
        return (self.requests.total() - 2 * at_once + at_once / READERS) * REQUEST_SECONDS


@dataclass(frozen=True)
class Growth:
    """One size of the cluster."""

    workers: int
    shards: int
    rounds: dict[str, Round]
    """By role: leader, host, owner."""
    assignment_bytes: int
    map_bytes: int
    """All records that `GET /cluster` is made of."""
    take_over: Round
    """Of the lease of one shard, from the first look to the first renewal."""
    reassigned: dict[int, float]
    """By number of lost workers: seconds until their last shard is served again. 0: only the leader."""

    def per_second(self, kind: str) -> float:
        """Requests of the whole cluster. A round that takes longer than two seconds is made less often."""
        counts = {"leader": 1, "host": self.workers - 1, "owner": self.shards}
        in_rounds = sum(
            counts[role] * each.requests[kind] / max(LEASE_TIMING.renew, each.seconds)
            for role, each in self.rounds.items()
        )
        return in_rounds + self.looks_per_second if kind == "GET" else in_rounds

    @property
    def looks_per_second(self) -> float:
        """At the ends of the logs of shards that nothing is written to, and at the settings of a source."""
        return self.shards * (1 / OWNER_SECONDS + DECLARED_SOURCES / LOOK_SECONDS)

    @property
    def assignment_bytes_per_change(self) -> int:
        """Every host reads it once after each change."""
        return self.assignment_bytes * self.workers


def grow(workers: int, losses: Sequence[int]) -> Growth:
    shards = workers * SHARDS_PER_WORKER
    bucket, record = _filled(workers)
    rounds = {
        "leader": _leader_round(bucket),
        "host": _host_round(bucket, workers),
        "owner": _owner_round(bucket, shards),
    }
    values = (len(stored.data) for stored in bucket.objects.objects.values())
    return Growth(
        workers,
        shards,
        rounds,
        len(encode(record)),
        sum(values),
        _take_over(bucket, shards),
        {lost: reassign(workers, lost, rounds["leader"].seconds) for lost in (0, *losses) if lost < workers},
    )


def _filled(workers: int) -> tuple[CountedObjects, AssignmentRecord]:
    """A bucket with all records."""
    bucket = CountedObjects()
    hosts = [Host(name_of(k), SHARDS_PER_WORKER) for k in range(workers)]
    record = assigned(first_assignment(hosts[0].name), hosts[0].name, hosts)
    objects = bucket.objects.objects
    objects[ASSIGNMENT] = StoredObject(encode(record), "1")
    for host in hosts:
        one = WorkerRecord(
            worker=host.name, revision=10_000, addresses=ADDRESSES, shards=(), wants=host.wants, assignment=1
        )
        objects[worker_key(host.name)] = StoredObject(encode(one), "1")
    for shard, host_name in by_shard(record).items():
        process = process_of(shard)
        one = WorkerRecord(worker=process, revision=10_000, addresses=ADDRESSES, shards=(shard,), host=host_name)
        objects[worker_key(process)] = StoredObject(encode(one), "1")
        objects[shard_key(shard)] = StoredObject(encode(ShardRecord(shard=shard, owner=process, term=3)), "1")
    return bucket, record


def _member(bucket: CountedObjects, worker: int) -> Membership:
    record = WorkerRecord(worker=name_of(worker), revision=20_000, addresses=ADDRESSES, wants=SHARDS_PER_WORKER)
    member = Membership(bucket, record, clock=lambda: 0.0)
    member.round()  # it has to find its own record and the assignment
    member.round()
    return member


def _leader_round(bucket: CountedObjects) -> Round:
    leader = _member(bucket, 0)
    with bucket.counting() as made:
        leader.round()
    return made


def _host_round(bucket: CountedObjects, workers: int) -> Round:
    host = _member(bucket, workers - 1)
    with bucket.counting() as made:
        host.round()
    return made


def _lease(bucket: CountedObjects, shard: int) -> Lease:
    process = process_of(shard)
    candidate = ShardCandidate(bucket, process, ADDRESSES, shard, clock=lambda: 0.0)
    version = bucket.objects.get(worker_key(process)).version
    taken = _Taken(ShardRecord(shard=shard, owner=process, term=3), version, 10_000, 0.0, None)
    return Lease(candidate, taken, lambda _: None)


def _owner_round(bucket: CountedObjects, shards: int) -> Round:
    lease = _lease(bucket, shards - 1)
    with bucket.counting() as made:
        lease._renew()  # noqa: SLF001  what its thread does every two seconds
    return made


def _take_over(bucket: CountedObjects, shards: int) -> Round:
    """Of a dead owner, into whose record the leader has written that it has ended."""
    shard, new = shards - 1, name_of(10**6)
    end_record(bucket, process_of(shard))
    candidate = ShardCandidate(bucket, new, ADDRESSES, shard, clock=lambda: 0.0, host=name_of(0))
    with bucket.counting() as made:
        taken = _Acquisition(candidate, threading.Event(), lambda _: None).run(force=False)
        assert taken is not None
        lease = Lease(candidate, taken, lambda _: None)
        lease._renew()  # noqa: SLF001  what its thread does every two seconds
        lease._dead.remove(0.0)  # noqa: SLF001
    return made


def reassign(workers: int, lost: int, round_seconds: float, seed: int = 1) -> float:
    """Seconds from the loss of so many workers to the last of their shards that is served. The leader is not one of
    them; with 0, it is the only one.
    """
    random = Random(seed)
    names = [name_of(k) for k in range(workers)]
    dead = set(names[1 : 1 + lost] or names[:1])
    current = assign(workers * SHARDS_PER_WORKER, [Host(name, SHARDS_PER_WORKER) for name in names], {})
    begins = -20.0 - 2 * round_seconds if lost else LEASE_TIMING.expired  # a new leader begins when it takes over
    found_at, hosts = _detected(names, dead, round_seconds, begins + random.uniform(0, LEASE_TIMING.renew), random)
    wanted = assign(len(current), hosts, current)
    moved = by_host({shard: wanted[shard] for shard in current if current[shard] in dead})
    # Each host reads the leader's record every two seconds, then the assignment, and starts a process for each shard.
    # These need not wait for a lease if the leader has written by then that the dead owners have ended.
    seen = max(found_at + random.uniform(0, LEASE_TIMING.renew) + 2 * REQUEST_SECONDS for _ in moved)
    further_rounds = (len(dead) * (1 + SHARDS_PER_WORKER) - 1) // DEAD_MAX
    waits = min(LEASE_TIMING.expired, further_rounds * (LEASE_TIMING.renew + round_seconds))
    return seen + START_SECONDS + waits + TAKE_OVER_SECONDS


def _detected(
    names: Sequence[str], dead: set[str], round_seconds: float, now: float, random: Random
) -> tuple[float, list[Host]]:
    """When the leader, which looks from `now` on, has written an assignment without the dead, and which hosts are left.
    They are lost at 0.
    """
    live = LiveHosts(LEASE_TIMING)
    phases = {name: random.uniform(-LEASE_TIMING.renew, 0) for name in names}

    def records(now: float) -> list[WorkerRecord]:
        """As they are at this time: the dead have renewed before 0 for the last time."""
        return [
            WorkerRecord(
                worker=name,
                revision=int((min(now, 0.0) if name in dead else now) - phases[name] + 1000) // 2,
                addresses={},
                wants=SHARDS_PER_WORKER,
            )
            for name in names
        ]

    while True:
        # The records are read one after the other: on average in the middle of the round.
        found = live.look(records(now + round_seconds / 2), now, now + round_seconds)
        now += round_seconds
        if now > 0 and not dead & {host.name for host in found}:
            return now + REQUEST_SECONDS, [*found]
        now += LEASE_TIMING.renew


# The registry of streams.


PARTITIONS = 1000


@dataclass(frozen=True)
class Registry:
    """For each stream."""

    bytes: float
    restored_s: float
    """When the shard of the registry has a new owner, which answers nothing before."""
    looked_at_s: float
    """When the shard of a partition has one, which asks what its predecessors had."""


def measure_registry(streams: int) -> Registry:
    """The real structure, with claims of a thousand partitions."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    registry = _registry(streams)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows, restored = [*registry.snapshot()], StreamClaims()
    began = time.process_time()
    for row in rows:
        restored.restore(row)
    restored_s = time.process_time() - began
    restored.apply(Begin(0, 4))
    began = time.process_time()
    while held := restored.held(0, 4):
        for stream_id, claim in held.items():
            restored.apply(Relinquish(stream_id, claim, 4, 0, is_complete=False))
    return Registry((after - before) / streams, restored_s / streams, (time.process_time() - began) / streams)


def _registry(streams: int) -> StreamClaims:
    registry, random, numbers = StreamClaims(), Random(1), Counter[int]()
    for _ in range(streams):
        partition = random.randrange(PARTITIONS)
        numbers[partition] += 1
        registry.apply(Claim(random.getrandbits(64), ClaimId(partition, 3, 1_000_000 + numbers[partition])))
    return registry
