"""A shard's journal, reduced to what fences: numbered objects that are created once, and terms that grow along them.

The content of the objects stays in memory, beside them. What all objects of a shard say, in order, is the *truth* about
it: the simulation's invariants are about that.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from penstock.bucket.objects import NoSuchObject, ObjectExists
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Command, Truncate
from penstock.coordinator.machine.state import State
from penstock.core.errors import BucketUnavailable, TakenOver
from penstock.ingest.stream_claims import Command as RegistryCommand
from penstock.ingest.stream_claims import Relinquish, StreamClaims
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.testing.faulty_bucket import Objects
from tests.cluster.simulation.scheduler import Scheduler, SlowBucket

LOG = "shards/"


class Stored(NamedTuple):
    """A message of a stream, at the end of its source's only segment."""

    source: str
    stream: int
    message: int


class Opened(NamedTuple):
    """The claim of a stream, before NOTIFY_ACK."""

    source: str
    stream: int
    number: int


class Ended(NamedTuple):
    """EOS: nothing of the stream follows until it is opened again."""

    source: str
    stream: int


class Registered(NamedTuple):
    """A command that has changed the registry of a source with several partitions."""

    source: str
    command: RegistryCommand


Entry = Command | Registered | Stored | Opened | Ended


class Part(NamedTuple):
    """A partition. Its log is `a0`, `a1`, … of source `a`."""

    source: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.source}{self.number}"


def part_of(name: str) -> Part:
    return Part(name[0], int(name[1:]))


def segment_of(source: str) -> str:
    return f"connector/{source}/0"


@dataclass
class ShardState:
    coordinator: State = field(default_factory=State)
    registries: dict[str, StreamClaims] = field(default_factory=lambda: defaultdict(StreamClaims))
    """By source with several partitions."""
    events: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)
    """By source: what is before was removed."""
    last: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By source and stream: the last message id, and where it ends."""
    ended: set[tuple[str, int]] = field(default_factory=set)

    def apply(self, entry: Entry) -> None:
        match entry:
            case Stored(source, stream, message):
                events = self.events.setdefault(source, [])
                events.append((stream, message))
                self.last[source, stream] = message, len(events)
            case Opened(source, stream):
                self.ended.discard((source, stream))
            case Ended(source, stream):
                self.ended.add((source, stream))
            case Registered(source, command):
                self.registries[source].apply(command)
            case _:
                self.coordinator, effects = apply(self.coordinator, entry)
                for effect in effects:
                    if isinstance(effect, Truncate):
                        self._truncate(effect.segments)

    def _truncate(self, segments: Any) -> None:
        for source in self.events:
            at = segments.get(segment_of(source), 0)
            self.start[source] = max(self.start.get(source, 0), at)

    def last_id(self, source: str, stream: int) -> int:
        return self.last.get((source, stream), (NOTHING_YET, 0))[0]

    def completed(self, source: str) -> int:
        """How far all pipelines have completed the source, as far as this shard knows."""
        released = self.coordinator.released.get(source)
        return len(self.events.get(source, ())) if released is None else released.get(segment_of(source), 0)

    def is_complete(self, source: str, stream: int) -> bool:
        """Whether all that is stored of it is complete."""
        return self.last.get((source, stream), (NOTHING_YET, 0))[1] <= self.completed(source)

    def is_free(self, source: str, stream: int) -> bool:
        """Whether any partition may have it next: nothing of it is here, or it has ended and is complete."""
        has_ended = (source, stream) in self.ended or (source, stream) not in self.last
        return has_ended and self.is_complete(source, stream)

    def copy(self) -> "ShardState":
        """As a new owner reads it: by the stored form where there is one."""
        registries = defaultdict[str, StreamClaims](StreamClaims)
        for source, known in self.registries.items():
            for row in known.snapshot():
                registries[source].restore(row)
        events = {source: [*events] for source, events in self.events.items()}
        copies: dict[str, Any] = {"start": dict(self.start), "last": dict(self.last), "ended": {*self.ended}}
        return replace(self, registries=registries, events=events, **copies)


class Chain:
    """What is durable of one shard."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.term = 0
        self.writer = ""
        self.length = 0
        self.state = ShardState()


