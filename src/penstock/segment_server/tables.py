"""Requests about table segments, and the tables that are open."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from penstock.core.errors import LimitExceeded, PenstockError, RequestError
from penstock.core.types import TABLE, Position, SegmentId
from penstock.protocol.segment import (
    NO_OFFSET,
    NO_VERSION,
    CreateTable,
    DeleteTable,
    Message,
    ReadTable,
    ReadTableDelta,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    TableDeltaRead,
    TableEntriesRead,
    TableEntry,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableNotEmpty,
    TableRead,
    TableUpdated,
    UpdateTable,
)
from penstock.segment_server.caller import Caller
from penstock.segment_server.table import FORMAT, BadVersion, Change, KeyMissing, Table, entry_memory
from penstock.store.store import SegmentStore

TABLE_BYTES_MAX = 16 << 20
"""Of the memory of one table while it is open: keys and values, and what they cost beside that."""
_REMOVED_FACTOR = 4
"""Removed keys are forgotten for more room if they occupy a quarter of it: otherwise that would happen all the time."""
TABLES_BYTES_MAX = 64 << 20
"""The same over all tables: those that were not used for longest are closed."""
_REPLY_BYTES = 1 << 20
"""Keys and values in one reply, roughly; a reply has at least one."""
_READ_BYTES = 8 << 20
"""Values in a reply to ReadTable, which has all of them or none; a message has less than 16 MiB."""
_READ_ENTRIES_MAX = 1000
_COMPACT_APPEND_BYTES = 1 << 20
"""Entries that compaction appends at once, roughly."""

log = logging.getLogger(__name__)

_OFFSET = Struct(">q")
Handled = tuple[Message, Position]


@dataclass(slots=True)
class _Opened:
    segment: SegmentId
    table: Table
    counted: int = 0
    """Its part of the memory of all."""


class Tables:
    """The tables that are open: their index is rebuilt from the segment when they are used for the first time."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._open: dict[str, _Opened] = {}
        """The one that was used last is the last."""
        self._memory_bytes = 0

    def is_table(self, name: str) -> bool:
        segment = self._store.table.named(name)
        return segment is not None and TABLE in (segment.attributes or {})

    def open(self, name: str) -> Table:
        """Raises NoSuchSegment, RequestError for a segment that is not a table, and Damaged."""
        version = self._store.attribute(name, TABLE)
        if version is None:
            raise RequestError(f"segment {name!r} is not a table")
        if version != FORMAT:
            raise RequestError(f"table {name!r} has format {version}; this version reads {FORMAT}")
        segment = self._store.table.named(name)
        assert segment is not None
        found = self._open.pop(name, None)
        if found is None or found.segment != segment.id:  # one of that name may have been deleted, and created again
            self._memory_bytes -= 0 if found is None else found.counted
            found = _Opened(segment.id, self._load(name))
        self._open[name] = found
        self._count(found)
        self._close_some()
        return found.table

    def close(self, name: str) -> None:
        found = self._open.pop(name, None)
        self._memory_bytes -= 0 if found is None else found.counted

    def _count(self, one: _Opened) -> None:
        self._memory_bytes += one.table.memory_bytes - one.counted
        one.counted = one.table.memory_bytes

    def _load(self, name: str) -> Table:
        table, info = Table(), self._store.info(name)
        data, at = [], int(info.start)
        while at < info.length:
            data.append(self._store.read(name, at, _READ_BYTES))
            at += len(data[-1])
        table.replay(b"".join(data), info.start)
        return table

    def _close_some(self) -> None:
        """Only what is durable can be read again: a table with newer entries stays open."""
        if self._memory_bytes <= TABLES_BYTES_MAX:
            return
        for name in [*self._open][:-1]:
            if not self._store.exists(name) or self._store.info(name).length == self._store.length(name):
                self.close(name)
            if self._memory_bytes <= TABLES_BYTES_MAX:
                break

    def make_room(self, name: str, entries: Sequence[TableEntry]) -> None:
        """Before these are set. Frees the memory of removed keys if it is needed. Raises LimitExceeded."""
        table = self.open(name)
        size = sum(entry_memory(entry) for entry in entries)
        if table.memory_bytes + size > TABLE_BYTES_MAX < table.removed_bytes * _REMOVED_FACTOR:
            self._compact(name, table)
            table = self._open[name].table
        if table.memory_bytes + size > TABLE_BYTES_MAX:
            raise LimitExceeded(f"table {name!r} would have more than {TABLE_BYTES_MAX} bytes in memory")

    def append(self, name: str, table: Table, data: bytes) -> Position:
        """Append entries, and compact the log if that is due."""
        at = self._store.length(name)
        position = self._store.append(name, [data]).position
        table.replay(data, at)
        if table.is_compaction_due(self._store.length(name) - self._store.info(name).start):
            try:
                self._compact(name, table)
            except PenstockError as error:  # the entries are stored, and the log just keeps growing
                log.warning("table %r was not compacted: %s", name, error)
        return position

    def _compact(self, name: str, table: Table) -> None:
        """The truncation follows the new entries in the journal: it cannot be durable without them."""
        start = at = self._store.length(name)
        compacted = Table()
        for data in table.compacted(_COMPACT_APPEND_BYTES):
            self._store.append(name, [data], draining=True)
            compacted.replay(data, at)
            at = self._store.length(name)
        self._open[name].table = compacted
        self._count(self._open[name])
        self._store.truncate(name, start)


