"""The coordinator's state, durable: the commands that made it, one behind the other, in a segment of its own.

An entry is `u32 length · msgpack`, in one append. When many have come, the state is written down as a whole, and what
is before it is given up. A merge stands in the same record of the journal as the entry that tells of it.
"""

import struct
from collections.abc import Iterator
from typing import Any

from penstock.coordinator.ledger.snapshot import HEAD, SnapshotReader, encode_state
from penstock.coordinator.machine.apply import apply
from penstock.coordinator.machine.commands import Command, decode, encode, pack, unpack
from penstock.coordinator.machine.state import State
from penstock.core.attributes import QUOTA
from penstock.core.errors import Damaged, PenstockError
from penstock.core.types import Position
from penstock.protocol.stored.names import LEDGER
from penstock.store.store import SegmentStore

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
            for entry in self._entries():
                if entry[0] == HEAD:
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
        for entry in encode_state(state):
            self._append(_framed(entry))
        self._store.truncate(LEDGER, start)
        self._snapshot_bytes = self._store.length(LEDGER) - start
        self._since_snapshot = 0

    def _append(self, entry: bytes) -> Position:
        self._since_snapshot += len(entry)
        return self._store.append(LEDGER, [entry], draining=True).position


def _framed(entry: list[Any]) -> bytes:
    packed = pack(entry)
    return _LENGTH.pack(len(packed)) + packed


def _end_of_entry(buffer: bytes, start: int) -> int:
    """Beyond the buffer if not even its length is there."""
    if start + _LENGTH.size > len(buffer):
        return len(buffer) + 1
    length: int = _LENGTH.unpack_from(buffer, start)[0]
    return start + _LENGTH.size + length
