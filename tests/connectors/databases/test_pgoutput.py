"""The messages of pgoutput, with vectors of our own and arbitrary ones."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.postgres.pgoutput import (
    EPOCH_US,
    UNCHANGED,
    BadMessage,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Keepalive,
    Message,
    Origin,
    Parsed,
    Relation,
    Row,
    Truncate,
    Type,
    Unchanged,
    Update,
    WalData,
    lsn_text,
    parse,
    parse_copy_data,
    parse_lsn,
    status,
)

VECTORS: dict[str, Parsed] = {
    "42 0000000001529218 0000000000000001 000002f1": Begin(0x1529218, EPOCH_US + 1, 753),
    "43 00 0000000001529218 0000000001529248 0000000000000002": Commit(0x1529218, 0x1529248, EPOCH_US + 2),
    "4f 0000000000000010 656c736577686572 65 00": Origin(16, "elsewhere"),
    "59 00004001 7075626c696300 6d6f6f6400": Type(0x4001, "public", "mood"),
    "52 00004002 00 7400 64 0002 01 696400 00000014 ffffffff 00 6e00 00000019 ffffffff": Relation(
        0x4002, "pg_catalog", "t", "d", (Column("id", 20, True), Column("n", 25, False))
    ),
    "49 00004002 4e 0003 74 00000001 37 6e 75": Insert(0x4002, [b"7", None, UNCHANGED]),
    "55 00004002 4e 0001 74 00000000": Update(0x4002, None, False, [b""]),
    "55 00004002 4b 0002 74 00000001 31 6e 4e 0002 74 00000001 32 6e": Update(0x4002, [b"1", None], True, [b"2", None]),
    "55 00004002 4f 0001 6e 4e 0001 75": Update(0x4002, [None], False, [UNCHANGED]),
    "44 00004002 4b 0001 74 00000001 31": Delete(0x4002, [b"1"], True),
    "44 00004002 4f 0001 74 00000001 31": Delete(0x4002, [b"1"], False),
    "54 00000002 03 00004002 00004003": Truncate((0x4002, 0x4003), True, True),
    "4d 01 0000000000000020 7000 00000002 ff00": Message(True, 32, "p", b"\xff\0"),
}


@pytest.mark.parametrize("text", VECTORS)
def test_a_message_has_the_fields_of_its_bytes(text: str) -> None:
    assert parse(bytes.fromhex(text)) == VECTORS[text]


@pytest.mark.parametrize("text", VECTORS)
def test_a_message_that_is_cut_off_or_continues_is_refused(text: str) -> None:
    data = bytes.fromhex(text)
    for end in range(len(data)):
        with pytest.raises(BadMessage):
            parse(data[:end])
    with pytest.raises(BadMessage, match="1 bytes follow"):
        parse(data + b"\0")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for read in (parse, parse_copy_data):
        try:
            read(data)
        except BadMessage:
            continue


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
rows = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=20)), max_size=8)


def _row(row: Row) -> bytes:
    parts = [pack("!H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            parts.append(b"t" + pack("!I", len(value)) + value)
    return b"".join(parts)


@given(st.integers(0, 2**32 - 1), rows, rows, st.booleans())
def test_rows_are_read_as_they_were_written(oid: int, old: Row, new: Row, is_key: bool) -> None:
    head, kind = pack("!I", oid), b"K" if is_key else b"O"
    assert parse(b"I" + head + b"N" + _row(new)) == Insert(oid, new)
    assert parse(b"U" + head + b"N" + _row(new)) == Update(oid, None, False, new)
    assert parse(b"U" + head + kind + _row(old) + b"N" + _row(new)) == Update(oid, old, is_key, new)
    assert parse(b"D" + head + kind + _row(old)) == Delete(oid, old, is_key)


@given(texts.filter(bool), texts, st.lists(st.tuples(texts, st.integers(0, 2**32 - 1), st.booleans()), max_size=6))
def test_tables_are_read_as_they_were_written(schema: str, name: str, columns: list[tuple[str, int, bool]]) -> None:
    described = [bytes([key]) + text.encode() + b"\0" + pack("!Ii", oid, -1) for text, oid, key in columns]
    head = b"R" + pack("!I", 7) + schema.encode() + b"\0" + name.encode() + b"\0f" + pack("!H", len(columns))
    expected = Relation(7, schema, name, "f", tuple(Column(*one) for one in columns))
    assert parse(head + b"".join(described)) == expected


def test_what_carries_the_messages_is_read() -> None:
    assert parse_copy_data(b"w" + pack("!QQq", 1, 2, 3) + b"data") == WalData(1, 2, b"data")
    assert parse_copy_data(b"k" + pack("!QqB", 9, 3, 1)) == Keepalive(9, True)
    for data in (b"", b"w", b"k" + bytes(8), b"x" + bytes(40)):
        with pytest.raises(BadMessage):
            parse_copy_data(data)


def test_a_status_has_what_was_received_and_what_is_safe() -> None:
    assert status(7, 5, EPOCH_US + 1) == b"r" + pack("!QQQqB", 7, 5, 5, 1, 0)
    assert status(0, 5, EPOCH_US)[1:9] == pack("!Q", 5), "the server refuses what is safe before it was received"


@given(st.integers(0, 2**62 - 1))
def test_an_lsn_is_written_as_postgresql_does(lsn: int) -> None:
    assert parse_lsn(lsn_text(lsn)) == lsn
    assert lsn_text(0x16B3748) == "0/16B3748"
