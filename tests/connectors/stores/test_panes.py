"""Sessions in SQL tables: a pane deletes those that it replaces, in the transaction that inserts its own row."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier

from penstock.connectors.postgres.options import PostgresFormat
from penstock.connectors.postgres.statements import Statements, TargetColumn
from penstock.connectors.sqlite.layouts import JsonRows
from penstock.connectors.sqlite.options import SqliteFormat, SqliteOptions
from penstock.connectors.tables import no_schema
from tests.connectors.stores.conftest import each_database
from tests.connectors.stores.kinds import PostgresStore
from tests.connectors.stores.rounds import Round
from tests.connectors.stores.tables import PostgresTable, SqliteTable, Table, epoch, opened

COLUMNS = "person text, window_start text, window_end text, pane text, revision int, clicks int"
FULL_KEY = ("person", "window_start", "window_end")
START_KEY = ("person", "window_start")


def at(minute: int) -> str:
    return f"2026-01-31T12:{minute:02}:00.000Z"


def pane(person: str | None, start: int, end: int, clicks: int, revision: int, *replaces: tuple[int, int]) -> str:
    """A pane of a session, as a pipeline emits it: see docs/windows.md."""
    replaced = [{"window_start": at(one), "window_end": at(other)} for one, other in replaces]
    fields = {"person": person, "window_start": at(start), "window_end": at(end)}
    fields |= {"pane": "update" if revision else "on_time"}
    return json.dumps(fields | {"revision": revision, "clicks": clicks, "replaces": replaced})


FIRST = [pane("ann", 0, 10, 1, 0), pane("ann", 20, 30, 1, 0), pane("bob", 0, 10, 5, 0)]
MERGED = [pane("ann", 0, 30, 3, 1, (0, 10), (20, 30))]
"""A late event at 12:10 merges the two sessions of ann."""
LATE = [pane("ann", 0, 31, 4, 2, (0, 30))]
"""Another one extends it."""


def make(table: Table, key: tuple[str, ...] = FULL_KEY, more: str = "") -> None:
    table.query(f"CREATE TABLE {table.name} ({COLUMNS}{more}, UNIQUE ({', '.join(key)}))")


def found(table: Table) -> list[Any]:
    wanted = "person, substr(window_start, 15, 2), substr(window_end, 15, 2), revision, clicks"
    return table.query(f"SELECT {wanted} FROM {table.name} ORDER BY person, window_start, window_end")


@each_database
@pytest.mark.parametrize("key", [FULL_KEY, START_KEY])
def test_a_merged_session_with_a_late_update_leaves_one_row(table: Table, key: tuple[str, ...]) -> None:
    make(table, key)
    with opened(table.sink(upsert=key)) as sink:
        epoch(1, FIRST).deliver(sink)
        assert found(table) == [("ann", "00", "10", 0, 1), ("ann", "20", "30", 0, 1), ("bob", "00", "10", 0, 5)]
        epoch(2, MERGED).deliver(sink)
        assert found(table) == [("ann", "00", "30", 1, 3), ("bob", "00", "10", 0, 5)]
        epoch(3, LATE).deliver(sink)
        assert found(table) == [("ann", "00", "31", 2, 4), ("bob", "00", "10", 0, 5)]


@each_database
def test_panes_of_one_epoch_replace_each_other_in_order(table: Table) -> None:
    make(table)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, [*FIRST, *MERGED, *LATE, pane("ann", 20, 30, 9, 3)]).deliver(sink)
    assert found(table) == [("ann", "00", "31", 2, 4), ("ann", "20", "30", 3, 9), ("bob", "00", "10", 0, 5)]


@each_database
def test_only_sessions_of_the_same_key_are_replaced(table: Table) -> None:
    make(table)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, [*FIRST, pane("bob", 20, 30, 1, 0)]).deliver(sink)
        epoch(2, MERGED).deliver(sink)
    assert [row[0] for row in found(table)] == ["ann", "bob", "bob"]


@each_database
def test_null_is_a_key_like_any_other(table: Table) -> None:
    make(table)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, [*FIRST, pane(None, 0, 10, 1, 0), pane(None, 20, 30, 1, 0)]).deliver(sink)
        assert len(found(table)) == 5
        epoch(2, [pane(None, 0, 30, 3, 1, (0, 10), (20, 30))]).deliver(sink)
        assert [row for row in found(table) if row[0] is None] == [(None, "00", "30", 1, 3)]
        epoch(3, [pane(None, 0, 30, 4, 2)]).deliver(sink)
        assert [row for row in found(table) if row[0] is None] == [(None, "00", "30", 2, 4)]
        epoch(4, [pane(None, 0, 30, 5, 3), pane(None, 0, 30, 6, 4), pane(None, 0, 31, 7, 5, (0, 30))]).deliver(sink)
        epoch(5, [pane(None, 40, 50, 1, 0), pane(None, 40, 50, 2, 1)]).deliver(sink)
    assert [row for row in found(table) if row[0] is None] == [(None, "00", "31", 5, 7), (None, "40", "50", 1, 2)]
    assert len([row for row in found(table) if row[0] is not None]) == 3


@each_database
def test_a_null_in_one_of_several_keys_is_compared_with_the_others(table: Table) -> None:
    key = (*FULL_KEY, "city")
    make(table, key, ", city text")
    cities = [("ann", "Bonn"), ("ann", None), (None, "Bonn"), (None, None)]

    def panes(end: int, clicks: int, *replaces: tuple[int, int]) -> list[str]:
        return [json.dumps(json.loads(pane(who, 0, end, clicks, 0, *replaces)) | {"city": at}) for who, at in cities]

    with opened(table.sink(upsert=key)) as sink:
        epoch(1, panes(10, 1)).deliver(sink)
        epoch(2, panes(20, 2, (0, 10))[1:3]).deliver(sink)
    rows = table.query(f"SELECT person, city, clicks FROM {table.name}")
    assert {*rows} == {("ann", "Bonn", 1), ("ann", None, 2), (None, "Bonn", 2), (None, None, 1)}
    assert len(rows) == 4


@each_database
def test_a_key_may_be_named_like_an_identifier_in_the_statements(table: Table) -> None:
    key = ("number", "key", "window_start", "window_end")
    table.query(f"CREATE TABLE {table.name} (number int, key int, {COLUMNS}, UNIQUE ({', '.join(key)}))")
    rows = [json.dumps(json.loads(one) | {"number": 7, "key": 8}) for one in (*FIRST[:2], *MERGED, *LATE)]
    with opened(table.sink(upsert=key)) as sink:
        epoch(1, rows[:3]).deliver(sink)
        epoch(2, rows[3:]).deliver(sink)
    assert found(table) == [("ann", "00", "31", 2, 4)]


@pytest.mark.parametrize(
    "definition",
    [
        f"({COLUMNS}, PRIMARY KEY ({', '.join(FULL_KEY)})) WITHOUT ROWID",
        f"({COLUMNS}, rowid text, OID text, PRIMARY KEY ({', '.join(FULL_KEY)}))",
    ],
)
def test_sqlite_tables_without_a_rowid_or_with_a_column_of_that_name_work(tmp_path: Path, definition: str) -> None:
    table = SqliteTable(tmp_path / "rows.db")
    table.query(f"CREATE TABLE {table.name} {definition}")
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, FIRST).deliver(sink)
        epoch(2, MERGED).deliver(sink)
    assert found(table) == [("ann", "00", "30", 1, 3), ("bob", "00", "10", 0, 5)]


def test_sqlite_parses_staged_rows_a_fixed_number_of_times(tmp_path: Path) -> None:
    options = SqliteOptions(path=tmp_path / "rows.db", table="t", format=SqliteFormat.JSON, upsert=FULL_KEY)
    layout, statements = JsonRows(options, no_schema), list[str]()
    with closing(sqlite3.connect(options.path)) as database:
        database.execute(f"CREATE TABLE t ({COLUMNS}, UNIQUE ({', '.join(FULL_KEY)}))")
        layout.make_tables(database)
        layout.fit(database)
        database.set_trace_callback(statements.append)
        layout.move(database, 1)
        database.set_trace_callback(None)
        moves = [one for one in statements if "INSERT INTO" in one or "DELETE FROM" in one]
        plans = [step for one in moves for (*_, step) in database.execute(f"EXPLAIN QUERY PLAN {one}")]
    assert len(moves) == 2
    assert not [step for step in plans if "CORRELATED" in step]
    assert [step for step in plans if "SEARCH t USING" in step]
    assert [step for step in plans if "SEARCH p USING AUTOMATIC" in step]


def test_postgres_does_not_compare_each_row_with_each_replaced_pane(postgres: PostgresStore) -> None:
    table = PostgresTable(postgres)
    make(table)
    statements = Statements(postgres.table, Identifier(postgres.table), PostgresFormat.JSON, FULL_KEY)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        assert epoch(1, [pane(f"p{one}", 0, 20, 2, 1, (0, 10)) for one in range(2000)]).prepare(sink).yes
        columns = [TargetColumn(*row) for row in postgres.query(statements.columns())]
        _, insert = statements.moves(columns)
        plan = "\n".join(step for (step,) in postgres.query(SQL("EXPLAIN {}").format(insert)))
    assert re.search("(Hash|Merge) Left Join", plan), plan


@each_database
def test_nothing_is_deleted_before_the_commit_nor_by_an_epoch_that_is_aborted(table: Table) -> None:
    make(table)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, FIRST).deliver(sink)
        before = found(table)
        second = epoch(2, MERGED)
        assert second.prepare(sink).yes
        assert found(table) == before
        sink.abort()
        assert found(table) == before
        second.again().deliver(sink)
        sink.commit(second.again().transaction)
    assert len(found(table)) == 2


@each_database
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_vote_left_by_a_crash_is_settled_with_its_deletions(table: Table, is_decided: bool) -> None:
    make(table)
    second = epoch(2, MERGED)
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, FIRST).deliver(sink)
        assert second.prepare(sink).yes
    with opened(table.sink(upsert=FULL_KEY), second.id if is_decided else b"") as sink:
        assert len(found(table)) == (2 if is_decided else 3)
        (Round(3, epoch(3, LATE).rows, 900_000) if is_decided else second.again()).deliver(sink)
    assert found(table)[0][2:] == (("31", 2, 4) if is_decided else ("30", 1, 3))


@each_database
def test_without_upsert_the_table_is_a_log_of_all_panes_and_what_they_replace(table: Table) -> None:
    make(table, ("person", "window_start", "window_end", "revision"), ", replaces text")
    with opened(table.sink()) as sink:
        epoch(1, FIRST).deliver(sink)
        epoch(2, MERGED).deliver(sink)
    assert len(found(table)) == 4
    (kept,) = table.query(f"SELECT replaces FROM {table.name} WHERE revision = 1")
    assert json.loads(kept[0])[1] == {"window_start": at(20), "window_end": at(30)}


@each_database
def test_a_field_called_replaces_that_is_not_a_list_of_panes_replaces_nothing(table: Table) -> None:
    make(table, FULL_KEY, ", replaces text")
    others = [
        json.loads(pane("ann", 0, 10, 1, 0)) | {"replaces": other} for other in ("x", 7, None, {"a": 1}, ["x", 1])
    ]
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, FIRST).deliver(sink)
        epoch(2, [json.dumps(one) for one in others]).deliver(sink)
    assert len(found(table)) == 3


@each_database
def test_a_refused_pane_is_named_and_deletes_nothing(table: Table) -> None:
    table.query(f"CREATE TABLE {table.name} ({COLUMNS}, CHECK (clicks < 10), UNIQUE ({', '.join(FULL_KEY)}))")
    with opened(table.sink(upsert=FULL_KEY)) as sink:
        epoch(1, FIRST).deliver(sink)
        before = found(table)
        vote = epoch(2, [*MERGED, pane("bob", 0, 20, 10, 1, (0, 10))]).prepare(sink)
        assert not vote.yes
        assert "row 2 of the epoch" in vote.reason
        assert found(table) == before


def test_a_reader_of_files_can_apply_panes_as_the_documentation_shows() -> None:
    text = (Path(__file__).parents[3] / "docs" / "windows.md").read_text()
    (snippet,) = (one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def apply" in one)
    names: dict[str, Any] = {}
    exec(snippet, names)
    sessions: dict[tuple[str, ...], Any] = {}
    for value in [*FIRST, *MERGED, *MERGED, *LATE]:
        names["apply"](sessions, json.loads(value), ["person"])
    assert [(one["person"], one["clicks"]) for one in sessions.values()] == [("bob", 5), ("ann", 4)]
