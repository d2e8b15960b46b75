"""The ledger makes the coordinator's state durable: a segment with the commands that led to it, in order.

An entry is `u32 length · MessagePack`, in one append. From time to time the whole state is written as a snapshot, and
everything before it is truncated. A merge is in the same journal record as its entry.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from functools import partial
from typing import Any

from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import (
    Advance,
    Bury,
    Command,
    Effect,
    Merge,
    Merges,
    Mirror,
    Place,
    ReplayChosen,
    Serve,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    pack,
    unpack,
)
from penstock.coordinator.machine.state import (
    Accepted,
    Buried,
    Cut,
    Input,
    Mark,
    MergedEpoch,
    Pipeline,
    Retention,
    Sink,
    State,
    Subscription,
)
from penstock.core.errors import Damaged, PenstockError, Unavailable, UnreadableFormat
from penstock.core.types import QUOTA, Offset, Position
from penstock.protocol.api.pipelines import Limits
from penstock.protocol.stored.names import LEDGER
from penstock.store.files import Files
from penstock.store.journal import Durability
from penstock.store.read_only import ReadOnlyJournal
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

# A snapshot is a head with the number of entries that follow, then pipelines, releases and marks.

FORMAT = 5
"""The newest version. It is in the first entry of a ledger, in one before every snapshot, and in one before the first
entry that an older version does not have. Ledgers without it were written before 0.1, when epochs were not numbered as
Spark's batches are.
"""
_BURIED, _MIRRORED, _SHARDS, _CHOSEN = 2, 3, 4, 5
"""The versions that have buried events, mirrored checkpoints, the other shards of a cluster, and dead letters that were
replayed by choice.
"""
_FORMAT_MIN = 1
"""Without any of these. An older version is still written where that is enough, so that code which has only that can
read it."""
VERSION, HEAD, PIPELINE, RELEASED, MARK, SHARD, SUBSCRIPTION = 0, 100, 101, 102, 103, 104, 105
_ABSENT = -1
_SINK_FIELDS = [field.name for field in fields(Sink)]
_SINK_FIELDS_MIN = 8
"""The fields of every sink. The others are written only if one of them has a value, so that versions without them can
read a ledger that does not need them.
"""


def encode_state(state: State) -> Iterator[list[Any]]:
    rest = len(state.pipelines) + len(state.released) + len(state.marks) + bool(state.term) + len(state.subscriptions)
    yield [HEAD, rest, state.generations, state.incarnations, state.attempts, *astuple(state.retention)]
    for name, pipeline in state.pipelines.items():
        yield [PIPELINE, name, *_pipeline(pipeline)]
    for source, segments in state.released.items():
        yield [RELEASED, source, segments]
    for mark in state.marks:
        yield [MARK, *mark]
    if state.term:
        yield [SHARD, state.term, state.remote]
    for (home, source), subscription in state.subscriptions.items():
        yield [SUBSCRIPTION, home, source, *subscription]


def _pipeline(p: Pipeline) -> Iterator[Any]:
    yield from (p.incarnation, p.generation, p.request, p.outputs, astuple(p.limits))
    yield from (p.proved, p.complete, p.leader, p.running, p.attempt)
    yield {name: _encode_sink(sink) for name, sink in p.sinks.items()}
    yield {name: (spec.sources, spec.starting, spec.resolved) for name, spec in p.inputs.items()}
    names = [*dict.fromkeys(name for cut in p.cuts.values() for name in cut.segments)]
    yield names
    yield [(epoch, c.watermark, [c.segments.get(name, _ABSENT) for name in names]) for epoch, c in p.cuts.items()]
    yield [(number, *epoch) for number, epoch in p.epochs.items()]
    yield p.replayed
    yield p.schemas
    later = ([(*place, *one) for place, one in p.buried.items()], p.manifest, p.chosen)  # from versions 2, 3 and 5 on
    given = max((number for number, value in enumerate(later, 1) if value), default=0)
    yield from later[:given]


def _encode_sink(sink: Sink) -> tuple[Any, ...]:
    values = tuple(getattr(sink, name) for name in _SINK_FIELDS)
    return values if any(values[_SINK_FIELDS_MIN:]) else values[:_SINK_FIELDS_MIN]


def _decode_sink(values: tuple[Any, ...]) -> Sink:
    if len(values) == _SINK_FIELDS_MIN:
        return Sink(**dict(zip(_SINK_FIELDS, values, strict=False)))
    *values_, accepted = values
    accepted = tuple(Accepted(*one) for one in accepted)
    return Sink(**dict(zip(_SINK_FIELDS, (*values_, accepted), strict=True)))


class SnapshotReader:
    """Builds a state from the entries after a head. `state` is available when the last one was added."""

    def __init__(self, head: tuple[Any, ...]) -> None:
        _, self._rest, self._generations, self._incarnations, self._attempts, mode, amount = head
        self._retention = Retention(mode, amount)
        self._pipelines: dict[str, Pipeline] = {}
        self._released: dict[str, dict[str, int]] = {}
        self._marks: list[Mark] = []
        self._shard: tuple[int, dict[str, int]] = 0, {}
        self._subscriptions: dict[tuple[int, str], Subscription] = {}

    def add(self, entry: tuple[Any, ...]) -> bool:
        """Returns False if the entry is not part of a snapshot: then this one was never finished."""
        match entry:
            case (101, name, *fields):
                self._pipelines[name] = _decode_pipeline(*fields)
            case (102, source, segments):
                self._released[source] = segments
            case (103, time_us, segments):
                self._marks.append(Mark(time_us, segments))
            case (104, term, remote):
                self._shard = term, remote
            case (105, home, source, *fields):
                self._subscriptions[home, source] = Subscription(*fields)
            case _:
                return False
        self._rest -= 1
        return True

    @property
    def state(self) -> State | None:
        if self._rest:
            return None
        return State(
            pipelines=self._pipelines,
            released={**self._released},
            retention=self._retention,
            marks=tuple(self._marks),
            generations=self._generations,
            incarnations=self._incarnations,
            attempts=self._attempts,
            term=self._shard[0],
            remote=self._shard[1],
            subscriptions=self._subscriptions,
        )


def _decode_pipeline(*values: Any) -> Pipeline:
    incarnation, generation, request, outputs, limits, proved, complete, leader, running, attempt, *rest = values
    sinks, inputs, names, cuts, epochs, replayed, schemas, *later = rest
    buried = later[0] if later else ()
    manifest = later[1] if len(later) > 1 else ""
    chosen = later[2] if len(later) > 2 else {}
    return Pipeline(
        incarnation=incarnation,
        generation=generation,
        request=request,
        inputs={name: Input(*spec) for name, spec in inputs.items()},
        outputs=outputs,
        limits=Limits(*limits),
        cuts={epoch: Cut(_segments(names, offsets), watermark) for epoch, watermark, offsets in cuts},
        epochs={number: MergedEpoch(*values) for number, *values in epochs},
        proved=proved,
        complete=complete,
        leader=leader,
        running=running,
        sinks={name: _decode_sink(values) for name, values in sinks.items()},
        attempt=attempt,
        replayed=replayed,
        schemas=schemas,
        buried={(segment, offset): Buried(*one) for segment, offset, *one in buried},
        manifest=manifest,
        chosen=chosen,
    )


def _segments(names: tuple[str, ...], offsets: tuple[int, ...]) -> dict[str, int]:
    return {name: offset for name, offset in zip(names, offsets, strict=True) if offset != _ABSENT}


NO_QUOTA = {QUOTA: 2**63 - 1}
"""The worker's own data is never refused for a quota."""

