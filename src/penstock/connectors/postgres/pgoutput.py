"""The messages of `pgoutput`, PostgreSQL's plugin for logical replication, and those that carry them. Pure.

    copy data     XLogData 'w' (a message of pgoutput), keepalive 'k'; to the server: status 'r'
    pgoutput      Begin B, Commit C, Origin O, Relation R, Type Y, Insert I, Update U, Delete D, Truncate T, Message M

Protocol version 1: transactions arrive whole, in the order of their commits, and never while they are running. Values
are in text format. Numbers are big-endian, times are microseconds since 2000, texts end with a zero byte.
"""

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from struct import error as StructError  # noqa: N812  it has no better name
from typing import Final, NamedTuple, TypeAlias

from penstock.core.errors import ProtocolError

EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000."""


class Unchanged(Enum):
    """Instead of a value: a large value that is stored outside its row and was not changed is not sent."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = bytes | Unchanged | None
"""Of a column: its text, or None for NULL."""
Row: TypeAlias = list[Value]


class Begin(NamedTuple):
    lsn: int
    """Where the record of the commit starts."""
    commit_us: int
    """Since 1970."""
    xid: int


class Commit(NamedTuple):
    lsn: int
    end_lsn: int
    """Where the record of the commit ends: later transactions have their commits there or after."""
    commit_us: int


class Origin(NamedTuple):
    lsn: int
    name: str


class Column(NamedTuple):
    name: str
    type_oid: int
    is_key: bool
    """Part of the replica identity."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is from here on: sent before its first row, and again after it was altered."""

    oid: int
    schema: str
    name: str
    identity: str
    """As in pg_class.relreplident: `d` primary key, `i` an index, `f` the whole row, `n` nothing."""
    columns: tuple[Column, ...]


class Type(NamedTuple):
    oid: int
    schema: str
    name: str


class Insert(NamedTuple):
    relation: int
    new: Row


class Update(NamedTuple):
    relation: int
    old: Row | None
    """None if the identity was not changed, and is not the whole row."""
    old_is_key: bool
    """Whether only the columns of the identity are in `old`; the others are NULL there."""
    new: Row


class Delete(NamedTuple):
    relation: int
    old: Row
    old_is_key: bool