class TableRequests:
    def __init__(self, store: SegmentStore, caller: Caller, tables: Tables) -> None:
        self._store = store
        self._caller = caller
        self._tables = tables
        self.handlers: dict[type[Message], Callable[[Any], Handled]] = {
            CreateTable: self._create,
            DeleteTable: self._delete,
            UpdateTable: self._update,
            RemoveTableKeys: self._remove,
            ReadTable: self._read,
            ReadTableKeys: self._keys,
            ReadTableEntries: self._entries,
            ReadTableDelta: self._delta,
        }

    def _create(self, request: CreateTable) -> Handled:
        self._caller.check_count(request.segment)
        attributes = self._caller.attributes_of_new(request.segment)
        position = self._store.create(request.segment, {**attributes, TABLE: FORMAT})
        return SegmentCreated(request.segment, request.request_id), position

    def _delete(self, request: DeleteTable) -> Handled:
        table = self._tables.open(request.segment)
        if request.must_be_empty and len(table):
            return self._now(TableNotEmpty(request.segment, f"it has {len(table)} keys", request.request_id))
        position = self._store.delete(request.segment)
        self._tables.close(request.segment)
        return SegmentDeleted(request.segment, request.request_id), position

    def _update(self, request: UpdateTable) -> Handled:
        def plan(table: Table, at: int) -> tuple[bytes, Message]:
            data, versions = table.update(request.entries, at)
            return data, TableUpdated(versions, request.request_id)

        return self._change(request, plan)

    def _remove(self, request: RemoveTableKeys) -> Handled:
        def plan(table: Table, _: int) -> tuple[bytes, Message]:
            return table.removal(request.keys), TableKeysRemoved(request.segment, request.request_id)

        return self._change(request, plan)

    def _change(
        self, request: UpdateTable | RemoveTableKeys, plan: Callable[[Table, int], tuple[bytes, Message]]
    ) -> Handled:
        name, number = request.segment, request.request_id
        if isinstance(request, UpdateTable):
            self._tables.make_room(name, request.entries)
        table, at = self._tables.open(name), self._store.length(name)
        if request.offset not in (NO_OFFSET, at):
            return self._now(SegmentIsTruncated(name, at, f"the table ends at {at}", request.offset, number))
        try:
            data, reply = plan(table, at)
        except KeyMissing as error:
            return self._now(TableKeyDoesNotExist(name, str(error), number))
        except BadVersion as error:
            return self._now(TableKeyBadVersion(name, str(error), number))
        if not data:
            return self._now(reply)
        if self._caller.has_quota:
            self._caller.check_room(name, len(data))
        return reply, self._tables.append(name, table, data)

    def _read(self, request: ReadTable) -> Handled:
        table = self._tables.open(request.segment)
        found = [(bytes(key), table.get(bytes(key))) for key, _ in request.keys]
        if sum(one.size for _, one in found if one is not None) > _READ_BYTES:
            raise LimitExceeded(f"the values of {len(found)} keys are over {_READ_BYTES} bytes", "Read fewer at once.")
        entries = (TableEntry(key, NO_VERSION, b"") if one is None else one.entry for key, one in found)
        return self._now(TableRead(request.segment, tuple(entries), request.request_id))

    def _keys(self, request: ReadTableKeys) -> Handled:
        found, continuation = self._page(request)
        keys = tuple(TableKey(one.key, one.version) for one in found)
        return self._now(TableKeysRead(request.segment, keys, continuation, request.request_id))

    def _entries(self, request: ReadTableEntries) -> Handled:
        found, continuation = self._page(request)
        entries = tuple(one.entry for one in found)
        return self._now(TableEntriesRead(request.segment, entries, continuation, request.request_id))

    def _page(self, request: ReadTableKeys | ReadTableEntries) -> tuple[list[Change], bytes]:
        """Some changes, and where the next page continues."""
        after = -1
        if request.continuation:
            if len(request.continuation) != _OFFSET.size:
                raise RequestError("the continuation is not one of this table")
            after = _OFFSET.unpack(request.continuation)[0]
        found = _limited(self._tables.open(request.segment).after(after), request.count)
        return found, _OFFSET.pack(found[-1].offset if found else after)

    def _delta(self, request: ReadTableDelta) -> Handled:
        table, start = self._tables.open(request.segment), self._store.info(request.segment).start
        changes = table.delta(request.position, start, _READ_ENTRIES_MAX + 1)  # one more: so the end is known
        found = _limited(changes, request.count)
        reply = TableDeltaRead(
            request.segment,
            tuple(one.entry for one in found),
            should_clear=0 < request.position < start,
            reached_end=len(found) == len(changes),
            position=found[-1].end if found else request.position,
            request_id=request.request_id,
        )
        return self._now(reply)

    def _now(self, reply: Message) -> Handled:
        """Entries that are not durable yet will be when the reply leaves."""
        return reply, self._store.journal.end


def _limited(changes: Iterable[Change], count: int) -> list[Change]:
    """At most so many, and not many bytes; one at least."""
    found: list[Change] = []
    size = 0
    for change in changes:
        size += change.size
        if found and (len(found) >= min(max(count, 1), _READ_ENTRIES_MAX) or size > _REPLY_BYTES):
            break
        found.append(change)
    return found
