"""Drives the machines of a cluster: hosts and shard processes over one bucket, with messages between shards that are
lost, late and repeated, clocks that run differently, processes that are killed or sleep through a take-over, hosts that
join, are drained or are killed, shards that are moved, and pipelines that read partitions in several shards.

After every change of a journal, and whenever a process serves, a stream opens or an end is reported, the invariants of
docs/internals/cluster.md are checked against what is durable. Then faults stop, and everything has to come to rest:
each shard has an owner at its host, every stream can be opened, and what was stored is completed and acknowledged.
"""

import logging
import random as global_random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from penstock.bucket.objects import NoSuchObject, ObjectExists, VersionChanged
from penstock.cluster.assignment import Host, by_shard, moved, rebalanced
from penstock.cluster.lease import end_dead
from penstock.cluster.lease_state import LEASE_TIMING, LeaseState
from penstock.cluster.records import (
    ASSIGNMENT,
    WORKERS,
    AssignmentRecord,
    ShardRecord,
    WorkerRecord,
    decode,
    read_record,
    shard_key,
)
from penstock.coordinator.follower import Window
from penstock.coordinator.machine.commands import Drop, Unsubscribe
from penstock.core.errors import BucketFailed, RequestError, Unavailable
from penstock.ingest.stream_claims import ClaimId, ClaimStep, StreamClaims
from penstock.testing.faulty_bucket import BucketFaults
from penstock.worker.host_link import ShardReport
from penstock.worker.membership import Membership
from penstock.worker.shard_processes import Action, plan
from tests.cluster.simulation.log import Chain, Entry, Log, Part, Stored, part_of, segment_of
from tests.cluster.simulation.process import Incoming, Leave, Reply, Request, Serving, ShardProcess
from tests.cluster.simulation.programs import Program
from tests.cluster.simulation.scheduler import Scheduler, SlowBucket, Unit

FAULTY_SECONDS = 40.0
QUIET_SECONDS = 45.0
ENDING_SECONDS = 15.0
"""Programs end their streams, and everything is completed."""
SOURCES = ("a", "b")
"""Each has partitions in some shards, and its registry in the first of them."""
HOSTS_MAX = 5
RATES = (0.95, 1.05)
"""Of clocks: two machines differ by less than what lies between `late` and `expired`."""
SLEEPS = 0.002
"""Of all requests."""
STEPS = 0.3
"""Of what pipelines are about to do, at each tick: the others complete their epoch, or start, later."""


class SimulatedMembership(Membership):
    def records(self) -> list[WorkerRecord]:
        """One after the other: only actors can wait."""
        found = []
        for each in self._bucket.list(WORKERS):
            self._renew_if_due()
            if (one := read_record(self._bucket, each.key, WorkerRecord)) is not None:
                found.append(one[0])
        return found

    def end_dead(self, dead: Collection[WorkerRecord]) -> None:
        for one in dead:
            end_dead(self._bucket, one)


class SimulatedHost(Unit):
    """Membership and the plan for its processes are the real ones; here is what happens between them."""

    def __init__(self, cluster: "Cluster", name: str, wants: int) -> None:
        super().__init__(cluster.scheduler, name, cluster.random.uniform(*RATES))
        self.cluster, self.wants = cluster, wants
        self.processes: dict[int, ShardProcess] = {}
        self.commands: list[Callable[[Membership], object]] = []
        """What operators have asked for."""
        record = WorkerRecord(worker=name, revision=0, addresses={}, shards=(), wants=wants)
        self.membership = SimulatedMembership(cluster.new_bucket(), record, cluster.timing, self.clock)
        self._started = 0
        self.spawn("host", self._run)

    def _run(self) -> None:
        while True:
            commands, self.commands = self.commands, []
            rounds: list[Callable[[], object]] = [self.membership.round]
            rounds += [partial(each, self.membership) for each in commands]
            for act in (*rounds, self._apply):
                # The next round sees what has become of it.
                with suppress(BucketFailed, ObjectExists, VersionChanged, RequestError, Unavailable):
                    act()
            self.scheduler.actor.wait(self.cluster.timing.renew)

    def _apply(self) -> None:
        for shard, process in [*self.processes.items()]:
            if process.is_dead:
                del self.processes[shard]
                self.membership.forget(process.name)
        assigned = self.membership.assigned_to(self.name)
        for shard, action in plan(assigned, {s: _report(process) for s, process in self.processes.items()}).items():
            match action:
                case Action.START:
                    self._start(shard)
                case Action.STOP:
                    self.processes[shard].stop.set()
                case Action.LEAVE:
                    to = self.membership.waiting(shard, self.membership.host_of(shard))
                    if to:
                        self.processes[shard].receive(Incoming(Leave(to)))

    def _start(self, shard: int) -> None:
        self._started += 1
        process = ShardProcess(self.cluster, self.name, shard, self._started, self.rate)
        self.processes[shard] = process
        self.cluster.processes.append(process)


