"""Rows by SQLAlchemy: an epoch and its number in one transaction, on SQLite, PostgreSQL and MariaDB."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.connectors.permissions import Permissions
from penstock.connectors.registry import make_connector, parse_options
from penstock.connectors.sink_api import SinkLost
from penstock.connectors.sql import sink as sink_module
from penstock.connectors.sql.connector import Sql
from penstock.connectors.sql.options import SqlOptions
from penstock.connectors.sql.rows import BadRow, RowPlan
from penstock.connectors.sql.sink import EPOCHS, SqlSink, upsert
from penstock.connectors.tables import RowSchema, UnknownFields
from penstock.core.errors import RequestError
from tests.connectors.databases.database import FORK, Database
from tests.delivery.fake_epoch import FakeEpoch
from tests.support.mariadb_server import MariaDbServer
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import SECONDS_MAX

SCHEMA: RowSchema = [
    ("id", "bigint"),
    ("name", "string"),
    ("price", "decimal(10,2)"),
    ("at", "timestamp"),
    ("ok", "boolean"),
    ("tags", "array<string>"),
    ("share", "double"),
]
ROW = {
    "id": 1,
    "name": "a",
    "price": 1.10,
    "at": "2026-01-31T11:00:00.500+01:00",
    "ok": True,
    "tags": ["x"],
    "share": 0.25,
}


class Target:
    """A table in one of the databases. `server` can be killed."""

    def __init__(self, url: str, server: PostgresServer | MariaDbServer | None = None) -> None:
        self.url = url
        self._server = server

    def restart(self) -> None:
        """After a crash."""
        assert self._server is not None
        self._server.kill()
        self._server.start()

    def options(self, **more: Any) -> SqlOptions:
        return SqlOptions(**({"url": self.url, "table": "t %"} | more))

    def query(self, statement: str) -> list[Any]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        if engine.dialect.name == "mysql":
            statement = statement.replace('"', "`")
        try:
            with engine.begin() as connection:
                found = connection.execute(sa.text(statement))
                return [tuple(row) for row in found] if found.returns_rows else []
        finally:
            engine.dispose()

    def rows(self, columns: str = "*") -> list[Any]:
        return self.query(f'SELECT {columns} FROM "t %" ORDER BY 1')


SERVERS = [pytest.param(name, marks=pytest.mark.process) for name in ("postgresql", "mariadb")]


@pytest.fixture(params=["sqlite", *SERVERS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "sqlite":
        return Target(f"sqlite:///{tmp_path}/a.db")
    return on_server(request)


@pytest.fixture(params=SERVERS)
def server_target(request: pytest.FixtureRequest) -> Target:
    return on_server(request)


def on_server(request: pytest.FixtureRequest) -> Target:
    if request.param == "mariadb":
        server: MariaDbServer = request.getfixturevalue("mariadb_server")
        return Target(server.new_database(), server)
    database: Database = request.getfixturevalue("database")
    host = database.server.socket_folder
    return Target(f"postgresql+psycopg://postgres@/{database.name}?host={host}", database.server)


def epoch(number: int, *rows: dict[str, Any] | bytes) -> FakeEpoch:
    return FakeEpoch([row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows], number=number)


async def deliver(options: SqlOptions, *epochs: FakeEpoch, schema: RowSchema | None = None) -> None:
    sink = SqlSink(options, "p/db", lambda: schema)
    try:
        for one in epochs:
            await sink.deliver(one)
    finally:
        await closed(sink)


async def closed(sink: SqlSink) -> None:
    """`close` returns at once; the test waits for the thread."""
    await sink._thread.call_surely(sink._writer.close)
    await sink.close()


async def test_the_table_is_created_and_values_have_the_types_of_its_columns(target: Target) -> None:
    options = target.options(create=True, upsert=("id",))
    await deliver(options, epoch(0, ROW, {"id": 2}), schema=SCHEMA)
    assert target.rows("id, name, ok, share") == [(1, "a", True, 0.25), (2, None, None, None)]
    ((price, at, tags),) = target.query('SELECT price, at, tags FROM "t %" WHERE id = 1')
    assert float(price) == 1.1
    assert str(at).startswith(("2026-01-31 10:00:00.5", "2026-01-31 11:00:00.5+01"))
    assert tags in (["x"], '["x"]')
    more = [*SCHEMA, ("more", "int")]
    await deliver(options, epoch(1, {"id": 3, "more": 7}), schema=more)
    assert target.rows("id, more") == [(1, None), (2, None), (3, 7)]
    described = Sql(options).describe_table([*more, ("last", "string")])
    assert described.exists
    assert [one.replace("`", '"') for one in described.statements] == ['ALTER TABLE "t %" ADD COLUMN last TEXT']


async def test_an_epoch_that_is_delivered_again_changes_nothing(target: Target) -> None:
    target.query('CREATE TABLE "t %" (id BIGINT, name TEXT)')
    first, second = epoch(4, {"id": 1}, {"id": 2}), epoch(5, {"id": 3})
    await deliver(target.options(), first)
    await deliver(target.options(), epoch(4, {"id": 1}, {"id": 2}), second, epoch(4, {"id": 1}))
    assert target.rows("id") == [(1,), (2,), (3,)]
    assert target.query(f"SELECT sink, format, incarnation, epoch FROM {EPOCHS.name}") == [("p/db", 1, 1, 5)]
    assert first.taken == 1, "all blocks are taken, also of an epoch that is left out"


async def test_without_an_upsert_of_its_own_a_database_gets_deletions_before_the_rows(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for dialects of which SQLAlchemy knows no such statement. A row replaces the whole one of its key."""
    monkeypatch.setattr(sink_module, "upsert", lambda *_: None)
    target.query('CREATE TABLE "t %" (id BIGINT, name VARCHAR(9), a TEXT, PRIMARY KEY (id, name))')
    options = target.options(upsert=("id", "name"))
    first = [{"id": 1, "name": "x", "a": "1"}, {"id": 1, "name": "y", "a": "2"}, {"id": 2, "name": "x", "a": "3"}]
    await deliver(options, epoch(0, *first))
    again = epoch(1, {"id": 1, "name": "y", "a": "4"}, {"id": 3, "name": "z"}, {"id": 1, "name": "y", "a": "5"})
    await deliver(options, again, again)
    assert target.rows() == [(1, "x", "1"), (1, "y", "5"), (2, "x", "3"), (3, "z", None)]


