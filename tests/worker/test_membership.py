"""Hosts agree about the assignment through the bucket: no sockets, and a clock that is set."""

from collections import Counter
from uuid import uuid4

import msgspec
import pytest

from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.stores import open_bucket
from penstock.cluster import assignment
from penstock.cluster.records import WorkerRecord, encode, read_record, worker_key
from penstock.core.errors import RequestError
from penstock.worker.host_link import ShardReport
from penstock.worker.membership import Membership
from penstock.worker.shard_processes import Action, plan


class Cluster:
    def __init__(self) -> None:
        self.bucket = open_bucket(f"memory://{uuid4().hex}")
        self.now = 100.0

    def join(self, name: str, wants: int) -> Membership:
        record = WorkerRecord(worker=name, revision=0, addresses={}, shards=(), wants=wants)
        return Membership(CountedBucket(self.bucket), record, clock=lambda: self.now)

    def rounds(self, *hosts: Membership, count: int = 1) -> None:
        for _ in range(count):
            self.now += 2.0
            for one in hosts:
                one.round()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_first_host_leads_and_others_get_what_they_add(cluster: Cluster) -> None:
    a, b = cluster.join("a", 2), cluster.join("b", 1)
    cluster.rounds(a)
    assert a.is_leader
    assert a.assigned_to("a") == {0, 1}
    cluster.rounds(a, b, count=3)
    assert not b.is_leader
    assert b.assignment == a.assignment
    assert (b.assigned_to("a"), b.assigned_to("b")) == ({0, 1}, {2})


def test_when_the_leader_is_lost_another_one_gives_its_shards_away(cluster: Cluster) -> None:
    a, b, c = cluster.join("a", 2), cluster.join("b", 1), cluster.join("c", 1)
    cluster.rounds(a, b, c, count=3)
    cluster.rounds(b, c, count=2)
    assert b.assigned_to("a") == {0, 1}  # not yet: its record may still be renewed
    cluster.rounds(b, c, count=3)
    assert {b.leader, c.leader} & {"b", "c"}
    cluster.rounds(b, c, count=2)
    assert b.assignment == c.assignment
    assert b.assigned_to("a") == set()
    assert b.assigned_to("b") | b.assigned_to("c") == {0, 1, 2, 3}


def test_a_leader_that_was_only_slow_is_a_host_again(cluster: Cluster) -> None:
    a, b = cluster.join("a", 1), cluster.join("b", 1)
    cluster.rounds(a, b, count=3)
    cluster.rounds(b, count=5)
    assert b.is_leader
    assert b.assigned_to("b") == {0, 1}
    cluster.rounds(a, b, count=3)
    assert not a.is_leader
    assert a.assigned_to("a") == set()  # sticky: until somebody rebalances
    b.change(assignment.rebalanced)
    cluster.rounds(a, b, count=2)
    assert len(a.assigned_to("a")) == 1


def test_a_drained_host_keeps_nothing_and_a_move_to_it_is_refused(cluster: Cluster) -> None:
    a, b = cluster.join("a", 1), cluster.join("b", 1)
    cluster.rounds(a, b, count=2)
    b.drain()
    cluster.rounds(a, b, count=2)
    assert a.assigned_to("a") == {0, 1}
    with pytest.raises(RequestError, match="drained"):
        a.change(lambda record, leader, hosts: assignment.moved(record, leader, hosts, 0, "b"))


def test_a_host_that_stops_is_replaced_at_once(cluster: Cluster) -> None:
    a, b = cluster.join("a", 1), cluster.join("b", 1)
    cluster.rounds(a, b, count=2)
    b.leave()
    cluster.rounds(a)
    assert a.assigned_to("a") == {0, 1}


def test_while_nothing_changes_a_host_renews_one_record_and_reads_one(cluster: Cluster) -> None:
    a, b = cluster.join("a", 1), cluster.join("b", 1)
    cluster.rounds(a, b, count=3)
    counted = b._bucket
    assert isinstance(counted, CountedBucket)
    before = dict(counted.counts().requests)
    cluster.rounds(a, b, count=10)
    after = dict(counted.counts().requests)
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)} == {
        "get": 10,
        "put": 10,
    }