class Log(Objects):
    """All objects of the bucket, and the truth about all shards. Checks each object that is added to a log."""

    def __init__(self, on_change: Callable[[Chain, tuple[Entry, ...]], None]) -> None:
        super().__init__()
        self.chains: dict[int, Chain] = {}
        self.contents: dict[str, tuple[Entry, ...]] = {}
        self.given_up: dict[tuple[str, int, int], Relinquish] = {}
        """By source, stream and partition: the last relinquish that was effective."""
        self._on_change = on_change
        self._writes = count()

    def chain(self, shard: int) -> Chain:
        return self.chains.setdefault(shard, Chain(shard))

    def prepare(self, term: int, writer: str, entries: Iterable[Entry]) -> bytes:
        write = f"{term} {writer} {next(self._writes)}"
        self.contents[write] = tuple(entries)
        return write.encode()

    def _put(self, key: str, data: bytes) -> str:
        version = super()._put(key, data)
        if key.startswith(LOG):
            self._appended(key, data.decode())
        return version

    def _remember(self) -> None:
        """No stale listings: they would cost more than the rest."""

    def _appended(self, key: str, write: str) -> None:
        _, shard, number = key.split("/")
        chain, entries = self.chain(int(shard)), self.contents[write]
        term, writer = int(write.split()[0]), write.split()[1]
        assert int(number) == chain.length + 1, "no object is missing"
        if writer == chain.writer:
            assert term == chain.term
        else:
            assert term > chain.term, "a stale owner appends nothing"
            assert not entries, "the first object of a writer is its take-over"
        chain.term, chain.writer, chain.length = term, writer, chain.length + 1
        for entry in entries:
            if isinstance(entry, Registered):
                self._given_up(chain.state.registries[entry.source], entry)
            chain.state.apply(entry)
        self._on_change(chain, entries)

    def _given_up(self, registry: StreamClaims, entry: Registered) -> None:
        command = entry.command
        if isinstance(command, Relinquish) and registry.holder(command.stream_id) == command.claim:
            self.given_up[entry.source, command.stream_id, command.claim.partition] = command


class ShardLog:
    """The log of one owner, which may be stale."""

    def __init__(self, scheduler: Scheduler, bucket: SlowBucket, log: Log, shard: int, writer: str) -> None:
        self._scheduler, self._bucket, self._log = scheduler, bucket, log
        self._shard, self.writer = shard, writer
        self._term = self._length = 0

    def take_over(self) -> ShardState:
        chain = self._log.chain(self._shard)
        while True:
            self._length, self._term = chain.length, chain.term + 1  # read until here; now look for the end
            if self._get() is None:
                data = self._log.prepare(self._term, self.writer, ())
                if self._create(data):
                    break
        # What was read is what there was before our object: otherwise the number would have been taken.
        self._length += 1
        assert (chain.length, chain.writer) >= (self._length, "")
        return self._state_as_read(chain)

    def _state_as_read(self, chain: Chain) -> ShardState:
        """Nobody else has appended meanwhile, or we are fenced already, and nothing that we decide counts."""
        return chain.state.copy()

    def append(self, entries: Iterable[Entry]) -> None:
        data = self._log.prepare(self._term, self.writer, entries)
        if not self._create(data):
            raise TakenOver(f"shard {self._shard} has another owner")
        self._length += 1

    def _create(self, data: bytes) -> bool:
        """False if the number is another's."""
        while True:
            try:
                self._bucket.create(self._key(), [data])
                return True
            except (ObjectExists, BucketUnavailable):
                found = self._get()
            if found is not None:
                return found == data
            self._scheduler.actor.wait(0.1)

    def _get(self) -> bytes | None:
        while True:
            try:
                return self._bucket.get(self._key()).data
            except NoSuchObject:
                return None
            except BucketUnavailable:
                self._scheduler.actor.wait(0.1)

    def _key(self) -> str:
        return f"{LOG}{self._shard}/{self._length + 1:06}"
