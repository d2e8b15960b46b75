"""Which host serves which shard, and which host decides that. Pure: hosts and time are arguments.

The assignment is a wish: leases and the journal's fence decide who serves a shard. So two leaders, a leader that has
seen too few hosts, and a host that reads an old assignment do no harm; the next assignment mends it.
"""

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple

import msgspec

from penstock.cluster.lease_state import LeaseTiming, OwnerWatch
from penstock.cluster.records import AssignmentRecord, WorkerRecord
from penstock.core.errors import RequestError


class Host(NamedTuple):
    """A live host, as the leader sees it."""

    name: str
    wants: int = 1
    """How many shards it adds to the cluster, and how many it is meant to serve."""
    is_drained: bool = False


# What is assigned. A mapping shard → host may lack shards, and may name hosts that are not live.


def shard_count(current: int, hosts: Iterable[Host]) -> int:
    """How many shards the cluster has: what its live hosts want together, and never fewer than before."""
    return max(current, sum(host.wants for host in hosts if not host.is_drained))


def assign(count: int, hosts: Collection[Host], current: Mapping[int, str]) -> dict[int, str]:
    """A host for each of `count` shards. A shard stays with a live host that is not drained; every other one goes to
    the host that is the furthest below what it wants, or the least above it; ties are broken by name. Drained hosts
    get shards only if no other is live. Without a live host nothing changes.
    """
    usable = _usable(hosts)
    if not usable:
        return dict(current)
    kept = _kept(count, usable, current)
    return kept | _place((shard for shard in range(count) if shard not in kept), usable, kept)


def rebalance(count: int, hosts: Collection[Host], current: Mapping[int, str]) -> dict[int, str]:
    """Like `assign`, but also level: the hosts' shards above what they want differ by at most one. No assignment that
    is level needs fewer moves.
    """
    usable = _usable(hosts)
    if not usable:
        return dict(current)
    kept = _kept(count, usable, current)
    targets = _targets(count, usable, kept)
    by_host = _by_host(usable, kept)
    for name, shards in by_host.items():
        del shards[targets[name] :]
    kept = {shard: name for name, shards in by_host.items() for shard in shards}
    return kept | _place((shard for shard in range(count) if shard not in kept), usable, kept, targets)


def move(count: int, hosts: Collection[Host], current: Mapping[int, str], shard: int, host: str) -> dict[int, str]:
    """Give this shard to this host. It stays there, as every shard does, until the host is gone or drained, or until
    the next `rebalance`. Raises RequestError.
    """
    if not 0 <= shard < count:
        raise RequestError(f"there is no shard {shard}: the cluster has {count}", "See penstock cluster status.")
    if all(each.name != host for each in hosts):
        raise RequestError(f"there is no live worker {host}", "See penstock cluster status.")
    if host not in _usable(hosts):
        raise RequestError(f"worker {host} is drained", "Move the shard to another worker, or start a new one.")
    return assign(count, hosts, current) | {shard: host}


def _usable(hosts: Collection[Host]) -> dict[str, Host]:
    """By name, in order: nothing depends on the order in which hosts were found."""
    ordered = sorted(hosts)
    return {host.name: host for host in ordered if not host.is_drained} or {host.name: host for host in ordered}


def _kept(count: int, usable: Mapping[str, Host], current: Mapping[int, str]) -> dict[int, str]:
    return {shard: current[shard] for shard in range(count) if current.get(shard) in usable}


def _by_host(usable: Mapping[str, Host], kept: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in usable}
    for shard, name in kept.items():
        found[name].append(shard)
    return found


def _place(
    shards: Iterable[int],
    usable: Mapping[str, Host],
    kept: Mapping[int, str],
    targets: Mapping[str, int] | None = None,
) -> dict[int, str]:
    """Each shard goes to the host with the lowest load: what it has above its target, or else above what it wants."""
    by_host = _by_host(usable, kept)
    loads = [(len(by_host[name]) - (targets[name] if targets else usable[name].wants), name) for name in usable]
    heapify(loads)
    placed = {}
    for shard in shards:
        load, name = loads[0]
        placed[shard] = name
        heapreplace(loads, (load + 1, name))
    return placed


def _targets(count: int, usable: Mapping[str, Host], kept: Mapping[int, str]) -> dict[str, int]:
    """How many shards each host has when all are level. Those that get one more than the others are those that have
    the most to give away, so that the fewest shards move.
    """
    level = _level(count, usable)
    base = _levelled(level, usable)
    spare = count - sum(base.values())
    by_host = _by_host(usable, kept)
    able = [name for name in usable if usable[name].wants + level >= 0]
    able.sort(key=lambda name: (base[name] - len(by_host[name]), name))
    return base | {name: base[name] + 1 for name in able[:spare]}


