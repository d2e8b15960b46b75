"""New rows of an SQLite table."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.api import Lost
from penstock.connectors.registry import parse_options
from penstock.connectors.sqlite.connector import Sqlite
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.connectors.sqlite.polling import SqliteReader
from penstock.core.errors import RequestError
from penstock.testing.frame import Frame
from tests.connectors.databases.database import killed_again_and_again, stored_in


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def config(path: Path, **more: Any) -> dict[str, Any]:
    return {"mode": "poll", "path": str(path), "table": "the rows", "poll": "20ms", **more}


async def rows_in(frame: Frame, count: int) -> list[dict[str, Any]]:
    return [json.loads(event.value) for event in await stored_in(frame, count)]


async def test_rows_come_in_the_order_of_their_rowids_as_they_are_added(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    execute(path, 'CREATE TABLE "the rows" (name TEXT, raw BLOB, price REAL)')
    execute(path, "INSERT INTO \"the rows\" VALUES ('ä', x'00ff', 1.5), (NULL, NULL, 2)")
    async with Frame(tmp_path / "data", Sqlite, config(path)) as frame:
        assert await rows_in(frame, 2) == [
            {"name": "ä", "raw": "AP8=", "price": 1.5},
            {"name": None, "raw": None, "price": 2.0},
        ]
        execute(path, "INSERT INTO \"the rows\" (name) VALUES ('c')")
        assert (await rows_in(frame, 3))[2]["name"] == "c"
        assert [event.event_id for event in await frame.events()] == [1, 2, 3]


@pytest.mark.process
async def test_killed_workers_lose_and_repeat_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    execute(path, "PRAGMA journal_mode = WAL", 'CREATE TABLE "the rows" (id INTEGER PRIMARY KEY, n INTEGER)')
    numbers = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 3000) SELECT n FROM s"

    def write(_: int) -> None:
        execute(path, f'INSERT INTO "the rows" (n) {numbers}')

    killed_again_and_again(tmp_path / "data", "sqlite", config(path, batch=50), 3, write)
    async with Frame(tmp_path / "data", Sqlite, config(path)) as frame:
        rows = await rows_in(frame, 9000)
    assert [row["id"] for row in rows] == list(range(1, 9001))


def _lost(**more: Any) -> str:
    reader = SqliteReader(SqliteOptions(**more))
    try:
        with pytest.raises(Lost) as raised:  # noqa: PT012  either of them
            reader.open(0)
            reader.read()
        return str(raised.value)
    finally:
        reader.close()


def test_what_cannot_be_read_is_named_and_nothing_is_created(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert "unable to open" in _lost(**config(path))
    assert not path.exists()
    execute(path, 'CREATE TABLE "the rows" (n, t)', "INSERT INTO \"the rows\" VALUES (1, 'a'), (1, 'b')")
    assert "several rows have the same value" in _lost(**config(path, column="n"))
    assert "not an integer" in _lost(**config(path, column="t"))
    assert "no such table" in _lost(**config(path, table="none"))
    execute(path, 'INSERT INTO "the rows" VALUES (-1, NULL)')
    assert "the value -1" in _lost(**config(path, column="n"))


def test_options_that_are_mixed_up_are_named() -> None:
    for mixed, mistake in (
        ({"mode": "poll", "format": "json"}, "format is only for mode write, but the mode is poll"),
        ({"column": "id"}, "column is only for mode poll, but the mode is write"),
    ):
        with pytest.raises(RequestError, match=mistake):
            parse_options(SqliteOptions, {"path": "a.db", "table": "t", **mixed}, "sqlite")
