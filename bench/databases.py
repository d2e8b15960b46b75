"""The database connectors in `script/bench connectors`, each beside the plain client library.

in sqlite              rows of a table as JSON events                  sqlite3 and msgspec
in postgres changes    messages of pgoutput as JSON events             struct, numbers by type, and msgspec: the same
                                                                       event with table, LSN and time, and its key
out sqlite             JSON events into a table, an epoch              sqlite3's `executemany` of the same rows
out sql                JSON events into a table, in one transaction    SQLAlchemy's insert of the same rows
in postgres poll       rows of a table as JSON events                  psycopg's server-side cursor and msgspec
out postgres           JSON events into a table, an epoch              psycopg's COPY, row by row
out delta, iceberg …   JSON events into a table in files, in an epoch  its library, with the same rows by msgspec

No case has a store: sources are measured up to their events, as columns or as a list with ids and keys. The server is
another process, whose time does not count; without one, the last two cases are left out.
"""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import deltalake
import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from psycopg.rows import dict_row
from pyiceberg.catalog.sql import SqlCatalog

from bench.formats import DDL, Case, event_rows
from penstock.connectors.postgres.changes import Batch, Changes
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.pgoutput import WalData
from penstock.connectors.postgres.polling import PostgresReader
from penstock.connectors.registry import make_connector
from penstock.connectors.sink_api import Block
from penstock.connectors.sql.options import SqlOptions
from penstock.connectors.sql.sink import Writer
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.connectors.sqlite.polling import SqliteReader
from penstock.connectors.tables import no_schema
from penstock.protocol.stored.bulk import Bytes, decode, encode
from penstock.protocol.stored.event import NO_TIME
from penstock.testing.frame import GivenEpoch
from tests.connectors.brokers.epochs import epoch
from tests.support.postgres_server import PostgresServer, find

BLOCK_ROWS = 1000
"""Of an epoch that a sink receives, and rows that a source reads at a time."""

_numbers = count()


ROWS_PER_EVENT = 5
"""So many for each event of the other benchmarks: an epoch is large enough that its rows are most of the work."""


@contextmanager
def database_cases(events: int, folder: Path) -> Iterator[list[Case]]:
    """With a PostgreSQL server that runs meanwhile, where there is one."""
    rows = event_rows(ROWS_PER_EVENT * events)
    values = [msgspec.json.encode(row) for row in rows]
    size = sum(map(len, values))
    cases = [
        _sqlite_in(rows, size, folder / "in.db"),
        _sqlite_out(values, size, folder),
        _changes_in(rows, size),
        _sql_out(values, size, folder),
        *_tables_out(values, size, folder),
    ]
    with ExitStack() as stack:
        if find("postgres") is not None:
            server = PostgresServer()
            stack.callback(server.stop)
            cases += _postgres(server.socket_folder, values, size)
        yield cases


def _sqlite_in(rows: list[dict[str, Any]], size: int, path: Path) -> Case:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, price REAL, at TEXT)")
        database.executemany("INSERT INTO t VALUES (:id + 1, :name, :price, :at)", rows)

    def ours() -> int:
        reader = SqliteReader(SqliteOptions(mode="poll", path=path, table="t", batch=BLOCK_ROWS))
        reader.open(0)
        try:
            count, is_all = 0, False
            while not is_all:
                found = reader.read()
                count, is_all = count + len(found.ids), found.is_all
            return count
        finally:
            reader.close()

    def plain() -> int:
        with closing(sqlite3.connect(path)) as database:
            database.row_factory = lambda cursor, row: dict(
                zip((one[0] for one in cursor.description), row, strict=True)
            )
            return len([msgspec.json.encode(row) for row in database.execute("SELECT * FROM t ORDER BY id")])

    return Case("in sqlite", size, ours, plain, events=len(rows))


