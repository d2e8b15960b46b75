"""The ledger makes the controller's state durable: a segment with the commands that led to it, in order.

Segments are created before the command that needs them is in the ledger, and sealed, truncated and deleted after it.
The journal keeps that order. So after a crash a segment may exist that no stream has, or not be sealed yet: `repair`
puts that right at the next start.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from penstock.coordinator.ledger import NO_QUOTA, framed, stored_entries
from penstock.core.errors import Damaged, NoSuchSegment, PenstockError
from penstock.core.types import Position
from penstock.pravega.machine import Command, DeleteStream, Effects, Reason, Refusal, apply
from penstock.pravega.state import State, all_names, segment_name
from penstock.protocol.stored.names import PRAVEGA_LEDGER as LEDGER
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

FORMAT = 1
COMPACT_BYTES = 4 << 20
"""Entries after the last snapshot, before the next one is due: bounds what a start must read."""

_FORM = re.compile(r"([^/]+)/([^/]+)/[0-9]+\.#epoch\.[0-9]+(#.*)?")
"""Of the names of segments that a stream has, or had: scope and stream."""

Cut = tuple[str, int]
"""A segment, and the offset where it is to begin."""
Changed = Callable[[Iterable[str], Position], None]
"""Readers of these segments must look again, once the journal is durable up to there."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, tag_field="c", tag="state"):
    format: int
    state: State


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Snapshot | Command).decode


class Keeper:
    """Holds the state: applies a command, changes segments and journals it in one step. Belongs to the thread that owns
    the store.
    """

    def __init__(self, store: SegmentStore, durability: Durability, changed: Changed) -> None:
        """Raises Damaged for a ledger that cannot be read."""
        self._store = store
        self._durability = durability
        self._changed = changed
        self._since_snapshot = 0
        self.state = self._recover()
        self.position = Position(store.journal.end)

    def _recover(self) -> State:
        state = State()
        try:
            for entry in stored_entries(self._store, LEDGER):
                self._since_snapshot += len(entry)
                one = _decode(entry)
                if isinstance(one, _Snapshot):
                    state, self._since_snapshot = one.state, 0
                else:
                    state, _ = apply(state, one)
        except (PenstockError, ValueError, msgspec.MsgspecError) as error:
            raise Damaged(f"the ledger (segment {LEDGER!r}) cannot be read: {error}") from error
        return state

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
        self.position = Position(self._store.journal.end)
        self._changed([*effects.seal, *effects.delete, *(name for name, _ in effects.truncate)], self.position)
        self._compact_if_due()

    def _write_or_delete(self, entry: bytes, effects: Effects, created: Iterable[str]) -> None:
        try:
            self._write(entry, effects)
        except PenstockError:
            self._take_back(created)
            raise

    def _write(self, entry: bytes, effects: Effects) -> None:
        if not self._store.exists(LEDGER):
            self._store.create(LEDGER, NO_QUOTA, draining=True)
        if effects.merge:
            self._store.merge(effects.merge, note=(LEDGER, entry))
        else:
            self._store.append(LEDGER, [entry], draining=True)
        self._since_snapshot += len(entry)

    def _compact_if_due(self) -> None:
        if self._since_snapshot < COMPACT_BYTES:
            return
        try:
            start = self._store.length(LEDGER)
            self._store.append(LEDGER, [framed(_encode(_Snapshot(FORMAT, self.state)))], draining=True)
            self._store.truncate(LEDGER, start)
            self._since_snapshot = 0
        except PenstockError as error:  # the command is in the ledger, which just keeps growing
            log.warning("no snapshot of the ledger could be written: %s", error)

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

    async def settled(self) -> None:
        """Return when the current state is durable. Raises StoreFailed."""
        self._store.journal.check()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durability.after(self.position, lambda: None if done.done() else done.set_result(None))
        await done
