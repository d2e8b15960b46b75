"""JSON objects as rows of an SQLite table."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.connectors.sink_api import SinkLost
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.connectors.tables import UnknownFields
from penstock.connectors.urls import parse_sink
from tests.connectors.stores.tables import SqliteTable, epoch, opened


@pytest.fixture
def table(tmp_path: Path) -> SqliteTable:
    return SqliteTable(tmp_path / "rows.db")


def rows(table: SqliteTable) -> list[tuple[object, ...]]:
    return table.query(f"SELECT * FROM {table.name}")


def test_fields_are_written_to_the_columns_of_the_same_name(table: SqliteTable) -> None:
    table.query(f"""CREATE TABLE {table.name} (id INTEGER, "The 'Name'" TEXT, ok INTEGER, rest TEXT, share REAL)""")
    with opened(table.sink()) as sink:
        values = [
            '{"id": 9007199254740993, "The \'Name\'": "größe", "ok": true}',
            '{"rest": [1, null], "share": 0.5}',
            "{}",
        ]
        epoch(1, values).deliver(sink)
    assert rows(table) == [
        (9007199254740993, "größe", 1, None, None),
        (None, None, None, "[1,null]", 0.5),
        (None,) * 5,
    ]


def test_every_row_is_inserted_once_across_epochs_and_restarts(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (n INTEGER)")
    first, second = epoch(1, ['{"n": 1}'] * 7), epoch(2, ['{"n": 2}'])
    with opened(table.sink()) as sink:
        first.deliver(sink)
        sink.commit(first.transaction)
        assert second.prepare(sink).yes
    with opened(table.sink(), second.id) as sink:
        sink.commit(second.transaction)
    assert rows(table) == [(1,)] * 7 + [(2,)]


def test_a_field_without_a_column_is_refused_until_the_column_is_added(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (id INTEGER)")
    first = epoch(1, ['{"id": 1}', '{"id": 2, "name": "Ada"}'])
    with opened(table.sink()) as sink:
        vote = first.prepare(sink)
        assert "message 100009 (row 2 of the epoch): no column for its field 'name'" in vote.reason
        table.query(f"ALTER TABLE {table.name} ADD COLUMN name TEXT")
        first.again().deliver(sink)
    assert rows(table) == [(1, None), (2, "Ada")]


def test_a_field_without_a_column_can_be_ignored(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (id INTEGER)")
    with opened(table.sink(unknown_fields=UnknownFields.IGNORE)) as sink:
        epoch(1, ['{"id": 2, "name": "Ada"}']).deliver(sink)
    assert rows(table) == [(2,)]


def test_names_that_differ_only_in_case_are_one_column(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (user TEXT, N INTEGER DEFAULT 7, UNIQUE (USER))")
    schema = [("User", "string"), ("n", "int")]
    assert table.ddl(schema, upsert=("User",)).statements == []
    with opened(table.sink(lambda: schema, upsert=("User",), create=True)) as sink:
        epoch(1, ['{"User": "ann", "n": 1}', '{"User": "bob"}']).deliver(sink)
        epoch(2, ['{"User": "ann", "n": 2}']).deliver(sink)
        second = epoch(3, ['{"USER": "bob", "n": 3}'])
        assert second.prepare(sink).yes
    with opened(table.sink(lambda: schema, upsert=("user",), create=True), second.id):
        assert rows(table) == [("ann", 2), ("bob", 3)]


def test_two_fields_for_one_column_are_a_vote_of_no(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (user TEXT, Ä TEXT)")
    with opened(table.sink()) as sink:
        vote = epoch(1, ['{"User": "ann", "user": "bob"}']).prepare(sink)
        assert "no column for its field 'User'" in vote.reason
        vote = epoch(1, ['{"ä": "SQLite knows the case of ASCII letters only"}']).again().prepare(sink)
        assert "no column for its field 'ä'" in vote.reason


def test_a_column_without_a_field_gets_its_default(table: SqliteTable) -> None:
    columns = "id INTEGER PRIMARY KEY, name TEXT DEFAULT 'it''s', amount INTEGER DEFAULT (1 + 1)"
    table.query(f"CREATE TABLE {table.name} ({columns}, twice INTEGER AS (amount * 2))")
    with opened(table.sink()) as sink:
        epoch(1, ["{}", '{"name": null, "amount": 5, "id": 77}']).deliver(sink)
    assert rows(table) == [(1, "it's", 2, 4), (77, None, 5, 10)]


def test_rows_are_replaced_by_key_and_the_last_one_wins(table: SqliteTable) -> None:
    table.query(f"CREATE TABLE {table.name} (id INTEGER PRIMARY KEY, a TEXT, n INTEGER, UNIQUE (a))")
    with opened(table.sink(upsert=("a",))) as sink:
        epoch(1, ['{"a": "x", "n": 1}', '{"a": "y", "n": 2}', '{"a": "x", "n": 3}']).deliver(sink)
        epoch(2, ['{"a": "y", "n": 4}']).deliver(sink)
    assert rows(table) == [(1, "x", 3), (2, "y", 4)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"no json", "(row 2 of the epoch): it is not a JSON object"),
        (b"[1]", "(row 2 of the epoch): it is not a JSON object"),
        (b"\xff", "message 100008 is not UTF-8"),
        (b'{"n": 5}', "(row 2 of the epoch): CHECK constraint failed"),
    ],
)
def test_a_refused_row_is_a_vote_of_no_that_names_it(table: SqliteTable, value: bytes, reason: str) -> None:
    table.query(f"CREATE TABLE {table.name} (n INTEGER CHECK (n < 5))")
    with opened(table.sink()) as sink:
        vote = epoch(1, ['{"n": 1}', value]).prepare(sink)
        assert not vote.yes
        assert reason in vote.reason
        epoch(2, ['{"n": 2}']).deliver(sink)
    assert rows(table) == [(2,)]


def test_a_missing_table_is_reported_with_what_to_do(table: SqliteTable) -> None:
    with pytest.raises(SinkLost, match="table 'the rows' not found") as caught:
        table.sink().open(b"")
    assert "penstock sink ddl" in caught.value.hint
    assert "create=true" in caught.value.hint


def test_the_guarantee_depends_on_the_format() -> None:
    assert parse_sink("sqlite:a.db?table=t").guarantee.value == "idempotent"
    assert parse_sink("sqlite:a.db?table=t&format=json").guarantee.value == "exactly-once"


def test_upsert_without_json_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="upsert is for rows in JSON"):
        SqliteOptions(path=tmp_path / "a.db", table="t", upsert=("a",))
