"""Changes of tables as events: from the messages of pgoutput to JSON, with ids that survive a restart. Pure.

    {"op": "insert", "table": "public.orders", "before": null, "after": {"id": 7, …}, "lsn": "0/16B3748",
     "commit_time": "2026-01-31T10:00:00.000000Z"}

**Ids.** An id is CHANGES + the LSN of the transaction's commit; the second change of a transaction has the next number,
and so on: `id = max(last id + 1, CHANGES + LSN)`. So ids grow strictly, however many changes a transaction has, and
the numbers of a large one may run ahead of the next LSNs. After a restart the server sends everything again from the
position that was acknowledged, and the same rule must give the same ids. It does so exactly if no number had run ahead
there: therefore only such positions are offered for acknowledgement (`Batch.safe`). A transaction of a million changes
delays that until the server's log has grown by another megabyte.

Ids below CHANGES belong to the snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from struct import Struct
from struct import error as StructError  # noqa: N812  it has no better name
from typing import NamedTuple

from penstock.connectors.postgres.json_values import NULL, Convert, as_json, as_object, converter, encode
from penstock.connectors.postgres.pgoutput import (
    UNCHANGED,
    BadMessage,
    Begin,
    Commit,
    Delete,
    Insert,
    Keepalive,
    Message,
    Parsed,
    Relation,
    Row,
    Truncate,
    Update,
    Value,
    WalData,
    lsn_text,
    parse,
)

CHANGES = 1 << 62
"""Added to an LSN, which has fewer than 62 bits: at a gigabyte per second they last for 146 years."""

COLUMN_BYTES_MAX = 1 << 20
"""In an event that is too large, longer values are left out first."""

EVENT_BYTES_MAX = 4 << 20
"""An event must fit into a record of a segment, and a peer's frame."""

KEY_BYTES_MAX = 60_000
"""Of 65,535 that an event can have."""

_WHOLE_ROW, _SIZE = Struct("!xIcH"), Struct("!I")
_WITH_A_WHOLE_ROW = {b"I": b"insert", b"U": b"update"}
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class Safe(NamedTuple):
    """Once the event of this id is complete, the server may forget everything before this LSN."""

    id: int
    lsn: int


@dataclass(slots=True)
class Batch:
    """Events in order, as columns."""

    values: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    safe: Safe | None = None

    def add(self, value: bytes, id_: int, time_us: int, key: bytes) -> None:
        self.values.append(value)
        self.ids.append(id_)
        self.times_us.append(time_us)
        self.keys.append(key)