async def test_an_upsert_keeps_the_last_row_of_a_key_and_columns_without_a_field(target: Target) -> None:
    target.query('CREATE TABLE "t %" (id BIGINT PRIMARY KEY, a TEXT, b TEXT)')
    options = target.options(upsert=("id",))
    await deliver(options, epoch(0, {"id": 1, "a": "x", "b": "y"}, {"id": 2, "a": "x"}, {"id": 2, "a": "z"}))
    await deliver(options, epoch(1, {"id": 1, "a": "new"}, {"id": 3}))
    assert target.rows() == [(1, "new", "y"), (2, "z", None), (3, None, None)]


async def test_a_pane_deletes_those_that_it_replaces_and_null_is_a_key(target: Target) -> None:
    target.query('CREATE TABLE "t %" (user_id TEXT, window_start TEXT, window_end TEXT, n INT)')
    target.query('CREATE UNIQUE INDEX k ON "t %" (user_id, window_start, window_end)')
    options = target.options(upsert=("user_id", "window_start", "window_end"))
    panes = [{"user_id": user, "window_start": "1", "window_end": "2", "n": 1} for user in ("a", None)]
    await deliver(options, epoch(0, *panes))
    grown = [
        {"user_id": user, "window_start": "1", "window_end": "5", "n": 2, "replaces": [{"window_end": "2"}]}
        for user in ("a", None)
    ]
    await deliver(options, epoch(1, *grown))
    assert sorted(target.rows("n, window_end")) == [(2, "5"), (2, "5")]
    await deliver(options, epoch(2, {"user_id": None, "window_start": "1", "window_end": "5", "n": 3}))
    assert sorted(target.rows("n, window_end")) == [(2, "5"), (3, "5")]


async def test_a_row_that_cannot_be_written_leaves_nothing_of_its_epoch(target: Target) -> None:
    target.query('CREATE TABLE "t %" (id BIGINT NOT NULL, at DATE)')
    for bad, reason in (
        (b"no json", "message 9: it is not a JSON object"),
        ({"id": 2, "other": 1}, "row 2 of the epoch: no column for its field 'other'"),
        ({"id": 2, "at": "soon"}, "row 2 of the epoch: its field 'at' cannot be converted"),
        ({"id": None}, "(?i)not.null|cannot be null"),
    ):
        with pytest.raises(SinkLost, match=reason):
            await deliver(target.options(), epoch(0, {"id": 1}, bad))
    assert target.rows() == []
    await deliver(target.options(unknown_fields=UnknownFields.IGNORE), epoch(0, {"id": 2, "other": 1}))
    assert target.rows("id") == [(2,)]


async def test_a_missing_table_or_database_is_named(target: Target, tmp_path: Path) -> None:
    with pytest.raises(SinkLost, match="no such table") as raised:
        await deliver(target.options(), epoch(0, {"id": 1}))
    assert "penstock sink ddl" in raised.value.hint
    with pytest.raises(SinkLost):
        await deliver(SqlOptions(url=f"sqlite:///{tmp_path}/none/a.db", table="t"), epoch(0, {"id": 1}))
    with pytest.raises(SinkLost, match="not installed"):
        await deliver(SqlOptions(url="nothing://a/b", table="t"), epoch(0, {"id": 1}))


