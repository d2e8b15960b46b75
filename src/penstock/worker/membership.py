"""A host as a member of the cluster: its record, who leads, and the assignment of shards.

A host that does not lead makes two requests every two seconds: it renews its own record, and reads the leader's, which
has the revision of the assignment. The leader reads the assignment, and lists the workers. A leader that has been
alone for a while does that less often: a host that joins waits for its shards up to six seconds.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.cluster.assignment import Host, LeaderWatch, LiveHosts, assigned, by_shard, first_assignment
from penstock.cluster.lease import end_dead, end_record, monotonic_seconds
from penstock.cluster.lease_state import LEASE_TIMING, LeaseTiming
from penstock.cluster.records import (
    ASSIGNMENT,
    READERS,
    WORKERS,
    AssignmentRecord,
    WorkerRecord,
    encode,
    read_record,
    read_records,
    worker_key,
)
from penstock.core.errors import Unavailable

ALONE_SECONDS = 30.0
"""After so long without other workers, a leader looks for them only every third round."""

_CHANGE_TRIES = 5
"""Of a change that somebody has asked for, while others write the assignment as well."""

DEAD_MAX = 64
"""Records of dead workers that a leader writes or deletes in a round: it has to renew its own meanwhile. Whoever waits
for the shards of others sees for itself that they are dead.
"""

Change = Callable[[AssignmentRecord, str, Collection[Host]], AssignmentRecord]


class Membership:
    """Calls make requests, and may be made by several threads, one after the other."""

    def __init__(
        self,
        bucket: Bucket,
        record: WorkerRecord,
        timing: LeaseTiming = LEASE_TIMING,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """`record`: of this host, without a revision."""
        self.host = record.worker
        self.assignment: AssignmentRecord | None = None
        self._bucket = bucket
        self._record = record
        self._version = ""
        self._clock = clock
        self._live = LiveHosts(timing)
        self._timing = timing
        self._watch = LeaderWatch(timing, self.host)
        self._renewed_at = float("-inf")
        self._lock = Lock()
        self._looked_at = self._accompanied_at = clock()
        """When all records were read, and when there were others than this host's among them."""

    @property
    def is_leader(self) -> bool:
        return self.assignment is not None and self.assignment.leader == self.host

    @property
    def leader(self) -> str:
        return "" if self.assignment is None else self.assignment.leader

    @property
    def is_drained(self) -> bool:
        return self._record.is_drained

    def assigned_to(self, host: str) -> set[int]:
        record = self.assignment
        return set() if record is None else {shard for shard, name in by_shard(record).items() if name == host}

    def host_of(self, shard: int) -> str:
        return "" if self.assignment is None else by_shard(self.assignment).get(shard, "")

    def round(self) -> None:
        """Renew, and see what is new. Raises what the store raises; the next round begins again."""
        with self._lock:
            self._renew()
            if self._may_lead() and not self._may_rest():
                self._lead()

    def drain(self) -> None:
        """Others get this host's shards. Until it is started again, it gets none while others live."""
        with self._lock:
            self._record = msgspec.structs.replace(self._record, is_drained=True)
            self._watch = LeaderWatch(self._timing, self.host, is_drained=True)
            self._renew()

    def change(self, change: Change) -> AssignmentRecord:
        """By the leader, because somebody has asked for it. Raises RequestError, Unavailable."""
        with self._lock:
            for _ in range(_CHANGE_TRIES):
                if self._lead(change):
                    assert self.assignment is not None
                    return self.assignment
        raise Unavailable("the assignment is changed by others at the same time", "Try again.")

    def leave(self) -> None:
        """The host stops: others need not wait until its record is old."""
        with self._lock:
            self._bucket.delete([worker_key(self.host)])

    def forget(self, worker: str) -> None:
        """A process of this host that has ended: its shard need not wait until its lease has expired."""
        end_record(self._bucket, worker)

    # The record of this host.

    def _renew(self) -> None:
        self._renewed_at = self._clock()
        known = 0 if self.assignment is None else self.assignment.revision
        record = msgspec.structs.replace(self._record, revision=self._record.revision + 1, assignment=known)
        key, data = worker_key(self.host), encode(record)
        try:
            if self._version:
                self._version = self._bucket.replace(key, data, self._version)
            else:
                self._version = self._bucket.create(key, [data])
        except (ObjectExists, VersionChanged):  # by an earlier try, or a leader has taken us for dead
            self._write_over(key, data)
        self._record = record

    def _renew_if_due(self) -> None:
        if self._clock() - self._renewed_at >= self._timing.renew:
            self._renew()

    def _write_over(self, key: str, data: bytes) -> None:
        """Nothing else writes it."""
        try:
            self._version = self._bucket.replace(key, data, self._bucket.get(key).version)
        except (NoSuchObject, VersionChanged):
            self._version = ""

    # The assignment.

    def _may_lead(self) -> bool:
        record = self.assignment
        if record is None or record.leader == self.host:
            return True
        asked = self._clock()
        found = read_record(self._bucket, worker_key(record.leader), WorkerRecord)
        leader = None if found is None else found[0]
        may = self._watch.may_lead(record, leader, asked, self._clock())
        if leader is None or leader.assignment != record.revision or may:
            self._read()
        is_same = self.assignment is not None and self.assignment.leader == record.leader
        if may and is_same and leader is not None:
            self._bucket.delete([worker_key(record.leader)])  # dead: its shards need not wait until all have seen that
        return may and is_same

    def _read(self) -> str:
        """The version; "" if there is no assignment yet."""
        found = read_record(self._bucket, ASSIGNMENT, AssignmentRecord)
        if found is None:
            return ""
        self.assignment = found[0]
        return found[1]

    def _lead(self, change: Change = assigned) -> bool:
        """False if another host has written the assignment meanwhile, or leads."""
        former, version = self.leader, self._read()
        if self.assignment is not None and self.leader not in (former, self.host):
            return False
        current = self.assignment or first_assignment(self.host)
        wanted = change(current, self.host, self._hosts())
        if wanted == current and version:
            return True
        try:
            if version:
                self._bucket.replace(ASSIGNMENT, encode(wanted), version)
            else:
                self._bucket.create(ASSIGNMENT, [encode(wanted)])
        except (ObjectExists, VersionChanged):
            return False
        self.assignment = wanted
        self._renew()  # others see at once that there is a new one
        return True

    def _may_rest(self) -> bool:
        """Nothing but another worker could change what a leader has written."""
        now = self._clock()
        is_alone = self.is_leader and now - self._accompanied_at > ALONE_SECONDS
        return is_alone and now - self._looked_at < self._timing.expired - self._timing.renew / 2

    def _hosts(self) -> tuple[Host, ...]:
        asked, found = self._clock(), self.records()
        self._looked_at = asked
        if any(self.host not in (one.worker, one.host) for one in found):
            self._accompanied_at = asked
        live = self._live.look(found, asked, self._clock())
        self.end_dead(self._live.dead[:DEAD_MAX])
        return live

    def end_dead(self, dead: Collection[WorkerRecord]) -> None:
        if dead:
            with ThreadPoolExecutor(READERS, thread_name_prefix="records") as writers:
                list(writers.map(lambda one: end_dead(self._bucket, one), dead))

    def records(self) -> list[WorkerRecord]:
        """Of all workers. With hundreds of them that takes longer than a lease: the own record is renewed meanwhile."""
        return read_records(self._bucket, WORKERS, WorkerRecord, self._renew_if_due)

    def waiting(self, shard: int, host: str) -> str:
        """The process of that host which waits for the shard; "" if there is none."""
        with self._lock:
            for one in self.records():
                if one.host == host and shard in one.waits_for and not one.has_ended:
                    return one.worker
        return ""
