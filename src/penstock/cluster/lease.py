"""Who may try to own a shard: leases, renewed by writing and watched by reading.

A lease protects nothing: the journal's own numbers do that, whatever clocks say. It keeps a second worker from taking
over while the first one lives, and makes a worker stop serving when others may take it for dead.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from penstock.bucket.objects import Bucket, NoSuchObject, ObjectExists, VersionChanged
from penstock.cluster.lease_state import LEASE_TIMING, LeaseState, LeaseTiming, OwnerSeen, OwnerWatch, OwnLease
from penstock.cluster.records import (
    WORKERS,
    ShardRecord,
    WorkerRecord,
    encode,
    read_record,
    shard_key,
    worker_key,
)
from penstock.core.errors import BucketFailed, BucketUnavailable, TakenOver
from penstock.core.retry import Pauses, RetryPolicy

REQUEST_SECONDS_MAX = 2.0
"""The time-out of the bucket that is used for leases. With a longer one, a worker would learn too late that it cannot
renew its lease.
"""

UNREACHABLE_SECONDS_MAX = 60.0
"""A worker that starts gives up if the store cannot be reached for this long."""

RELEASE_SECONDS_MAX = 10.0
"""How long an owner tries to give its shard up for a successor: longer than a lease, after which others may take it."""

_ENDING_TRIES = 5
"""A renewal of a process that was killed may take effect after its end, but only one is under way at a time."""

_PAUSES = RetryPolicy(first_seconds=0.1, max_seconds=1.0)
_RELEASES = RetryPolicy(first_seconds=0.05, max_seconds=1.0)
_log = logging.getLogger(__name__)

Clock = Callable[[], float]


def monotonic_seconds() -> float:
    """Counts while the machine sleeps, unlike `time.monotonic`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ShardCandidate:
    bucket: Bucket
    """With a time-out of REQUEST_SECONDS_MAX."""
    worker: str
    """From `worker_id`: new for each run."""
    addresses: Mapping[str, str]
    shard: int = 0
    timing: LeaseTiming = LEASE_TIMING
    clock: Clock = monotonic_seconds
    is_drained: bool = False
    """It takes over only if no other worker does."""
    host: str = ""
    """Of a shard process that a host has started."""


def acquire(
    candidate: ShardCandidate,
    *,
    force: bool = False,
    stop: threading.Event | None = None,
    on_waiting: Callable[[OwnerSeen], None] = lambda _: None,
    on_change: Callable[["Lease"], None] = lambda _: None,
) -> "Lease | None":
    """Wait until the shard's owner has stopped, has given the shard up for us, or may be taken for dead; then take
    over. `force` does not wait. Meanwhile the candidate's own record is renewed: a standby is a member of the cluster.

    The lease is renewed by a thread from then on. `on_change` is called, by a thread, whenever its state has changed.
    None if `stop` was set. Raises what the store raises, BucketUnavailable only after a minute of it.
    """
    acquisition = _Acquisition(candidate, stop or threading.Event(), on_waiting)
    try:
        taken = acquisition.run(force)
    except BaseException:
        acquisition.withdraw()
        raise
    if taken is None:
        acquisition.withdraw()
        return None
    lease = Lease(candidate, taken, on_change)
    lease.start()
    return lease


def end_record(bucket: Bucket, worker: str) -> None:
    """Of us, or of a worker known to have ended: it writes nothing any more, and nobody has to wait for its shard."""
    key = worker_key(worker)
    for _ in range(_ENDING_TRIES):
        found = read_record(bucket, key, WorkerRecord)
        if found is None or found[0].has_ended:
            return
        with suppress(VersionChanged):  # by its last renewal, which was still under way
            bucket.replace(key, encode(msgspec.structs.replace(found[0], has_ended=True)), found[1])
            return


