"""Leases on a store in memory, and on real ones: take-overs, races, losses."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Queue
from uuid import uuid4

import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.objects import Bucket, ListedObject, StoredObject, VersionChanged
from penstock.bucket.stores import open_bucket
from penstock.cluster import lease as lease_module
from penstock.cluster.lease import Lease, ShardCandidate, acquire, end_dead, end_record
from penstock.cluster.lease_state import LeaseState, LeaseTiming, OwnerSeen
from penstock.cluster.records import (
    ShardRecord,
    WorkerRecord,
    encode,
    read_record,
    shard_key,
    worker_id,
    worker_key,
)
from penstock.core.errors import BucketForbidden, BucketUnreachable, Damaged, TakenOver, UnreadableFormat
from penstock.core.types import Buffer
from tests.support.waiting import SECONDS_MAX, until

QUICK = LeaseTiming(renew=0.02, late=SECONDS_MAX, expired=0.2)
"""For tests in which the owner is dead: nobody waits long. No owner is ever late, however busy the machine."""

PATIENT = LeaseTiming(renew=0.02, late=SECONDS_MAX, expired=SECONDS_MAX)
"""For tests in which the owner lives: nobody takes it for dead."""

Acquire = Callable[..., Lease]


class Fallible:
    """A bucket that can be made to fail: before a request has effect, or after it."""

    def __init__(self, bucket: Bucket) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self.before: Exception | None = None
        self.after: Exception | None = None

    def _call(self, call: Callable[[], object]) -> object:
        if self.before is not None:
            raise self.before
        result = call()
        if self.after is not None:
            raise self.after
        return result

    def get(self, key: str) -> StoredObject:
        return self._call(lambda: self._bucket.get(key))  # type: ignore[return-value]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._bucket.get_range(key, start, length)

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        return self._call(lambda: self._bucket.create(key, buffers))  # type: ignore[return-value]

    def replace(self, key: str, data: bytes, version: str) -> str:
        return self._call(lambda: self._bucket.replace(key, data, version))  # type: ignore[return-value]

    def delete(self, keys: Sequence[str]) -> None:
        self._call(lambda: self._bucket.delete(keys))

    def list(self, prefix: str) -> Iterator[ListedObject]:
        return self._bucket.list(prefix)


class UnknownOnce(Fallible):
    """The first write of each kind and key takes effect and is answered by a time-out."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._unknown: set[str] = set()

    def create(self, key: str, buffers: Sequence[Buffer]) -> str:
        return self._once(f"create {key}", super().create(key, buffers))

    def replace(self, key: str, data: bytes, version: str) -> str:
        return self._once(f"replace {key}", super().replace(key, data, version))

    def _once(self, what: str, version: str) -> str:
        if what in self._unknown:
            return version
        self._unknown.add(what)
        raise BucketUnreachable("no answer in time")


@pytest.fixture
def bucket() -> Bucket:
    return open_bucket(f"memory://{uuid4().hex}/prefix")


@pytest.fixture
def acquired() -> Iterator[Acquire]:
    """`acquire`, with all leases ended afterwards."""
    with ExitStack() as stack:

        def acquire_one(bucket: Bucket, name: str, timing: LeaseTiming = QUICK, **options: object) -> Lease:
            candidate = ShardCandidate(bucket, name, {"http": f"{name}:1"}, timing=timing)
            lease = acquire(candidate, **options)  # type: ignore[arg-type]
            assert lease is not None
            stack.callback(lease.release)
            return lease

        yield acquire_one


def die(lease: Lease) -> None:
    """As a process that is killed does: its record stays."""
    lease._stop.set()
    lease._wake.set()
    for thread in lease._threads:
        thread.join()


def owner(bucket: Bucket) -> ShardRecord:
    found = read_record(bucket, shard_key(0), ShardRecord)
    assert found is not None
    return found[0]


def revision(bucket: Bucket, worker: str) -> int:
    found = read_record(bucket, worker_key(worker), WorkerRecord)
    return -1 if found is None else found[0].revision


def cluster(bucket: Bucket) -> list[str]:
    return sorted(each.key for each in bucket.list("cluster/"))


