"""The stores under test, each with what a reader finds in it, and what it should find."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.sql import SQL, Identifier

from penstock.connectors.file import read_committed_parts
from penstock.connectors.file.options import FileOptions
from penstock.connectors.file.sink import FileSink
from penstock.connectors.postgres.sink import PostgresFormat, PostgresOptions, PostgresSink
from penstock.connectors.sqlite.sink import SqliteOptions, SqliteSink
from penstock.connectors.threaded import BlockingSink
from penstock.protocol.stored import NO_TIME
from tests.connectors.stores.lakes import LAKES
from tests.connectors.stores.rounds import Round


class Store(Protocol):
    kind: str
    place: str
    """With the kind, all that another process needs to know of it."""

    def sink(self) -> BlockingSink: ...

    def found(self) -> Any:
        """What is committed, as a reader sees it."""

    def expected(self, rounds: Sequence[Round]) -> Any:
        """The same, if exactly these rounds were committed."""

    def sibling(self, name: str) -> "Store":
        """Another store, which is empty."""


def written_to(folder: str | Path, **given: Any) -> FileOptions:
    return FileOptions.model_validate({"mode": "write", "path": str(folder), **given})


class FileStore:
    kind = "file"

    def __init__(self, place: str) -> None:
        self.place = place

    def sink(self) -> FileSink:
        return FileSink(FileOptions(mode="write", path=self.place, rotate_bytes=1))

    def found(self) -> bytes:
        parts = read_committed_parts(self.place)
        at = 0
        for part in parts:
            assert part.start == at
            at += part.size
        return b"".join(part.path.read_bytes()[: part.size] for part in parts)

    def expected(self, rounds: Sequence[Round]) -> bytes:
        return b"".join(row.value + b"\n" for round_ in rounds for row in round_.rows)

    def sibling(self, name: str) -> "FileStore":
        return FileStore(f"{self.place}.{name}")


class OneFileStore(FileStore):
    kind = "one file"

    def sink(self) -> FileSink:
        return FileSink(FileOptions(mode="write", path=self.place, format="frames"))

    def expected(self, rounds: Sequence[Round]) -> bytes:
        rows = [row.value for round_ in rounds for row in round_.rows]
        return b"".join(len(row).to_bytes(4, "big") + row for row in rows)

    def sibling(self, name: str) -> "OneFileStore":
        return OneFileStore(f"{self.place}.{name}")


class SqliteStore:
    kind = "sqlite"
    table = 'last "values"'

    def __init__(self, place: str) -> None:
        self.place = place

    def sink(self) -> SqliteSink:
        return SqliteSink(SqliteOptions(path=Path(self.place), table=self.table))

    def query(self, statement: str) -> list[Any]:
        database = sqlite3.connect(self.place)
        try:
            return database.execute(statement).fetchall()
        finally:
            database.close()

    def found(self) -> Any:
        rows = self.query('SELECT key, value, event_time, epoch FROM "last ""values"""')
        ledger = self.query("SELECT epoch, start_id, end_id FROM penstock_ledger ORDER BY epoch")
        return {key: value for key, *value in rows}, ledger

    def expected(self, rounds: Sequence[Round]) -> Any:
        last = {
            row.key: [row.value, None if row.time_us == NO_TIME else row.time_us, round_.number]
            for round_ in rounds
            for row in round_.rows
        }
        return last, [(done.number, done.transaction.start, done.transaction.end) for done in rounds]

    def sibling(self, name: str) -> "SqliteStore":
        return SqliteStore(f"{self.place}.{name}")


class PostgresStore:
    """`place` is the directory of the server's socket, and the table's name, which is the sink's as well."""

    kind = "postgres"

    def __init__(self, place: str) -> None:
        self.place = place
        self.host, _, self.table = place.rpartition("|")

    def options(self, **given: Any) -> PostgresOptions:
        return PostgresOptions(host=self.host, user="postgres", dbname="postgres", table=self.table, **given)

    def sink(self) -> PostgresSink:
        return PostgresSink(self.options(format=PostgresFormat.RAW), self.table)

    def query(self, statement: Any) -> list[Any]:
        with psycopg.connect(host=self.host, user="postgres", dbname="postgres", autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[Any]:
        return self.query(SQL("SELECT * FROM {}").format(Identifier(self.table)))

    def found(self) -> Any:
        micros = "(extract(epoch FROM event_time) * 1000000)::bigint"
        # An empty value has the id of the one after it.
        wanted = "SELECT message_id, {}, key, value FROM {} ORDER BY message_id, length(value)"
        rows = SQL(wanted).format(SQL(micros), Identifier(self.table))
        return self.query(rows), self.ledger()

    def ledger(self) -> list[Any]:
        wanted = "SELECT epoch, start_id, end_id FROM penstock_ledger WHERE sink = {} ORDER BY epoch"
        return self.query(SQL(wanted).format(self.table))

    def expected(self, rounds: Sequence[Round]) -> Any:
        rows, at = [], 0
        for row in [row for round_ in rounds for row in round_.rows]:
            rows.append((at, None if row.time_us == NO_TIME else row.time_us, row.key, row.value))
            at += len(row.value)
        return rows, [(done.number, done.transaction.start, done.transaction.end) for done in rounds]

    def sibling(self, name: str) -> "PostgresStore":
        return PostgresStore(f"{self.place}.{name}".replace(".", "_"))


STORES: tuple[type[Any], ...] = (FileStore, OneFileStore, SqliteStore, PostgresStore, *LAKES.values())
KINDS: dict[str, type[Any]] = {store.kind: store for store in STORES}