def end_dead(bucket: Bucket, dead: WorkerRecord) -> None:
    """Of a worker that was not renewed in time, or that has ended. If it owns a shard, its record stays until that has
    another owner, and is changed only if it was not renewed meanwhile: an owner that wakes up now has renewed its
    lease, or finds that it was taken for dead, and must change the shard's record before it continues.
    """
    key = worker_key(dead.worker)
    shards = (*(dead.shards or ()), *dead.waits_for)
    places = [read_record(bucket, shard_key(shard), ShardRecord) for shard in shards]
    if not any(place is not None and place[0].owner == dead.worker for place in places):
        bucket.delete([key])
    elif not dead.has_ended:
        found = read_record(bucket, key, WorkerRecord)
        if found is not None and found[0].revision == dead.revision:
            with suppress(VersionChanged):
                bucket.replace(key, encode(msgspec.structs.replace(dead, has_ended=True)), found[1])


def _resumed(shard: ShardRecord) -> ShardRecord:
    """The record, changed by its owner: one that read it before, and believes the owner dead, cannot replace it."""
    return msgspec.structs.replace(shard, resumed=shard.resumed + 1)


class _Taken(NamedTuple):
    """A shard that has become ours."""

    shard: ShardRecord
    version: str
    """Of our worker record."""
    revision: int
    asked: float
    """When that was sent."""
    former: str | None
    """The owner before, unless it lives on as a standby."""


