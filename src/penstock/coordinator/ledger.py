"""The coordinator's state, durable: the commands that made it, one behind the other, in a segment of its own.

An entry is `u32 length · msgpack`, in one append. When many have come, the state is written down as a whole, and what
is before it is given up. A merge stands in the same record of the journal as the entry that tells of it.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from functools import partial
from typing import Any

from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Command, Effect, Merges, decode, encode, pack, unpack
from penstock.coordinator.machine.state import Batch, Cut, Input, Mark, Pipeline, Retention, Sink, State
from penstock.core.errors import Damaged, PenstockError, Unavailable, UnreadableFormat
from penstock.core.types import QUOTA, Position
from penstock.protocol.api.pipelines import Limits
from penstock.protocol.stored.names import LEDGER
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

# The whole state as entries of the ledger: a head that says how many follow, then pipelines, releases and marks.

FORMAT = 1
"""The first entry of a ledger says which one it has, and so does one before every snapshot. Ledgers without it were
written before 0.1, when epochs were not numbered as Spark's batches are.
"""
VERSION, HEAD, PIPELINE, RELEASED, MARK = 0, 100, 101, 102, 103
_ABSENT = -1
_SINK_FIELDS = [field.name for field in fields(Sink)]


def encode_state(state: State) -> Iterator[list[Any]]:
    rest = len(state.pipelines) + len(state.released) + len(state.marks)
    yield [HEAD, rest, state.generations, state.incarnations, state.attempts, *astuple(state.retention)]
    for name, pipeline in state.pipelines.items():
        yield [PIPELINE, name, *_pipeline(pipeline)]
    for source, segments in state.released.items():
        yield [RELEASED, source, segments]
    for mark in state.marks:
        yield [MARK, *mark]


def _pipeline(p: Pipeline) -> Iterator[Any]:
    yield from (p.incarnation, p.generation, p.request, p.outputs, astuple(p.limits))
    yield from (p.proved, p.complete, p.leader, p.running, p.attempt)
    yield {name: astuple(sink) for name, sink in p.sinks.items()}
    yield {name: (spec.sources, spec.starting, spec.resolved) for name, spec in p.inputs.items()}
    names = [*dict.fromkeys(name for cut in p.cuts.values() for name in cut.segments)]
    yield names
    yield [(epoch, c.watermark, [c.segments.get(name, _ABSENT) for name in names]) for epoch, c in p.cuts.items()]
    yield [(number, *batch) for number, batch in p.batches.items()]
    yield p.replayed
    yield p.schemas


class SnapshotReader:
    """Puts a state together from the entries behind a head. `state` is there when the last one has been added."""

    def __init__(self, head: tuple[Any, ...]) -> None:
        _, self._rest, self._generations, self._incarnations, self._attempts, mode, amount = head
        self._retention = Retention(mode, amount)
        self._pipelines: dict[str, Pipeline] = {}
        self._released: dict[str, dict[str, int]] = {}
        self._marks: list[Mark] = []

    def add(self, entry: tuple[Any, ...]) -> bool:
        """False if the entry is no part of a snapshot: this one was never finished."""
        match entry:
            case (101, name, *fields):
                self._pipelines[name] = _decode_pipeline(*fields)
            case (102, source, segments):
                self._released[source] = segments
            case (103, time_us, segments):
                self._marks.append(Mark(time_us, segments))
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
        )


def _decode_pipeline(*values: Any) -> Pipeline:
    incarnation, generation, request, outputs, limits, proved, complete, leader, running, attempt, *rest = values
    sinks, inputs, names, cuts, batches, replayed, schemas = rest
    return Pipeline(
        incarnation=incarnation,
        generation=generation,
        request=request,
        inputs={name: Input(*spec) for name, spec in inputs.items()},
        outputs=outputs,
        limits=Limits(*limits),
        cuts={epoch: Cut(_segments(names, offsets), watermark) for epoch, watermark, offsets in cuts},
        batches={number: Batch(*batch) for number, *batch in batches},
        proved=proved,
        complete=complete,
        leader=leader,
        running=running,
        sinks={name: Sink(**dict(zip(_SINK_FIELDS, values, strict=True))) for name, values in sinks.items()},
        attempt=attempt,
        replayed=replayed,
        schemas=schemas,
    )


def _segments(names: tuple[str, ...], offsets: tuple[int, ...]) -> dict[str, int]:
    return {name: offset for name, offset in zip(names, offsets, strict=True) if offset != _ABSENT}


NO_QUOTA = {QUOTA: 2**63 - 1}
"""What the worker writes itself is never refused for a quota."""

COMPACT_BYTES = 4 << 20
"""Entries behind the last snapshot, before the next one: bounds what a start must read."""
_COMPACT_FACTOR = 4
"""A snapshot is written when so many times its own size has come since: it costs a fraction of the entries."""

_LENGTH = struct.Struct(">I")
_READ_BYTES = 16 << 20


class Ledger:
    """Owned by the coordinator's service. What it returns is durable when the journal is, up to that position.
    Its segment is made when there is something to write.
    """

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._snapshot_bytes = 0
        self._since_snapshot = 0

    def recover(self) -> State:
        """The state as it was; call it when everything in the store is durable. Raises Damaged."""
        state = State()
        snapshot: SnapshotReader | None = None
        try:
            for number, entry in enumerate(self._entries()):
                if number == 0 or entry[0] == VERSION:
                    _check_format(entry)
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
            raise Damaged(f"segment {LEDGER!r} is no ledger: {error}") from error
        return state

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        if not self._store.exists(LEDGER):
            return
        info = self._store.info(LEDGER)
        self._since_snapshot = info.length - info.start
        at, buffer = info.start, b""
        while at < info.length:
            data = self._store.read(LEDGER, at, _READ_BYTES)
            at += len(data)
            buffer += data
            start = 0
            while (end := _end_of_entry(buffer, start)) <= len(buffer):
                yield unpack(buffer[start + _LENGTH.size : end])
                start = end
            buffer = buffer[start:]
        if buffer:
            raise ValueError(f"{len(buffer)} bytes at its end are no entry")

    def append(self, command: Command) -> Position:
        self._make()
        return self._append(_framed(encode(command)))

    def _make(self) -> None:
        if not self._store.exists(LEDGER):
            self._store.create(LEDGER, NO_QUOTA, draining=True)
        if not self._store.length(LEDGER):
            self._append(_framed([VERSION, FORMAT]))

    def merge(self, command: Command, pairs: tuple[tuple[str, str], ...]) -> Position:
        """The command and the merges it tells of: both or neither."""
        self._make()
        entry = _framed(encode(command))
        position = self._store.merge(pairs, note=(LEDGER, entry))
        self._since_snapshot += len(entry)
        return position

    def compact_if_due(self, state: State) -> None:
        if self._since_snapshot > max(COMPACT_BYTES, _COMPACT_FACTOR * self._snapshot_bytes):
            self.compact(state)

    def compact(self, state: State) -> None:
        """Write the state down as a whole. One that is not finished counts for nothing; the truncation stands behind it
        in the journal, so it cannot be durable without it.
        """
        start = self._store.length(LEDGER)
        self._append(_framed([VERSION, FORMAT]))
        for entry in encode_state(state):
            self._append(_framed(entry))
        self._store.truncate(LEDGER, start)
        self._snapshot_bytes = self._store.length(LEDGER) - start
        self._since_snapshot = 0

    def _append(self, entry: bytes) -> Position:
        self._since_snapshot += len(entry)
        return self._store.append(LEDGER, [entry], draining=True).position


def _check_format(entry: tuple[Any, ...]) -> None:
    match entry:
        case (0, int(found)) if found == FORMAT:
            return
        case (0, int(found)):
            raise UnreadableFormat(f"the ledger (segment {LEDGER!r})", found, FORMAT, _START_OVER)
    raise UnreadableFormat(f"the ledger (segment {LEDGER!r})", None, FORMAT, _START_OVER)


_START_OVER = "Start with a new data directory; checkpoints and sinks of the old one start over with it."


def _framed(entry: list[Any]) -> bytes:
    packed = pack(entry)
    return _LENGTH.pack(len(packed)) + packed


def _end_of_entry(buffer: bytes, start: int) -> int:
    """Beyond the buffer if not even its length is there."""
    if start + _LENGTH.size > len(buffer):
        return len(buffer) + 1
    length: int = _LENGTH.unpack_from(buffer, start)[0]
    return start + _LENGTH.size + length


# Keeps the state: a command is applied and journalled in one step; what follows from it waits until it is durable.

log = logging.getLogger(__name__)


class Keeper:
    """Belongs to the thread that owns the store. `perform` gets the effects of each command once it is durable."""

    def __init__(self, store: SegmentStore, durability: Durability, perform: Callable[[Effect], None]) -> None:
        self._journal = store.journal
        self._durability = durability
        self._perform_one = perform
        self._ledger = Ledger(store)
        self.state: State = self._ledger.recover()
        self._position = Position(store.journal.end)
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped = False

    def commit(self, command: Command) -> None:
        """Raises what `apply` does, or DiskFull or StoreFailed, with nothing changed. Answer it after `settled`."""
        state, effects = apply(self.state, command)
        if state is not self.state:
            pairs = tuple(pair for effect in effects if isinstance(effect, Merges) for pair in effect.pairs)
            self._position = self._ledger.merge(command, pairs) if pairs else self._ledger.append(command)
            self.state = state
            self._compact()
        if effects:
            self._durability.after(self._position, partial(self._perform, effects))

    def _compact(self) -> None:
        try:
            self._ledger.compact_if_due(self.state)
        except PenstockError as error:  # the command stands; the ledger only goes on growing
            log.warning("the ledger is not written anew: %s", error)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if not isinstance(effect, Merges):
                self._perform_one(effect)

    def cover(self) -> None:
        """Let `settled` wait for everything that the store was told until now, not for commands alone."""
        self._position = self._journal.end

    async def settled(self) -> None:
        """Return when the state, as it is now, is durable. Raises StoreFailed, or Unavailable when the worker stops."""
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
        """Whoever waits is told that there will be no answer."""
        self._stopped = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(stopping())


def stopping() -> Unavailable:
    return Unavailable("the worker stops", "Try again when it is there again.")