COMPACT_BYTES = 4 << 20
"""Entries after the last snapshot, before the next one is due: bounds what a start must read."""
_COMPACT_FACTOR = 4
"""A snapshot is due when the entries are this many times as large as the last one: it costs a fraction of them."""

_LENGTH = struct.Struct(">I")
_READ_BYTES = 16 << 20


def framed(packed: bytes) -> bytes:
    return _LENGTH.pack(len(packed)) + packed


def stored_entries(store: SegmentStore, segment: str) -> Iterator[bytes]:
    """The entries of a ledger, packed; none if there is no such segment. Raises ValueError for a torn one."""
    if not store.exists(segment):
        return
    info = store.info(segment)
    at, buffer = info.start, b""
    while at < info.length:
        data = store.read(segment, at, _READ_BYTES)
        at = Offset(at + len(data))
        buffer += data
        start = 0
        while (end := _end_of_entry(buffer, start)) <= len(buffer):
            yield buffer[start + _LENGTH.size : end]
            start = end
        buffer = buffer[start:]
    if buffer:
        raise ValueError(f"its last {len(buffer)} bytes are not a whole entry")


def _end_of_entry(buffer: bytes, start: int) -> int:
    """Beyond the buffer if not even the length of the entry is there."""
    if start + _LENGTH.size > len(buffer):
        return len(buffer) + 1
    length: int = _LENGTH.unpack_from(buffer, start)[0]
    return start + _LENGTH.size + length


