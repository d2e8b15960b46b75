"""Changes as events: their JSON, their keys, and ids that survive a restart."""

import json
from itertools import pairwise
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.postgres.changes import (
    CHANGES,
    EVENT_BYTES_MAX,
    KEY_BYTES_MAX,
    Batch,
    Changes,
    SnapshotRows,
    Table,
)
from penstock.connectors.postgres.json_values import as_json, converter
from penstock.connectors.postgres.pgoutput import (
    EPOCH_US,
    UNCHANGED,
    BadMessage,
    Column,
    Delete,
    Insert,
    Keepalive,
    Relation,
    Row,
    Update,
    WalData,
    parse,
)

ORDERS = Relation(7, "shop", "orders", "d", (Column("id", 20, True), Column("text", 25, False)))
TAIL = b',"lsn":"0/10","commit_time":"2026-01-01T00:00:00.000000Z"}'
BEGINNING_US = 1_767_225_600_000_000
"""The first instant of 2026."""


def _relation(oid: int = 7, name: str = "orders") -> bytes:
    columns = b"\x01id\0" + pack("!Ii", 20, -1) + b"\0text\0" + pack("!Ii", 25, -1)
    return b"R" + pack("!I", oid) + b"shop\0" + name.encode() + b"\0d" + pack("!H", 2) + columns


def _begin(lsn: int) -> bytes:
    return b"B" + pack("!QqI", lsn, BEGINNING_US - EPOCH_US, 1)


def _commit(lsn: int, end: int) -> bytes:
    return b"C" + pack("!BQQq", 0, lsn, end, 0)


def _insert(number: int) -> bytes:
    text = str(number).encode()
    return b"I" + pack("!I", 7) + b"N" + pack("!H", 2) + b"t" + pack("!I", len(text)) + text + b"n"


def _fed(changes: Changes, *messages: bytes | Keepalive) -> Batch:
    batch = Batch()
    for one in messages:
        changes.feed(one if isinstance(one, Keepalive) else WalData(0, 0, one), batch)
    return batch


def _event(found: tuple[bytes, bytes]) -> tuple[dict[str, Any], bytes]:
    return json.loads(found[0]), found[1]


def test_a_transaction_is_events_with_the_time_and_place_of_its_commit() -> None:
    batch = _fed(Changes(), _relation(), _begin(16), _insert(1), _insert(2), _commit(16, 64))
    assert [json.loads(one) for one in batch.values] == [
        {
            "op": "insert",
            "table": "shop.orders",
            "before": None,
            "after": {"id": number, "text": None},
            "lsn": "0/10",
            "commit_time": "2026-01-01T00:00:00.000000Z",
        }
        for number in (1, 2)
    ]
    assert batch.ids == [CHANGES + 16, CHANGES + 17]
    assert batch.times_us == [BEGINNING_US] * 2
    assert batch.keys == [b'{"id":1}', b'{"id":2}']
    assert batch.safe == (CHANGES + 17, 64)


def test_an_update_has_the_old_identity_if_it_was_changed() -> None:
    event, key = _event(Table(ORDERS).update(Update(7, None, False, [b"1", b"new"]), TAIL))
    assert (event["before"], event["after"], key) == (None, {"id": 1, "text": "new"}, b'{"id":1}')
    event, key = _event(Table(ORDERS).update(Update(7, [b"1", None], True, [b"2", b"new"]), TAIL))
    assert (event["before"], event["after"]["id"], key) == ({"id": 1}, 2, b'{"id":2}')


def test_with_full_identity_the_whole_old_row_is_there_and_no_key() -> None:
    whole = Relation(7, "shop", "orders", "f", tuple(one._replace(is_key=True) for one in ORDERS.columns))
    event, key = _event(Table(whole).update(Update(7, [b"1", b"old"], False, [b"1", b"new"]), TAIL))
    assert (event["before"], key) == ({"id": 1, "text": "old"}, b"")
    event, key = _event(Table(whole).delete(Delete(7, [b"1", None], False), TAIL))
    assert (event["op"], event["before"], event["after"], key) == ("delete", {"id": 1, "text": None}, None, b"")


def test_a_large_value_that_was_not_changed_is_named_and_not_null() -> None:
    event, _ = _event(Table(ORDERS).update(Update(7, None, False, [b"1", UNCHANGED]), TAIL))
    assert (event["after"], event["unchanged"]) == ({"id": 1}, ["text"])