class _Acquisition:
    """Each round asks the store again, so a write whose outcome is unknown needs no other care: if it took effect, the
    next round finds it.
    """

    def __init__(
        self, candidate: ShardCandidate, stop: threading.Event, on_waiting: Callable[[OwnerSeen], None]
    ) -> None:
        self._bucket, self._worker, self._clock = candidate.bucket, candidate.worker, candidate.clock
        self._shard, self._timing = candidate.shard, candidate.timing
        addresses, is_drained = dict(candidate.addresses), candidate.is_drained
        self._record = WorkerRecord(
            worker=candidate.worker,
            revision=0,
            addresses=addresses,
            shards=(),
            waits_for=(candidate.shard,),
            host=candidate.host,
            is_drained=is_drained,
        )
        self._stop = stop
        self._on_waiting = on_waiting
        self._watch = OwnerWatch(candidate.timing, candidate.worker, is_drained=candidate.is_drained)
        self._known: tuple[ShardRecord, str] | None = None
        self._asked: float | None = None
        """When our record was written last."""
        self._version = ""
        self._may_be_written = False
        self._look_at = 0.0
        self._former: str | None = None
        self._waiting = OwnerSeen("", {}, 0.0, 0.0)

    def run(self, force: bool) -> _Taken | None:
        pauses, reached = Pauses(_PAUSES), self._clock()
        while not self._stop.is_set():
            try:
                found = self._round(force)
            except BucketFailed as error:
                is_first = not self._version and not isinstance(error, BucketUnavailable)
                if is_first or self._clock() - reached > UNREACHABLE_SECONDS_MAX:
                    raise
                self._on_waiting(replace(self._waiting, problem=str(error)))
                self._stop.wait(pauses.next())
                continue
            if isinstance(found, _Taken):
                return found
            reached = self._clock()
            pauses.reset()
            self._stop.wait(found)
        return None

    def withdraw(self) -> None:
        """Remove our own record. If that fails, the next owner does it."""
        if self._version or self._may_be_written:
            with suppress(BucketFailed):
                self._bucket.delete([worker_key(self._worker)])

    def _round(self, force: bool) -> _Taken | float:
        """What was taken, or the pause before the next round. The shard's record is read again only if there is reason
        to think that it has changed, so that a standby makes one PUT and one GET at a time. Our own record comes first:
        whoever owns a shard has one.
        """
        if not self._register():
            return 0.0
        known = self._known or read_record(self._bucket, shard_key(self._shard), ShardRecord)
        self._known = known
        if known is not None:
            shard, _ = known
            if shard.owner == self._worker and not shard.successor:
                return self._own_after_all(*known)
            if not force and (waiting := self._look(shard)) is not None:
                self._waiting = waiting
                self._on_waiting(waiting)
                return self._watch.pause(waiting)
            if self._asked is None:  # somebody took us for dead meanwhile, and has ended our record
                return 0.0
        self._known = None
        return self._take(known)

    def _look(self, shard: ShardRecord) -> OwnerSeen | None:
        if shard.successor:
            self._known = None
            return self._watch.released(shard, self._clock())
        if self._waiting.is_next and self._clock() < self._look_at:
            self._known = None  # it is about to change
            return self._waiting
        asked = self._clock()
        found = read_record(self._bucket, worker_key(shard.owner), WorkerRecord)
        if found is None:
            self._known = None  # it may have been deleted by the next owner
            return self._watch.absent(shard.owner, shard.term, self._clock())
        owner, self._look_at = found[0], asked + self._timing.renew
        if owner.moving_to == self._worker or (owner.shards is not None and self._shard not in owner.shards):
            self._known = None
        self._get_ready(owner)
        return self._watch.look(owner, asked, self._clock())

    def _get_ready(self, owner: WorkerRecord) -> None:
        """The owner gives the shard up only when it has seen that we wait for it."""
        ready_for = owner.worker if owner.moving_to == self._worker else ""
        if ready_for != self._record.ready_for:
            self._record = msgspec.structs.replace(self._record, ready_for=ready_for)
            self._asked = None  # written again now
            self._register()

    def _take(self, former: tuple[ShardRecord, str] | None) -> _Taken | float:
        has_come = former is not None and former[0].successor == self._worker
        is_other = former is not None and former[0].owner != self._worker  # not one that takes its own shard back
        self._former = former[0].owner if former is not None and is_other and not has_come else None
        key, term = shard_key(self._shard), former[0].term + 1 if former is not None else 1
        shard = ShardRecord(shard=self._shard, owner=self._worker, term=term)
        try:
            if former is None:
                self._bucket.create(key, [encode(shard)])
            else:
                self._bucket.replace(key, encode(shard), former[1])
        except (ObjectExists, VersionChanged):
            return 0.0  # by another candidate, or by ourselves before
        return self._own(shard)

    def _own_after_all(self, shard: ShardRecord, version: str) -> _Taken | float:
        """An earlier attempt took the shard without our noticing. That may be long ago, so others may believe that we
        are dead and be about to take over. Changing the shard's record makes their attempt fail.
        """
        self._known = None
        resumed = _resumed(shard)
        try:
            self._bucket.replace(shard_key(self._shard), encode(resumed), version)
        except VersionChanged:  # another candidate was faster, or an earlier attempt of ours
            return 0.0
        return self._own(resumed)

    def _register(self) -> bool:
        """Write our record, if that is due. False if it is not what we have written last: then at once again."""
        now, key = self._clock(), worker_key(self._worker)
        if self._asked is not None and now < self._asked + self._timing.renew:
            return True
        record = msgspec.structs.replace(self._record, revision=self._record.revision + 1)
        self._asked = now
        try:
            data = encode(record)
            if self._version:
                self._version = self._bucket.replace(key, data, self._version)
            else:
                self._version = self._bucket.create(key, [data])
            self._record = record
        except (ObjectExists, VersionChanged):  # by an earlier try, or an owner has taken us for dead
            found, self._asked = read_record(self._bucket, key, WorkerRecord), None
            self._version = "" if found is None else found[1]
            revision = record.revision if found is None else max(record.revision, found[0].revision)
            self._record = msgspec.structs.replace(self._record, revision=revision)
            return False
        except BaseException:
            self._asked = None
            self._may_be_written = True
            raise
        return True

    def _own(self, shard: ShardRecord) -> _Taken:
        assert self._asked is not None
        return _Taken(shard, self._version, self._record.revision, self._asked, self._former)


