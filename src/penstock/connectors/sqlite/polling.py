"""Rows of a table by a column that grows: the mode `poll` of `sqlite`."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from penstock.connectors.api import Lost
from penstock.connectors.growing import Rows, check_positive
from penstock.connectors.sqlite.ddl import quoted
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.core.errors import RequestError

_encode = msgspec.json.Encoder().encode

BUSY_SECONDS = 10.0
"""How long another program may lock the database before it is tried again later."""


class SqliteReader:
    """A Reader. It never writes: it opens the database for reading only."""

    def __init__(self, options: SqliteOptions) -> None:
        self._options = options
        self._database: sqlite3.Connection | None = None
        self._last = 0
        self._column = quoted(options.column)

    def open(self, last_id: int) -> None:
        with self._lost():
            uri = f"{self._options.path.absolute().as_uri()}?mode=ro"
            self._database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            self._last = last_id
            if not last_id:
                wanted = f"SELECT min({self._column}) FROM {quoted(self._options.table)}"  # noqa: S608  quoted
                check_positive(_integer(self._database.execute(wanted).fetchone()[0]), self._options.column)

    def read(self) -> Rows:
        assert self._database is not None
        with self._lost():
            cursor = self._database.execute(
                f"SELECT *, {self._column} FROM {quoted(self._options.table)} WHERE {self._column} > ? "  # noqa: S608
                f"ORDER BY {self._column} LIMIT ?",
                (self._last, self._options.batch),
            )
            names = [column[0] for column in cursor.description[:-1]]
            found = cursor.fetchall()
            ids = [_integer(row[-1]) or 0 for row in found]
            if len({*ids}) < len(ids):
                raise RequestError(
                    f"several rows have the same value in the column {self._options.column}", "Use a unique column."
                )
            # The last value of a row is the column once more: zip stops before it.
            values = [_encode(dict(zip(names, row, strict=False))) for row in found]
            self._last = ids[-1] if ids else self._last
            return Rows(values, ids, len(ids) < self._options.batch)

    def close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            where = f"{self._options.path}, table {self._options.table}"
            raise Lost(f"{where}: {error}", "It is retried automatically.") from error
        except RequestError as error:
            raise Lost(f"{self._options.path}, table {self._options.table}: {error}", error.hint) from error


def _integer(value: object) -> int | None:
    """Raises RequestError for anything else: SQLite's columns can contain any type."""
    if value is None or isinstance(value, int):
        return value
    raise RequestError("the increasing column has a value that is not an integer", "Use an integer column.")