def _report(process: ShardProcess) -> ShardReport:
    return ShardReport(worker=process.name, state="waiting" if process.serving is None else "serving")


def _moved(
    record: AssignmentRecord, leader: str, hosts: Collection[Host], *, shard: int, target: str
) -> AssignmentRecord:
    return moved(record, leader, hosts, shard, target)


class Network:
    """Between shard processes."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.is_faulty = True

    def any_owner(self, shard: int) -> ShardProcess | None:
        """A process that takes itself for the shard's owner: there may be several."""
        found = [p for p in self._cluster.processes if p.shard == shard and p.serving is not None and not p.is_dead]
        return self._cluster.random.choice(found) if found else None

    def ask(self, sender: ShardProcess, shard: int, request: Request) -> None:
        serving = sender.serving

        def reply(answer: Any) -> None:
            self._deliver(lambda: self._reply(sender, serving, Reply(request, answer)))

        self._deliver(lambda: self._arrive(shard, Incoming(request, reply)))

    def _arrive(self, shard: int, incoming: Incoming) -> None:
        process = self.any_owner(shard)
        if process is not None:
            process.receive(incoming)

    @staticmethod
    def _reply(process: ShardProcess, serving: Serving | None, reply: Reply) -> None:
        """Only to the process that has asked, and for the same take-over."""
        if not process.is_dead and process.serving is serving:
            process.receive(Incoming(reply))

    def _deliver(self, act: Callable[[], None]) -> None:
        random = self._cluster.random
        copies = random.choices((0, 1, 2), (0.1, 0.8, 0.1))[0] if self.is_faulty else 1
        for _ in range(copies):
            is_late = self.is_faulty and random.random() < 0.05
            self._cluster.scheduler.after(random.uniform(1, 15) if is_late else random.uniform(0.001, 0.05), act)