class Ledger:
    """An entry is durable when the journal is, up to the position returned. The segment is created with the first."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._snapshot_bytes = 0
        self._since_snapshot = 0
        self.version = _FORMAT_MIN
        """Of what it contains: versions that do not have it refuse the ledger."""

    def recover(self) -> State:
        """The state; call it when everything in the store is durable. Raises Damaged, and UnreadableFormat for a ledger
        of another version.
        """
        state = State()
        snapshot: SnapshotReader | None = None
        try:
            for number, entry in enumerate(map(unpack, self._entries())):
                if number == 0 or entry[0] == VERSION:
                    self.version = _checked_format(entry)
                elif entry[0] == HEAD:
                    snapshot = SnapshotReader(entry)
                elif snapshot is None or not snapshot.add(entry):
                    snapshot = None
                    state, _ = apply(state, decode(entry))
                if snapshot is not None and snapshot.state is not None:
                    state, snapshot = snapshot.state, None
        except Damaged:
            raise
        except (PenstockError, ValueError, TypeError, LookupError) as error:
            raise Damaged(f"the ledger (segment {LEDGER!r}) cannot be read: {error}") from error
        return state

    def _entries(self) -> Iterator[bytes]:
        if self._store.exists(LEDGER):
            info = self._store.info(LEDGER)
            self._since_snapshot = info.length - info.start
        return stored_entries(self._store, LEDGER)

    def append(self, command: Command) -> Position:
        self._make(_version_of(command))
        return self._append(framed(pack(encode(command))))

    def _make(self, version: int) -> None:
        """For an entry of this version."""
        if not self._store.exists(LEDGER):
            self._store.create(LEDGER, NO_QUOTA, draining=True)
        if not self._store.length(LEDGER) or self.version < version:
            self._begin(version)

    def _begin(self, version: int) -> None:
        """What follows is of this version."""
        self._append(framed(pack([VERSION, version])))
        self.version = version

    def merge(self, command: Command, pairs: tuple[tuple[str, str], ...]) -> Position:
        """The command and its merges, in one journal record: both or neither."""
        self._make(_version_of(command))
        entry = framed(pack(encode(command)))
        position = self._store.merge(pairs, note=(LEDGER, entry))
        self._since_snapshot += len(entry)
        return position

    def compact_if_due(self, state: State) -> None:
        if self._since_snapshot > max(COMPACT_BYTES, _COMPACT_FACTOR * self._snapshot_bytes):
            self.compact(state)

    def compact(self, state: State) -> None:
        """Write a snapshot. An unfinished one is ignored; the truncation follows it in the journal, so it cannot be
        durable without the snapshot.
        """
        start = self._store.length(LEDGER)
        self._begin(_version_for(state))
        for entry in encode_state(state):
            self._append(framed(pack(entry)))
        self._store.truncate(LEDGER, start)
        self._snapshot_bytes = self._store.length(LEDGER) - start
        self._since_snapshot = 0

    def _append(self, entry: bytes) -> Position:
        self._since_snapshot += len(entry)
        return self._store.append(LEDGER, [entry], draining=True).position


def _version_of(command: Command) -> int:
    """The first version that has it."""
    if isinstance(command, ReplayChosen):
        return _CHOSEN
    if isinstance(command, Serve | Place | Subscribe | Advance | Unsubscribe):
        return _SHARDS
    if isinstance(command, Bury):
        return _BURIED
    return _MIRRORED if isinstance(command, Merge | Mirror) and command.manifest else _FORMAT_MIN


def _version_for(state: State) -> int:
    """The first version that has all of it."""
    pipelines = state.pipelines.values()
    if any(one.chosen for one in pipelines):
        return _CHOSEN
    if state.term or state.subscriptions:
        return _SHARDS
    if any(one.manifest for one in pipelines):
        return _MIRRORED
    return _BURIED if any(one.buried for one in pipelines) else _FORMAT_MIN


def _checked_format(entry: tuple[Any, ...]) -> int:
    match entry:
        case (0, int(found)) if _FORMAT_MIN <= found <= FORMAT:
            return found
        case (0, int(found)):
            raise UnreadableFormat(f"the ledger (segment {LEDGER!r})", found, FORMAT, _START_OVER)
    raise UnreadableFormat(f"the ledger (segment {LEDGER!r})", None, FORMAT, _START_OVER)


_START_OVER = "Start with a new data directory; checkpoints and sinks of the old one start over with it."


def stored_state(files: Files) -> State:
    """What the ledger of a journal has, without a worker; nothing is locked or written. Raises as `Ledger.recover`."""
    return Ledger(SegmentStore(ReadOnlyJournal(files), StoreSettings())).recover()


def stored_version(files: Files) -> int:
    """The version of a journal's ledger. Raises as `stored_state`."""
    ledger = Ledger(SegmentStore(ReadOnlyJournal(files), StoreSettings()))
    ledger.recover()
    return ledger.version


