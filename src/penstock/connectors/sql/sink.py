"""A sink that writes rows to a table by SQLAlchemy, an epoch and its number in one transaction.

Needs SQLAlchemy and the database's driver: `pip install penstock-streams[sql]`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from penstock.connectors.sink_api import Block, Epoch, SinkLost, rows_of
from penstock.connectors.sql.ddl import engine_of, folding, statements
from penstock.connectors.sql.options import SqlOptions
from penstock.connectors.sql.rows import BadRow, Fields, Key, NotAnObject, RowPlan, UnknownField
from penstock.connectors.tables import (
    MISSING_TABLE_HINT,
    UNKNOWN_ROWS_HINT,
    SchemaOf,
    UnknownFields,
    no_column,
    no_schema,
)
from penstock.connectors.threaded import OneThread
from penstock.core.errors import PenstockError, UnreadableFormat

FORMAT = 1
"""The version of the table of epochs."""

EPOCHS = sa.Table(
    "penstock_sql_epochs",
    sa.MetaData(),
    sa.Column("sink", sa.String(255), primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)
"""The last epoch of each sink."""

_START_OVER = f"Drop the table {EPOCHS.name} if the sink may write its last epoch again."

REASON_CHARACTERS_MAX = 500
"""How much of a database's message is shown: it may quote a whole row."""


class SqlSink:
    """A NonVotingSink, exactly once where the table has transactions: an epoch that was committed is left out."""

    def __init__(self, options: SqlOptions, name: str, schema: SchemaOf = no_schema) -> None:
        self._writer = Writer(options, name, schema)
        self._thread = OneThread(name)

    async def deliver(self, epoch: Epoch) -> None:
        _, incarnation, number = epoch.name.rsplit(":", 2)
        is_new = await self._thread.call(self._writer.begin, int(incarnation), int(number))
        async for block in epoch.blocks():
            if is_new:
                await self._thread.call(self._writer.write, block)
        if is_new:
            await self._thread.call(self._writer.commit)

    async def close(self) -> None:
        """Returns immediately; a call that is running ends before the connection is closed."""
        self._thread.stop(self._writer.close)