class Truncate(NamedTuple):
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class Message(NamedTuple):
    """Of `pg_logical_emit_message`."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


Parsed: TypeAlias = Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | Message


class BadMessage(ProtocolError):
    """Bytes that are not a message of pgoutput in protocol version 1."""


_U16, _U32 = Struct("!H"), Struct("!I")
_BEGIN, _COMMIT, _MESSAGE = Struct("!QqI"), Struct("!BQQq"), Struct("!BQ")
_COLUMN_TYPE = Struct("!Ii")
_ROW_HEAD = Struct("!Ic")


def parse(data: bytes) -> Parsed:
    """One message. Raises BadMessage."""
    try:
        found, end = _parse(data)
    except (StructError, IndexError, ValueError) as error:  # a text that is not UTF-8 is a ValueError
        raise BadMessage(f"a message of pgoutput is cut off or malformed: {data[:64].hex(' ')}") from error
    if end != len(data):
        raise BadMessage(f"{len(data) - end} bytes follow a message of pgoutput: {data[:64].hex(' ')}")
    return found


def _parse(data: bytes) -> tuple[Parsed, int]:
    match data[:1]:
        case b"I":
            relation, kind = _ROW_HEAD.unpack_from(data, 1)
            _expect(kind, b"N")
            new, at = _row(data, 6)
            return Insert(relation, new), at
        case b"U":
            return _update(data)
        case b"D":
            relation, kind = _ROW_HEAD.unpack_from(data, 1)
            _expect(kind, b"KO")
            old, at = _row(data, 6)
            return Delete(relation, old, kind == b"K"), at
        case b"B":
            lsn, time, xid = _BEGIN.unpack_from(data, 1)
            return Begin(lsn, time + EPOCH_US, xid), 1 + _BEGIN.size
        case b"C":
            _, lsn, end_lsn, time = _COMMIT.unpack_from(data, 1)
            return Commit(lsn, end_lsn, time + EPOCH_US), 1 + _COMMIT.size
        case _:
            return _rare(data)


def _rare(data: bytes) -> tuple[Parsed, int]:
    match data[:1]:
        case b"R":
            return _relation(data)
        case b"Y":
            (oid,) = _U32.unpack_from(data, 1)
            schema, at = _text(data, 5)
            name, at = _text(data, at)
            return Type(oid, schema, name), at
        case b"T":
            count, flags = Struct("!IB").unpack_from(data, 1)
            oids = Struct(f"!{count}I").unpack_from(data, 6) if count <= len(data) // 4 else _too_many()
            return Truncate(oids, bool(flags & 1), bool(flags & 2)), 6 + 4 * count
        case b"O":
            (lsn,) = Struct("!Q").unpack_from(data, 1)
            name, at = _text(data, 9)
            return Origin(lsn, name), at
        case b"M":
            flags, lsn = _MESSAGE.unpack_from(data, 1)
            prefix, at = _text(data, 1 + _MESSAGE.size)
            content, at = _bytes(data, at)
            return Message(bool(flags & 1), lsn, prefix, content), at
    raise ValueError("unknown message")


def _update(data: bytes) -> tuple[Update, int]:
    relation, kind = _ROW_HEAD.unpack_from(data, 1)
    old, at, old_is_key = None, 6, kind == b"K"
    if kind != b"N":
        _expect(kind, b"KO")
        old, at = _row(data, at)
        _expect(data[at : at + 1], b"N")
        at += 1
    new, at = _row(data, at)
    return Update(relation, old, old_is_key, new), at


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _U32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity, (count,) = data[at : at + 1].decode(), _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_oid, _ = _COLUMN_TYPE.unpack_from(data, at)
        at += _COLUMN_TYPE.size
        columns.append(Column(column, type_oid, bool(flags & 1)))
    # An empty name stands for pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = _U16.unpack_from(data, at)
    at += 2
    row: Row = []
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # t: text
            (size,) = _U32.unpack_from(data, at + 1)
            at += 5
            if at + size > len(data):
                raise ValueError("cut off")
            row.append(data[at : at + size])
            at += size
        elif kind == 0x6E:  # n: NULL
            row.append(None)
            at += 1
        elif kind == 0x75:  # u: unchanged
            row.append(UNCHANGED)
            at += 1
        else:
            raise ValueError("unknown kind of value")
    return row, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(data, at)
    if at + 4 + size > len(data):
        raise ValueError("cut off")
    return data[at + 4 : at + 4 + size], at + 4 + size


def _expect(found: bytes, kinds: bytes) -> None:
    if len(found) != 1 or found not in kinds:
        raise ValueError("unknown kind of row")


def _too_many() -> tuple[int, ...]:
    raise ValueError("more tables than bytes")


# What carries the messages, in COPY BOTH mode.


class WalData(NamedTuple):
    start_lsn: int
    end_lsn: int
    data: bytes


class Keepalive(NamedTuple):
    end_lsn: int
    """All transactions that committed before it were sent."""
    wants_reply: bool


_WAL_DATA, _KEEPALIVE, _STATUS = Struct("!QQq"), Struct("!QqB"), Struct("!cQQQqB")


def parse_copy_data(data: bytes) -> WalData | Keepalive:
    """Raises BadMessage."""
    try:
        match data[:1]:
            case b"w":
                start, end, _ = _WAL_DATA.unpack_from(data, 1)
                return WalData(start, end, data[25:])
            case b"k":
                end, _, reply = _KEEPALIVE.unpack_from(data, 1)
                return Keepalive(end, bool(reply))
    except StructError as error:
        raise BadMessage(f"a message of replication is cut off: {data[:64].hex(' ')}") from error
    raise BadMessage(f"an unknown message of replication: {data[:64].hex(' ')}")


def status(received: int, flushed: int, now_us: int) -> bytes:
    """The standby status update: what was received, and up to where it is safe. Asks for no reply."""
    return _STATUS.pack(b"r", max(received, flushed), flushed, flushed, now_us - EPOCH_US, 0)


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
