"""Logical replication from a real PostgreSQL server: a snapshot, then every change, exactly once."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.api import Lost
from penstock.connectors.postgres.changes import CHANGES
from penstock.connectors.postgres.connector import Postgres
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.pgoutput import parse_lsn
from penstock.connectors.postgres.replication import Session, Slot
from penstock.core.errors import RequestError
from penstock.testing.frame import Event, Frame, Setup
from tests.connectors.databases.database import Database, killed_again_and_again, stored_in
from tests.connectors.databases.reading_process import complete
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import SECONDS_MAX, eventually

pytestmark = pytest.mark.process


def changes(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [json.loads(event.value) for event in events]


def ids_of(events: Sequence[Event]) -> list[int]:
    """The column `id` of the rows, in the order of the events."""
    return [one["after"]["id"] for one in changes(events)]


def flushed(database: Database) -> int:
    ((lsn,),) = database.query(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'slot_{database.name}'"
    )
    return parse_lsn(lsn)


def current(database: Database) -> int:
    ((lsn,),) = database.query("SELECT pg_current_wal_lsn()::text")
    return parse_lsn(lsn)


async def following(database: Database) -> None:
    """The snapshot is over: it no longer locks its tables, for which a statement of the test would wait for ever."""
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = 'slot_{database.name}' AND active"
    await eventually(lambda: database.query(active))


async def until_events(frame: Frame, count: int) -> list[Event]:
    host = frame.instance.host
    await eventually(lambda: host.counters.events >= count, lambda: f"{host.counters.events}: {host.status()}")
    return await frame.events()


async def test_all_rows_come_first_and_then_every_kind_of_change(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY, doc text, n numeric, at timestamptz, raw bytea, j jsonb)")
    database.query("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    database.query("INSERT INTO t VALUES (1, repeat('x', 9000), 1.50, '2026-01-31 11:00+01', '\\xff', '{\"a\": [1]}')")
    async with Frame(tmp_path / "data", Postgres, database.changes(tables=["t"])) as frame:
        await following(database)
        database.query("UPDATE t SET n = 'NaN' WHERE id = 1")
        database.query("UPDATE t SET id = 2, doc = 'short' WHERE id = 1")
        database.query("ALTER TABLE t REPLICA IDENTITY FULL")
        database.query("ALTER TABLE t ADD COLUMN more boolean DEFAULT true")
        database.query("DELETE FROM t")
        database.query("TRUNCATE t")
        events = await until_events(frame, 5)
    row = {
        "id": 1,
        "doc": "x" * 9000,
        "n": 1.5,
        "at": "2026-01-31T10:00:00Z",
        "raw": "/w==",
        "j": {"a": [1]},
    }
    first, update, renamed, deleted, truncated = changes(events)
    assert (first["op"], first["table"], first["before"], first["after"]) == ("snapshot", "public.t", None, row)
    assert update["after"] == {name: value for name, value in row.items() if name != "doc"} | {"n": "NaN"}
    assert (update["op"], update["before"], update["unchanged"]) == ("update", None, ["doc"])
    assert (renamed["before"], renamed["after"]["id"], renamed["after"]["doc"]) == ({"id": 1}, 2, "short")
    assert (deleted["op"], deleted["after"], deleted["before"]["more"]) == ("delete", None, True)
    assert (truncated["op"], truncated["before"], truncated["after"]) == ("truncate", None, None)
    assert len({event.stream_id for event in events}) == 1
    ids = [event.event_id for event in events]
    assert ids == sorted({*ids})
    assert ids[0] < CHANGES <= ids[1]


async def test_snapshot_and_changes_have_neither_gap_nor_overlap_while_others_write(
    database: Database, tmp_path: Path
) -> None:
    database.query("CREATE TABLE t (id bigserial PRIMARY KEY)")
    database.query("INSERT INTO t SELECT FROM generate_series(1, 5000)")
    done = threading.Event()

    def write() -> None:
        with database.session() as session:
            while not done.is_set():
                session.execute("INSERT INTO t DEFAULT VALUES")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        async with Frame(tmp_path / "data", Postgres, database.changes(tables=["t"], batch=500)) as frame:
            await until_events(frame, 5200)
            done.set()
            await asyncio.to_thread(writer.join, SECONDS_MAX)
            ((count,),) = database.query("SELECT count(*) FROM t")
            events = await until_events(frame, count)
    finally:
        done.set()
        writer.join(SECONDS_MAX)
    assert sorted(ids_of(events)) == list(range(1, count + 1))
    assert {one["op"] for one in changes(events)} == {"snapshot", "insert"}


async def test_killed_workers_and_servers_lose_and_repeat_nothing(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigserial PRIMARY KEY)")
    config = database.changes(tables=["t"], snapshot=False)
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        await frame.connected()
        await following(database)

    def write(number: int) -> None:
        database.query("INSERT INTO t SELECT FROM generate_series(1, 3000)")  # one transaction
        if number == 1:
            database.restart()
        for _ in range(20):
            database.query("INSERT INTO t DEFAULT VALUES")

    killed_again_and_again(tmp_path / "data", "postgres", config, 3, write)
    database.query("INSERT INTO t DEFAULT VALUES")
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        events = await stored_in(frame, 9061)
    # A crash of the server may leave a gap in a sequence.
    assert ids_of(events) == [one for (one,) in database.query("SELECT id FROM t ORDER BY id")]
    assert len(events) == 9061
    ids = [event.event_id for event in events]
    assert ids == sorted({*ids})


async def test_transactions_that_overlap_come_in_the_order_of_their_commits(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    config = database.changes(tables=["t"])
    with database.session() as large, database.session() as small:
        async with Frame(tmp_path / "data", Postgres, config) as frame:
            await following(database)
            large.execute("BEGIN")
            large.execute("INSERT INTO t SELECT generate_series(1000, 3999)")
            small.execute("INSERT INTO t VALUES (1)")
            large.execute("COMMIT")
            small.execute("INSERT INTO t VALUES (2)")
            events = await until_events(frame, 3002)
    assert ids_of(events) == [1, *range(1000, 4000), 2]
    ids = [event.event_id for event in events]
    assert ids == sorted({*ids}), "the large transaction has more changes than bytes until the next commit"
    async with Frame(tmp_path / "data", Postgres, config) as frame:  # the server sends everything again
        database.query("INSERT INTO t VALUES (3)")
        events = await until_events(frame, 1)
        assert ids_of(events)[-2:] == [2, 3]
        assert len(events) == 3003


async def test_the_server_is_acknowledged_when_pipelines_have_completed_and_while_nothing_happens(
    database: Database, tmp_path: Path
) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    database.query("CREATE TABLE other (id bigint)")
    async with Frame(tmp_path / "data", Postgres, database.changes(tables=["t"])) as frame:
        await following(database)
        database.query("INSERT INTO t VALUES (1)")
        after = current(database)
        await until_events(frame, 1)
        database.query("INSERT INTO other VALUES (1)")
        with pytest.raises(AssertionError):  # several reads of the server pass
            await eventually(lambda: flushed(database) >= after, seconds=2)
        complete(frame)
        await eventually(lambda: flushed(database) >= after)
        database.query("INSERT INTO other SELECT generate_series(1, 1000)")
        idle = current(database)
        await eventually(lambda: flushed(database) >= idle)


async def test_a_snapshot_that_is_interrupted_starts_over_and_says_so(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY, text text)")
    database.query("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n")
    config = database.changes(tables=["t"], batch=10)
    async with Frame(tmp_path / "data", Postgres, config, Setup(quota_bytes=64 << 10)) as frame:
        await eventually(lambda: not frame.instance.host.room.there)
        stored = len(await frame.events())
    assert 0 < stored < 2000
    assert database.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == [
        (f"slot_{database.name}_snapshot",)
    ]
    database.query("DELETE FROM t WHERE id = 1")
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        events = await until_events(frame, 2000)
    (start,) = [place for place, one in enumerate(changes(events)) if one["op"] == "truncate"]
    assert ids_of(events[start + 1 :]) == list(range(2, 2001)), "what a reader has after applying all of it"
    assert [event.event_id for event in events] == list(range(1, len(events) + 1))


async def test_a_snapshot_has_the_columns_and_rows_of_the_publication_and_partitions(
    database: Database, tmp_path: Path
) -> None:
    database.query(
        'CREATE TABLE "T.1" (id int PRIMARY KEY, "the name" text, secret text, '
        "twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    database.query("INSERT INTO \"T.1\" VALUES (1, 'a', 's'), (2, 'b', 's')")
    database.query("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.query("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.query("INSERT INTO p VALUES (7)")
    database.query('CREATE PUBLICATION published FOR TABLE "T.1" (id, "the name") WHERE (id > 1), p')
    async with Frame(tmp_path / "data", Postgres, database.changes()) as frame:
        await following(database)
        database.query("INSERT INTO \"T.1\" VALUES (3, 'c', 's'), (0, 'd', 's')")
        database.query("INSERT INTO p VALUES (8)")
        events = await until_events(frame, 4)
    assert [(one["op"], one["table"], one["after"]) for one in changes(events)] == [
        ("snapshot", "public.T.1", {"id": 2, "the name": "b"}),
        ("snapshot", "public.p1", {"id": 7}),
        ("insert", "public.T.1", {"id": 3, "the name": "c"}),
        ("insert", "public.p1", {"id": 8}),
    ]


async def test_a_drain_acknowledges_what_pipelines_complete_then(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    async with Frame(tmp_path / "data", Postgres, database.changes(tables=["t"])) as frame:
        await following(database)
        database.query("INSERT INTO t VALUES (1)")
        after = current(database)
        await until_events(frame, 1)
        await frame.drain()
        assert frame.streams() == []
        complete(frame)
        await eventually(lambda: flushed(database) >= after)


# What is missing at the server, and what to do.


def _lost(options: dict[str, Any], last_id: int = 0) -> Lost:
    session = Session(PostgresOptions(**options), "test")
    try:
        with pytest.raises(Lost) as raised:
            session.open(last_id)
        return raised.value
    finally:
        session.close()


def test_a_missing_publication_or_slot_is_named_with_the_statement_that_creates_it(database: Database) -> None:
    error = _lost(database.changes())
    assert "there is no publication published" in str(error)
    assert 'CREATE PUBLICATION "published" FOR TABLE' in error.hint
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    database.query("CREATE PUBLICATION published FOR TABLE t")
    error = _lost(database.changes(create=False))
    assert f"there is no slot slot_{database.name}" in str(error)
    assert "pg_create_logical_replication_slot" in error.hint


def test_a_slot_that_was_removed_is_not_created_again_behind_the_reader_s_back(database: Database) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    error = _lost(database.changes(tables=["t"]), last_id=CHANGES + 1)
    assert "was removed" in str(error)
    assert "use another name" in error.hint


def test_a_slot_whose_changes_the_server_has_removed_is_refused() -> None:
    session = Session(PostgresOptions(mode="changes", slot="s", publication="p"), "test")
    with pytest.raises(RequestError, match="max_slot_wal_keep_size"):
        session._check_slot(Slot("pgoutput", "shop", True, "lost"))
    with pytest.raises(RequestError, match="the plugin wal2json"):
        session._check_slot(Slot("wal2json", "shop", True, "reserved"))


async def test_a_slot_that_was_created_again_while_the_connection_was_gone_stops_the_source(
    database: Database, tmp_path: Path
) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    slot = f"slot_{database.name}"
    async with Frame(tmp_path, Postgres, database.changes(tables=["t"])) as frame:
        await following(database)
        database.query("INSERT INTO t VALUES (1)")
        await until_events(frame, 1)
        database.allow_connections(allow=False)
        database.query(f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        idle = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"
        await eventually(lambda: database.query(idle))
        database.query(f"SELECT pg_drop_replication_slot('{slot}')")
        database.query("INSERT INTO t VALUES (2)")
        database.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        database.allow_connections(allow=True)
        host = frame.instance.host
        await eventually(lambda: "created again" in str(host.status()), lambda: str(host.status()))
        assert ids_of(await frame.events()) == [1]


def test_a_slot_that_another_program_uses_is_named(database: Database) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY)")
    options = PostgresOptions(**database.changes(tables=["t"], snapshot=False))
    first, second = Session(options, "first"), Session(options, "second")
    try:
        for session in (first, second):
            session.open(0)
        first.start()
        with pytest.raises(Lost, match="is active for PID") as raised:
            second.start()
        assert "Another program uses the slot" in raised.value.hint
    finally:
        first.close()
        second.close()


def test_a_server_without_logical_wal_is_named_with_the_setting(postgres_server: PostgresServer) -> None:
    del postgres_server  # where there is none, this is skipped
    server = PostgresServer(wal_level="replica")
    try:
        config = {"host": server.socket_folder, "user": "postgres", "dbname": "postgres", "mode": "changes"}
        error = _lost({**config, "slot": "s", "publication": "p"})
    finally:
        server.stop()
    assert "wal_level is replica" in str(error)
    assert "ALTER SYSTEM SET wal_level = logical" in error.hint
