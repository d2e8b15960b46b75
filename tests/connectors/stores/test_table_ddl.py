"""The statements that create or extend a table for the rows of a pipeline, and sinks that run them themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.postgres.ddl import postgres_type
from penstock.connectors.sqlite import ddl as sqlite_ddl
from penstock.connectors.sqlite.ddl import sqlite_type
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.connectors.tables import FoundTable, fitting
from penstock.core.errors import RequestError
from tests.connectors.stores.conftest import each_database
from tests.connectors.stores.tables import Table, epoch, opened

SCHEMA = (
    ("shop", "string"),
    ("window_start", "timestamp"),
    ("orders", "bigint"),
    ("total", "double"),
    ("tags", "array<string>"),
)
KEY = ("shop", "window_start")
VALUE = json.dumps({"shop": "n", "window_start": "2026-01-31T12:00:00.000Z", "orders": 2, "total": 5.5, "tags": ["a"]})


def found(table: Table) -> list[Any]:
    return table.query(f"SELECT shop, orders, total FROM {table.name}")


@each_database
@pytest.mark.parametrize("upsert", [(), KEY])
def test_the_printed_ddl_creates_a_table_that_fits_the_rows(table: Table, upsert: tuple[str, ...]) -> None:
    made = table.ddl(SCHEMA, upsert=upsert)
    assert not made.exists
    (create,) = made.statements
    assert create.startswith(f"CREATE TABLE {table.name} (")
    table.query(create)
    assert table.ddl(SCHEMA, upsert=upsert).statements == []
    assert table.ddl(SCHEMA, upsert=upsert).exists
    with opened(table.sink(upsert=upsert)) as sink:
        epoch(1, [VALUE, VALUE]).deliver(sink)
    assert found(table) == [("n", 2, 5.5)] * (1 if upsert else 2)


@each_database
def test_the_printed_ddl_adds_the_columns_that_a_table_lacks(table: Table) -> None:
    table.query(f"CREATE TABLE {table.name} (shop text, orders bigint, mine int)")
    made = table.ddl(SCHEMA, upsert=KEY)
    assert made.exists
    added = [f'ALTER TABLE {table.name} ADD COLUMN "{name}" ' for name in ("window_start", "total", "tags")]
    assert all(map(str.startswith, made.statements, added))
    assert len(made.statements) == 4
    assert made.statements[3].startswith("CREATE UNIQUE INDEX ")
    for statement in made.statements:
        table.query(statement)
    assert table.ddl(SCHEMA, upsert=KEY).statements == []
    with opened(table.sink(upsert=KEY)) as sink:
        epoch(1, [VALUE]).deliver(sink)
    assert found(table) == [("n", 2, 5.5)]


@each_database
def test_a_sink_with_create_creates_its_table_and_adds_missing_columns_later(table: Table) -> None:
    with opened(table.sink(lambda: SCHEMA, upsert=KEY, create=True)) as sink:
        epoch(1, [VALUE]).deliver(sink)
    assert found(table) == [("n", 2, 5.5)]
    wider = (*SCHEMA, ("note", "string"))
    with opened(table.sink(lambda: wider, upsert=KEY, create=True)) as sink:
        epoch(2, [json.dumps(json.loads(VALUE) | {"note": "late"})]).deliver(sink)
    assert table.query(f"SELECT note FROM {table.name}") == [("late",)]


@each_database
def test_a_sink_that_is_opened_before_the_rows_are_known_creates_its_table_at_the_first_vote(table: Table) -> None:
    known: list[tuple[tuple[str, str], ...]] = []
    with opened(table.sink(lambda: known[0] if known else None, create=True)) as sink:
        first = epoch(1, [VALUE])
        assert "its columns are not known" in first.prepare(sink).reason
        known.append(SCHEMA)
        first.again().deliver(sink)
    assert found(table) == [("n", 2, 5.5)]


@each_database
def test_a_table_created_for_a_refused_epoch_does_not_remain(table: Table) -> None:
    with opened(table.sink(lambda: SCHEMA, create=True)) as sink:
        pass
    table.query(f"DROP TABLE {table.name}")
    with opened(table.sink(lambda: SCHEMA, create=True)) as sink:
        table.query(f"DROP TABLE {table.name}")
        assert not epoch(1, ["[]"]).prepare(sink).yes
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            found(table)
        epoch(1, [VALUE]).again().deliver(sink)
    assert found(table) == [("n", 2, 5.5)]


@each_database
def test_the_replaces_field_needs_no_column_where_it_is_applied(table: Table) -> None:
    schema = (*SCHEMA, ("replaces", "array<struct<window_start:timestamp,window_end:timestamp>>"))
    assert "replaces" not in table.ddl(schema, upsert=KEY).statements[0]
    assert "replaces" in table.ddl(schema).statements[0]


@each_database
def test_a_key_that_the_rows_do_not_have_is_reported(table: Table) -> None:
    with pytest.raises(RequestError, match="upsert names 'shp'"):
        table.ddl(SCHEMA, upsert=("shp",))


def test_reading_the_ddl_does_not_create_a_missing_database(tmp_path: Path) -> None:
    made = sqlite_ddl.describe(SqliteOptions(path=tmp_path / "none.db", table="t"), ())
    assert not made.exists
    assert "PRIMARY KEY" in made.statements[0]
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("spark", "postgres", "sqlite"),
    [
        ("boolean", "boolean", "INTEGER"),
        ("tinyint", "smallint", "INTEGER"),
        ("int", "integer", "INTEGER"),
        ("bigint", "bigint", "INTEGER"),
        ("float", "real", "REAL"),
        ("double", "double precision", "REAL"),
        ("decimal(10,2)", "numeric(10, 2)", "NUMERIC"),
        ("string", "text", "TEXT"),
        ("varchar(10)", "text", "TEXT"),
        ("binary", "text", "TEXT"),
        ("date", "date", "TEXT"),
        ("timestamp", "timestamptz", "TEXT"),
        ("timestamp_ntz", "timestamp", "TEXT"),
        ("array<int>", "jsonb", "TEXT"),
        ("struct<a:int>", "jsonb", "TEXT"),
        ("map<string,int>", "jsonb", "TEXT"),
        ("variant", "jsonb", "TEXT"),
        ("interval day to second", "text", "TEXT"),
    ],
)
def test_a_spark_type_has_a_column_type_in_each_database(spark: str, postgres: str, sqlite: str) -> None:
    assert (postgres_type(spark), sqlite_type(spark)) == (postgres, sqlite)


def test_a_table_with_all_columns_and_its_key_is_left_unchanged() -> None:
    assert fitting("t", {"a": "int"}, ["a"], FoundTable({"a", "b"}, has_key=True)) == []