class Cluster:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(self.random)
        self.scheduler.sleeps = SLEEPS
        self.harsher = Random(f"harsher {seed}") if seed % 2 else None
        """In every second run, epochs take longer than a tick, and a process may sleep before it learns what it has
        written. In every second one of these, pipelines that were dropped also stay away for a while, and processes
        hesitate before they take a shard over. Decided by numbers of its own: the other runs do not depend on it.
        """
        self.is_harshest = seed % 4 == 3
        self.scheduler.harsher, self.scheduler.hesitates = self.harsher, self.is_harshest
        self.timing = LEASE_TIMING
        self.faults = self._new_faults()
        self.log = Log(self._changed)
        self.network = Network(self)
        self.processes: list[ShardProcess] = []
        self.hosts: list[SimulatedHost] = []
        self.is_quiet = self.is_ending = False
        shards = self._shards = self.random.randint(1, 3)
        chosen = SOURCES[: self.random.randint(1, len(SOURCES))]
        self._places = {name: shard for source in chosen for name, shard in self._spread(source)}
        self.sources = [*self._places]
        """All partitions of all sources."""
        self.pipelines = {f"p{k}": self.random.randrange(shards) for k in range(self.random.randint(0, 2))}
        self.newest: dict[tuple[str, int], tuple[int, str]] = {}
        """By source and stream: the last message stored anywhere, and in which partition."""
        self._released: dict[str, dict[str, int]] = {}
        self._by_hand: list[ShardProcess] = []
        self._subscribed: dict[tuple[int, int, str], tuple[int, int]] = {}
        """By source shard, home shard and source: term and number of the message that counts."""
        self._before: dict[tuple[str, int, str], int] = {}
        """By pipeline, its incarnation, and source: what was acknowledged before it started."""
        for number in range(self.random.randint(1, 3)):
            self._join(shards if number == 0 else self.random.randint(0, 1))
        for _ in range(self.random.randint(0, 2)):
            self._stand_by()
        streams = self.streams = self.random.randint(1, 3)
        self.programs = [
            Program(self, self.random.randrange(streams), part_of(self.random.choice(self.sources)))
            for _ in range(streams + 1)
        ]

    def _new_faults(self) -> BucketFaults:
        def chance() -> float:
            return self.random.choice((0.0, 0.0, 0.02, 0.1))

        return BucketFaults(chance(), chance(), chance(), chance())

    def new_bucket(self) -> SlowBucket:
        return SlowBucket(self.scheduler, self.log, self.faults)

    # Places.

    def _spread(self, source: str) -> Iterator[tuple[str, int]]:
        """Its partitions, in different shards."""
        shards = self.random.sample(range(self._shards), self.random.randint(1, self._shards))
        return ((Part(source, number).name, shard) for number, shard in enumerate(shards))

    def registry_shard(self, source: str) -> int:
        return self._places[Part(source, 0).name]

    def parts_with(self, source: str) -> list[Part]:
        return [part for part in map(part_of, self.sources) if part.source == source]

    def place(self, source: str) -> int:
        return self._places[source]

    def parts_of(self, shard: int) -> list[Part]:
        return [part_of(name) for name, where in self._places.items() if where == shard]

    # The run.

    def run(self) -> None:
        try:
            for program in self.programs:
                self._repeat(program.act, 0.1, 1.5)
            self._repeat(self._disturb, 0.3, 4.0)
            self.scheduler.run(FAULTY_SECONDS)
            self._settle()
            self.scheduler.run(FAULTY_SECONDS + QUIET_SECONDS)
            self._check_owners()
            self.is_ending = True
            self.scheduler.run(FAULTY_SECONDS + QUIET_SECONDS + ENDING_SECONDS)
            self._check_rest()
        finally:
            for unit in (*self.hosts, *self.processes):
                unit.is_dead = True
                for actor in unit.actors:
                    actor.end()

    def _repeat(self, act: Callable[[], None], least: float, most: float) -> None:
        def again() -> None:
            act()
            self.scheduler.after(self.random.uniform(least, most), again)

        self.scheduler.after(self.random.uniform(0, most), again)

    def _settle(self) -> None:
        self.is_quiet = True
        self.scheduler.sleeps = 0.0
        self.network.is_faulty = False
        self.faults.lost = self.faults.unanswered = self.faults.delayed = self.faults.throttled = 0.0
        for unit in (*self.hosts, *self.processes):
            unit.stopped_until = 0.0
        for process in self._by_hand:
            process.stop.set()
        if all(host.membership.is_drained for host in self._live()):
            self._join(1)
        assignment = self.log.objects.get(ASSIGNMENT)
        count = 0 if assignment is None else decode(assignment.data, AssignmentRecord, "").count
        if not self._live() or count < self._shards:
            self._join(self._shards)  # the first one may have died before it had shards

    def _live(self) -> list[SimulatedHost]:
        return [host for host in self.hosts if not host.is_dead]

    def completes(self) -> bool:
        """Whether a pipeline completes its epoch now."""
        return self.harsher is None or self.is_quiet or self.harsher.random() < STEPS

    def starts(self) -> bool:
        """Whether a pipeline that does not run starts now."""
        return not self.is_harshest or self.completes()

    # Faults, and what operators do.

    def _disturb(self) -> None:
        if self.is_quiet:
            return
        kills = (self._kill_process, self._kill_host, self._kill_registry)
        sleeps = (self._stop_process, self._stop_process, self._stop_host)
        operations = (self._join_any, self._stand_by, self._drain, self._move, self._move, self._rebalance)
        self.random.choice((*kills, *sleeps, *operations))()

    def _any_process(self) -> ShardProcess | None:
        """Rather one that serves."""
        live = [process for process in self.processes if not process.is_dead]
        serving = [process for process in live if process.serving is not None]
        chosen = serving if serving and self.random.random() < 0.7 else live
        return self.random.choice(chosen) if chosen else None

    def _kill_process(self) -> None:
        process = self._any_process()
        if process is not None:
            self._kill(process)

    def _kill_registry(self) -> None:
        shard = self.registry_shard(part_of(self.random.choice(self.sources)).source)
        process = self.network.any_owner(shard)
        if process is not None:
            self._kill(process)

    def _kill(self, process: ShardProcess) -> None:
        process.kill()
        process.serving = None
        self.connections_lost(process)

    def _stop_process(self) -> None:
        process = self._any_process()
        if process is not None:
            process.stop_for(self._seconds())

    def _seconds(self) -> float:
        """Of a sleep: about as long as a lease, or much longer."""
        return self.random.uniform(*self.random.choice(((0.5, 3.0), (2.0, 8.0), (2.0, 8.0), (8.0, 25.0))))

    def _kill_host(self) -> None:
        """The machine with all its processes; or only the host: then its processes stop."""
        live = self._live()
        if live:
            host, is_machine = self.random.choice(live), self.random.random() < 0.7
            host.kill()
            for process in host.processes.values():
                if is_machine:
                    self._kill(process)
                else:
                    process.stop.set()

    def _stop_host(self) -> None:
        live = self._live()
        if live:
            host, seconds = self.random.choice(live), self._seconds()
            host.stop_for(seconds)
            if self.random.random() < 0.5:  # the machine sleeps, not only the host
                for process in host.processes.values():
                    process.stop_for(seconds)

    def _join_any(self) -> None:
        if len(self._live()) < HOSTS_MAX:
            self._join(self.random.randint(0, 1))

    def _join(self, wants: int) -> None:
        self.hosts.append(SimulatedHost(self, f"h{len(self.hosts)}", wants))

    def _stand_by(self) -> None:
        """A process that was started by hand waits for a shard."""
        shard, rate = self.random.randrange(self._shards), self.random.uniform(*RATES)
        process = ShardProcess(self, "", shard, len(self.processes), rate)
        self.processes.append(process)
        self._by_hand.append(process)

    def _drain(self) -> None:
        live = [host for host in self._live() if not host.membership.is_drained]
        if len(live) > 1:
            self.random.choice(live).commands.append(Membership.drain)

    def _move(self) -> None:
        live = self._live()
        if live:
            shard, target = self.random.randrange(3), self.random.choice(live).name
            move = partial(_moved, shard=shard, target=target)
            self.random.choice(live).commands.append(lambda membership: membership.change(move))

    def _rebalance(self) -> None:
        live = self._live()
        if live:
            self.random.choice(live).commands.append(lambda membership: membership.change(rebalanced))

    def connections_lost(self, process: ShardProcess) -> None:
        for program in self.programs:
            program.lost(process)

    # Invariants.

    def current(self, shard: int) -> Serving | None:
        """The owner that could append now."""
        writer = self.log.chain(shard).writer
        serving = (process.serving for process in self.processes if process.shard == shard)
        return next((each for each in serving if each is not None and each.writer == writer), None)

    def check_serving(self, serving: Serving) -> None:
        """The process acts as owner, by its lease: no other one does at the same time."""
        record = self._record(serving.shard)
        assert record is not None
        assert record.owner == serving.process.name, "nobody has taken over while the lease is held"

    def _record(self, shard: int) -> ShardRecord | None:
        try:
            return decode(self.log.get(shard_key(shard)).data, ShardRecord, "")
        except NoSuchObject:
            return None

    def check_end(self, source: str, window: Window) -> None:
        stored = len(self._truth(source).events.get(source, ()))
        assert max(window.end, window.durable) <= stored, "a remote end is durable"

    def _truth(self, source: str) -> Any:
        return self.log.chain(self.place(source)).state

    def check_active(self, opened: Serving, part: Part, stream: int) -> None:
        """A stream is active in one session of those that could store something, and the registry knows which."""
        active = []
        for shard in sorted(self.log.chains):
            serving = self.current(shard)
            for other, claims in serving.claims.items() if serving is not None else ():
                if other.source == part.source and claims.step(stream) is ClaimStep.ACTIVE:
                    active.append(other)
        assert len(active) <= 1, f"stream {stream} of {part.source} is active twice"
        if opened is self.current(opened.shard):
            claims = opened.claims[part]
            holder = self._registry(part.source).holder(stream)
            assert holder == ClaimId(part.number, claims.term, claims.number(stream)), "an active stream is claimed"

    def _registry(self, source: str) -> StreamClaims:
        return self.log.chain(self.registry_shard(source)).state.registries[source]

    def _changed(self, chain: Chain, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if isinstance(entry, Stored):
                self._check_stored(entry)
        self._check_released(chain, has_ended=any(isinstance(entry, Drop | Unsubscribe) for entry in entries))
        for (home, source), one in chain.state.coordinator.subscriptions.items():
            key, version = (chain.shard, home, source), (one.term, one.number)
            assert version >= self._subscribed.get(key, version), "an older message about a subscription does not count"
            self._subscribed[key] = version
        for source in self.sources:
            self._check_source(source)

    def _check_stored(self, entry: Stored) -> None:
        """Each message once and in order, wherever it is stored; in another partition only when all before it is
        complete.
        """
        of = part_of(entry.source).source, entry.stream
        before, source = self.newest.get(of, (-1, entry.source))
        assert entry.message == before + 1, "messages are stored once, in order"
        if source != entry.source:
            # A pipeline that has started since reads both partitions from where it starts.
            given_up = self.log.given_up[*of, part_of(source).number]
            assert given_up.is_complete, "no event of a stream overtakes another"
        self.newest[of] = entry.message, entry.source

    def _check_released(self, chain: Chain, has_ended: bool) -> None:
        for source in self.sources:
            if self.place(source) == chain.shard:
                # Without readers there is nothing that could be held back, and the next one starts where it can.
                released = chain.state.coordinator.released.get(source, {})
                for segment, at in self._released.get(source, {}).items() if released and not has_ended else ():
                    assert released.get(segment, 0) >= at, "what is released only grows"
                self._released[source] = dict(released)

    def _check_source(self, source: str) -> None:
        """What a source's shard has acknowledged and removed, against what pipelines of all shards have completed."""
        truth, segment = self._truth(source), segment_of(source)
        for name, home in self.pipelines.items():
            state = self.log.chain(home).state.coordinator
            pipeline = state.pipelines.get(name)
            if pipeline is None or source not in pipeline.sources:
                continue
            if home != self.place(source):
                subscription = truth.coordinator.subscriptions.get((home, source))
                assert subscription is not None, "a subscription precedes the first cut"
                assert subscription.done is not None, "it outlives the last release"
            done = pipeline.position(pipeline.complete, segment)
            released = truth.coordinator.released.get(source, {}).get(segment, 0)
            # What its home shard had completed before the pipeline started may be acknowledged later.
            known = max(released, state.released.get(source, {}).get(segment, 0))
            before = self._before.setdefault((name, pipeline.incarnation, source), known)
            assert released <= max(done, before), "nothing is acknowledged too early"
            assert truth.start.get(source, 0) <= pipeline.position(pipeline.floor, segment), "what is read is retained"
            assert pipeline.position(pipeline.planned, segment) <= len(truth.events.get(source, ()))

    # Liveness.

    def _check_owners(self) -> None:
        record = decode(self.log.get(ASSIGNMENT).data, AssignmentRecord, "")
        live = {host.name for host in self._live()}
        wanted = by_shard(record)
        assert sorted(wanted) == [*range(record.count)]
        for shard, host in wanted.items():
            assert host in live, f"shard {shard} is assigned to a host that lives"
            serving = self.current(shard)
            assert serving is not None, f"shard {shard} is served"
            assert serving.process.host == host, f"shard {shard} is served where it is assigned"
            assert serving.lease.state is LeaseState.HELD

    def _check_rest(self) -> None:
        for program in self.programs:
            assert program.process is None, "every stream was opened, and ended"
        for source in self.sources:
            truth = self._truth(source)
            stored = len(truth.events.get(source, ()))
            assert truth.completed(source) == stored, "everything is completed and acknowledged"
        for source, stream in self.newest:
            assert self._registry(source).holder(stream) is None, "every stream is free"


def simulate_cluster(seed: int) -> Cluster:
    state = global_random.getstate()
    global_random.seed(seed)  # of the pauses between attempts
    logging.disable(logging.WARNING)
    try:
        cluster = Cluster(seed)
        cluster.run()
        return cluster
    finally:
        logging.disable(logging.NOTSET)
        global_random.setstate(state)