class Writer:
    """Blocking, one call at a time. After an error everything of the epoch is rolled back, and it starts over."""

    def __init__(self, options: SqlOptions, name: str, schema: SchemaOf) -> None:
        self._options = options
        self._name = name
        self._schema = schema
        self._where = f"table {options.table}"
        self._engine: sa.Engine | None = None
        self._connection: sa.Connection | None = None
        self._table: sa.Table | None = None
        self._plan: RowPlan | None = None
        self._before: sa.Row[Any] | None = None
        self._now = (0, 0)
        self._count = 0

    def begin(self, incarnation: int, epoch: int) -> bool:
        """False: the epoch was committed already."""
        self._now, self._count = (incarnation, epoch), 0
        with self._lost():
            self._rollback()
            connection = self._connected()
            self._prepare(connection)
            self._before = connection.execute(sa.select(EPOCHS).where(self._is_own).with_for_update()).one_or_none()
            if self._before is not None and self._before.format != FORMAT:
                raise UnreadableFormat(f"the table {EPOCHS.name}", self._before.format, FORMAT, _START_OVER)
            done = None if self._before is None else (self._before.incarnation, self._before.epoch)
            if done is not None and done >= self._now:
                connection.rollback()
                return False
            return True

    def write(self, block: Block) -> None:
        with self._lost():
            self._write(block)
            self._count += len(block)

    def commit(self) -> None:
        """Together with the number of the epoch, if nothing else has committed one since."""
        with self._lost():
            connection = self._connected()
            values = {"format": FORMAT, "incarnation": self._now[0], "epoch": self._now[1]}
            if self._before is None:
                connection.execute(sa.insert(EPOCHS).values(sink=self._name, **values))
            else:
                same = (EPOCHS.c.incarnation == self._before.incarnation) & (EPOCHS.c.epoch == self._before.epoch)
                if connection.execute(sa.update(EPOCHS).where(self._is_own, same).values(**values)).rowcount != 1:
                    raise SinkLost(f"{self._where}: another worker has written an epoch of this sink in the meantime")
            connection.commit()

    def close(self) -> None:
        with suppress(sa.exc.SQLAlchemyError):
            if self._connection is not None:
                self._connection.close()
            if self._engine is not None:
                self._engine.dispose()
        self._connection = self._engine = self._table = self._plan = None

    # The table.

    @property
    def _is_own(self) -> sa.ColumnElement[bool]:
        return EPOCHS.c.sink == self._name

    def _connected(self) -> sa.Connection:
        if self._connection is None:
            self._engine = engine_of(self._options)
            self._connection = self._engine.connect()
        return self._connection

    def _prepare(self, connection: sa.Connection) -> None:
        """The tables as they are now: the target may have been altered because of the last error."""
        EPOCHS.create(connection, checkfirst=True)
        schema = self._schema() if self._options.create else None
        for statement in () if schema is None else statements(connection, self._options, schema)[1]:
            connection.exec_driver_sql(statement)
        connection.commit()
        if not sa.inspect(connection).has_table(self._options.table_name, self._options.schema_name):
            hint = UNKNOWN_ROWS_HINT if self._options.create else MISSING_TABLE_HINT
            raise SinkLost(f"{self._where}: no such table", hint)
        self._table = sa.Table(
            self._options.table_name, sa.MetaData(), schema=self._options.schema_name, autoload_with=connection
        )
        connection.rollback()
        refuses = self._options.unknown_fields is UnknownFields.REFUSE
        fold = folding(connection.dialect)
        missing = [name for name in self._options.upsert if fold(name) not in map(fold, self._table.columns.keys())]
        if missing:
            raise SinkLost(f"{self._where}: no column {missing[0]!r}, which upsert names", MISSING_TABLE_HINT)
        self._plan = RowPlan(self._table, self._options.upsert, fold, refuses=refuses, dialect=connection.dialect.name)

    # The rows.

    def _write(self, block: Block) -> None:
        assert self._plan is not None
        connection = self._connected()
        try:
            change = self._plan.change(block.values.rows())
        except BadRow:
            raise self._first_bad(block) from None
        for key in change.deletions:
            connection.execute(self._deletion(key))
        for run in change.runs:
            self._insert(connection, tuple(run[0]), run)

    def _first_bad(self, block: Block) -> SinkLost:
        """Which row it is: found by trying them one by one."""
        assert self._plan is not None
        for number, row in enumerate(rows_of(block)):
            try:
                self._plan.change([row.value])
            except NotAnObject as error:
                return SinkLost(f"{self._where}: message {row.id}: {error}")
            except BadRow as error:
                where = f"{self._where}: row {self._count + number + 1} of the epoch"
                is_unknown = isinstance(error, UnknownField)
                return SinkLost(no_column(where, str(error)) if is_unknown else f"{where}: {error}")
        raise AssertionError("no single row is bad")

    def _insert(self, connection: sa.Connection, fields: tuple[str, ...], rows: list[Fields]) -> None:
        assert self._table is not None
        assert self._plan is not None
        if not self._plan.keys:
            connection.execute(sa.insert(self._table), rows)
            return
        statement = upsert(self._table, self._plan.keys, fields, connection.dialect.name)
        if statement is None:
            for row in rows:
                connection.execute(self._deletion(tuple(row.get(name) for name in self._plan.keys)))
        connection.execute(sa.insert(self._table) if statement is None else statement, rows)

    def _deletion(self, key: Key) -> sa.Delete:
        assert self._table is not None
        assert self._plan is not None
        return sa.delete(self._table).where(
            *(self._table.c[name] == value for name, value in zip(self._plan.keys, key, strict=True))
        )

    def _rollback(self) -> None:
        if self._connection is not None:
            self._connection.rollback()

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            self.close()
            raise SinkLost(f"{self._where}: {_described(error)}") from error
        except SinkLost:
            self.close()
            raise
        except PenstockError as error:
            self.close()
            raise SinkLost(f"{self._where}: {error}", error.hint or None) from error


def upsert(table: sa.Table, keys: Sequence[str], fields: Sequence[str], dialect: str) -> sa.Insert | None:
    """An INSERT that replaces rows with the same keys; None if the dialect has none that SQLAlchemy knows."""
    others = [name for name in fields if name not in keys]
    match dialect:
        case "postgresql" | "sqlite":
            insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
            if not others:
                return insert.on_conflict_do_nothing(index_elements=[*keys])
            changes = {name: insert.excluded[name] for name in others}
            return insert.on_conflict_do_update(index_elements=[*keys], set_=changes)
        case "mysql" | "mariadb":
            found = mysql.insert(table)
            names = others or [keys[0]]
            return found.on_duplicate_key_update({name: found.inserted[name] for name in names})
    return None


def _described(error: sa.exc.SQLAlchemyError) -> str:
    """The database's own message, without the statement and its values."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX]}…"