class Lease:
    """The lease on one shard, from its take-over to its release or loss."""

    def __init__(self, candidate: ShardCandidate, taken: _Taken, on_change: Callable[["Lease"], None]) -> None:
        self.worker = candidate.worker
        self.shard = candidate.shard
        self.term = taken.shard.term
        self._bucket, self._clock, self._timing = candidate.bucket, candidate.clock, candidate.timing
        self._addresses = dict(candidate.addresses)
        self._host = candidate.host
        self._standing = OwnLease(candidate.timing, taken.asked)
        self._revision, self._version = taken.revision, taken.version
        self._moving_to = ""
        self._written: bytes | None = None
        self._on_change = on_change
        self._announced = LeaseState.HELD
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._keep, self._announce_all)]
        self._dead = _Dead(candidate, taken.former)

    @property
    def state(self) -> LeaseState:
        """As of now by the clock: right even if the process was stopped a moment ago."""
        with self._lock:
            return self._standing.state(self._clock())

    def check(self) -> None:
        """Raises TakenOver, which names the other worker."""
        if self.state is LeaseState.TAKEN:
            if not self._standing.winner:
                problem = f"{self._bucket.url}/{shard_key(self.shard)}, the record of the shard's owner, was deleted"
                raise TakenOver(problem, "Start the worker again: it writes the record again.")
            raise TakenOver(f"worker {self._standing.winner} has taken over shard {self.shard} from {self.worker}")

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """They are written with the next renewal."""
        self._addresses = dict(addresses)

    def announce_move(self, worker: str) -> None:
        """The shard is about to be given up for this worker, or for none: written at once."""
        self._moving_to = worker
        self._wake.set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def release(self) -> None:
        """Let another worker take over at once. If the store cannot be reached, it waits for the lease to expire."""
        self._end()
        try:
            end_record(self._bucket, self.worker)
        except BucketFailed as error:
            _log.warning("the lease on shard %s was not released: %s", self.shard, error)

    def release_to(self, successor: str) -> bool:
        """Give the shard up for this worker, after the journal is closed, and stay a member of the cluster. False if
        the store cannot be reached: then the shard stays ours until another worker takes us for dead.
        """
        self._end()
        try:
            for attempt in _RELEASES.retrying(RELEASE_SECONDS_MAX, BucketFailed):
                with attempt:
                    self._give_up(successor)
        except BucketFailed as error:
            _log.warning("shard %s was not given up for %s: %s", self.shard, successor, error)
            return False
        return True

    def _give_up(self, successor: str) -> None:
        """Does nothing if it was given up by an earlier try, or if another worker has taken over."""
        found = read_record(self._bucket, shard_key(self.shard), ShardRecord)
        if found is None or (found[0].owner, found[0].term) != (self.worker, self.term) or found[0].successor:
            return
        shard, version = found
        with suppress(VersionChanged):  # another worker has taken over
            released = msgspec.structs.replace(shard, successor=successor)
            self._bucket.replace(shard_key(self.shard), encode(released), version)

    def _end(self) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()

    # The thread that renews.

    def _keep(self) -> None:
        pauses = Pauses(_PAUSES)
        pause = 0.0  # the take-over may have taken long
        while not self._pause(pause) and self.state is not LeaseState.TAKEN:
            try:
                self._renew()
                self._dead.remove(self._clock())
            except (BucketFailed, ObjectExists, VersionChanged):  # the next attempt sees what has become of this one
                pause = pauses.next()
            except Exception:
                _log.exception("the lease on shard %s cannot be renewed", self.shard)
                pause = pauses.next()
            else:
                pauses.reset()
                pause = max(self._standing.due() - self._clock(), 0.0)
            self._announce()

    def _pause(self, seconds: float) -> bool:
        """Returns whether the lease is given up."""
        self._wake.wait(seconds)
        self._wake.clear()
        return self._stop.is_set()

    def _renew(self) -> None:
        if self._written is None:
            record = WorkerRecord(
                worker=self.worker,
                revision=self._revision + 1,
                addresses=self._addresses,
                shards=(self.shard,),
                host=self._host,
                moving_to=self._moving_to,
            )
            self._written = encode(record)
        with self._lock:
            self._standing.attempt(self._clock())
            was_held = self._standing.state(self._clock()) is LeaseState.HELD
        version = self._write(self._written)
        if version is not None and (was_held or self._resume()):
            self._version, self._revision, self._written = version, self._revision + 1, None
            with self._lock:
                self._standing.renew()

    def _write(self, data: bytes) -> str | None:
        """The version of our record; None if the shard is no longer ours. A successor deletes our record."""
        key = worker_key(self.worker)
        try:
            return self._bucket.replace(key, data, self._version)
        except VersionChanged:
            pass
        try:
            found = self._bucket.get(key)
        except NoSuchObject:
            return self._write_again(data)
        if found.data == data:  # an earlier try took effect after all
            return found.version
        return self._bucket.replace(key, data, found.version) if self._is_owner() else None

    def _write_again(self, data: bytes) -> str | None:
        """The record is gone, by a successor or by mistake. Checked twice: a successor may take over in between, and
        find nothing to delete.
        """
        if not self._is_owner():
            return None
        version = self._bucket.create(worker_key(self.worker), [data])
        return version if self._is_owner() else None

    def _resume(self) -> bool:
        """Others may believe that we are dead and be about to take over. This makes their attempt fail."""
        found = read_record(self._bucket, shard_key(self.shard), ShardRecord)
        if found is None or (found[0].owner, found[0].term) != (self.worker, self.term):
            return self._is_owner()
        self._bucket.replace(shard_key(self.shard), encode(_resumed(found[0])), found[1])  # VersionChanged: again
        return True

    def _is_owner(self) -> bool:
        found = read_record(self._bucket, shard_key(self.shard), ShardRecord)
        if found is not None and (found[0].owner, found[0].term) == (self.worker, self.term):
            return True
        with self._lock:
            self._standing.lose("" if found is None else found[0].owner)
        return False

    # The thread that reports a state that time alone has changed, while the other one waits for the store.

    def _announce_all(self) -> None:
        while not self._stop.wait(max(self._standing.late_at() - self._clock(), self._timing.renew / 10)):
            self._announce()

    def _announce(self) -> None:
        with self._lock:
            state = self._standing.state(self._clock())
            changed, self._announced = state is not self._announced, state
        if changed:
            try:
                self._on_change(self)
            except Exception:
                _log.exception("a change of the lease on shard %s was not handled", self.shard)