async def test_two_workers_cannot_both_write_an_epoch(tmp_path: Path) -> None:
    """SQLite cannot lock the row of the sink's last epoch, as servers do: the second one is refused at its commit."""
    target = Target(f"sqlite:///{tmp_path}/a.db")
    target.query('CREATE TABLE "t %" (id BIGINT)')
    await deliver(target.options(), epoch(0, {"id": 1}))
    sink = SqlSink(target.options(), "p/db")
    try:
        assert await sink._thread.call(sink._writer.begin, 1, 1)
        await deliver(target.options(), epoch(1, {"id": 2}))
        with pytest.raises(SinkLost, match="another worker"):
            await sink._thread.call(sink._writer.commit)
    finally:
        await closed(sink)
    assert target.rows() == [(1,), (2,)]


@pytest.mark.process
async def test_a_worker_that_is_killed_at_any_row_writes_each_epoch_once(target: Target) -> None:
    target.query('CREATE TABLE "t %" (id BIGINT)')
    for number in range(3):
        for _ in range(2):
            process = FORK.Process(target=_killed, args=(target.url, number))
            process.start()
            await asyncio.to_thread(process.join, SECONDS_MAX)
            assert process.exitcode == -signal.SIGKILL
            assert len(target.rows()) in (100 * number, 100 * (number + 1))
        await deliver(target.options(), epoch(number, *({"id": 100 * number + n} for n in range(100))))
    assert target.rows("id") == [(n,) for n in range(300)]


def _killed(url: str, number: int) -> None:
    """Once in the middle of the epoch, and once after its commit."""
    sink = SqlSink(SqlOptions(url=url, table="t %"), "p/db")
    writer, calls = sink._writer, 0
    committed = writer.commit
    write = writer.write

    def dying_write(block: Any) -> None:
        nonlocal calls
        write(block)
        calls += 1
        if calls == 10 and number % 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_commit() -> None:
        committed()
        os.kill(os.getpid(), signal.SIGKILL)

    writer.write, writer.commit = dying_write, dying_commit  # type: ignore[method-assign]
    asyncio.run(sink.deliver(epoch(number, *({"id": 100 * number + n} for n in range(100)))))
    os.kill(os.getpid(), signal.SIGKILL)  # it was there already


@pytest.mark.process
async def test_a_server_that_is_killed_in_an_epoch_or_at_its_commit_has_each_epoch_once(server_target: Target) -> None:
    target = server_target
    target.query('CREATE TABLE "t %" (id BIGINT)')
    sink = SqlSink(target.options(), "p/db")
    write, commit = sink._writer.write, sink._writer.commit
    writes = 0

    def write_half(block: Any) -> None:
        nonlocal writes
        write(block)
        writes += 1
        if writes == 2:
            target.restart()

    def restart_and_commit() -> None:
        target.restart()
        commit()

    def commit_and_restart() -> None:
        commit()
        target.restart()
        raise SinkLost("the reply to the commit never came")

    faults = (("write", write_half), ("commit", restart_and_commit), ("commit", commit_and_restart))
    try:
        for number, (name, fault) in enumerate(faults):
            rows = [{"id": 10 * number + n} for n in range(10)]
            setattr(sink._writer, name, fault)
            with pytest.raises(SinkLost):
                await sink.deliver(epoch(number, *rows))
            sink._writer.write, sink._writer.commit = write, commit  # type: ignore[method-assign]
            with suppress(SinkLost):  # the first one may find the connection lost
                await sink.deliver(epoch(number, *rows))
            await sink.deliver(epoch(number, *rows))
            assert target.rows("id") == [(n,) for n in range(10 * number + 10)]
    finally:
        await closed(sink)


def test_files_of_a_url_are_checked_and_options_are_validated(tmp_path: Path) -> None:
    allowed = Permissions(roots=(tmp_path,))
    make_connector("sql", {"url": f"sqlite:///{tmp_path}/a.db", "table": "t"}, allowed)
    make_connector("sql", {"url": "mysql+pymysql://db/shop", "table": "t"}, allowed)
    with pytest.raises(RequestError, match="outside the directories"):
        make_connector("sql", {"url": "sqlite:////etc/a.db", "table": "t"}, allowed)
    for config in ({"url": "shop.db", "table": "t"}, {"url": "a://b", "table": "penstock_x"}):
        with pytest.raises(RequestError, match=r"not a valid table|not a valid SQLAlchemy URL"):
            parse_options(SqlOptions, config, "sql")