def _level(count: int, usable: Mapping[str, Host]) -> int:
    """The most shards above what each host wants that `count` shards are enough for. Below 0 if they are too few."""
    low, high = -max(host.wants for host in usable.values()), count
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_levelled(middle, usable).values()) <= count:
            low = middle
        else:
            high = middle - 1
    return low


def _levelled(level: int, usable: Mapping[str, Host]) -> dict[str, int]:
    return {name: max(host.wants + level, 0) for name, host in usable.items()}


# The record.


def by_shard(record: AssignmentRecord) -> dict[int, str]:
    return {shard: host for host, shards in record.shards.items() for shard in shards}


def by_host(current: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Of a record: the same assignment has the same bytes."""
    found: dict[str, list[int]] = {name: [] for name in sorted(set(current.values()))}
    for shard in sorted(current):
        found[current[shard]].append(shard)
    return {name: tuple(shards) for name, shards in found.items()}


def first_assignment(leader: str) -> AssignmentRecord:
    """Before any was written."""
    return AssignmentRecord(revision=0, leader=leader, count=0, shards={})


def assigned(record: AssignmentRecord, leader: str, hosts: Collection[Host]) -> AssignmentRecord:
    """What `leader` writes, or `record` itself if nothing changes."""
    count = shard_count(record.count, hosts)
    return changed(record, leader, count, assign(count, hosts, by_shard(record)))


def rebalanced(record: AssignmentRecord, leader: str, hosts: Collection[Host]) -> AssignmentRecord:
    count = shard_count(record.count, hosts)
    return changed(record, leader, count, rebalance(count, hosts, by_shard(record)))


def moved(record: AssignmentRecord, leader: str, hosts: Collection[Host], shard: int, host: str) -> AssignmentRecord:
    """Raises RequestError, see `move`."""
    count = shard_count(record.count, hosts)
    return changed(record, leader, count, move(count, hosts, by_shard(record), shard, host))


def changed(record: AssignmentRecord, leader: str, count: int, current: Mapping[int, str]) -> AssignmentRecord:
    wanted = msgspec.structs.replace(record, leader=leader, count=count, shards=by_host(current))
    return record if wanted == record else msgspec.structs.replace(wanted, revision=record.revision + 1)


# Who lives, and who leads.


class LiveHosts:
    """Which hosts live, as one of them sees it: those whose records were renewed in the last `expired` seconds of its
    own clock. A record that it sees for the first time is taken for one that was just renewed.
    """

    def __init__(self, timing: LeaseTiming) -> None:
        self._timing = timing
        self._watches: dict[str, OwnerWatch] = {}
        self.dead: tuple[WorkerRecord, ...] = ()
        """After a look: workers that have ended or were not renewed. That may be written into their records: then those
        that wait for their shards need not see for themselves that they are dead, and nobody hands a shard to them.
        """

    def look(self, found: Iterable[WorkerRecord], asked: float, answered: float) -> tuple[Host, ...]:
        """`found`: all records that are there, also of workers that are not hosts. `asked` and `answered`: when the
        first was requested and the last was received.
        """
        records = {record.worker: record for record in sorted(found, key=lambda record: record.worker)}
        self._watches = {name: self._watches.get(name) or OwnerWatch(self._timing) for name in records}
        quiet = {name for name, watch in self._watches.items() if watch.look(records[name], asked, answered) is None}
        live = [record for record in records.values() if record.wants is not None and record.worker not in quiet]
        self.dead = tuple(record for record in records.values() if record.worker in quiet)
        return tuple(Host(record.worker, record.wants or 0, record.is_drained) for record in live)


class LeaderWatch:
    """Whether this host is to write the assignment: it is the leader, or there is none that lives. A drained host
    lets others go first.
    """

    def __init__(self, timing: LeaseTiming, host: str, *, is_drained: bool = False) -> None:
        self._host = host
        self._watch = OwnerWatch(timing, host, is_drained=is_drained)

    def may_lead(
        self, record: AssignmentRecord | None, leader: WorkerRecord | None, asked: float, answered: float
    ) -> bool:
        """`leader`: the record of the assignment's leader, None if it has none. `asked` and `answered`: when that was
        requested and received.
        """
        if record is None or record.leader == self._host:
            return True
        if leader is None:
            return self._watch.gone(record.leader, record.revision, answered) is None
        return self._watch.look(leader, asked, answered) is None
