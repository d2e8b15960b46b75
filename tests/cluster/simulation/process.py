"""A shard process: it waits for its shard, serves it, and leaves. The decisions are those of the real machines.

cluster/lease.py         the candidate's rounds, the renewals and the release, as they are
ingest/stream_claims.py  the registry, and each partition's side of it
coordinator/machine      pipelines, cuts, subscriptions; `Holdings` for what other shards are sent
sessions/migration.py    the steps of a move
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cluster.lease import (
    RELEASE_SECONDS_MAX,
    UNREACHABLE_SECONDS_MAX,
    Lease,
    ShardCandidate,
    _Acquisition,
    _Taken,
)
from penstock.cluster.lease_state import HANDOVER_SECONDS, LeaseState
from penstock.cluster.records import WorkerRecord, read_record, worker_key
from penstock.coordinator.follower import Follower, packed
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Advance,
    Complete,
    Drop,
    Place,
    Plan,
    Serve,
    Start,
    Subscribe,
    Unsubscribe,
)
from penstock.coordinator.machine.subscriptions import Holdings, holding
from penstock.core.errors import BucketFailed, PenstockError, TakenOver
from penstock.ingest.sessions.migration import ShardEvent, ShardMove, ShardStep
from penstock.ingest.stream_claims import (
    Answer,
    Begin,
    Claim,
    ClaimStep,
    Done,
    Elsewhere,
    Next,
    PartitionClaims,
    Relinquish,
    later,
)
from penstock.ingest.stream_claims import Command as RegistryCommand
from penstock.protocol.api.shards import ClockWanted, Follow, Followed, FollowedSegment
from penstock.protocol.connector.frames import NOTHING_YET
from tests.cluster.simulation.log import (
    Ended,
    Entry,
    Opened,
    Part,
    Registered,
    ShardLog,
    ShardState,
    Stored,
    part_of,
    segment_of,
)
from tests.cluster.simulation.scheduler import Actor, StopEvent, Unit

if TYPE_CHECKING:
    from tests.cluster.simulation.cluster import Cluster
    from tests.cluster.simulation.programs import Connection

Key = tuple[Part, int]
"""A stream of a partition."""

TICK_SECONDS = 0.5
START_SECONDS_MAX = 5.0
NO_LIMITS = (None, None, None)
NO_STREAM = -1
CANDIDATES_SLEEP = 10.0
"""So many times as often as others: they make few requests, and what they have seen before they slept is old."""


# Messages to the process that serves a shard. Any may be lost, late, or come twice.


class AskRegistry(NamedTuple):
    source: str
    command: RegistryCommand


class AskHeld(NamedTuple):
    part: Part
    term: int


class AskFollow(NamedTuple):
    pipeline: str
    incarnation: int
    request: Follow


class Tell(NamedTuple):
    message: Subscribe | Advance | Unsubscribe


Request = AskRegistry | AskHeld | AskFollow | Tell


class Reply(NamedTuple):
    request: Request
    answer: Any


class Leave(NamedTuple):
    """From the host: the shard is assigned to another one, whose process waits for it."""

    successor: str


class FromProgram(NamedTuple):
    connection: "Connection"
    part: Part
    kind: str
    """notify, message, end or gone."""
    message: int = 0


@dataclass
class Incoming:
    """A request with the way back; a reply; or what a program sends."""

    content: Request | Reply | Leave | FromProgram
    reply: Callable[[Any], None] = lambda _: None


class SimulatedLease(Lease):
    """The real one, whose thread is an actor."""

    def __init__(self, process: "ShardProcess", candidate: ShardCandidate, taken: _Taken) -> None:
        super().__init__(candidate, taken, lambda _: None)
        self._process = process
        self._keeper: Actor | None = None

    def start(self) -> None:
        self._keeper = self._process.spawn("lease", self._keep)

    def announce_move(self, worker: str) -> None:
        super().announce_move(worker)
        assert self._keeper is not None
        self._keeper.wake()

    def _pause(self, seconds: float) -> bool:
        if not self._wake.is_set():
            self._process.scheduler.actor.wait(seconds, is_interruptible=True)
        self._wake.clear()
        return self._stop.is_set()

    def _end(self) -> None:
        assert self._keeper is not None
        self._stop.set()
        self._wake.set()
        self._keeper.wake()
        while not self._keeper.is_done:
            self._process.scheduler.actor.wait(0.02)

    def release_to(self, successor: str) -> bool:
        self._end()
        deadline = self._process.clock() + RELEASE_SECONDS_MAX
        while self._process.clock() < deadline:
            try:
                self._give_up(successor)
                return True
            except BucketFailed:
                self._process.scheduler.actor.wait(0.2)
        return False


class ShardProcess(Unit):
    def __init__(self, cluster: "Cluster", host: str, shard: int, number: int, rate: float) -> None:
        super().__init__(cluster.scheduler, f"{host or 'x'}.{shard}.{number}", rate)
        self.cluster, self.host, self.shard = cluster, host, shard
        self.bucket = cluster.new_bucket()
        self.stop = StopEvent(cluster.scheduler)
        self.inbox: list[Incoming] = []
        self.serving: Serving | None = None
        self.is_drained = False
        self._takeovers = 0
        self._main = self.spawn("main", self._run)

    def receive(self, incoming: Incoming) -> None:
        """By the network."""
        self.inbox.append(incoming)
        self._main.wake()

    def take_all(self, seconds: float) -> list[Incoming]:
        """What has arrived; waits if nothing has."""
        if not self.inbox:
            self._main.wait(seconds, is_interruptible=True)
        found, self.inbox = self.inbox, []
        return found

    def _run(self) -> None:
        try:
            while self._acquire():
                pass
        except (TakenOver, BucketFailed):
            pass  # the host starts another one
        finally:
            self.serving = None
            self.is_dead = True
            self.cluster.connections_lost(self)
        for actor in self.actors:
            actor.unit.scheduler.after(0, actor.end)

    def _acquire(self) -> bool:
        timing, drained = self.cluster.timing, self.is_drained
        candidate = ShardCandidate(self.bucket, self.name, {}, self.shard, timing, self.clock, drained, self.host)
        acquisition = _Acquisition(candidate, self.stop, lambda _: None)
        self.inbox.clear()
        self.sleepiness = CANDIDATES_SLEEP
        taken = acquisition.run(force=False)
        self.sleepiness = 1.0
        if taken is None:
            acquisition.withdraw()
            return False
        lease = SimulatedLease(self, candidate, taken)
        lease.start()
        self._wait_until_held(lease)
        self._takeovers += 1
        log = ShardLog(self.scheduler, self.bucket, self.cluster.log, self.shard, f"{self.name}#{self._takeovers}")
        self.serving = Serving(self, lease, log, log.take_over())
        try:
            self.serving.run()
        finally:
            self.serving = None
            self.cluster.connections_lost(self)
        return True

    def _wait_until_held(self, lease: Lease) -> None:
        deadline = self.clock() + UNREACHABLE_SECONDS_MAX
        while lease.state is LeaseState.LATE and self.clock() < deadline:
            self._main.wait(0.05)
        lease.check()


class Serving:
    """One owner of a shard, from its take-over to its end."""

    def __init__(self, process: ShardProcess, lease: SimulatedLease, log: ShardLog, state: ShardState) -> None:
        self.process, self.cluster, self.shard = process, process.cluster, process.shard
        self.lease, self.log, self.state = lease, log, state
        self.writer = log.writer
        self._entries: list[Entry] = []
        self._when_durable: list[Callable[[], None]] = []
        self._claimed: dict[Key, int] = {}
        """By stream: the number of the last claim that is durable here, or that needs not be: the stream has ended."""
        self._commit(Serve())
        self._flush()
        term = state.coordinator.term
        self.claims = {part: PartitionClaims(part.number, term) for part in self.cluster.parts_of(self.shard)}
        self.sessions: dict[Key, Connection] = {}
        self._ending: set[Key] = set()
        """Streams that have ended, with a session or without: they are given up when they are complete."""
        self._begun: dict[Part, bool] = dict.fromkeys(self.claims, False)
        self._inherited: dict[Part, bool] = dict.fromkeys(self.claims, False)
        self._holdings = Holdings(self.shard, term)
        self._followers: dict[tuple[str, int, str], Follower] = {}
        """By pipeline, its incarnation, and source."""
        self._starting: dict[str, Starting] = {}

    def run(self) -> None:
        ticked = -TICK_SECONDS
        while not self.process.stop.is_set():
            incoming = self.process.take_all(TICK_SECONDS)
            self.lease.check()
            if self.lease.state is not LeaseState.HELD:
                self.cluster.connections_lost(self.process)
                self.sessions_lost()
                continue
            self.cluster.check_serving(self)
            leave = self._handle_all(incoming)
            self._check_claims()
            if self.process.clock() - ticked >= TICK_SECONDS:
                ticked = self.process.clock()
                self._tick()
            self._flush()
            if leave is not None and self._leave(leave):
                return
        self.lease.release()

    def _check_claims(self) -> None:
        for part, claims in self.claims.items():
            for stream in range(self.cluster.streams):
                if claims.step(stream) is ClaimStep.ACTIVE:
                    is_written = self._claimed.get((part, stream)) == claims.number(stream)
                    assert is_written, "a stream is active once its claim is written"

    # The journal.

    def _commit(self, entry: Entry, *then: Callable[[], None]) -> None:
        """Decided now, durable with the next flush; `then` happens after that."""
        self.state.apply(entry)
        self._entries.append(entry)
        self._when_durable.extend(then)

    def _flush(self) -> None:
        """One object in flight: nothing else is decided meanwhile."""
        if self._entries:
            entries, self._entries = self._entries, []
            self.log.append(entries)
            for entry in entries:
                if isinstance(entry, Opened) and entry.source:
                    self._claimed[part_of(entry.source), entry.stream] = entry.number
        then, self._when_durable = self._when_durable, []
        for act in then:
            act()

    # Messages.

    def _handle_all(self, incoming: list[Incoming]) -> Leave | None:
        leave = None
        for each in incoming:
            match each.content:
                case Leave():
                    leave = each.content
                case FromProgram():
                    self._from_program(each.content)
                case Reply(request, answer):
                    self._answered(request, answer)
                case request:
                    try:
                        self._asked(request, each.reply)
                    except PenstockError as error:
                        each.reply(error)
        return leave

    def _asked(self, request: Request, reply: Callable[[Any], None]) -> None:
        match request:
            case AskRegistry(source, command):
                outcome = self.state.registries[source].apply(command)
                if outcome.is_changed:
                    self._entries.append(Registered(source, command))
                self._when_durable.append(lambda: reply(outcome.answer))
            case AskHeld(part, term):
                # An entry is written each time: an owner that was replaced would miss streams.
                begin, registry = Begin(part.number, term), self.state.registries[part.source]
                if registry.apply(begin).answer == Done():
                    self._entries.append(Registered(part.source, begin))
                    held = registry.held(part.number, term)
                    self._when_durable.append(lambda: reply(held))
            case AskFollow(_, _, follow):
                followed = self.followed(follow)
                self._when_durable.append(lambda: reply(followed))
            case Tell(message):
                self._told(message, reply)

    def followed(self, follow: Follow) -> Followed:
        """Offsets count events; heads are empty."""
        segment, stored = segment_of(follow.source), len(self.state.events.get(follow.source, ()))
        begin = self.state.start.get(follow.source, 0)
        start = max(follow.after.get(segment, 0), begin)
        block = packed((end, 0, b"") for end in range(start + 1, stored + 1))
        return Followed(version="1", segments={segment: FollowedSegment(begin, stored, start, block)})

    def _told(self, message: Subscribe | Advance | Unsubscribe, reply: Callable[[Any], None]) -> None:
        positions = {segment_of(message.source): self.state.start.get(message.source, 0)}
        if isinstance(message, Subscribe):
            message = replace(message, positions=positions)
        apply(self.state.coordinator, message)  # raises if it is refused
        self._commit(message, lambda: reply(positions))

    def _answered(self, request: Request, answer: Any) -> None:
        match request:
            case AskRegistry(source, Begin(number)):
                self._begun[Part(source, number)] |= answer == Done()
            case AskRegistry(source, command):
                self._claim_answered(source, command, answer)  # type: ignore[arg-type]
            case AskHeld(part):
                self._inherit(part, answer)
            case AskFollow(name, incarnation, follow):
                self._take(self._followers.get((name, incarnation, follow.source)), answer)
            case Tell(Subscribe() as message):
                self._subscribed(message, answer)
            case Tell(Advance() | Unsubscribe() as message):
                if not isinstance(answer, PenstockError):
                    self._holdings.answered(message)

    def _take(self, follower: Follower | None, answer: Any) -> None:
        if follower is not None and isinstance(answer, Followed):
            follower.take(answer)
            self.cluster.check_end(follower.source, follower.windows[segment_of(follower.source)])

    def _ask(self, shard: int, request: Request) -> None:
        self.cluster.network.ask(self.process, shard, request)

    def _ask_registry(self, source: str, command: RegistryCommand | None) -> None:
        if command is not None:
            self._ask(self.cluster.registry_shard(source), AskRegistry(source, command))

    # Streams.

    def _from_program(self, incoming: FromProgram) -> None:
        connection, part, kind, message = incoming
        key, claims = (part, connection.stream), self.claims.get(part)
        if kind == "notify":
            if key in self._ending and key not in self.sessions and claims is not None:
                self._reopen(key, connection)
                return
            asked = claims.notify(connection.stream) if claims is not None else None
            if asked is None:
                connection.refused(self.process)
            else:
                self.sessions[key] = connection
                self._ask_registry(part.source, asked)
        elif self.sessions.get(key) is not connection or claims is None:
            pass
        elif kind == "message" and claims.step(connection.stream) is ClaimStep.ACTIVE and key not in self._ending:
            self._store(key, message)
        elif kind == "end" and claims.step(connection.stream) is ClaimStep.ACTIVE:
            self._ending.add(key)
            self._commit(Ended(part.name, connection.stream))
        elif kind == "gone" and key in self._ending:
            self.sessions.pop(key)  # the claim is kept until it is complete
        elif kind == "gone":
            self._end(key)

    def _reopen(self, key: Key, connection: "Connection") -> None:
        """Its claim is kept here, after its end: no request is needed."""
        part, stream = key
        self._ending.discard(key)
        self.sessions[key] = connection
        number = self.claims[part].number(stream)
        self._commit(Opened(part.name, stream, number), lambda: self._answer(key))

    def known_id(self, part: Part, stream: int) -> int:
        return later(self.state.last_id(part.name, stream), self.claims[part].last_id(stream))

    def _store(self, key: Key, message: int) -> None:
        known = self.known_id(*key)
        if known == NOTHING_YET or message > known:
            self._commit(Stored(key[0].name, key[1], message))

    def _end(self, key: Key) -> None:
        """Everything that was received of the stream is stored, or is not and never will be."""
        part, stream = key
        self.sessions.pop(key, None)
        self._ending.discard(key)
        last_id = self.state.last_id(part.name, stream)
        self._when_durable.append(lambda: self._relinquish(part, stream, last_id))

    def _relinquish(self, part: Part, stream: int, last_id: int) -> None:
        waiting = [each for each in self._entries if isinstance(each, Stored)]
        mine = [each for each in waiting if (each.source, each.stream) == (part.name, stream)]
        assert not mine, "a stream is given up when what it has stored is durable"
        is_free = self.state.is_free(part.name, stream)
        self._ask_registry(part.source, self.claims[part].end(stream, last_id, is_complete=is_free))

    def sessions_lost(self) -> None:
        for key in [*self.sessions]:
            if key in self._ending:
                self.sessions.pop(key)
            else:
                self._end(key)

    def _claim_answered(self, source: str, command: Claim | Relinquish, answer: Answer) -> None:
        key = part, _ = Part(source, command.claim.partition), command.stream_id
        claims, connection = self.claims[part], self.sessions.get(key)
        match claims.answered(command, answer):
            case Next.WRITE:
                number = command.claim.number
                self._commit(Opened(part.name, command.stream_id, number), lambda: self._opened(key, number))
            case Next.ADOPTED:
                self._ending.add(key)
                self._claimed[key] = command.claim.number
            case Next.REFUSE | Next.REDIRECT if connection is not None:
                self.sessions.pop(key)
                elsewhere = answer.partition if isinstance(answer, Elsewhere) else None
                connection.refused(self.process, elsewhere)
            case Next.STOP:
                raise TakenOver("by the registry")

    def _opened(self, key: Key, number: int) -> None:
        if self.claims[key[0]].written(key[1], number):
            self._answer(key)

    def _answer(self, key: Key) -> None:
        """NOTIFY_ACK: the claim is durable."""
        self.cluster.check_active(self, *key)
        connection = self.sessions.get(key)
        if connection is None:
            self._end(key)
        else:
            connection.opened(self.process, self.known_id(*key))

    def _inherit(self, part: Part, held: Any) -> None:
        claims, state = self.claims[part], self.state
        self._inherited[part] = not held
        for stream, old in held.items():
            is_free = state.is_free(part.name, stream)
            if (part.name, stream) in state.ended and not is_free:
                self._ask_registry(part.source, claims.adopt(stream))
            else:
                last_id = state.last_id(part.name, stream)
                self._ask_registry(part.source, claims.inherit(stream, old, last_id, is_complete=is_free))

    # What happens from time to time.

    def _tick(self) -> None:
        for part, claims in self.claims.items():
            self._keep_asking(part, claims)
        for key in sorted(self._ending):
            if self.state.is_complete(key[0].name, key[1]):
                if key in self.sessions:
                    self.sessions[key].ended(self.process)
                self._end(key)
        for name, home in self.cluster.pipelines.items():
            if home == self.shard:
                self._drive(name)
        for source in self.state.coordinator.remote:
            self._follow(source)
        if self.cluster.is_quiet and self.cluster.random.random() < 0.1:
            # An owner without anything to write does not notice that it was fenced: by a process that slept between
            # its lease and its take-over of the log, and woke up after this one's. The first write shows it.
            self._commit(Opened("", NO_STREAM, 0))

    def _keep_asking(self, part: Part, claims: PartitionClaims) -> None:
        if not self._begun[part]:
            self._ask_registry(part.source, claims.begin())
        elif not self._inherited[part] and not claims.adopting:
            self._ask(self.cluster.registry_shard(part.source), AskHeld(part, claims.term))
        for command in claims.unanswered():
            self._ask_registry(part.source, command)

    def _follow(self, source: str) -> None:
        shard = self.state.coordinator.remote[source]
        self._holdings.offer(source, holding(self.state.coordinator, source))
        message = self._holdings.due(source)
        if message is not None and not self._entries:  # it is about what is durable
            self._ask(shard, Tell(message))

    # Pipelines.

    def _drive(self, name: str) -> None:
        pipeline, random = self.state.coordinator.pipelines.get(name), self.cluster.random
        if name in self._starting:
            self._starting_on(name, self._starting[name])
        elif pipeline is None:
            if self.cluster.starts():
                self._begin_start(name)
        elif not self.cluster.is_quiet and random.random() < 0.03:
            self._commit(Drop(name))
        elif pipeline.planned > pipeline.complete:
            if self.cluster.completes():
                self._commit(Complete(name, pipeline.generation, pipeline.planned))
        elif ends := self._new_ends(name):
            self._commit(Plan(name, pipeline.generation, "in/1", ends, None))

    def _new_ends(self, name: str) -> dict[str, int]:
        pipeline = self.state.coordinator.pipelines[name]
        found = {}
        for source in self.cluster.sources:
            segment = segment_of(source)
            planned = pipeline.position(pipeline.planned, segment)
            end = len(self.state.events.get(source, ()))
            if not self._is_local(source):
                end = self._remote_end(name, pipeline.incarnation, source, planned)
            if end > planned:
                found[segment] = end
        return found

    def _remote_end(self, name: str, incarnation: int, source: str, planned: int) -> int:
        """How far the records of the source are known here; asks for more."""
        segment = segment_of(source)
        follower = self._followers.get((name, incarnation, source))
        if follower is None:
            at = {segment: planned}
            follower = self._followers[name, incarnation, source] = Follower(self.shard, source, incarnation, at, at)
        if segment in follower.windows:
            follower.read({segment: planned})
        request = follower.request(0, ClockWanted())
        if request is not None:
            self._ask(self.cluster.place(source), AskFollow(name, incarnation, request))
        return follower.windows[segment].end if follower.is_ready and segment in follower.windows else planned

    def _is_local(self, source: str) -> bool:
        return self.cluster.place(source) == self.shard

    def _begin_start(self, name: str) -> None:
        starting = self._starting[name] = Starting(self.process.clock(), {})
        for source in self.cluster.sources:
            if not self._is_local(source):
                self._commit(Place(source, self.cluster.place(source)))
                message = self._holdings.subscribe(source, name, {})
                starting.positions[source] = message
                self._when_durable.append(lambda message=message: self._send_subscribe(message))  # type: ignore[misc]
        self._starting_on(name, starting)

    def _send_subscribe(self, message: Subscribe) -> None:
        self._ask(self.cluster.place(message.source), Tell(message))

    def _subscribed(self, message: Subscribe, answer: Any) -> None:
        starting = self._starting.get(message.pipeline)
        if starting is not None and starting.positions.get(message.source) == message:
            starting.positions[message.source] = answer
            starting.has_failed |= isinstance(answer, PenstockError)

    def _starting_on(self, name: str, starting: "Starting") -> None:
        waiting = [each for each in starting.positions.values() if isinstance(each, Subscribe)]
        has_failed = starting.has_failed or self.process.clock() - starting.since > START_SECONDS_MAX
        if waiting and not has_failed:
            for message in waiting:
                if not self._entries:
                    self._send_subscribe(message)
            return
        del self._starting[name]
        if not has_failed:
            # Nothing retains what local sources have until the start itself: they are looked up with it.
            local = filter(self._is_local, self.cluster.sources)
            positions = {segment_of(source): self.state.start.get(source, 0) for source in local}
            positions |= {segment: at for each in starting.positions.values() for segment, at in each.items()}
            inputs = {"in": (tuple(self.cluster.sources), positions)}
            self._commit(Start(name, f"{self.writer} {self.process.clock()}", inputs, (), NO_LIMITS))
        self._when_durable.append(lambda: self._start_over(starting))

    def _start_over(self, starting: "Starting") -> None:
        for source in starting.positions:
            self._holdings.started(source, holding(self.state.coordinator, source))

    # A move.

    def _leave(self, leave: Leave) -> bool:
        """Whether the shard was given up."""
        move = ShardMove(leave.successor)
        if not self._is_ready(leave.successor):
            move.on(ShardEvent.TIMEOUT)
            self.lease.announce_move("")
            return False
        for event in (ShardEvent.READY, ShardEvent.STOPPED):
            move.on(event)
        self.sessions_lost()
        self._flush()
        self.cluster.connections_lost(self.process)
        move.on(ShardEvent.ENDED)
        assert move.step is ShardStep.CLOSING
        self.process.serving = None
        self.lease.release_to(leave.successor)
        move.on(ShardEvent.CLOSED)
        return True

    def _is_ready(self, successor: str) -> bool:
        bucket, process = self.process.bucket, self.process
        deadline = process.clock() + (ShardMove().seconds_max or 0.0)
        is_announced = False
        before = -1
        while process.clock() < deadline and self.lease.state is LeaseState.HELD:
            try:
                found = read_record(bucket, worker_key(successor), WorkerRecord)
                if found is None:
                    return False
                if not is_announced:
                    before, is_announced = found[0].revision, True
                    self.lease.announce_move(successor)
                if found[0].ready_for == process.name and found[0].revision > before:
                    return True
            except BucketFailed:
                pass
            process.scheduler.actor.wait(HANDOVER_SECONDS)
        return False


@dataclass
class Starting:
    since: float
    positions: dict[str, Any]
    """By remote source: where it starts, or the message that asks for it."""
    has_failed: bool = False