def test_a_leader_that_has_been_alone_for_a_while_looks_for_others_every_third_round(cluster: Cluster) -> None:
    a = cluster.join("a", 2)
    process = Membership(cluster.bucket, msgspec.structs.replace(a._record, worker="a.0", wants=None, host="a"))

    def rounds(count: int) -> None:
        for _ in range(count):
            process._renew()
            cluster.rounds(a)

    rounds(20)
    counted = a._bucket
    assert isinstance(counted, CountedBucket)
    before = Counter(counted.counts().requests)
    rounds(30)
    made = Counter(counted.counts().requests) - before
    assert made == {"put": 30, "list": 10, "get": 10 * (1 + 2)}  # the assignment, and two records
    b = cluster.join("b", 1)
    cluster.rounds(a, b, count=4)
    assert b.assigned_to("b") == {2}
    before = Counter(counted.counts().requests)
    cluster.rounds(a, b, count=10)
    assert (Counter(counted.counts().requests) - before)["list"] == 10


def test_a_leader_that_is_alone_finds_out_that_another_host_leads(cluster: Cluster) -> None:
    a, b = cluster.join("a", 1), cluster.join("b", 1)
    cluster.rounds(a, count=20)
    cluster.rounds(b, count=5)  # a sleeps
    assert b.is_leader
    cluster.rounds(a, b, count=3)
    assert not a.is_leader


def test_a_record_that_was_deleted_is_written_again(cluster: Cluster) -> None:
    a = cluster.join("a", 1)
    cluster.rounds(a, count=2)
    cluster.bucket.delete([worker_key("a")])
    cluster.rounds(a, count=2)
    assert [one.worker for one in a.records()] == ["a"]


# What a host does.


def test_a_host_starts_what_is_assigned_and_lets_go_of_what_is_not() -> None:
    serving, waiting = ShardReport(state="serving"), ShardReport(state="waiting")
    leaving = ShardReport(state="waiting", is_leaving=True)
    moving = ShardReport(state="serving", is_leaving=True)
    assert plan({0, 1}, {1: serving}) == {0: Action.START}
    assert plan({0}, {0: waiting}) == {}
    assert plan(set(), {0: serving}) == {0: Action.LEAVE}
    assert plan(set(), {0: moving, 1: leaving}) == {}
    assert plan(set(), {0: waiting, 1: ShardReport()}) == {0: Action.STOP, 1: Action.STOP}


def test_no_shard_is_handed_to_a_process_that_has_ended(cluster: Cluster) -> None:
    a = cluster.join("a", 1)
    record = WorkerRecord(worker="process", revision=1, addresses={}, shards=(), waits_for=(3,), host="b")
    cluster.bucket.create(worker_key("process"), [encode(record)])
    assert a.waiting(3, "b") == "process"
    assert a.waiting(3, "c") == a.waiting(4, "b") == ""
    a.forget("process")
    assert read_record(cluster.bucket, worker_key("process"), WorkerRecord) is not None
    assert a.waiting(3, "b") == ""


def test_a_leader_whose_look_takes_longer_than_a_lease_renews_its_record_meanwhile(cluster: Cluster) -> None:
    for number in range(40):
        record = WorkerRecord(worker=f"process-{number}", revision=1, addresses={}, shards=(number,), host="b")
        cluster.bucket.create(worker_key(record.worker), [encode(record)])

    def clock() -> float:
        """A second later each time: it is asked after each record."""
        cluster.now += 1.0
        return cluster.now

    own = WorkerRecord(worker="a", revision=0, addresses={}, shards=(), wants=1)
    leader = Membership(CountedBucket(cluster.bucket), own, clock=clock)

    def revision() -> int:
        found = read_record(cluster.bucket, worker_key("a"), WorkerRecord)
        assert found is not None
        return found[0].revision

    leader.round()
    before, began = revision(), cluster.now
    leader.round()
    assert cluster.now - began > 40
    assert revision() - before >= 10
    before = revision()
    assert not leader.waiting(3, "b")
    assert revision() - before >= 10