def test_an_event_that_is_too_large_names_what_it_leaves_out() -> None:
    event, key = _event(Table(ORDERS).insert(b"insert", [b"1", b"x" * (EVENT_BYTES_MAX + 1)], TAIL))
    assert (event["after"], event["left_out"], key) == ({"id": 1, "text": None}, ["text"], b'{"id":1}')
    whole = Relation(7, "shop", "orders", "f", ORDERS.columns)
    event, _ = _event(Table(whole).delete(Delete(7, [b"1", b"x" * (EVENT_BYTES_MAX + 1)], False), TAIL))
    assert (event["before"], event["after"], event["left_out"]) == ({"id": 1, "text": None}, None, ["text"])
    wide = Relation(7, "shop", "wide", "d", tuple(Column(f"c{n}", 25, n == 0) for n in range(40)))
    value, _ = Table(wide).insert(b"insert", [b"key", *([b"x" * 200_000] * 39)], TAIL)
    assert len(value) <= EVENT_BYTES_MAX
    assert json.loads(value)["after"]["c0"] == "key"


def test_a_key_that_is_too_long_is_left_out() -> None:
    named = Relation(7, "shop", "names", "d", (Column("name", 25, True),))
    _, key = Table(named).insert(b"insert", [b"x" * KEY_BYTES_MAX], TAIL)
    assert key == b""


def test_a_table_that_was_altered_is_described_again_and_a_truncation_names_each_table() -> None:
    altered = b"R" + pack("!I", 7) + b"shop\0orders\0d" + pack("!H", 1) + b"\x01id\0" + pack("!Ii", 25, -1)
    row = b"I" + pack("!I", 7) + b"N" + pack("!H", 1) + b"t" + pack("!I", 1) + b"5"
    truncate = b"T" + pack("!IBII", 2, 0, 7, 8)
    batch = _fed(Changes(), _relation(), _relation(8, "lines"), _begin(16), _insert(1), altered, row, truncate)
    events = [json.loads(one) for one in batch.values]
    assert events[1]["after"] == {"id": "5"}
    assert [(one["op"], one["table"]) for one in events[2:]] == [
        ("truncate", "shop.orders"),
        ("truncate", "shop.lines"),
    ]
    assert batch.safe is None, "the transaction is not complete"


def test_a_row_without_its_table_or_its_transaction_is_refused() -> None:
    with pytest.raises(BadMessage, match="OID 7"):
        _fed(Changes(), _begin(16), _insert(1))
    with pytest.raises(BadMessage, match="no transaction"):
        _fed(Changes(), _relation(), _insert(1))


def test_messages_of_programs_types_and_origins_are_no_events() -> None:
    counted: list[str] = []
    changes = Changes(lambda name, _: counted.append(name))
    message = b"M" + pack("!BQ", 0, 32) + b"p\0" + pack("!I", 0)
    batch = _fed(changes, message, b"Y" + pack("!I", 1) + b"a\0b\0", b"O" + bytes(8) + b"a\0")
    assert (batch.values, counted) == ([], ["messages"])


def test_a_keepalive_between_transactions_is_safe_at_once() -> None:
    changes = Changes()
    assert _fed(changes, Keepalive(1000, False)).safe == (0, 1000)
    batch = _fed(changes, _relation(), _begin(2000), _insert(1), Keepalive(1990, False))
    assert batch.safe is None
    assert _fed(changes, _commit(2000, 2040), Keepalive(5000, False)).safe == (CHANGES + 2000, 5000)
    assert changes.received == 5000


def test_a_large_transaction_is_safe_only_when_the_log_has_passed_its_numbers() -> None:
    changes = Changes()
    batch = _fed(changes, _relation(), _begin(100), *map(_insert, range(1, 301)), _commit(100, 140))
    assert batch.ids[-1] == CHANGES + 399
    assert batch.safe is None, "after a restart the next transaction would get a number that was used"
    batch = _fed(changes, _begin(140), _insert(1), _commit(140, 180))
    assert (batch.ids, batch.safe) == ([CHANGES + 400], None)
    assert _fed(changes, Keepalive(401, False)).safe == (CHANGES + 400, 401)


