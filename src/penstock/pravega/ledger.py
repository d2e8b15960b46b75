"""The ledger makes the controller's state durable: a segment with the commands that led to it, in order.

Segments are created before the command that needs them is in the ledger, and sealed, truncated and deleted after it.
The journal keeps that order. So after a crash a segment may exist that no stream has, or not be sealed yet: `repair`
puts that right at the next start.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from penstock.coordinator.ledger import NO_QUOTA, framed, stored_entries
from penstock.core.errors import Damaged, NoSuchSegment, PenstockError, UnreadableFormat
from penstock.core.types import Position
from penstock.pravega.machine import (
    Command,
    Commit,
    DeleteStream,
    Effects,
    NoteTime,
    Reason,
    Refusal,
    TruncateStream,
    apply,
)
from penstock.pravega.state import State, Stream, all_names, segment_name, transaction_name
from penstock.protocol.stored.names import PRAVEGA_LEDGER as LEDGER
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

FORMAT = 1
"""Of the commands and of the state. The ledger, and each snapshot in it, begins with it."""
COMPACT_BYTES = 4 << 20
"""Entries after the last snapshot, before the next one is due: bounds what a start must read."""
_COMPACT_FACTOR = 4
"""A snapshot is due when the entries are this many times as large as the last one: it costs a fraction of them."""
PART_BYTES = 1 << 20
"""Of a snapshot, in one entry: an append has a limit, and a snapshot has none."""
_START_OVER = f"Delete the segment {LEDGER!r} to start without scopes and streams; their segments stay."

_FORM = re.compile(r"([^/]+)/([^/]+)/[0-9]+\.#epoch\.[0-9]+(#.*)?")
"""Of the names of segments that a stream has, or had: scope and stream."""

Cut = tuple[str, int]
"""A segment, and the offset where it is to begin."""
Changed = Callable[[Iterable[str], Position], None]
"""Readers of these segments must look again, once the journal is durable up to there."""


class _Version(msgspec.Struct, frozen=True, array_like=True, tag_field="c", tag="version"):
    """What follows is in this format."""

    format: int


class _Part(msgspec.Struct, frozen=True, array_like=True, tag_field="c", tag="part"):
    """A part of a snapshot. It counts when all of them are there, one after the other."""

    left: int
    """How many follow."""
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Version | _Part | Command).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


class _Reader:
    """Builds the state from the entries of the ledger."""

    def __init__(self) -> None:
        self.state = State()
        self.since_snapshot = 0
        self.snapshot_bytes = 0
        self._parts: list[bytes] = []

    def add(self, number: int, entry: bytes) -> None:
        """Raises UnreadableFormat, and what a damaged entry causes."""
        self.since_snapshot += len(entry)
        one = _decode(entry)
        if number == 0 or isinstance(one, _Version):
            _check_format(one)
        elif isinstance(one, _Part):
            self._add_part(one)
        else:
            self._parts.clear()  # of a snapshot that was never finished
            self.state, _ = apply(self.state, one)

    def _add_part(self, part: _Part) -> None:
        self._parts.append(part.data)
        if not part.left:
            self.snapshot_bytes = sum(map(len, self._parts))
            self.state, self.since_snapshot = _decode_state(b"".join(self._parts)), 0
            self._parts.clear()


def _check_format(one: object) -> None:
    found = one.format if isinstance(one, _Version) else None
    if found != FORMAT:
        raise UnreadableFormat(f"the ledger (segment {LEDGER!r})", found, FORMAT, _START_OVER)


def snapshot(state: State) -> Iterator[bytes]:
    """The entries that stand for all before them."""
    data = _encode(state)
    yield framed(_encode(_Version(FORMAT)))
    starts = range(0, len(data), PART_BYTES)
    for number, start in enumerate(starts, start=1):
        yield framed(_encode(_Part(len(starts) - number, data[start : start + PART_BYTES])))


class Keeper:
    """Holds the state: applies a command, changes segments and journals it in one step. Belongs to the thread that owns
    the store.
    """

    def __init__(self, store: SegmentStore, durability: Durability, changed: Changed) -> None:
        """Raises Damaged for a ledger that cannot be read."""
        self._store = store
        self._durability = durability
        self._changed = changed
        self.state = self._recover()
        self.position = Position(store.journal.end)

    def _recover(self) -> State:
        reader = _Reader()
        try:
            for number, entry in enumerate(stored_entries(self._store, LEDGER)):
                reader.add(number, entry)
        except Damaged:
            raise
        except (PenstockError, ValueError, msgspec.MsgspecError) as error:
            raise Damaged(f"the ledger (segment {LEDGER!r}) cannot be read: {error}") from error
        self._since_snapshot = reader.since_snapshot
        self._due = max(COMPACT_BYTES, _COMPACT_FACTOR * reader.snapshot_bytes)
        return reader.state

    def repair(self) -> None:
        """Seal, truncate and delete what a crash has left."""
        self._delete(self._orphans())
        for scope, streams in self.state.scopes.items():
            for name, stream in streams.items():
                active = {one.id for one in stream.active}
                ended = [number for number in stream.existing() if number not in active]
                self._seal(segment_name(scope, name, number) for number in ended)
                cut = stream.cut or {}
                self._truncate((segment_name(scope, name, number), offset) for number, offset in cut.items())

    def _orphans(self) -> list[str]:
        """Segments with the names of a stream that neither it nor one of its transactions has."""
        known = {
            name
            for scope, streams in self.state.scopes.items()
            for key, stream in streams.items()
            for name in all_names(scope, key, stream)
        }
        found = ((name, _FORM.fullmatch(name)) for name in self._store.table.names())
        return [
            name
            for name, match in found
            if match and match[2] in self.state.scopes.get(match[1], ()) and name not in known
        ]

    def commit(self, command: Command) -> None:
        """Raises Refusal as `apply` does, or DiskFull or StoreFailed. Reply only after `settled`."""
        command = self._measured(command)
        state, effects = apply(self.state, command)
        self._check_lengths(effects.truncate)
        created = self._create(effects.create)
        if isinstance(command, DeleteStream):  # otherwise a stream of the same name could get what is left of this one
            self._delete(effects.delete)
        if state is not self.state:
            self._write_or_delete(framed(_encode(command)), effects, created)
            self.state = state
        self._seal(effects.seal)
        self._truncate(effects.truncate)
        self._delete(effects.delete)
        self.position = self.end
        self._changed(
            [
                *(target for target, _ in effects.merge),
                *effects.seal,
                *effects.delete,
                *(name for name, _ in effects.truncate),
            ],
            self.position,
        )
        self._compact_if_due()

    def _measured(self, command: Command) -> Command:
        """With the lengths of segments that it depends on: they are in the ledger, so that it can be applied again."""
        match command:
            case TruncateStream() if stream := self._stream(command):
                return replace(command, lengths=self._lengths(command, stream.existing()))
            case NoteTime() if not command.cut and (stream := self._stream(command)):  # all that is there
                return replace(command, cut=self._lengths(command, (one.id for one in stream.active)))
            case Commit() if command.writer and command.time and (stream := self._stream(command)):
                return replace(command, ends=self._ends(command, stream))
        return command

    def _stream(self, command: TruncateStream | NoteTime | Commit) -> Stream | None:
        return self.state.scopes.get(command.scope, {}).get(command.stream)

    def _ends(self, command: Commit, stream: Stream) -> dict[int, int]:
        """Where the transaction's segments will end. If the stream was scaled since, they are merged into new ones."""
        scope, name, key = command.scope, command.stream, command.transaction
        segments = stream.transactions[key].segments if key in stream.transactions else ()
        into = {segment.range: segment_name(scope, name, segment.id) for segment in stream.active}
        is_scaled = any(segment.range not in into for segment in segments)
        begins = {one.id: 0 if is_scaled else self._length(into[one.range]) for one in segments}
        return {id_: at + self._length(transaction_name(scope, name, id_, key)) for id_, at in begins.items()}

    def _lengths(self, command: TruncateStream | NoteTime, ids: Iterable[int]) -> dict[int, int]:
        return {id_: self._length(segment_name(command.scope, command.stream, id_)) for id_ in ids}

    def _length(self, segment: str) -> int:
        return self._store.length(segment) if self._store.exists(segment) else 0

    def _write_or_delete(self, entry: bytes, effects: Effects, created: Iterable[str]) -> None:
        try:
            self._write(entry, effects)
        except PenstockError:
            self._take_back(created)
            raise

    def _write(self, entry: bytes, effects: Effects) -> None:
        if not self._store.exists(LEDGER):
            self._store.create(LEDGER, NO_QUOTA, draining=True)
        if not self._store.length(LEDGER):
            self._store.append(LEDGER, [framed(_encode(_Version(FORMAT)))], draining=True)
        if effects.merge:
            self._store.merge(effects.merge, note=(LEDGER, entry))
        else:
            self._store.append(LEDGER, [entry], draining=True)
        self._since_snapshot += len(entry)

    def _compact_if_due(self) -> None:
        """A snapshot that was not finished does not count: what is before it stays."""
        if self._since_snapshot < self._due:
            return
        start, size = self._store.length(LEDGER), 0
        try:
            for entry in snapshot(self.state):
                self._store.append(LEDGER, [entry], draining=True)
                size += len(entry)
            self._store.truncate(LEDGER, start)
            self._since_snapshot, self._due = 0, max(COMPACT_BYTES, _COMPACT_FACTOR * size)
        except PenstockError as error:  # the command is in the ledger, which just keeps growing
            log.warning("no snapshot of the ledger could be written: %s", error)
            self._due = self._since_snapshot + COMPACT_BYTES

    def _create(self, names: Sequence[str]) -> list[str]:
        """Returns those that were created: all that did not exist, or none. What exists already is empty: a crash came
        before the command. Raises Refusal if it is not.
        """
        taken = {name for name in names if self._store.exists(name)}
        for name in taken:
            if self._store.length(name):
                raise Refusal(Reason.PRECONDITION, f"segment {name!r} exists already, and is not empty")
        created: list[str] = []
        try:
            for name in names:
                if name not in taken:
                    self._store.create(name)
                    created.append(name)
        except PenstockError:
            self._take_back(created)
            raise
        return created

    def _take_back(self, created: Iterable[str]) -> None:
        """Delete segments of a command that failed; what cannot be deleted is empty, and used by the next one."""
        with suppress(PenstockError):
            self._delete(created)

    def _seal(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(NoSuchSegment):
                self._store.seal(name)

    def _check_lengths(self, truncate: Iterable[Cut]) -> None:
        """Raises Refusal for an offset that a segment does not have."""
        for name, offset in truncate:
            if self._store.exists(name) and offset > self._store.length(name):
                text = f"segment {name!r} ends at {self._store.length(name)}, before {offset}"
                raise Refusal(Reason.PRECONDITION, text)

    def _truncate(self, truncate: Iterable[Cut]) -> None:
        for name, offset in truncate:
            with suppress(NoSuchSegment):
                self._store.truncate(name, min(offset, self._store.length(name)))

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(NoSuchSegment):
                self._store.delete(name)

    @property
    def end(self) -> Position:
        """Of everything that is in the journal."""
        return Position(self._store.journal.end)

    async def settled(self) -> None:
        """Return when the current state is durable. Raises StoreFailed."""
        self._store.journal.check()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durability.after(self.position, lambda: None if done.done() else done.set_result(None))
        await done
