"""A table segment: a log of entries, and the map that it stands for. Pure: bytes in, bytes out.

An entry is `u8 kind · u32 key length · u32 value length · i64 version · key · value`. The version of an entry is the
offset at which it was first written: compaction writes it again, with that version. What is appended at once is one
append of the store: all of it or nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct

from penstock.core.errors import ConditionFailed, Damaged
from penstock.protocol.segment import ANY_VERSION, NO_VERSION, TableEntry, TableKey

FORMAT = 1
"""Of the log. It is the value of the attribute that marks a table."""

_HEAD = Struct(">BIIq")
_PUT, _REMOVE = 1, 2
_OWN = -1
"""The version of an entry that is written for the first time: its own offset."""

COMPACT_BYTES = 1 << 20
"""Bytes of entries that count no more, before they are removed: bounds what opening a table must read."""
_COMPACT_FACTOR = 4
"""They are removed when they are also this many times as large as what counts: it costs a fraction of them."""


_REMOVED_MAX = 1000
_REMOVED_FRACTION = 4
"""Compaction keeps the last removals, as many as this and in this fraction of COMPACT_BYTES: clients which have not
read them yet do not forget what they know, although they are asked to."""
_REMOVED_VALUE_BYTES_MAX = 1024
"""A longer last value of a removed key is not kept."""


_CHANGE_BYTES = 250
"""What a change occupies in memory beside its key and its value, roughly."""


class KeyMissing(ConditionFailed):
    """A version was expected of a key that does not exist."""


class BadVersion(ConditionFailed):
    """A key has another version than the expected one."""


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of a key."""

    key: bytes
    value: bytes
    """Of a removed key, the last one, or empty if that was long."""
    version: int
    offset: int
    """Where the change is in the log."""
    end: int
    since: int
    """From which offset on readers have seen the key."""
    is_removed: bool = False

    @property
    def size(self) -> int:
        return _HEAD.size + len(self.key) + len(self.value)

    @property
    def memory_bytes(self) -> int:
        return self.size + _CHANGE_BYTES

    @property
    def entry(self) -> TableEntry:
        return TableEntry(self.key, NO_VERSION if self.is_removed else self.version, self.value)


def entry_memory(entry: TableEntry) -> int:
    """What it will occupy."""
    return _HEAD.size + len(entry.key) + len(entry.value) + _CHANGE_BYTES


