"""Tables of SQL sinks for tests, the same in both databases."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from psycopg.sql import SQL

from penstock.connectors.postgres import ddl as postgres_ddl
from penstock.connectors.postgres.connection import identifier_of
from penstock.connectors.postgres.options import PostgresOptions
from penstock.connectors.postgres.sink import PostgresSink
from penstock.connectors.sqlite import ddl as sqlite_ddl
from penstock.connectors.sqlite.options import SqliteFormat, SqliteOptions
from penstock.connectors.sqlite.sink import SqliteSink
from penstock.connectors.tables import RowSchema, SchemaOf, no_schema
from penstock.connectors.threaded import BlockingSink
from penstock.protocol.api.delivery import TableDdl
from tests.connectors.stores.kinds import PostgresStore, SqliteStore
from tests.connectors.stores.rounds import Round
from tests.delivery.fake_epoch import Row


class Table(Protocol):
    name: str
    """Quoted."""

    def sink(self, schema: SchemaOf = no_schema, **options: Any) -> BlockingSink: ...

    def query(self, statement: str) -> list[Any]: ...

    def ddl(self, schema: RowSchema, **options: Any) -> TableDdl: ...


class PostgresTable:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.name = identifier_of(self._options().table).as_string()

    def _options(self, **options: Any) -> PostgresOptions:
        return self._store.options(**options)

    def sink(self, schema: SchemaOf = no_schema, **options: Any) -> PostgresSink:
        return PostgresSink(self._options(**options), self._store.table, schema)

    def query(self, statement: str) -> list[Any]:
        return self._store.query(SQL(statement))

    def ddl(self, schema: RowSchema, **options: Any) -> TableDdl:
        return postgres_ddl.describe(self._options(**options), schema)


class SqliteTable:
    name = '"the rows"'

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = SqliteStore(str(path))

    def _options(self, **options: Any) -> SqliteOptions:
        return SqliteOptions(path=self.path, table="the rows", format=SqliteFormat.JSON, **options)

    def sink(self, schema: SchemaOf = no_schema, **options: Any) -> SqliteSink:
        return SqliteSink(self._options(**options), schema)

    def query(self, statement: str) -> list[Any]:
        return self._store.query(statement)

    def ddl(self, schema: RowSchema, **options: Any) -> TableDdl:
        return sqlite_ddl.describe(self._options(**options), schema)


S = TypeVar("S", bound=BlockingSink)


@contextmanager
def opened(sink: S, decided: bytes = b"") -> Iterator[S]:
    try:
        sink.open(decided)
        yield sink
    finally:
        sink.close()


def epoch(number: int, values: Sequence[str | bytes]) -> Round:
    """Message ids matter only in that they increase."""
    rows = [Row(value if isinstance(value, bytes) else value.encode()) for value in values]
    return Round(number, rows, number * 100_000)
