"""Rows of a table or a query, by a column that grows: the mode `poll` of `postgres`."""

from collections.abc import Sequence
from contextlib import suppress

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from penstock.connectors.api import Lost
from penstock.connectors.growing import NO_ROWS, Rows, Settling, TimeIds, check_positive, time_literal
from penstock.connectors.postgres.changes import row_object
from penstock.connectors.postgres.connection import connect, identifier_of, lost_if_broken
from penstock.connectors.postgres.json_values import converter
from penstock.connectors.postgres.options import PostgresOptions
from penstock.core.errors import RequestError

_INTEGERS = frozenset({20, 21, 23})
"""bigint, smallint, integer."""


class PostgresReader:
    """A Reader."""

    def __init__(self, options: PostgresOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._where = f"PostgreSQL, {options.table or 'query'}"
        self._column = Identifier("q", options.column)
        self._connection: psycopg.Connection | None = None
        self._settling = Settling()
        self._times = TimeIds()
        self._last_id = 0
        self._after: tuple[str, str] | None = None
        """The time and the tie-breaker of the last row, if there was one since `open`."""

    def open(self, last_id: int) -> None:
        with lost_if_broken(self._where):
            self._connection = connect(self._options, self._name)
            self._settling, self._times, self._after = Settling(last_id), TimeIds(last_id), None
            self._last_id = last_id
            self._check(self._connection)

    def read(self) -> Rows:
        with lost_if_broken(self._where):
            return self._read_times() if self._options.tie_breaker else self._read_numbers()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _check(self, connection: psycopg.Connection) -> None:
        """Raises RequestError if the column cannot be used."""
        oid = self._select(SQL("SELECT {} FROM {} LIMIT 0").format(self._column, self._source)).ftype(0)
        is_integer = oid in _INTEGERS
        if is_integer == bool(self._options.tie_breaker):
            raise RequestError(
                f"the column {self._options.column} is {'an' if is_integer else 'not an'} integer",
                "Set tie_breaker for a time column, and leave it out for an integer column.",
            )
        settles = self._options.settled and not self._options.tie_breaker
        if settles and connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise RequestError(
                "this server is a standby, where the transactions of writers cannot be seen",
                "Read from the primary server, or set settled to false.",
            )
        if not self._last_id:
            check_positive(self._lowest(), self._options.column)

    def _lowest(self) -> int | None:
        value = self._micros if self._options.tie_breaker else self._column
        found = self._opened().execute(SQL("SELECT min({}) FROM {}").format(value, self._source)).fetchone()
        return None if found is None else found[0]

    @property
    def _source(self) -> Composed:
        if self._options.table:
            return SQL("{} q").format(identifier_of(self._options.table))
        # The newline ends a comment.
        return SQL("({}\n) q").format(SQL(self._options.query.rstrip().removesuffix(";")))

    @property
    def _micros(self) -> Composed:
        return SQL("(extract(epoch FROM {}) * 1000000)::bigint").format(self._column)

    # Numbers.

    def _read_numbers(self) -> Rows:
        limit = self._limit()
        if limit is not None and limit <= self._last_id:
            return NO_ROWS
        upper = SQL("") if limit is None else SQL("AND {} <= {}").format(self._column, Literal(limit))
        found = self._select(
            SQL("SELECT q.*, {c} FROM {source} WHERE {c} > {after} {upper} ORDER BY {c} LIMIT {count}").format(
                c=self._column,
                source=self._source,
                after=Literal(self._last_id),
                upper=upper,
                count=Literal(self._options.batch),
            )
        )
        ids = [_integer(found, row, found.nfields - 1) for row in range(found.ntuples)]
        self._check_unique(ids)
        self._last_id = ids[-1] if ids else self._last_id
        return Rows(_objects(found, 1), ids, len(ids) < self._options.batch)

    def _check_unique(self, ids: Sequence[int]) -> None:
        if len({*ids}) < len(ids):
            raise RequestError(
                f"several rows have the same value in the column {self._options.column}",
                "Use a unique column, or a time and a tie_breaker.",
            )

    def _limit(self) -> int | None:
        """The highest value to read; None: there is no limit."""
        if not self._options.settled:
            return None
        connection = self._opened()
        # The order of these statements matters: each sees what was committed before it.
        highest = connection.execute(SQL("SELECT max({}) FROM {}").format(self._column, self._source)).fetchone()
        writers = connection.execute(_writers(self._options.table)).fetchall()
        self._settling.note((highest and highest[0]) or 0, frozenset(one for (one,) in writers))
        return self._settling.settled

    # Times.

    def _read_times(self) -> Rows:
        tie = Identifier("q", self._options.tie_breaker)
        found = self._select(
            SQL(
                "SELECT q.*, {us}, {c}::text, {tie}::text FROM {source} "
                "WHERE {c} <= now() - make_interval(secs => {lag}) AND {after} ORDER BY {c}, {tie} LIMIT {count}"
            ).format(
                us=self._micros,
                c=self._column,
                tie=tie,
                source=self._source,
                lag=Literal(self._options.lag),
                after=self._after_last(tie),
                count=Literal(self._options.batch),
            )
        )
        last = found.nfields - 1
        times = [_integer(found, row, last - 2) for row in range(found.ntuples)]
        if times:
            self._after = (_text(found, found.ntuples - 1, last - 1), _text(found, found.ntuples - 1, last))
        return Rows(_objects(found, 3), self._times.of(times), len(times) < self._options.batch)

    def _after_last(self, tie: Composable) -> Composable:
        if self._after is not None:
            time, value = self._after
            return SQL("({}, {}) > ({}, {})").format(self._column, tie, _untyped(time), _untyped(value))
        start_us = self._times.start_us()
        if start_us is None:
            return SQL("true")
        return SQL("{} >= {}").format(self._column, _untyped(time_literal(start_us)))

    def _select(self, statement: Composed) -> psycopg.pq.abc.PGresult:
        with self._opened().cursor() as cursor:
            cursor.execute(statement)
            assert cursor.pgresult is not None
            return cursor.pgresult

    def _opened(self) -> psycopg.Connection:
        if self._connection is None:
            raise Lost(f"{self._where}: it is not open")
        return self._connection


def _writers(table: str) -> Composed:
    """The transactions that have locked the table, or one of its partitions, to write to it."""
    return SQL("""
        SELECT DISTINCT l.virtualtransaction FROM pg_locks l
        WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
            AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.relation IN (
                WITH RECURSIVE tree (oid) AS (
                    SELECT {table}::regclass::oid
                    UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
                ) SELECT oid FROM tree)
    """).format(table=Literal(identifier_of(table).as_string()))


def _untyped(text: str) -> Composable:
    """A literal that gets the type of what it is compared with."""
    return SQL("'" + text.replace("'", "''") + "'")


def _objects(found: psycopg.pq.abc.PGresult, own: int) -> list[bytes]:
    """Each row as JSON, without our own columns at its end."""
    places = range(found.nfields - own)
    columns = [((found.fname(place) or b"").decode(), converter(found.ftype(place))) for place in places]
    value = found.get_value
    return [row_object(columns, [value(row, place) for place in places]) for row in range(found.ntuples)]


def _integer(found: psycopg.pq.abc.PGresult, row: int, column: int) -> int:
    return int(found.get_value(row, column) or 0)


def _text(found: psycopg.pq.abc.PGresult, row: int, column: int) -> str:
    return (found.get_value(row, column) or b"").decode()