class Table:
    """What the log of a table contains. `replay` is the only place where it changes."""

    def __init__(self) -> None:
        self._changes: dict[bytes, Change] = {}
        """In the order of the log, because a key that changes moves to the end."""
        self.live_bytes = 0
        """In the log, of keys that exist."""
        self.memory_bytes = 0
        """Of everything, roughly: removed keys are in memory until the log is compacted."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def removed_bytes(self) -> int:
        """In memory, of keys that do not exist any more."""
        return self.memory_bytes - self.live_bytes - _CHANGE_BYTES * self._count

    def replay(self, log: bytes, at: int) -> None:
        """Apply entries that the log has at an offset. Raises Damaged for anything else."""
        start, view = 0, memoryview(log)
        while start < len(log):
            if start + _HEAD.size > len(log):
                raise Damaged(f"a table's entry at {at + start} is cut off")
            kind, key_length, value_length, version = _HEAD.unpack_from(log, start)
            key_end = start + _HEAD.size + key_length
            end = key_end + value_length
            if kind not in (_PUT, _REMOVE) or end > len(log):
                raise Damaged(f"no table entry starts at {at + start}")
            key = bytes(view[start + _HEAD.size : key_end])
            if kind == _PUT:
                self._put(key, bytes(view[key_end:end]), version, at + start, at + end)
            else:
                self._remove(key, at + start, at + end)
            start = end

    def _put(self, key: bytes, value: bytes, version: int, offset: int, end: int) -> None:
        old = self._changes.pop(key, None)
        version = offset if version == _OWN else version
        since = version
        if old is not None and not old.is_removed:
            since = min(old.since, version)
            self._forget(old)
        change = Change(key, value, version, offset, end, since)
        self._replace(old, change)
        self.live_bytes += change.size
        self._count += 1

    def _remove(self, key: bytes, offset: int, end: int) -> None:
        old = self._changes.pop(key, None)
        if old is None:
            return
        if not old.is_removed:
            self._forget(old)
        value = old.value if len(old.value) <= _REMOVED_VALUE_BYTES_MAX else b""
        self._replace(old, Change(key, value, old.version, offset, end, old.since, is_removed=True))

    def _replace(self, old: Change | None, new: Change) -> None:
        self._changes[new.key] = new
        self.memory_bytes += new.memory_bytes - (0 if old is None else old.memory_bytes)

    def _forget(self, change: Change) -> None:
        self.live_bytes -= change.size
        self._count -= 1

    # What is appended.

    def update(self, entries: Sequence[TableEntry], at: int) -> tuple[bytes, tuple[int, ...]]:
        """The bytes that set all of them, if they are appended at this offset, and their versions. Of a key that is
        there several times, the last value counts, and all have its version. Raises BadVersion if any key has another
        version than the expected one, otherwise KeyMissing if one does not exist.
        """
        failures = [self._failure(bytes(entry.key), entry.version) for entry in entries]
        for kind in (BadVersion, KeyMissing):
            for failure in failures:
                if isinstance(failure, kind):
                    raise failure
        versions: dict[bytes, int] = {}
        parts = []
        for key, value in {bytes(entry.key): bytes(entry.value) for entry in entries}.items():
            versions[key] = at
            parts.append(_HEAD.pack(_PUT, len(key), len(value), _OWN) + key + value)
            at += len(parts[-1])
        return b"".join(parts), tuple(versions[bytes(entry.key)] for entry in entries)

    def removal(self, keys: Sequence[TableKey]) -> bytes:
        """The bytes that remove all of them; a key that does not exist, and of which no version is expected, needs
        none. Raises KeyMissing and BadVersion.
        """
        for key, version in keys:
            if failure := self._failure(bytes(key), version):
                raise failure
        found = [key for key in dict.fromkeys(bytes(key) for key, _ in keys) if self.get(key) is not None]
        return b"".join(_HEAD.pack(_REMOVE, len(key), 0, _OWN) + key for key in found)

    def _failure(self, key: bytes, expected: int) -> ConditionFailed | None:
        if expected == ANY_VERSION:
            return None
        found = self.get(key)
        if found is None:
            is_met = expected == NO_VERSION
            return None if is_met else KeyMissing(f"version {expected} was expected of a key that does not exist")
        return None if expected == found.version else BadVersion(f"a key has version {found.version}, not {expected}")

    def is_compaction_due(self, log_bytes: int) -> bool:
        return log_bytes - self.live_bytes > max(COMPACT_BYTES, _COMPACT_FACTOR * self.live_bytes)

    def compacted(self, size: int) -> Iterator[bytes]:
        """The entries that stand for all of it, in parts of about this size. A key that was removed lately is set and
        removed again: so readers that knew it learn of it, wherever they are, and new ones do not.
        """
        parts: list[bytes] = []
        waiting = 0
        removed = self._last_removed()
        for one in self._changes.values():
            if one.is_removed and one.key not in removed:
                continue
            parts += (_HEAD.pack(_PUT, len(one.key), len(one.value), one.version), one.key, one.value)
            if one.is_removed:
                parts += (_HEAD.pack(_REMOVE, len(one.key), 0, _OWN), one.key)
            waiting += one.size
            if waiting >= size:
                yield b"".join(parts)
                parts, waiting = [], 0
        if parts:
            yield b"".join(parts)

    def _last_removed(self) -> set[bytes]:
        """Those that compaction keeps."""
        found, size = set[bytes](), 0
        for one in islice((one for one in reversed(self._changes.values()) if one.is_removed), _REMOVED_MAX):
            size += one.size + _HEAD.size + len(one.key)
            if size > COMPACT_BYTES // _REMOVED_FRACTION:
                break
            found.add(one.key)
        return found

    # What is read.

    def get(self, key: bytes) -> Change | None:
        found = self._changes.get(key)
        return None if found is None or found.is_removed else found

    def after(self, offset: int) -> Iterator[Change]:
        """What exists, and was changed after this offset; -1 for all of it. A key that changes meanwhile may come
        twice, and none is left out.
        """
        return (one for one in self._live() if one.offset > offset)

    def delta(self, position: int, start: int, count: int) -> list[Change]:
        """The changes from a position on, at most `count`. Of removed keys only those that a reader knows who has read
        up to the position; `start` is where the log begins.
        """
        is_behind = 0 < position < start
        found = []
        for change in reversed(self._changes.values()):
            if change.offset < position:
                break
            if not change.is_removed or change.since < position or is_behind:
                found.append(change)
        return list(islice(reversed(found), count))

    def _live(self) -> Iterator[Change]:
        return (one for one in self._changes.values() if not one.is_removed)