def time_text(time_us: int) -> str:
    return (_1970 + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def tail_of(lsn: int, time_us: int) -> bytes:
    """The end of an event: what all changes of a transaction share."""
    return b',"lsn":"%s","commit_time":"%s"}' % (lsn_text(lsn).encode(), time_text(time_us).encode())


class Table:
    """A table's rows as JSON."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.columns = tuple((one.name, converter(one.type_oid)) for one in relation.columns)
        # With the identity `full` every column is marked, and no row has a key.
        keys = [] if relation.identity == "f" else [n for n, one in enumerate(relation.columns) if one.is_key]
        self._key_places = frozenset(keys)
        self._keys = tuple((place, *self.columns[place]) for place in keys)
        self._name = encode(f"{relation.schema}.{relation.name}")
        # For rows that are sent whole:
        self._converts = [convert for _, convert in self.columns]
        names = [encode(name).replace(b"%", b"%%") for name, _ in self.columns]
        after = b"{%b}" % b",".join([name + b":%b" for name in names])
        self._event_form = b'{"op":"%%b","table":%b,"before":null,"after":%b%%b' % (
            self._name.replace(b"%", b"%%"),
            after,
        )
        self._key_form = b"{%b}" % b",".join([names[place] + b":%b" for place in keys]) if keys else b""
        self._key_of = itemgetter(*keys) if keys else _nothing

    def from_whole_row(self, op: bytes, data: bytes, tail: bytes) -> tuple[bytes, bytes] | None:
        """An event, and its key, straight from the message with a row, as nearly all are: without an old row, and with
        every value. None for another, or one that is malformed or too large: `parse` and the methods below report it.
        """
        found: list[bytes] = []
        at = _WHOLE_ROW.size
        try:
            for convert in self._converts:
                kind = data[at]
                if kind == 0x74:  # t: text
                    start = at + 5
                    at = start + _SIZE.unpack_from(data, at + 1)[0]
                    found.append(convert(data[start:at]))
                elif kind == 0x6E:  # n: NULL
                    found.append(NULL)
                    at += 1
                else:
                    return None
        except (StructError, IndexError, ValueError):
            return None
        event = self._event_form % (op, *found, tail)
        if at != len(data) or len(event) > EVENT_BYTES_MAX:
            return None
        key = self._key_form % self._key_of(found)
        return event, key if len(key) <= KEY_BYTES_MAX else b""

    def insert(self, op: bytes, row: Row, tail: bytes) -> tuple[bytes, bytes]:
        """An event, and its key."""
        return self._event(op, None, row, tail), self._key(row, None)

    def update(self, change: Update, tail: bytes) -> tuple[bytes, bytes]:
        old = None if change.old is None else self._old(change.old, change.old_is_key)
        return self._event(b"update", old, change.new, tail), self._key(change.new, change.old)

    def delete(self, change: Delete, tail: bytes) -> tuple[bytes, bytes]:
        old = self._old(change.old, change.old_is_key)
        return self._event(b"delete", old, None, tail), self._key(change.old, None)

    def truncate(self, tail: bytes) -> bytes:
        return self._event(b"truncate", None, None, tail)

    def _old(self, row: Row, is_key: bool) -> dict[str, Value]:
        columns = zip(self.columns, row, strict=True)
        return {
            name: value for place, ((name, _), value) in enumerate(columns) if not is_key or place in self._key_places
        }

    def _event(self, op: bytes, old: dict[str, Value] | None, new: Row | None, tail: bytes) -> bytes:
        before = self._before(old)
        after, more = (NULL, b"") if new is None else self._new(new)
        event = b'{"op":"%s","table":%s,"before":%s,"after":%s%s%s' % (op, self._name, before, after, more, tail)
        return event if len(event) <= EVENT_BYTES_MAX else self._shortened(op, old, new, tail)

    def _before(self, old: Mapping[str, Value] | None) -> bytes:
        if old is None:
            return NULL
        return as_object({name: as_json(convert, old[name]) for name, convert in self.columns if name in old})

    def _new(self, row: Row) -> tuple[bytes, bytes]:
        """The row, and the names of the columns that it lacks."""
        columns = [*zip(self.columns, row, strict=True)]
        lacking = [name for (name, _), value in columns if value is UNCHANGED]
        found = {name: as_json(convert, value) for (name, convert), value in columns if value is not UNCHANGED}
        return as_object(found), b',"unchanged":' + encode(lacking) if lacking else b""

    def _shortened(self, op: bytes, old: dict[str, Value] | None, new: Row | None, tail: bytes) -> bytes:
        """Without its longest values, which are named: the stream must not stop at them."""
        longest = COLUMN_BYTES_MAX
        while len(event := self._without(longest, op, old, new, tail)) > EVENT_BYTES_MAX:
            longest //= 4
        return event

    def _without(self, longest: int, op: bytes, old: dict[str, Value] | None, new: Row | None, tail: bytes) -> bytes:
        """Values that are longer are null."""
        row = [None if _size(value) > longest else value for value in new or ()]
        changed = {name for (name, _), one, two in zip(self.columns, row, new or (), strict=False) if one is not two}
        before = {name: None if _size(one) > longest else one for name, one in (old or {}).items()}
        changed |= {name for name, one in before.items() if old is not None and one is not old[name]}
        after, more = (NULL, b"") if new is None else self._new(row)
        return b'{"op":"%s","table":%s,"before":%s,"after":%s%s,"left_out":%s%s' % (
            op,
            self._name,
            self._before(None if old is None else before),
            after,
            more,
            encode(sorted(changed)),
            tail,
        )

    def _key(self, row: Row, old: Row | None) -> bytes:
        """The columns of the identity as an object; empty if there are none."""
        if not self._keys:
            return b""
        found: dict[str, bytes] = {}
        for place, name, convert in self._keys:
            value = row[place]
            if value is UNCHANGED and old is not None:
                value = old[place]
            found[name] = as_json(convert, value)
        key = as_object(found)
        return key if len(key) <= KEY_BYTES_MAX else b""


def _size(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else 0


def _nothing(_: object) -> tuple[()]:
    """The key of a row without one."""
    return ()


class Changes:
    """One session of replication, from its first message."""

    def __init__(self, count: Callable[[str, int], None] = lambda _name, _amount: None) -> None:
        self._tables: dict[int, Table] = {}
        self._last = 0
        """The last number that was used, without CHANGES."""
        self._begin: Begin | None = None
        self._tail = b""
        self._count = count
        self.received = 0
        """The highest LSN that the server has sent."""

    def feed(self, message: WalData | Keepalive, batch: Batch) -> None:
        """Adds to the batch. Raises BadMessage."""
        if isinstance(message, Keepalive):
            self.received = max(self.received, message.end_lsn)
            if self._begin is None:
                self._offer(message.end_lsn, batch)
        else:
            self.received = max(self.received, message.end_lsn)
            self._change(message.data, batch)

    def _change(self, data: bytes, batch: Batch) -> None:
        if (found := self._whole_row(data)) is not None:
            self._add(*found, batch)
        else:
            self._parsed(parse(data), batch)

    def _parsed(self, message: Parsed, batch: Batch) -> None:
        match message:
            case Insert(relation, new):
                self._add(*self._table(relation).insert(b"insert", new, self._tail), batch)
            case Update() as update:
                self._add(*self._table(update.relation).update(update, self._tail), batch)
            case Delete() as delete:
                self._add(*self._table(delete.relation).delete(delete, self._tail), batch)
            case Begin() as begin:
                self._begin, self._tail = begin, tail_of(begin.lsn, begin.commit_us)
            case Commit() as commit:
                self._begin = None
                self._offer(commit.end_lsn, batch)
            case Relation() as relation:
                self._tables[relation.oid] = Table(relation)
            case Truncate(relations):
                for oid in relations:
                    self._add(self._table(oid).truncate(self._tail), b"", batch)
            case Message():
                self._count("messages", 1)
            case _:  # a type's name, or where a change comes from
                return

    def _whole_row(self, data: bytes) -> tuple[bytes, bytes] | None:
        op = _WITH_A_WHOLE_ROW.get(data[:1])
        if op is None or len(data) < _WHOLE_ROW.size:
            return None
        oid, kind, count = _WHOLE_ROW.unpack_from(data)
        table = self._tables.get(oid)
        if table is None or kind != b"N" or count != len(table.columns):
            return None
        return table.from_whole_row(op, data, self._tail)

    def _table(self, oid: int) -> Table:
        try:
            return self._tables[oid]
        except KeyError:
            raise BadMessage(f"a row of the table with OID {oid}, which was not described before") from None

    def _add(self, value: bytes, key: bytes, batch: Batch) -> None:
        if self._begin is None:
            raise BadMessage("a change that belongs to no transaction")
        self._last = max(self._last + 1, self._begin.lsn)
        batch.add(value, CHANGES + self._last, self._begin.commit_us, key)

    def _offer(self, lsn: int, batch: Batch) -> None:
        """Later transactions have their commits at this LSN or after it."""
        if self._last < lsn:
            batch.safe = Safe(CHANGES + self._last if self._last else 0, lsn)


class SnapshotRows:
    """The rows of a snapshot as events. Their ids are counted."""

    def __init__(self, last_id: int, lsn: int, time_us: int) -> None:
        self._last = last_id
        self._time_us = time_us
        self._tail = tail_of(lsn, time_us)

    def truncated(self, tables: Sequence[Table], batch: Batch) -> None:
        """Before a snapshot that starts over: what an earlier one has sent does not count."""
        for table in tables:
            self._add(table.truncate(self._tail), b"", batch)

    def rows(self, table: Table, rows: Sequence[Row], batch: Batch) -> None:
        for row in rows:
            self._add(*table.insert(b"snapshot", row, self._tail), batch)

    def _add(self, value: bytes, key: bytes, batch: Batch) -> None:
        self._last += 1
        batch.add(value, self._last, self._time_us, key)


def row_object(columns: Sequence[tuple[str, Convert]], row: Sequence[bytes | None]) -> bytes:
    """A row of a query as JSON."""
    return as_object({name: as_json(convert, value) for (name, convert), value in zip(columns, row, strict=True)})
