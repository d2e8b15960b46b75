"""New rows of a real PostgreSQL table, by a column that grows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.api import Lost
from penstock.connectors.postgres.connector import Postgres
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.polling import PostgresReader
from penstock.connectors.registry import parse_options
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee
from penstock.testing.frame import Frame, Setup
from tests.connectors.databases.database import Database, killed_again_and_again, stored_in
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


def by_id(database: Database, **more: Any) -> dict[str, Any]:
    return database.config(**({"mode": "poll", "table": "t", "column": "id", "poll": "20ms"} | more))


async def rows_in(frame: Frame, count: int) -> list[dict[str, Any]]:
    """Once there are this many, also from before this frame."""
    return [json.loads(event.value) for event in await stored_in(frame, count)]


class Reading:
    """A reader without a frame."""

    def __init__(self, config: Mapping[str, Any], last_id: int = 0) -> None:
        self._reader = PostgresReader(PostgresOptions(**config), "test")
        self._last_id = last_id

    def __enter__(self) -> PostgresReader:
        try:
            self._reader.open(self._last_id)
        except BaseException:
            self._reader.close()
            raise
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._reader.close()


async def test_rows_are_json_objects_and_their_numbers_are_the_ids(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY, name text, at timestamptz, raw bytea, price numeric)")
    database.query("INSERT INTO t VALUES (3, 'a', '2026-01-31 11:00+01', '\\x00', 1.10), (7, NULL, NULL, NULL, NULL)")
    async with Frame(tmp_path / "data", Postgres, by_id(database)) as frame:
        rows = await rows_in(frame, 2)
        database.query("INSERT INTO t (id) VALUES (8)")
        assert (await rows_in(frame, 3))[2]["id"] == 8
        assert [event.event_id for event in await frame.events()] == [3, 7, 8]
    assert rows[0] == {"id": 3, "name": "a", "at": "2026-01-31T10:00:00Z", "raw": "AA==", "price": 1.1}
    assert rows[1] == {"id": 7, "name": None, "at": None, "raw": None, "price": None}


async def test_killed_workers_and_servers_lose_and_repeat_no_row(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE t (id bigserial PRIMARY KEY)")
    config = by_id(database, batch=100)

    def write(number: int) -> None:
        database.query("INSERT INTO t SELECT FROM generate_series(1, 3000)")
        if number == 1:
            database.restart()

    killed_again_and_again(tmp_path / "data", "postgres", config, 3, write)
    database.query("INSERT INTO t DEFAULT VALUES")
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        rows = await rows_in(frame, 9001)
    found = [row["id"] for row in rows]
    assert found == database_ids(database)
    assert len(found) == 9001


def database_ids(database: Database) -> list[int]:
    """A crash of the server may leave a gap in a sequence."""
    return [one for (one,) in database.query("SELECT id FROM t ORDER BY id")]


def test_a_row_of_a_transaction_that_commits_later_is_read_in_its_place(database: Database) -> None:
    database.query("CREATE TABLE t (id bigserial PRIMARY KEY)")
    with database.session() as slow, Reading(by_id(database)) as reader:
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t DEFAULT VALUES")  # 1
        database.query("INSERT INTO t DEFAULT VALUES")  # 2
        assert reader.read().ids == ()
        with database.session() as other:
            other.execute("BEGIN")
            other.execute("INSERT INTO t DEFAULT VALUES")  # 3
            assert reader.read().ids == ()
            slow.execute("COMMIT")
            assert reader.read().ids == [1, 2], "3 is not waited for: it is higher"
            other.execute("COMMIT")
        assert reader.read().ids == [3]


def test_unless_settled_is_switched_off_which_reads_sooner_and_loses_such_a_row(database: Database) -> None:
    database.query("CREATE TABLE t (id bigserial PRIMARY KEY)")
    with database.session() as slow, Reading(by_id(database, settled=False)) as reader:
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t DEFAULT VALUES")
        database.query("INSERT INTO t DEFAULT VALUES")
        assert reader.read().ids == [2]
        slow.execute("COMMIT")
        assert reader.read().ids == []


def test_writers_of_partitions_are_waited_for_and_those_of_other_tables_are_not(database: Database) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY) PARTITION BY RANGE (id)")
    database.query("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (100)")
    database.query("CREATE TABLE other (id bigint)")
    with database.session() as slow, database.session() as elsewhere, Reading(by_id(database)) as reader:
        elsewhere.execute("BEGIN")
        elsewhere.execute("INSERT INTO other VALUES (1)")
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t1 VALUES (1)")
        database.query("INSERT INTO t VALUES (2)")
        assert reader.read().ids == ()
        slow.execute("ROLLBACK")
        assert reader.read().ids == [2]


def test_a_query_can_leave_out_rows_and_columns(database: Database) -> None:
    database.query("CREATE TABLE t (id int, kind text, secret text)")
    database.query("INSERT INTO t VALUES (1, 'a', 's'), (2, 'b', 's'), (3, 'a', 's')")
    query = "SELECT id, kind || '%' AS kind FROM t WHERE kind = 'a'; -- the last line"
    query = query.replace(";", "")
    with Reading(by_id(database, table="", query=query, settled=False)) as reader:
        assert reader.read() == ([b'{"id":1,"kind":"a%"}', b'{"id":3,"kind":"a%"}'], [1, 3], True)


def by_time(database: Database, **more: Any) -> dict[str, Any]:
    return by_id(database, **({"column": "at", "tie_breaker": "id", "lag": 0} | more))


def test_rows_by_time_are_read_once_while_it_runs_and_the_last_second_again_after_a_restart(
    database: Database,
) -> None:
    database.query("CREATE TABLE t (id int PRIMARY KEY, at timestamptz)")
    database.query("INSERT INTO t SELECT n, '2026-01-31 10:00Z' FROM generate_series(1, 5) n")
    database.query("INSERT INTO t VALUES (6, '2026-01-31 10:00:10Z'), (7, '2026-01-31 10:00:10.5Z')")
    with Reading(by_time(database, batch=3)) as reader:
        batches = [reader.read() for _ in range(4)]
    ids = [one for batch in batches for one in batch.ids]
    assert [json.loads(value)["id"] for batch in batches for value in batch.values] == [1, 2, 3, 4, 5, 6, 7]
    assert ids == sorted({*ids})
    with Reading(by_time(database), last_id=ids[-1]) as reader:
        again = reader.read()
    assert [json.loads(value)["id"] for value in again.values] == [6, 7]
    assert again.ids[0] > ids[-1]


def test_rows_by_time_wait_for_the_lag(database: Database) -> None:
    database.query("CREATE TABLE t (id int PRIMARY KEY, at timestamp)")
    database.query(
        "INSERT INTO t VALUES (1, now() AT TIME ZONE 'UTC' - interval '1 hour'), (2, now() AT TIME ZONE 'UTC')"
    )
    with Reading(by_time(database, lag="10m")) as reader:
        assert [json.loads(value)["id"] for value in reader.read().values] == [1]


def test_columns_that_cannot_be_points_of_reference_are_named(database: Database) -> None:
    database.query("CREATE TABLE t (id bigint, name text, at timestamptz)")
    database.query("INSERT INTO t VALUES (5, 'a', now()), (5, 'b', now())")
    for config, reason in (
        (by_id(database, column="name"), "is not an integer"),
        (by_time(database, column="id"), "is an integer"),
        (by_id(database, column="none"), "does not exist"),
        (by_id(database, table="none"), "does not exist"),
    ):
        with pytest.raises(Lost, match=reason), Reading(config):
            pass
    with Reading(by_id(database)) as reader, pytest.raises(Lost, match="several rows have the same value"):
        reader.read()
    database.query("INSERT INTO t VALUES (0)")
    with pytest.raises(Lost, match="the value 0"), Reading(by_id(database)):
        pass


async def test_at_the_quota_nothing_more_is_read_and_a_drain_leaves_a_stream_that_continues(
    database: Database, tmp_path: Path
) -> None:
    database.query("CREATE TABLE t (id bigint PRIMARY KEY, text text)")
    database.query("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 2000) n")
    config = by_id(database, batch=10)
    async with Frame(tmp_path / "data", Postgres, config, Setup(quota_bytes=64 << 10)) as frame:
        await eventually(lambda: not frame.instance.host.room.there)
        await frame.drain()
        assert frame.streams() == []
        assert len(await frame.events()) < 2000
    async with Frame(tmp_path / "data", Postgres, config) as frame:
        assert [row["id"] for row in await rows_in(frame, 2000)] == list(range(1, 2001))


# Options.


@pytest.mark.parametrize(
    ("config", "mistake"),
    [
        ({}, "name the table"),
        ({"table": "a.b.c"}, "not a valid table"),
        ({"table": "t", "column": "id"}, "column is only for mode poll, but the mode is write"),
        ({"mode": "poll", "table": "t", "column": "id", "upsert": ["id"]}, "upsert is only for mode write"),
        ({"mode": "poll", "table": "t", "column": "id", "slot": "s"}, "slot is only for mode changes"),
        ({"mode": "poll", "column": "id"}, "either a table or a query"),
        ({"mode": "poll", "table": "t"}, "needs an increasing column"),
        ({"mode": "poll", "query": "SELECT 1", "column": "id"}, "settled needs a table"),
        ({"mode": "poll", "table": "t", "column": "id", "lag": "1s"}, "lag is for times"),
        ({"mode": "poll", "table": "t", "column": "a", "tie_breaker": "b", "settled": True}, "settled is for numbers"),
        ({"mode": "changes", "slot": "s"}, "needs a slot and a publication"),
        ({"mode": "changes", "slot": "S", "publication": "p"}, "slot: String should match"),
        ({"mode": "changes", "slot": "s", "publication": "p", "tables": ["t"]}, "add create"),
        ({"mode": "changes", "slot": "s", "publication": "p", "table": "t"}, "table is only for mode write and poll"),
    ],
)
def test_options_that_are_mixed_up_are_named(config: dict[str, Any], mistake: str) -> None:
    with pytest.raises(RequestError, match=mistake):
        parse_options(PostgresOptions, config, "postgres")


def test_each_mode_has_its_port_and_its_guarantee() -> None:
    numbers = PostgresOptions(mode="poll", table="t", column="id")
    times = PostgresOptions(mode="poll", table="t", column="at", tie_breaker="id")
    changes = PostgresOptions(mode="changes", slot="s", publication="p")
    found = [Postgres.capabilities(options) for options in (numbers, times, changes, PostgresOptions(table="t"))]
    assert [one.source for one in found] == [
        Guarantee.EXACTLY_ONCE,
        Guarantee.AT_LEAST_ONCE,
        Guarantee.EXACTLY_ONCE,
        None,
    ]
    assert [one.sink for one in found] == [None, None, None, Guarantee.EXACTLY_ONCE]
    assert found[2].claims == {"the replication slot s"}