@given(
    st.lists(st.tuples(st.integers(40, 2000), st.integers(0, 300)), min_size=1, max_size=30),
    st.data(),
)
def test_ids_grow_and_are_the_same_again_from_every_position_that_was_safe(
    transactions: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A transaction is a distance in the log to the one before it, and a number of changes."""
    at, placed = 0, []
    for distance, count in transactions:
        placed.append((at, [_begin(at), *map(_insert, range(count)), _commit(at, at + 40)]))
        at += distance
    changes, ids, safe = Changes(), [], [0]
    _fed(changes, _relation())
    for _, messages in placed:
        batch = _fed(changes, *messages)
        ids += batch.ids
        safe += [] if batch.safe is None else [batch.safe.lsn]
    assert all(one < other for one, other in pairwise(ids))
    position = data.draw(st.sampled_from(safe))
    again, repeated = Changes(), []
    _fed(again, _relation())
    for lsn, messages in placed:
        if lsn >= position:  # as the server does
            repeated += _fed(again, *messages).ids
    assert repeated == ids[len(ids) - len(repeated) :]


def test_a_snapshot_has_counted_ids_and_one_that_starts_over_says_so() -> None:
    batch, table = Batch(), Table(ORDERS)
    rows = SnapshotRows(5, 16, BEGINNING_US)
    rows.truncated([table], batch)
    rows.rows(table, [[b"1", None], [b"2", b"x"]], batch)
    assert [json.loads(one)["op"] for one in batch.values] == ["truncate", "snapshot", "snapshot"]
    assert batch.ids == [6, 7, 8]
    assert batch.keys == [b"", b'{"id":1}', b'{"id":2}']
    assert batch.ids[-1] < CHANGES


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (20, "-9223372036854775808", "-9223372036854775808"),
        (701, "1e+20", "1e+20"),
        (701, "NaN", '"NaN"'),
        (700, "-Infinity", '"-Infinity"'),
        (1700, "0.1000", "0.1000"),
        (16, "t", "true"),
        (16, "f", "false"),
        (17, "\\x00ff", '"AP8="'),
        (17, "\\x", '""'),
        (114, '{"a":\n [1]}', '{"a":  [1]}'),
        (3802, "null", "null"),
        (1114, "2026-01-31 10:00:00.5", '"2026-01-31T10:00:00.5"'),
        (1184, "2026-01-31 10:00:00+00", '"2026-01-31T10:00:00Z"'),
        (1184, "infinity", '"infinity"'),
        (1114, "0044-03-15 00:00:00 BC", '"0044-03-15 00:00:00 BC"'),
        (1082, "2026-01-31", '"2026-01-31"'),
        (25, 'a "b"\n', '"a \\"b\\"\\n"'),
        (1007, "{1,2}", '"{1,2}"'),
        (999999, "any", '"any"'),
    ],
)
def test_a_value_is_json_by_its_type(oid: int, text: str, expected: str) -> None:
    assert as_json(converter(oid), text.encode()).decode() == expected
    assert as_json(converter(oid), None) == b"null"


def test_a_row_has_a_value_for_each_column() -> None:
    row: Row = [b"1"]
    with pytest.raises(ValueError, match="zip"):
        Table(ORDERS).insert(b"insert", row, TAIL)


@given(
    st.lists(st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8), max_size=5),
    st.sampled_from([b"I", b"U"]),
    st.booleans(),
)
def test_a_row_that_is_sent_whole_is_the_same_event_by_the_short_way(
    texts: list[str | None], kind: bytes, has_key: bool
) -> None:
    columns = tuple(Column(f"c%{n}", (25, 20, 16)[n % 3], has_key and n % 2 == 0) for n in range(len(texts)))
    table = Table(Relation(7, "100%", "t", "d", columns))
    values = [None if text is None else text.encode() for text in texts]
    sent = b"".join(b"n" if one is None else b"t" + pack("!I", len(one)) + one for one in values)
    data = kind + pack("!IcH", 7, b"N", len(values)) + sent
    match parse(data):
        case Update() as update:
            assert table.from_whole_row(b"update", data, TAIL) == table.update(update, TAIL)
        case Insert(_, row):
            assert table.from_whole_row(b"insert", data, TAIL) == table.insert(b"insert", row, TAIL)
    assert table.from_whole_row(b"insert", data + b"n", TAIL) is None
    if texts:
        assert table.from_whole_row(b"insert", data[:-1], TAIL) is None


def test_a_row_that_is_cut_off_or_not_text_is_refused_as_before() -> None:
    row = _insert(1)
    for bad in (row[:-1], row + b"n", row[:-1] + b"x"):
        with pytest.raises(BadMessage):
            _fed(Changes(), _relation(), _begin(16), bad)