def test_a_shard_without_an_owner_is_taken_at_once(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    assert (lease.term, lease.state) == (1, LeaseState.HELD)
    assert owner(bucket) == ShardRecord(shard=0, owner="a", term=1)
    lease.check()


def test_a_lease_is_renewed(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    until(lambda: revision(bucket, "a") > 3)
    lease.set_addresses({"http": "moved:2"})
    until(lambda: b"moved:2" in bucket.get(worker_key("a")).data)
    assert owner(bucket).term == 1


def test_a_released_shard_is_taken_at_once_and_nothing_else_is_left(bucket: Bucket, acquired: Acquire) -> None:
    acquired(bucket, "a", PATIENT).release()
    assert cluster(bucket) == ["cluster/shards/0", "cluster/workers/a"]
    lease = acquired(bucket, "b", PATIENT)
    assert lease.term == 2
    assert owner(bucket) == ShardRecord(shard=0, owner="b", term=2)
    until(lambda: cluster(bucket) == ["cluster/shards/0", "cluster/workers/b"])
    lease.release()
    assert record(bucket, "b").has_ended


def test_a_dead_owner_is_waited_for_and_then_replaced(bucket: Bucket, acquired: Acquire) -> None:
    die(acquired(bucket, "a", PATIENT))
    seen: list[OwnerSeen] = []
    lease = acquired(bucket, "b", QUICK, on_waiting=seen.append)
    assert lease.term == 2
    assert {each.owner for each in seen} == {"a"}
    assert seen[0].addresses == {"http": "a:1"}
    assert [each.quiet_seconds for each in seen] == sorted(each.quiet_seconds for each in seen)
    until(lambda: cluster(bucket) == ["cluster/shards/0", "cluster/workers/b"])


def test_a_living_owner_is_not_replaced(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    waits: Queue[OwnerSeen] = Queue()
    stop = threading.Event()
    candidate = ShardCandidate(bucket, "b", {}, timing=PATIENT)
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(acquire, candidate, stop=stop, on_waiting=waits.put)
        seen = {waits.get(timeout=SECONDS_MAX).owner for _ in range(20)}
        stop.set()
        assert acquiring.result() is None
    assert seen == {"a"}
    assert (lease.state, owner(bucket).term) == (LeaseState.HELD, 1)
    assert cluster(bucket) == ["cluster/shards/0", "cluster/workers/a"]


def test_a_candidate_continues_when_the_owner_releases(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    waits: Queue[OwnerSeen] = Queue()
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(acquired, bucket, "b", PATIENT, on_waiting=waits.put)
        waits.get(timeout=SECONDS_MAX)
        lease.release()
        assert acquiring.result().term == 2


def test_with_force_a_living_owner_is_replaced_and_learns_by_whom(bucket: Bucket, acquired: Acquire) -> None:
    changes: Queue[LeaseState] = Queue()
    first = acquired(bucket, "a", PATIENT, on_change=lambda lease: changes.put(lease.state))
    second = acquired(bucket, "b", PATIENT, force=True)
    assert changes.get(timeout=SECONDS_MAX) is LeaseState.TAKEN
    with pytest.raises(TakenOver, match="worker b has taken over shard 0 from a"):
        first.check()
    assert (second.term, second.state) == (2, LeaseState.HELD)
    first.release()
    assert owner(bucket).owner == "b"
    until(lambda: cluster(bucket) == ["cluster/shards/0", "cluster/workers/b"])


def test_of_many_candidates_one_takes_over(bucket: Bucket, acquired: Acquire) -> None:
    """The others wait for the winner, and take over one by one as each one stops."""
    names = [f"w{number}" for number in range(8)]
    acquired(bucket, "former", PATIENT).release()
    order: Queue[Lease] = Queue()
    with ThreadPoolExecutor(len(names)) as pool:
        for name in names:
            pool.submit(lambda name: order.put(acquired(bucket, name, PATIENT)), name)
        terms = []
        for _ in names:
            lease = order.get(timeout=SECONDS_MAX)
            terms.append((lease.term, lease.worker))
            assert owner(bucket) == ShardRecord(shard=0, owner=lease.worker, term=lease.term)
            lease.release()
    assert [term for term, _ in terms] == list(range(2, 2 + len(names)))
    assert sorted(worker for _, worker in terms) == names


class Overtaken(Fallible):
    """Something happens just before the shard's record is replaced for the first time."""

    def __init__(self, bucket: Bucket, happens: Callable[[], object]) -> None:
        super().__init__(bucket)
        self._happens = [happens]

    def replace(self, key: str, data: bytes, version: str) -> str:
        if key == shard_key(0) and self._happens:
            self._happens.pop()()
        return super().replace(key, data, version)


def test_a_take_over_that_is_found_late_prevents_another_that_was_decided_before(
    bucket: Bucket, acquired: Acquire
) -> None:
    """Worker a's take-over had no answer, and a slept. Worker b has seen no renewal, and is about to replace a."""
    bucket.create(shard_key(0), [encode(ShardRecord(shard=0, owner="a", term=1))])
    bucket.create(worker_key("a"), [encode(WorkerRecord(worker="a", revision=1, addresses={}, shards=()))])
    leases, stop = list[Lease](), threading.Event()

    def a_wakes_up() -> None:
        leases.append(acquired(bucket, "a", PATIENT))
        stop.set()

    candidate = ShardCandidate(Overtaken(bucket, a_wakes_up), "b", {}, timing=QUICK)
    assert acquire(candidate, stop=stop) is None
    assert (owner(bucket).owner, leases[0].term, leases[0].state) == ("a", 1, LeaseState.HELD)


# Standbys, and owners that give the shard up.


def record(bucket: Bucket, worker: str) -> WorkerRecord:
    found = read_record(bucket, worker_key(worker), WorkerRecord)
    assert found is not None
    return found[0]


def make_ready(bucket: Bucket, lease: Lease, successor: str) -> None:
    lease.announce_move(successor)
    until(lambda: record(bucket, successor).ready_for == lease.worker)


class Waiting:
    """A standby, until it has taken over or is stopped."""

    def __init__(self, bucket: Bucket, name: str, timing: LeaseTiming, *, is_drained: bool = False) -> None:
        self.seen: Queue[OwnerSeen] = Queue()
        self.stop = threading.Event()
        candidate = ShardCandidate(bucket, name, {"http": f"{name}:1"}, timing=timing, is_drained=is_drained)
        self._pool = ThreadPoolExecutor(1)
        self.acquiring = self._pool.submit(acquire, candidate, stop=self.stop, on_waiting=self.seen.put)
        self.seen.get(timeout=SECONDS_MAX)

    def lease(self) -> Lease:
        lease = self.acquiring.result(SECONDS_MAX)
        assert lease is not None
        return lease

    def close(self) -> None:
        self.stop.set()
        lease = self.acquiring.result(SECONDS_MAX)
        if lease is not None:
            lease.release()
        self._pool.shutdown()


@pytest.fixture
def waiting() -> Iterator[Callable[..., Waiting]]:
    with ExitStack() as stack:

        def wait(*arguments: object, **options: object) -> Waiting:
            made = Waiting(*arguments, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield wait


def test_a_standby_has_a_record_that_it_renews_and_removes(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    acquired(bucket, "a", PATIENT)
    standby = waiting(bucket, "b", PATIENT)
    until(lambda: revision(bucket, "b") > 3)
    assert record(bucket, "b").shards == ()
    assert record(bucket, "a").shards == (0,)
    standby.stop.set()
    assert standby.acquiring.result(SECONDS_MAX) is None
    assert cluster(bucket) == ["cluster/shards/0", "cluster/workers/a"]


def test_a_record_of_a_standby_that_was_deleted_is_written_again(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    acquired(bucket, "a", PATIENT)
    waiting(bucket, "b", PATIENT)
    bucket.delete([worker_key("b")])
    until(lambda: revision(bucket, "b") > 0)


def test_a_standby_makes_one_put_and_one_get_for_each_renewal(bucket: Bucket, acquired: Acquire) -> None:
    acquired(bucket, "a", PATIENT)
    counted = CountedBucket(bucket)
    clock, stop, rounds = [0.0], threading.Event(), list[OwnerSeen]()
    timing = LeaseTiming(renew=0.01, late=1000.0, expired=1000.0)

    def tick(seen: OwnerSeen) -> None:
        rounds.append(seen)
        clock[0] += timing.renew
        if len(rounds) == 101:
            stop.set()

    acquire(ShardCandidate(counted, "b", {}, timing=timing, clock=lambda: clock[0]), stop=stop, on_waiting=tick)
    requests = counted.counts().requests
    assert requests["put"] <= 102
    assert requests["get"] <= 102  # the shard's record once
    assert not requests.get("list")


def test_a_shard_that_is_given_up_goes_to_the_successor_and_the_former_owner_stays_a_member(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    first = acquired(bucket, "a", PATIENT)
    others = [waiting(bucket, name, PATIENT) for name in ("b", "c", "d")]
    make_ready(bucket, first, "c")
    assert first.release_to("c")
    taken = others[1].lease()
    assert (taken.worker, taken.term) == ("c", 2)
    assert owner(bucket) == ShardRecord(shard=0, owner="c", term=2)
    again = waiting(bucket, "a", PATIENT, is_drained=True)
    until(lambda: revision(bucket, "a") > 3)
    assert not again.acquiring.done()
    assert not others[0].acquiring.done()


def test_a_successor_that_does_not_come_is_waited_for_as_long_as_for_a_lease(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    first = acquired(bucket, "a", PATIENT)
    other = waiting(bucket, "b", QUICK)
    first.release_to("nobody")
    assert other.lease().term == 2


def test_an_owner_that_takes_its_shard_back_keeps_its_record(bucket: Bucket, acquired: Acquire) -> None:
    first = acquired(bucket, "a", QUICK)
    first.release_to("nobody")
    again = acquired(bucket, "a", QUICK)
    assert again._dead._former is None
    seen = revision(bucket, "a")
    until(lambda: revision(bucket, "a") > seen + 1)
    assert again.state is LeaseState.HELD


def test_an_owner_whose_release_did_not_take_effect_has_the_shard_again(bucket: Bucket, acquired: Acquire) -> None:
    store = Fallible(bucket)
    first = acquired(store, "a", PATIENT)
    die(first)
    assert acquired(bucket, "a", PATIENT).term == 1


def test_a_release_with_an_unknown_outcome_is_found_again(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    first = acquired(UnknownOnce(bucket), "a", PATIENT)
    other = waiting(bucket, "b", PATIENT)
    make_ready(bucket, first, "b")
    assert first.release_to("b")
    assert other.lease().term == 2


def test_a_standby_follows_the_owner_from_one_worker_to_the_next(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    """The former owner lives on as a standby: its renewals must not be taken for the owner's."""
    first = acquired(bucket, "a", PATIENT)
    second, third = waiting(bucket, "b", PATIENT), waiting(bucket, "c", PATIENT)
    make_ready(bucket, first, "b")
    first.release_to("b")
    lease = second.lease()
    waiting(bucket, "a", PATIENT, is_drained=True)
    until(lambda: third.seen.get(timeout=SECONDS_MAX).owner == "b")
    lease.release()
    assert third.lease().term == 3


def test_an_owner_that_cannot_renew_is_notified_and_recovers(bucket: Bucket, acquired: Acquire) -> None:
    store = Fallible(bucket)
    told: list[LeaseState] = []
    timing = LeaseTiming(renew=0.02, late=0.5, expired=SECONDS_MAX)
    lease = acquired(store, "a", timing, on_change=lambda lease: told.append(lease.state))
    store.before = BucketUnreachable("no answer in time")
    until(lambda: told[-1:] == [LeaseState.LATE])
    assert lease.state is LeaseState.LATE
    store.before = None
    until(lambda: told[-1:] == [LeaseState.HELD])
    assert owner(bucket).term == 1


def test_a_take_over_that_was_decided_before_a_late_owner_continued_fails(bucket: Bucket, acquired: Acquire) -> None:
    store = Fallible(bucket)
    timing = LeaseTiming(renew=0.02, late=0.5, expired=SECONDS_MAX)
    lease = acquired(store, "a", timing)
    decided = bucket.get(shard_key(0)).version
    store.before = BucketUnreachable("no answer in time")
    until(lambda: lease.state is LeaseState.LATE)
    store.before = None
    until(lambda: lease.state is LeaseState.HELD)
    with pytest.raises(VersionChanged):
        bucket.replace(shard_key(0), encode(ShardRecord(shard=0, owner="b", term=2)), decided)


def test_an_owner_that_could_not_renew_finds_that_it_was_replaced(bucket: Bucket, acquired: Acquire) -> None:
    store = Fallible(bucket)
    changes: Queue[LeaseState] = Queue()
    timing = LeaseTiming(renew=0.02, late=0.5, expired=SECONDS_MAX)
    lease = acquired(store, "a", timing, on_change=lambda lease: changes.put(lease.state))
    store.before = BucketUnreachable("no answer in time")
    acquired(bucket, "b", QUICK)
    store.before = None
    while changes.get(timeout=SECONDS_MAX) is not LeaseState.TAKEN:
        pass
    with pytest.raises(TakenOver, match="worker b"):
        lease.check()


def test_time_alone_makes_a_lease_late(bucket: Bucket) -> None:
    """Nothing needs to run for that: a process that was stopped for a minute knows at its first look at the clock."""
    clock = [0.0]
    lease = acquire(ShardCandidate(bucket, "a", {}, clock=lambda: clock[0]))
    assert lease is not None
    die(lease)

    def state_at(now: float) -> LeaseState:
        clock[0] = now
        return lease.state

    assert [state_at(3.9), state_at(64.0)] == [LeaseState.HELD, LeaseState.LATE]


def test_writes_with_unknown_outcomes_are_found_again(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(UnknownOnce(bucket), "a", PATIENT)
    assert lease.term == 1
    until(lambda: revision(bucket, "a") > 3)
    die(lease)
    second = acquired(UnknownOnce(bucket), "b", QUICK)
    assert second.term == 2
    until(lambda: revision(bucket, "b") > 3)
    assert second.state is LeaseState.HELD


def test_a_deleted_record_of_an_owner_is_written_again(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    bucket.delete([worker_key("a")])
    until(lambda: revision(bucket, "a") > 0)
    assert lease.state is LeaseState.HELD


def test_an_owner_without_a_record_may_live_and_is_waited_for(
    bucket: Bucket, acquired: Acquire, waiting: Callable[..., Waiting]
) -> None:
    die(acquired(bucket, "a", PATIENT))
    bucket.delete([worker_key("a")])
    standby = waiting(bucket, "b", PATIENT)
    assert {standby.seen.get(timeout=SECONDS_MAX).owner for _ in range(5)} == {"a"}
    assert not standby.acquiring.done()
    assert acquired(bucket, "c", QUICK).term == 2


def test_the_shard_of_an_owner_that_has_ended_is_free_at_once(bucket: Bucket, acquired: Acquire) -> None:
    die(acquired(bucket, "a", PATIENT))
    end_record(bucket, "a")
    assert record(bucket, "a").has_ended
    assert acquired(bucket, "b", PATIENT).term == 2
    until(lambda: cluster(bucket) == ["cluster/shards/0", "cluster/workers/b"])


def test_a_dead_owner_has_ended_and_others_that_are_dead_have_no_record(bucket: Bucket, acquired: Acquire) -> None:
    die(acquired(bucket, "a", PATIENT))
    bucket.create(worker_key("b"), [encode(WorkerRecord(worker="b", revision=1, addresses={}, waits_for=(0,)))])
    for name in ("a", "b"):
        end_dead(bucket, record(bucket, name))
    assert record(bucket, "a").has_ended
    assert cluster(bucket) == ["cluster/shards/0", "cluster/workers/a"]


def test_an_owner_that_has_renewed_since_it_was_taken_for_dead_continues(bucket: Bucket, acquired: Acquire) -> None:
    lease = acquired(bucket, "a", PATIENT)
    dead = record(bucket, "a")
    until(lambda: revision(bucket, "a") > dead.revision)
    end_dead(bucket, dead)
    assert not record(bucket, "a").has_ended
    assert lease.state is LeaseState.HELD


def test_an_owner_that_was_ended_changes_the_shard_s_record_before_it_continues(
    bucket: Bucket, acquired: Acquire
) -> None:
    store = Fallible(bucket)
    lease = acquired(store, "a", LeaseTiming(renew=0.02, late=0.5, expired=SECONDS_MAX))
    store.before = BucketUnreachable("no answer in time")
    until(lambda: lease.state is LeaseState.LATE)
    end_dead(bucket, record(bucket, "a"))
    before = owner(bucket).resumed
    store.before = None
    until(lambda: lease.state is LeaseState.HELD)
    assert owner(bucket).resumed > before
    until(lambda: not record(bucket, "a").has_ended)


def test_records_that_crashes_have_left_are_removed(bucket: Bucket, acquired: Acquire) -> None:
    for name in ("x", "y"):
        bucket.create(worker_key(name), [encode(WorkerRecord(worker=name, revision=5, addresses={}))])
    acquired(bucket, "a", QUICK)
    until(lambda: cluster(bucket) == ["cluster/shards/0", "cluster/workers/a"])


def test_a_store_that_is_unreachable_at_the_start_is_waited_for(bucket: Bucket, acquired: Acquire) -> None:
    store = Fallible(bucket)
    store.before = BucketUnreachable("no answer in time")
    seen: list[OwnerSeen] = []

    def reachable_again(waiting: OwnerSeen) -> None:
        seen.append(waiting)
        store.before = None

    assert acquired(store, "a", PATIENT, on_waiting=reachable_again).term == 1
    assert seen[0].problem == "no answer in time"


def test_a_store_that_forbids_it_is_an_error_and_nothing_is_left_behind(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "UNREACHABLE_SECONDS_MAX", 0.1)  # how long it is tried again

    class ReadOnlyShards(Fallible):
        def create(self, key: str, buffers: Sequence[Buffer]) -> str:
            if key.startswith("cluster/shards"):
                raise BucketForbidden("no")
            return super().create(key, buffers)

    with pytest.raises(BucketForbidden):
        acquire(ShardCandidate(ReadOnlyShards(bucket), "a", {}))
    assert cluster(bucket) == []


def test_a_record_of_another_format_is_refused(bucket: Bucket) -> None:
    version = bucket.create(shard_key(0), [b'{"format": 2, "shard": 0, "holder": "a"}'])
    with pytest.raises(UnreadableFormat, match="cluster/shards/0 was written by a newer version"):
        acquire(ShardCandidate(bucket, "b", {}))
    bucket.replace(shard_key(0), b"not JSON", version)
    with pytest.raises(Damaged, match="cluster/shards/0 is not valid"):
        acquire(ShardCandidate(bucket, "b", {}))


def test_fields_of_later_versions_are_ignored(bucket: Bucket, acquired: Acquire) -> None:
    bucket.create(shard_key(0), [b'{"format": 1, "shard": 0, "owner": "a", "term": 7, "later": []}'])
    assert acquired(bucket, "b").term == 8


def test_a_workers_id_is_new_for_each_run_and_fits_in_a_key() -> None:
    one, other = worker_id("Host 1/ä.example.org"), worker_id("Host 1/ä.example.org")
    assert one != other
    assert one.startswith("Host-1-.example.org-")


HOLDER = """
import sys
from penstock.cluster.records import worker_id
from penstock.cluster.lease import REQUEST_SECONDS_MAX, ShardCandidate, acquire
from penstock.bucket.stores import open_bucket
bucket = open_bucket(sys.argv[1], timeout=REQUEST_SECONDS_MAX)
candidate = ShardCandidate(bucket, worker_id(sys.argv[2]), {})
lease = acquire(candidate, on_change=lambda lease: print(lease.state.name, flush=True))
print("acquired", lease.term, flush=True)
sys.stdin.readline()
print("state", lease.state.name, flush=True)
lease.release()
"""


class Holder:
    """A process with a lease, with the usual times."""

    def __init__(self, url: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait_until_it_says(self, what: str) -> list[str]:
        """All lines up to that one."""
        assert self.process.stdout is not None
        heard = [self.process.stdout.readline().strip()]
        while heard[-1] != what:
            assert heard[-1], "it has ended"
            heard.append(self.process.stdout.readline().strip())
        return heard

    def stop(self) -> str:
        return self.process.communicate("\n")[0]


@pytest.mark.slow
def test_a_zombie_learns_that_it_was_replaced_while_it_slept(shared_url: str) -> None:
    zombie = Holder(shared_url, "zombie")
    zombie.wait_until_it_says("acquired 1")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, zombie.process.pid, os.WSTOPPED)
    successor = Holder(shared_url, "successor")
    successor.wait_until_it_says("acquired 2")
    os.kill(zombie.process.pid, signal.SIGCONT)
    assert "HELD" not in zombie.wait_until_it_says("TAKEN")
    assert zombie.stop() == "state TAKEN\n"
    assert "TAKEN" not in successor.stop()
    remaining = open_bucket(shared_url)
    left = owner(remaining).owner
    assert cluster(remaining) == ["cluster/shards/0", worker_key(left)]
    assert record(remaining, left).has_ended
