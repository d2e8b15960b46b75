"""A shard's journal, reduced to what fences: numbered objects that are created once, and terms that grow along them.

The content of the objects stays in memory, beside them. What all objects of a shard say, in order, is the *truth* about
it: the simulation's invariants are about that.
"""

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

    stream: int
    number: int


Entry = Command | RegistryCommand | Stored | Opened


def segment_of(source: str) -> str:
    return f"connector/{source}/0"


@dataclass
class ShardState:
    coordinator: State = field(default_factory=State)
    registry: StreamClaims = field(default_factory=StreamClaims)
    events: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)
    """By source: what is before was removed."""
    last: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By source and stream: the last message id, and where it ends."""

    def apply(self, entry: Entry) -> None:
        match entry:
            case Stored(source, stream, message):
                events = self.events.setdefault(source, [])
                events.append((stream, message))
                self.last[source, stream] = message, len(events)
            case Opened():
                pass
            case _ if type(entry).__module__ == StreamClaims.__module__:
                self.registry.apply(entry)  # type: ignore[arg-type]
            case _:
                self.coordinator, effects = apply(self.coordinator, entry)  # type: ignore[arg-type]
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
        return self.last.get((source, stream), (NOTHING_YET, 0))[1] <= self.completed(source)

    def copy(self) -> "ShardState":
        """As a new owner reads it: by the stored form where there is one."""
        registry = StreamClaims()
        for row in self.registry.snapshot():
            registry.restore(row)
        events = {source: [*events] for source, events in self.events.items()}
        return replace(self, registry=registry, events=events, start=dict(self.start), last=dict(self.last))


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
        self.given_up: dict[tuple[int, int], Relinquish] = {}
        """By stream and partition: the last relinquish that was effective."""
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
            if isinstance(entry, Relinquish) and chain.state.registry.holder(entry.stream_id) == entry.claim:
                self.given_up[entry.stream_id, entry.claim.partition] = entry
            chain.state.apply(entry)
        self._on_change(chain, entries)


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