def test_databases_without_on_conflict_use_their_own_statement_or_delete_first() -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("n", sa.Integer))
    found = upsert(table, ["id"], ["id", "n"], "mysql")
    assert "ON DUPLICATE KEY UPDATE n = VALUES(n)" in str(found.compile(dialect=mysql.dialect()))  # type: ignore[union-attr]
    assert upsert(table, ["id"], ["id", "n"], "oracle") is None
    assert RowPlan(table, ["ID"], str.casefold, refuses=True).keys == ("id",)


def test_numbers_keep_their_digits_where_the_column_shows_them() -> None:
    columns = [sa.Column("share", sa.Float), sa.Column("price", sa.Numeric), sa.Column("text", sa.Text)]
    plan = RowPlan(sa.Table("t", sa.MetaData(), *columns), [], str, refuses=True)
    assert plan.change([b'{"share": 0.10, "text": "a"}', b'{"share": null}']).rows == [
        {"share": 0.1, "text": "a"},
        {"share": None},
    ]
    exact = b'{"share": 0.10, "price": 0.10000000000000000001, "text": 1.10}'
    (row,) = plan.change([exact]).rows
    assert row == {"share": 0.1, "price": Decimal("0.10000000000000000001"), "text": "1.10"}
    assert plan.change([b'{"share": 1e400}']).rows == [{"share": float("inf")}], "a number that is no float"
    assert plan.change([b"{}", b"{}"]).rows == [{}, {}]


def changed(kind: Any, value: str, dialect: str = "") -> Any:
    table = sa.Table("t", sa.MetaData(), sa.Column("a", kind))
    (row,) = RowPlan(table, [], str, refuses=True, dialect=dialect).change([b'{"a": %b}' % value.encode()]).rows
    return row["a"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (sa.Boolean(), '"false"', "true or false"),
        (sa.Boolean(), "2", "true or false"),
        (sa.Boolean(), "1.0", "true or false"),
        (sa.Boolean(), "[]", "true or false"),
        (sa.BigInteger(), "3.7", "a whole number, found 3.7"),
        (sa.BigInteger(), '"3.7"', "a whole number"),
        (sa.BigInteger(), "true", "a number, found true"),
        (sa.BigInteger(), '"1_000"', "a number"),
        (sa.BigInteger(), "1e999999", "a whole number"),
        (sa.BigInteger(), '"NaN"', "a whole number"),
        (mysql.TINYINT(), "0.5", "a whole number"),
        (sa.Double(), "true", "a number"),
        (sa.Double(), '""', "a number"),
        (sa.Numeric(), "false", "a number"),
        (sa.Numeric(), "{}", "a number"),
        (sa.Uuid(), "5", "a UUID, found 5"),
        (sa.Uuid(), "[1]", "a UUID"),
        (sa.Uuid(), '"x"', "badly formed"),
        (sa.LargeBinary(), '"YW*Jj"', "base64"),
        (sa.LargeBinary(), "7", "base64"),
        (sa.Date(), "20260131", "a date"),
        (sa.Time(), "true", "a time"),
        (sa.DateTime(), "1.5", "a time"),
    ],
)
def test_a_value_that_its_column_cannot_show_as_it_is_is_refused(kind: Any, value: str, expected: str) -> None:
    with pytest.raises(BadRow, match=f"its field 'a' cannot be converted: .*{expected}"):
        changed(kind, value)


def test_values_are_converted_where_nothing_is_lost() -> None:
    for kind, value, expected in (
        (sa.BigInteger(), "3.0", 3),
        (sa.BigInteger(), '"-12"', -12),
        (sa.BigInteger(), "9007199254740993", 9007199254740993),
        (sa.Boolean(), "0", False),
        (sa.Double(), '"1.5"', 1.5),
        (sa.Double(), '"-Infinity"', float("-inf")),
        (sa.Numeric(), '"0.10"', Decimal("0.10")),
        (sa.Text(), "true", "true"),
        (sa.LargeBinary(), '"YWI="', b"ab"),
        (sa.Date(), '"2026-01-31"', date(2026, 1, 31)),
    ):
        found = changed(kind, value)
        assert (found, type(found)) == (expected, type(expected))


def test_a_boolean_is_a_whole_number_where_the_database_has_no_other() -> None:
    assert changed(mysql.TINYINT(), "true", "mysql") == 1
    assert changed(mysql.TINYINT(), "7", "mysql") == 7
    for kind, dialect in ((sa.BigInteger(), "mysql"), (sa.Integer(), "sqlite")):
        with pytest.raises(BadRow, match="a number, found true"):
            changed(kind, "true", dialect)
