"""The cluster as its members see it: the map for people and programs, and where to move a shard."""

import time
from collections.abc import Callable, Iterable
from threading import Lock

from penstock.bucket.objects import Bucket
from penstock.cluster.assignment import by_shard
from penstock.cluster.lease_state import HANDOVER_SECONDS
from penstock.cluster.records import (
    ASSIGNMENT,
    SHARDS,
    WORKERS,
    AssignmentRecord,
    Record,
    ShardRecord,
    WorkerRecord,
    read_record,
    read_records,
    worker_key,
)
from penstock.core.address import Address, is_loopback
from penstock.core.errors import RequestError
from penstock.ingest.sessions.migration import READY_SECONDS_MAX
from penstock.protocol.api.cluster import ClusterStatus, Member, Place
from penstock.worker.directory import CONNECTOR

_FRESH_SECONDS = 0.5
"""For so long a reply is used again: everybody who may read may ask, and the store charges for each request."""


class Cluster:
    """Reads the records of the cluster, for a worker that has this shard or waits for it. May be used by several
    threads.
    """

    def __init__(
        self, bucket: Bucket, worker: str, shard: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bucket = bucket
        self._worker = worker
        self._shard = shard
        self._clock = clock
        self._lock = Lock()
        self._seen: dict[str, tuple[int, float]] = {}
        self._read: tuple[float, ClusterStatus] | None = None

    def status(self) -> ClusterStatus:
        """Raises what the store raises."""
        with self._lock:
            if self._read is None or self._clock() - self._read[0] > _FRESH_SECONDS:
                self._read = self._clock(), self._status()
            return self._read[1]

    def _status(self) -> ClusterStatus:
        records = self._records()
        places = sorted(self._all(SHARDS, ShardRecord), key=lambda one: one.shard)
        assignment = read_record(self._bucket, ASSIGNMENT, AssignmentRecord)
        now = self._clock()
        self._seen = {one.worker: self._since(one, now) for one in records}
        return ClusterStatus(
            url=self._bucket.url,
            worker=self._worker,
            workers=[self._member(one, places, now) for one in records],
            shards=_places(places, records, None if assignment is None else assignment[0]),
            leader="" if assignment is None else assignment[0].leader,
            revision=0 if assignment is None else assignment[0].revision,
            problems=loopback_problems(records),
        )

    def _records(self) -> list[WorkerRecord]:
        found = self._all(WORKERS, WorkerRecord)
        return sorted((one for one in found if not one.has_ended), key=lambda one: one.worker)

    def _all(self, prefix: str, kind: type[Record]) -> list[Record]:
        return read_records(self._bucket, prefix, kind)

    def _since(self, record: WorkerRecord, now: float) -> tuple[int, float]:
        revision, since = self._seen.get(record.worker, (-1, now))
        return (revision, since) if revision == record.revision else (record.revision, now)

    def _member(self, record: WorkerRecord, places: Iterable[ShardRecord], now: float) -> Member:
        return Member(
            worker=record.worker,
            addresses=record.addresses,
            shards=[one.shard for one in places if one.owner == record.worker],
            quiet_seconds=round(now - self._seen[record.worker][1], 1),
            is_drained=record.is_drained,
            wants=record.wants,
            host=record.host,
            waits_for=list(record.waits_for),
        )

    # Where to move a shard.

    def candidates(self, to: str) -> list[WorkerRecord]:
        """The standbys, best first; only the one that is named, if one is. Raises RequestError if there is none."""
        return choose(self._records(), self._worker, self._shard, to)

    def revision(self, worker: str) -> int:
        """Of the worker's record; 0 if it has none."""
        found = read_record(self._bucket, worker_key(worker), WorkerRecord)
        return 0 if found is None else found[0].revision

    def wait_until_ready(self, worker: str, revision: int) -> WorkerRecord | None:
        """Until this standby waits for our shard, and has said so after this revision: a record may outlive its worker.
        None: it does not answer.
        """
        deadline = self._clock() + READY_SECONDS_MAX
        while self._clock() < deadline:
            found = read_record(self._bucket, worker_key(worker), WorkerRecord)
            if found is not None and found[0].ready_for == self._worker and found[0].revision > revision:
                return found[0]
            time.sleep(HANDOVER_SECONDS)
        return None


def loopback_problems(records: Iterable[WorkerRecord]) -> list[str]:
    """Workers that others send programs to, and that programs on other machines cannot reach."""
    records = [one for one in records if not one.host]
    machines = {one.machine for one in records if one.machine}
    if len(machines) < 2:
        return []
    return [
        f"worker {one.worker} can be reached on its own machine only ({', '.join(local)}), and the cluster has "
        f"{len(machines)} machines: start it with --host and --http-host 0.0.0.0, or with --advertise HOST"
        for one in records
        if (local := [text for text in one.addresses.values() if is_loopback(Address.parse(text).host)])
    ]


def _places(
    shards: Iterable[ShardRecord], records: Iterable[WorkerRecord], assignment: AssignmentRecord | None
) -> list[Place]:
    """Also of shards that no worker has served yet."""
    workers, known = {one.worker: one for one in records}, {one.shard: one for one in shards}
    assigned = {} if assignment is None else by_shard(assignment)
    places = []
    for number in sorted({*known, *assigned}):
        shard = known.get(number) or ShardRecord(shard=number, owner="", term=0)
        owner = workers.get(shard.owner)
        places.append(
            Place(
                shard=number,
                owner=shard.owner,
                term=shard.term,
                successor=shard.successor,
                host="" if owner is None else owner.host,
                assigned=assigned.get(number, ""),
                addresses={} if owner is None else owner.addresses,
            )
        )
    return places


def choose(records: Iterable[WorkerRecord], owner: str, shard: int, to: str) -> list[WorkerRecord]:
    """The workers to which a shard of `owner` can move, in the order in which they are tried. A drained one is not
    used, unless it is named. Raises RequestError if there is none.
    """
    others = [one for one in records if one.worker != owner and shard in one.waits_for and CONNECTOR in one.addresses]
    named = [one for one in others if one.worker == to]
    if to and not named:
        raise RequestError(f"worker {to!r} does not wait for shard {shard}", "See penstock cluster status.")
    found = named or [one for one in others if not one.is_drained]
    if not found:
        raise RequestError(
            f"there is no other worker to which shard {shard} of {owner} can move",
            "Start one with the same --store first: penstock worker --store URL.",
        )
    return found