def _sqlite_out(values: list[bytes], size: int, folder: Path) -> Case:
    given = epoch(0, values)

    def database() -> Path:
        path = folder / f"{next(_numbers)}.db"
        with closing(sqlite3.connect(path)) as opened:
            opened.execute(f"CREATE TABLE t ({_COLUMNS})")
        return path

    def ours() -> None:
        _table_written("sqlite", {"path": str(database()), "table": "t", "format": "json"}, given)

    def plain() -> None:
        with closing(sqlite3.connect(database())) as opened, opened:
            for start in range(0, len(values), BLOCK_ROWS):
                rows = map(msgspec.json.decode, values[start : start + BLOCK_ROWS])
                opened.executemany("INSERT INTO t VALUES (:id, :name, :price, :at)", rows)

    return Case("out sqlite", size, ours, plain, events=len(values))


_COLUMNS = "id BIGINT, name TEXT, price DOUBLE PRECISION, at TEXT"


def _postgres(server: str, values: list[bytes], size: int) -> list[Case]:
    to: dict[str, Any] = {"host": server, "user": "postgres", "dbname": "postgres"}
    with psycopg.connect(**to) as connection:
        for table in ("read", "ours", "plain"):
            connection.execute(f"CREATE TABLE {table} ({_COLUMNS})")
        connection.execute("CREATE UNIQUE INDEX ON read (id)")
    _copied(to, "read", values, first=1)
    given = epoch(0, values)

    def read() -> None:
        options = {"mode": "poll", "table": "read", "column": "id", "settled": False, "batch": BLOCK_ROWS}
        reader = PostgresReader(PostgresOptions.model_validate(to | options), "bench")
        reader.open(0)
        try:
            found, is_all = 0, False
            while not is_all:
                rows = reader.read()
                found, is_all = found + len(rows.ids), rows.is_all
            assert found == len(values)
        finally:
            reader.close()

    def read_plainly() -> None:
        with psycopg.connect(**to) as connection, connection.cursor("bench", row_factory=dict_row) as cursor:
            cursor.itersize = BLOCK_ROWS
            cursor.execute("SELECT * FROM read ORDER BY id")
            ids, found = list[int](), list[bytes]()
            for row in cursor:
                ids.append(row["id"])
                found.append(msgspec.json.encode(row))
            assert len(found) == len(values)

    return [
        Case("in postgres poll", size, read, read_plainly, events=len(values)),
        Case(
            "out postgres",
            size,
            lambda: _table_written("postgres", to | {"table": "ours", "format": "json"}, given),
            lambda: _copied(to, "plain", values),
            events=len(values),
        ),
    ]


def _copied(to: dict[str, Any], table: str, values: list[bytes], first: int = 0) -> None:
    with psycopg.connect(**to) as connection, connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
        for value in values:
            row = msgspec.json.decode(value)
            copy.write_row((row["id"] + first, row["name"], row["price"], row["at"]))


