"""The database connectors in `script/bench connectors`, each beside the plain client library.

in sqlite              rows of a table as JSON events                  sqlite3 and msgspec
in postgres changes    messages of pgoutput as JSON events             struct, numbers by type, and msgspec: the same
                                                                       event with table, LSN and time, and its key
out sql                JSON events into a table, in one transaction    SQLAlchemy's insert of the same rows
out delta, iceberg …   JSON events into a table in files, in an epoch  its library, with the same rows by msgspec

No case has a store: sources are measured up to their events, as columns or as a list with ids and keys.
"""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog

from bench.formats import DDL, Case, event_rows
from penstock.connectors.postgres.changes import Batch, Changes
from penstock.connectors.postgres.pgoutput import WalData
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

BLOCK_ROWS = 1000
"""Of an epoch that a sink receives, and rows that a source reads at a time."""

_numbers = count()


ROWS_PER_EVENT = 5
"""So many for each event of the other benchmarks: an epoch is large enough that its rows are most of the work."""


def database_cases(events: int, folder: Path) -> Iterator[Case]:
    rows = event_rows(ROWS_PER_EVENT * events)
    values = [msgspec.json.encode(row) for row in rows]
    size = sum(map(len, values))
    yield _sqlite_in(rows, size, folder / "in.db")
    yield _changes_in(rows, size)
    yield _sql_out(values, size, folder)
    yield from _tables_out(values, size, folder)


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

    return Case("in sqlite", size, ours, plain)


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

    return Case("in postgres changes", size, ours, plain)


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

    return Case("out sql", size, ours, plain)


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
        yield Case(f"out {kind}", size, ours, partial(_plainly_written, write, values))


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