log = logging.getLogger(__name__)


class Keeper:
    """Holds the state: applies a command and journals it in one step. `perform` gets the effects of each command once
    it is durable. Belongs to the thread that owns the store.
    """

    def __init__(self, store: SegmentStore, durability: Durability, perform: Callable[[Effect], None]) -> None:
        self._journal = store.journal
        self._durability = durability
        self._perform_one = perform
        self._ledger = Ledger(store)
        self.state: State = self._ledger.recover()
        self._position = Position(store.journal.end)
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped = False

    def commit(self, command: Command, merges: tuple[tuple[str, str], ...] = ()) -> None:
        """With more merges, of segments that the command does not name. Raises what `apply` does, or DiskFull or
        StoreFailed, with nothing changed. Reply only after `settled`.
        """
        state, effects = apply(self.state, command)
        if state is not self.state:
            pairs = tuple(pair for effect in effects if isinstance(effect, Merges) for pair in effect.pairs) + merges
            self._position = self._ledger.merge(command, pairs) if pairs else self._ledger.append(command)
            self.state = state
            self._compact()
        if effects:
            self._durability.after(self._position, partial(self._perform, effects))

    def _compact(self) -> None:
        try:
            self._ledger.compact_if_due(self.state)
        except PenstockError as error:  # the command is in the ledger, which just keeps growing
            log.warning("no snapshot of the ledger could be written: %s", error)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if not isinstance(effect, Merges):
                self._perform_one(effect)

    def after(self, action: Callable[[], None]) -> None:
        """Call it when the current state is durable: at once if it is."""
        self._durability.after(self._position, action)

    def cover(self) -> None:
        """Let `settled` wait for everything that was written to the store until now, not only for commands."""
        self._position = self._journal.end

    async def settled(self) -> None:
        """Return when the current state is durable. Raises StoreFailed, or Unavailable if the worker stops."""
        self._journal.check()
        if self._position <= self._journal.durable:
            return
        if self._stopped:
            raise stopping()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        self._durability.after(self._position, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            self._waiting.discard(done)

    def stop(self) -> None:
        """All waiting calls raise Unavailable."""
        self._stopped = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(stopping())


def stopping() -> Unavailable:
    return Unavailable("the worker is stopping", "Try again when it is running again.")
