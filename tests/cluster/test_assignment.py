"""Which host serves which shard."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.assignment import (
    Host,
    LeaderWatch,
    LiveHosts,
    assign,
    assigned,
    by_shard,
    first_assignment,
    move,
    moved,
    rebalance,
    rebalanced,
    shard_count,
)
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.cluster.records import AssignmentRecord, WorkerRecord, decode, encode
from penstock.core.errors import RequestError

NAMES = [f"h{number}" for number in range(8)]


class Situation(msgspec.Struct, frozen=True):
    count: int
    hosts: list[Host]
    current: dict[int, str]

    @property
    def usable(self) -> dict[str, Host]:
        found = [host for host in self.hosts if not host.is_drained] or self.hosts
        return {host.name: host for host in found}


@st.composite
def situations(draw: st.DrawFn, *, any_hosts: bool = False) -> Situation:
    """As they occur: at least as many shards as the hosts want; with `any_hosts` also fewer, and no host at all."""
    each = st.tuples(st.sampled_from(NAMES), st.integers(0, 5), st.booleans())
    found = draw(st.lists(each, unique_by=lambda host: host[0], min_size=0 if any_hosts else 1, max_size=5))
    hosts = [Host(*host) for host in found]
    count = draw(st.integers(0, 20))
    if not any_hosts:
        count = shard_count(count, [host._replace(is_drained=False) for host in hosts])
    owners = draw(st.lists(st.sampled_from(["", *NAMES]), max_size=25))
    return Situation(count, hosts, {shard: owner for shard, owner in enumerate(owners) if owner})


def loads(situation: Situation, result: Mapping[int, str]) -> dict[str, int]:
    """The shards that each host has above what it wants."""
    owned = list(result.values())
    return {name: owned.count(name) - host.wants for name, host in situation.usable.items()}


# assign


@given(situations(any_hosts=True))
def test_every_shard_has_a_live_host_if_there_is_one(situation: Situation) -> None:
    for decide in (assign, rebalance):
        result = decide(situation.count, situation.hosts, situation.current)
        if situation.hosts:
            assert sorted(result) == list(range(situation.count))
            assert set(result.values()) <= set(situation.usable)
        else:
            assert result == situation.current


@given(situations(any_hosts=True))
def test_a_shard_stays_with_a_live_host_that_is_not_drained(situation: Situation) -> None:
    result = assign(situation.count, situation.hosts, situation.current)
    for shard, host in situation.current.items():
        if shard < situation.count and host in situation.usable:
            assert result[shard] == host


@given(situations(any_hosts=True), st.randoms(use_true_random=False))
def test_the_order_of_hosts_and_shards_does_not_matter(situation: Situation, random: object) -> None:
    hosts, current = list(situation.hosts), list(situation.current.items())
    random.shuffle(hosts)  # type: ignore[attr-defined]
    random.shuffle(current)  # type: ignore[attr-defined]
    for decide in (assign, rebalance):
        assert decide(situation.count, hosts, dict(current)) == decide(
            situation.count, situation.hosts, situation.current
        )


@given(situations(any_hosts=True))
def test_what_is_assigned_is_assigned_again(situation: Situation) -> None:
    once = assign(situation.count, situation.hosts, situation.current)
    assert assign(situation.count, situation.hosts, once) == once
    level = rebalance(situation.count, situation.hosts, situation.current)
    assert rebalance(situation.count, situation.hosts, level) == level
    assert assign(situation.count, situation.hosts, level) == level


@given(situations())
def test_a_new_shard_goes_where_the_load_is_lowest(situation: Situation) -> None:
    before = assign(situation.count, situation.hosts, situation.current)
    after = assign(situation.count + 1, situation.hosts, before)
    lowest = min(loads(situation, before).values())
    assert {shard: after[shard] for shard in before} == before
    assert loads(situation, before)[after[situation.count]] == lowest


def test_ties_are_broken_by_name() -> None:
    assert assign(3, [Host("b"), Host("c"), Host("a")], {}) == {0: "a", 1: "b", 2: "c"}


def test_the_shards_of_a_dead_host_are_spread() -> None:
    hosts = [Host("a", 2), Host("b", 2), Host("c", 2)]
    before = assign(6, hosts, {})
    after = assign(6, hosts[:2], before)
    assert sorted(after.values()) == ["a"] * 3 + ["b"] * 3


def test_a_drained_host_keeps_nothing_if_another_host_is_live() -> None:
    drained = Host("a", 2, is_drained=True)
    assert assign(2, [drained, Host("b", 0)], {0: "a", 1: "a"}) == {0: "b", 1: "b"}
    assert assign(2, [drained], {0: "a", 1: "gone"}) == {0: "a", 1: "a"}


def test_a_host_that_wants_no_shards_only_takes_over() -> None:
    standby, worker = Host("a", 0), Host("b", 4)
    assert set(assign(4, [standby, worker], {}).values()) == {"b"}
    assert set(rebalance(4, [standby, worker], {0: "a"}).values()) == {"b"}
    assert set(assign(4, [standby], dict.fromkeys(range(4), "b")).values()) == {"a"}


def test_the_number_of_shards_is_what_live_hosts_want_and_never_shrinks() -> None:
    assert shard_count(0, [Host("a", 2), Host("b", 3)]) == 5
    assert shard_count(5, [Host("b", 3)]) == 5
    assert shard_count(5, [Host("b", 3), Host("c", 2)]) == 5
    assert shard_count(5, [Host("a", 2), Host("b", 3), Host("c", 2)]) == 7
    assert shard_count(0, [Host("a", 2, is_drained=True)]) == 0


# rebalance


@given(situations())
def test_after_a_rebalance_the_hosts_loads_differ_by_at_most_one(situation: Situation) -> None:
    found = loads(situation, rebalance(situation.count, situation.hosts, situation.current)).values()
    assert max(found) - min(found) <= 1


@given(situations())
def test_a_rebalance_moves_no_more_shards_than_it_must(situation: Situation) -> None:
    before = assign(situation.count, situation.hosts, situation.current)
    after = rebalance(situation.count, situation.hosts, before)
    moves = sum(before[shard] != after[shard] for shard in before)
    assert moves == fewest_moves(situation, loads(situation, before))


def fewest_moves(situation: Situation, found: Mapping[str, int]) -> int:
    """One at a time, from the highest load to the lowest, until they differ by at most one."""
    found, moves = dict(found), 0
    while found and max(found.values()) - min(found.values()) > 1:
        found[max(found, key=found.__getitem__)] -= 1
        found[min(found, key=found.__getitem__)] += 1
        moves += 1
    return moves


def test_a_rebalance_gives_a_host_that_joined_its_share() -> None:
    hosts = [Host("a", 2), Host("b", 2)]
    after = rebalance(4, hosts, dict.fromkeys(range(4), "a"))
    assert after == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_thousand_hosts_with_ten_thousand_shards_are_levelled() -> None:
    hosts = [Host(f"h{number}", 10) for number in range(1_000)]
    before = assign(10_000, hosts[:900], {})
    after = rebalance(10_000, hosts, before)
    assert sum(before[shard] != after[shard] for shard in before) == 1_000


# move


def test_a_shard_that_was_moved_stays_until_the_next_rebalance() -> None:
    hosts = [Host("a", 1), Host("b", 1), Host("c", 1)]
    current = {0: "a", 1: "b", 2: "c"}
    after = move(3, hosts, current, 0, "c")
    assert after == {0: "c", 1: "b", 2: "c"}
    assert assign(3, hosts, after) == after
    assert sorted(rebalance(3, hosts, after).values()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("shard", "host", "problem"),
    [(3, "a", "there is no shard 3"), (0, "x", "no live worker x"), (0, "d", "worker d is drained")],
)
def test_a_move_that_would_not_last_is_refused(shard: int, host: str, problem: str) -> None:
    hosts = [Host("a"), Host("d", is_drained=True)]
    with pytest.raises(RequestError, match=problem):
        move(3, hosts, {}, shard, host)


# The record


def test_an_assignment_that_does_not_change_is_not_written() -> None:
    hosts = [Host("a", 2), Host("b", 1)]
    first = assigned(first_assignment("a"), "a", hosts)
    assert first == AssignmentRecord(revision=1, leader="a", count=3, shards={"a": (0, 1), "b": (2,)})
    assert assigned(first, "a", hosts) is first
    assert rebalanced(first, "a", hosts) is first
    assert moved(first, "a", hosts, 0, "a") is first


def test_a_new_leader_writes_the_assignment() -> None:
    hosts = [Host("a", 1), Host("b", 1)]
    first = assigned(first_assignment("a"), "a", hosts)
    second = assigned(first, "b", hosts)
    assert (second.leader, second.revision, second.shards) == ("b", 2, first.shards)


@given(situations())
def test_an_assignment_is_what_was_encoded(situation: Situation) -> None:
    record = assigned(first_assignment("a"), "a", situation.hosts)
    again = decode(encode(record), AssignmentRecord, "cluster/assignment")
    assert again == record
    assert by_shard(again) == assign(record.count, situation.hosts, {})


# Who lives, and who leads


def host(name: str, revision: int, *, wants: int | None = 1, is_drained: bool = False) -> WorkerRecord:
    return WorkerRecord(worker=name, revision=revision, addresses={}, wants=wants, is_drained=is_drained)


def test_a_host_lives_while_its_record_is_renewed() -> None:
    live = LiveHosts(LEASE_TIMING)
    both = (Host("a"), Host("b"))
    assert live.look([host("a", 1), host("b", 1), host("p", 1, wants=None)], 100.0, 100.0) == both
    assert live.look([host("a", 2), host("b", 1)], 105.9, 105.9) == both
    assert live.look([host("a", 2), host("b", 1)], 106.0, 106.0) == (Host("a"),)
    assert live.look([host("a", 2), host("b", 2)], 107.0, 107.0) == both
    assert live.look([host("b", 2)], 108.0, 108.0) == (Host("b"),)


def test_workers_that_are_not_renewed_are_dead() -> None:
    def process(name: str, revision: int, host: str) -> WorkerRecord:
        return WorkerRecord(worker=name, revision=revision, addresses={}, host=host)

    live = LiveHosts(LEASE_TIMING)
    live.look([host("a", 1), host("b", 1), *(process(f"{on}{k}", 1, on) for on in "ab" for k in "12")], 0.0, 0.0)
    assert not live.dead
    later = [host("a", 1), process("a1", 1, "a"), process("a2", 2, "a"), process("b1", 1, "b")]
    live.look([*later, host("b", 2)], 6.0, 6.0)
    assert [one.worker for one in live.dead] == ["a", "a1", "b1"]


def test_a_host_that_slept_while_it_asked_takes_nobody_for_dead() -> None:
    live = LiveHosts(LEASE_TIMING)
    live.look([host("a", 1)], 100.0, 100.0)
    assert live.look([host("a", 1)], 101.0, 161.0) == (Host("a"),)


def test_the_leader_is_who_wrote_last_until_it_is_quiet_for_six_seconds() -> None:
    record = AssignmentRecord(revision=1, leader="a", count=0, shards={})
    a, b = LeaderWatch(LEASE_TIMING, "a"), LeaderWatch(LEASE_TIMING, "b")
    assert a.may_lead(None, None, 100.0, 100.0)
    assert a.may_lead(record, host("a", 1), 100.0, 100.0)
    assert not b.may_lead(record, host("a", 1), 100.0, 100.0)
    assert not b.may_lead(record, host("a", 1), 105.9, 105.9)
    assert b.may_lead(record, host("a", 1), 106.0, 106.0)


def test_a_leader_without_a_record_is_replaced_at_once_and_by_a_drained_host_later() -> None:
    record = AssignmentRecord(revision=1, leader="a", count=0, shards={})
    assert LeaderWatch(LEASE_TIMING, "b").may_lead(record, None, 100.0, 100.0)
    drained = LeaderWatch(LEASE_TIMING, "c", is_drained=True)
    assert not drained.may_lead(record, None, 100.0, 100.0)
    assert drained.may_lead(record, None, 106.0, 106.0)