def _changes_in(rows: list[dict[str, Any]], size: int) -> Case:
    columns = [("id", 20), ("name", 25), ("price", 701), ("at", 25)]
    described = b"".join(
        bytes([n == 0]) + name.encode() + b"\0" + pack("!Ii", oid, -1) for n, (name, oid) in enumerate(columns)
    )
    relation = b"R" + pack("!I", 7) + b"public\0t\0d" + pack("!H", 4) + described
    inserts = [b"I" + pack("!IcH", 7, b"N", 4) + b"".join(map(_text, row.values())) for row in rows]
    messages = [relation, b"B" + pack("!QqI", 1 << 20, 0, 1), *inserts]

    def ours() -> int:
        changes, batch = Changes(), Batch()
        for message in messages:
            changes.feed(WalData(0, 0, message), batch)
        return len(batch.values)

    def plain() -> int:
        lsn, converts = 1 << 20, [(name, _PLAIN_TYPES.get(oid, bytes.decode)) for name, oid in columns]
        shared = {"lsn": f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", "commit_time": "2000-01-01T00:00:00.000000Z"}
        encode, ids, keys, values = msgspec.json.encode, [], [], []
        for number, message in enumerate(inserts):
            row = _plain_row(converts, message)
            ids.append(lsn + number)
            keys.append(encode({"id": row["id"]}))
            values.append(encode({"op": "insert", "table": "public.t", "before": None, "after": row, **shared}))
        return len(values)

    return Case("in postgres changes", size, ours, plain, events=len(rows))


def _text(value: object) -> bytes:
    text = str(value).encode()
    return b"t" + pack("!I", len(text)) + text


_PLAIN_TYPES: dict[int, Callable[[bytes], Any]] = {20: int, 701: float}
"""By OID; the others stay text."""


def _plain_row(converts: list[tuple[str, Callable[[bytes], Any]]], message: bytes) -> dict[str, Any]:
    at, row = 8, {}
    for name, convert in converts:
        if message[at : at + 1] == b"t":
            (size,) = unpack_from("!I", message, at + 1)
            row[name] = convert(message[at + 5 : at + 5 + size])
            at += 5 + size
        else:
            row[name] = None
            at += 1
    return row


def _sql_out(values: list[bytes], size: int, folder: Path) -> Case:
    urls = [f"sqlite:///{folder / name}.db" for name in ("ours", "plain")]
    table = sa.Table(
        "t",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger),
        sa.Column("name", sa.Text),
        sa.Column("price", sa.Float),
        sa.Column("at", sa.Text),
    )
    engines = [sa.create_engine(url, poolclass=sa.NullPool) for url in urls]
    for engine in engines:
        table.create(engine)
    blocks = [_block(values[start : start + BLOCK_ROWS]) for start in range(0, len(values), BLOCK_ROWS)]
    epochs = iter(range(1 << 30))

    def ours() -> None:
        writer = Writer(SqlOptions(url=urls[0], table="t"), "bench", no_schema)
        writer.begin(1, next(epochs))
        for block in blocks:
            writer.write(block)
        writer.commit()
        writer.close()

    def plain() -> None:
        with engines[1].begin() as connection:
            for start in range(0, len(values), BLOCK_ROWS):
                connection.execute(sa.insert(table), [*map(msgspec.json.decode, values[start : start + BLOCK_ROWS])])

    return Case("out sql", size, ours, plain, events=len(values))


def _tables_out(values: list[bytes], size: int, folder: Path) -> Iterator[Case]:
    catalog = SqlCatalog("plain", uri=f"sqlite:///{folder / 'plain.catalog'}", warehouse=str(folder / "plain.iceberg"))
    catalog.create_namespace("lake")
    first = pa.Table.from_pylist([msgspec.json.decode(values[0])])
    iceberg = catalog.create_table("lake.rows", first.schema)
    numbers = count()
    plain: dict[str, Callable[[pa.Table], object]] = {
        "parquet": lambda table: pq.write_table(table, folder / f"plain-{next(numbers)}.parquet"),
        "delta": lambda table: deltalake.write_deltalake(folder / "plain.delta", table, mode="append"),
        "iceberg": iceberg.append,
    }
    given = epoch(0, values)  # pipelines make them, elsewhere
    more = {"iceberg": {"catalog": f"sqlite:///{folder / 'ours.catalog'}", "table": "lake.rows"}}
    for kind, write in plain.items():
        config = {"path": str(folder / f"ours.{kind}"), "columns": DDL} | more.get(kind, {})
        ours = partial(_table_written, kind, config, given)
        yield Case(f"out {kind}", size, ours, partial(_plainly_written, write, values), events=len(values))


def _table_written(kind: str, config: dict[str, Any], given: GivenEpoch) -> None:
    """An epoch of its own: what a sink has written before decides where it starts."""
    made: Any = make_connector(kind, config)

    async def deliver() -> None:
        sink = made.make_sink(f"bench/{next(_numbers)}", no_schema)
        await sink.open(b"")
        assert (await sink.prepare(given)).yes
        await sink.commit(given.transaction)
        await sink.close()

    asyncio.run(deliver())


def _plainly_written(write: Callable[[pa.Table], object], values: list[bytes]) -> None:
    write(pa.Table.from_pylist([*map(msgspec.json.decode, values)]))


def _block(values: list[bytes]) -> Block:
    times = array("q", [NO_TIME]) * len(values)
    encoded = encode(Bytes.of(values), keys=Bytes.of([b""] * len(values)), event_times=times)
    return Block(decode(encoded.data), 0)
