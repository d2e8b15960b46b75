"""The decisions about leases, with time as an argument."""

from penstock.cluster.lease_state import HANDOVER_SECONDS, LEASE_TIMING, LeaseState, OwnerWatch, OwnLease
from penstock.cluster.records import ShardRecord, WorkerRecord


def record(revision: int, worker: str = "w") -> WorkerRecord:
    return WorkerRecord(worker=worker, revision=revision, addresses={"http": "host:1"})


def test_an_owner_that_does_not_renew_for_six_seconds_may_be_taken_for_dead() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    first = watch.look(record(1), 100.0, 100.0)
    assert first is not None
    assert (first.owner, first.addresses, first.quiet_seconds, first.left_seconds) == ("w", {"http": "host:1"}, 0, 6)
    assert watch.look(record(1), 105.9, 105.9) is not None
    assert watch.look(record(1), 106.0, 106.0) is None


def test_a_renewal_starts_the_wait_again() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    for second in range(100):
        seen = watch.look(record(second // 5), 100.0 + second, 100.0 + second)
        assert seen is not None
        assert seen.quiet_seconds == second % 5


def test_another_owner_of_the_same_revision_starts_the_wait_again() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    watch.look(record(1, "a"), 100.0, 100.0)
    assert watch.look(record(1, "b"), 106.0, 106.0) is not None
    assert watch.look(record(1, "b"), 111.9, 111.9) is not None
    assert watch.look(record(1, "b"), 112.0, 112.0) is None


def test_the_time_that_requests_take_does_not_count() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    watch.look(record(1), 100.0, 103.0)
    assert watch.look(record(1), 108.9, 120.0) is not None, "the answer may be from 108.9"
    assert watch.look(record(1), 109.0, 120.0) is None


def test_a_candidate_that_slept_while_it_asked_looks_again() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    watch.look(record(1), 100.0, 100.0)
    assert watch.look(record(1), 101.0, 161.0) is not None, "read before it was stopped for a minute"
    assert watch.look(record(30), 161.0, 161.0) is not None


def test_the_last_look_is_exactly_when_the_lease_expires() -> None:
    watch = OwnerWatch(LEASE_TIMING)
    pauses = []
    now = 100.0
    while (seen := watch.look(record(1), now, now)) is not None:
        pauses.append(watch.pause(seen))
        now += pauses[-1]
    assert pauses == [2.0, 2.0, 2.0]
    watch.look(record(2), 200.0, 200.0)
    seen = watch.look(record(2), 205.0, 205.0)
    assert seen is not None
    assert watch.pause(seen) == 1.0


def test_a_lease_is_late_four_seconds_after_its_last_renewal_was_sent() -> None:
    standing = OwnLease(LEASE_TIMING, 100.0)
    assert standing.due() == 102.0
    assert standing.state(103.9) is LeaseState.HELD
    standing.attempt(102.0)
    standing.renew()
    assert standing.state(105.9) is LeaseState.HELD
    assert standing.late_at() == 106.0
    assert standing.state(106.0) is LeaseState.LATE


def test_a_late_lease_stays_late_until_it_is_renewed() -> None:
    standing = OwnLease(LEASE_TIMING, 100.0)
    assert standing.state(160.0) is LeaseState.LATE
    assert standing.state(101.0) is LeaseState.LATE
    standing.attempt(160.0)
    standing.renew()
    assert standing.state(161.0) is LeaseState.HELD


def test_a_renewal_counts_from_its_first_attempt() -> None:
    """That one may have been seen by others, although its outcome was unknown here."""
    standing = OwnLease(LEASE_TIMING, 100.0)
    standing.attempt(102.0)
    standing.attempt(105.0)
    standing.renew()
    assert standing.late_at() == 106.0


def test_a_lease_that_another_has_taken_is_lost_for_good() -> None:
    standing = OwnLease(LEASE_TIMING, 100.0)
    standing.lose("other")
    standing.attempt(101.0)
    standing.renew()
    assert standing.state(101.0) is LeaseState.TAKEN


def test_an_owner_is_late_before_any_candidate_may_take_over() -> None:
    """However long requests take: the owner counts from when it sent, the candidate from when it received."""
    for delay in (0.0, 0.5, 1.9):
        standing, watch = OwnLease(LEASE_TIMING, 100.0), OwnerWatch(LEASE_TIMING)
        watch.look(record(1), 100.0, 100.0 + delay)
        now = 100.0
        while watch.look(record(1), now, now + delay) is not None:
            now += 0.1
        assert standing.state(now - (LEASE_TIMING.expired - LEASE_TIMING.late)) is LeaseState.LATE


def released(successor: str) -> ShardRecord:
    return ShardRecord(shard=0, owner="a", term=1, successor=successor)


def test_a_shard_that_was_given_up_is_the_successor_s_at_once_and_anybody_s_after_a_lease() -> None:
    assert OwnerWatch(LEASE_TIMING, "b").released(released("b"), 100.0) is None
    other = OwnerWatch(LEASE_TIMING, "c")
    assert other.released(released("b"), 100.0) is not None
    assert other.released(released("b"), 105.9) is not None
    assert other.released(released("b"), 106.0) is None


def test_a_drained_worker_lets_others_go_first() -> None:
    drained = OwnerWatch(LEASE_TIMING, "a", is_drained=True)
    assert drained.released(released("b"), 100.0) is not None
    assert drained.released(released("b"), 111.9) is not None
    assert drained.released(released("b"), 112.0) is None
    assert OwnerWatch(LEASE_TIMING, "c").gone("b", 2, 200.0) is None
    assert drained.gone("b", 2, 200.0) is not None
    assert drained.gone("b", 2, 206.0) is None
    assert OwnerWatch(LEASE_TIMING, "c").absent("b", 2, 200.0) is not None
    assert drained.absent("b", 2, 210.0) is not None
    assert drained.absent("b", 2, 221.9) is not None
    assert drained.absent("b", 2, 222.0) is None
    drained.look(record(1), 300.0, 300.0)
    assert drained.look(record(1), 311.9, 311.9) is not None
    assert drained.look(record(1), 312.0, 312.0) is None


def test_the_two_workers_of_a_move_look_often_and_others_do_not() -> None:
    moving = WorkerRecord(worker="a", revision=1, addresses={}, moving_to="b")
    for worker, pause in (("b", HANDOVER_SECONDS), ("c", LEASE_TIMING.renew)):
        watch = OwnerWatch(LEASE_TIMING, worker)
        seen = watch.look(moving, 100.0, 100.0)
        assert seen is not None
        assert watch.pause(seen) == pause
    for worker, pause in (("a", HANDOVER_SECONDS), ("c", LEASE_TIMING.renew)):
        watch = OwnerWatch(LEASE_TIMING, worker)
        seen = watch.released(released("b"), 100.0)
        assert seen is not None
        assert watch.pause(seen) == pause