class _Dead:
    """Records of other workers. A new owner removes the former owner's at once, and later those that were not renewed
    meanwhile: crashes have left them. A worker that lives after all writes its record again, or learns that another one
    has taken over.
    """

    def __init__(self, candidate: ShardCandidate, former: str | None) -> None:
        self._bucket = candidate.bucket
        self._own = worker_key(candidate.worker)
        self._clock, self._timing = candidate.clock, candidate.timing
        self._former = former
        self._found: dict[str, WorkerRecord] | None = None
        self._since = 0.0
        self._is_done = bool(candidate.host)  # among hosts, the leader does that

    def remove(self, now: float) -> None:
        if self._former is not None:
            self._bucket.delete([worker_key(self._former)])
            self._former = None
        if self._is_done:
            return
        if self._found is None:
            self._found = self._records(each.key for each in self._bucket.list(WORKERS))
            self._since = self._clock()  # the last of them was read just now
        elif now - self._since >= self._timing.expired:
            for key, record in self._records(self._found).items():
                if record.revision == self._found[key].revision:
                    end_dead(self._bucket, record)
            self._is_done = True

    def _records(self, keys: Iterable[str]) -> dict[str, WorkerRecord]:
        found = {key: read_record(self._bucket, key, WorkerRecord) for key in keys if key != self._own}
        return {key: record[0] for key, record in found.items() if record is not None}
