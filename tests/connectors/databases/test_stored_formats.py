"""What earlier code has stored in databases, and as names and ids of their streams, is continued by today's."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.postgres.connector import Postgres
from penstock.connectors.postgres.options import PostgresFormat, PostgresOptions
from penstock.connectors.postgres.pgoutput import parse_lsn
from penstock.connectors.postgres.sink import PostgresSink
from penstock.testing.frame import Frame
from tests.connectors.databases.database import Database, stored_in
from tests.connectors.databases.test_sql_sink import Target, deliver, epoch
from tests.connectors.planted import plant
from tests.connectors.stores.rounds import Round
from tests.connectors.stores.tables import opened
from tests.delivery.fake_epoch import Row
from tests.fixtures.peers import statements, stored


async def test_the_epochs_of_sql_sinks_continue(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.executescript(statements("sql-1"))
    target = Target(f"sqlite:///{tmp_path}/a.db")
    await deliver(target.options(), epoch(4, {"id": 9}), epoch(5, {"id": 3}))
    assert target.rows() == [(1,), (2,), (3,)]


@pytest.mark.process
@pytest.mark.parametrize("commits", [True, False])
def test_the_tables_of_postgres_sinks_continue(database: Database, commits: bool) -> None:
    """Its second epoch is in doubt."""
    database.query(statements("postgres-1"))
    first, second, third = Round(0, []), Round(1, [Row(b"second")], 5), Round(2, [Row(b"third")], 11 if commits else 5)
    sink = PostgresSink(PostgresOptions(**database.config(table="orders", format=PostgresFormat.RAW)), "orders")
    with opened(sink, second.id if commits else first.id):
        if commits:
            sink.commit(second.transaction)
        third.deliver(sink)
    values = [bytes(value) for (value,) in database.query("SELECT value FROM orders ORDER BY message_id")]
    assert values == [b"first", *([b"second"] if commits else []), b"third"]
    epochs = [number for (number,) in database.query("SELECT epoch FROM penstock_ledger ORDER BY epoch")]
    assert epochs == [0, *([1] if commits else []), 2]


@pytest.mark.process
async def test_the_stream_of_a_polled_table_continues(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    database.query("INSERT INTO t VALUES (3), (7), (8)")
    await plant(tmp_path / "data", events={stored("streams-1")["postgres"]["poll"]: {3: "before", 7: "before"}})
    config = database.config(mode="poll", table="t", column="id", poll="20ms")
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        events = await stored_in(frame, 3)
    assert [(event.event_id, event.value) for event in events] == [(3, b"before"), (7, b"before"), (8, b'{"id":8}')]


@pytest.mark.process
async def test_the_stream_of_a_slot_continues(database: Database, tmp_path: Path) -> None:
    names = stored("streams-1")["postgres"]
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    config = database.changes(tables=["t"], snapshot=False)
    async with Frame(tmp_path / "first", Postgres, config) as frame:
        await frame.connected()
        for number in (1, 2):
            database.query(f"INSERT INTO t VALUES ({number})")
        changes: list[dict[str, Any]] = [json.loads(event.value) for event in await stored_in(frame, 2)]
    one, other = (names["changes_offset"] + parse_lsn(change["lsn"]) for change in changes)
    await plant(tmp_path / "data", events={names["changes"].format(slot=config["slot"]): {one: "before"}})
    async with Frame(tmp_path / "data", Postgres, config) as frame:  # the server sends everything again
        events = await stored_in(frame, 2)
    assert [event.event_id for event in events] == [one, other]
    assert (events[0].value, json.loads(events[1].value)["after"]) == (b"before", {"id": 2})
