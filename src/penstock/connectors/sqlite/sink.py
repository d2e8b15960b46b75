"""A sink that writes rows to a table of an SQLite database: the last value of each key, or JSON objects."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from penstock.connectors.file.parts import make_directory
from penstock.connectors.sink_api import (
    YES,
    Block,
    CheckReport,
    Position,
    SinkLost,
    SinkReport,
    Transaction,
    Vote,
    accept_any,
    attempt_of,
)
from penstock.connectors.sqlite.ddl import FORMAT, FORMAT_TABLE, IN_DOUBT, LEDGER
from penstock.connectors.sqlite.layouts import JsonRows, LastValues
from penstock.connectors.sqlite.options import SqliteFormat, SqliteOptions
from penstock.connectors.tables import SchemaOf, no_schema
from penstock.core.errors import StoreInUse, UnreadableFormat

__all__ = ["SqliteFormat", "SqliteOptions", "SqliteSink"]

# A lock on a file, for what only one sink at a time may use.


class SinkLock:
    """Lasts until it is closed, or the process ends. The file stays: removing it would let two processes lock two
    files.
    """

    def __init__(self, path: Path) -> None:
        """Raises StoreInUse if another process has it."""
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreInUse(f"{path} is locked by another sink", "Stop the other worker.") from None
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


BUSY_SECONDS = 10.0
"""How long another program may lock the database before the sink counts as lost, and is tried again later."""

LEDGER_EPOCHS_MAX = 10_000
"""Epochs of each table that the ledger retains, for people to look at: one would be enough."""


class Layout(Protocol):
    """How a table stores the messages. Each call is in a transaction, except `fit` at the start."""

    def make_tables(self, database: sqlite3.Connection) -> None:
        """Creates those that are missing."""

    def fit(self, database: sqlite3.Connection) -> None:
        """Fails if the table does not fit: now, and not after a yes vote."""

    def stage(self, database: sqlite3.Connection, block: Block) -> str:
        """Returns why that is not possible, or ""."""

    def refusal(self, database: sqlite3.Connection, epoch: int) -> str:
        """Why the staged rows cannot be moved into the table as it is now, or "". Nothing stays of the trial."""

    def move(self, database: sqlite3.Connection, epoch: int) -> None: ...

    def clear(self, database: sqlite3.Connection) -> None:
        """Removes what is staged."""


def _layout(options: SqliteOptions, schema: SchemaOf) -> Layout:
    return LastValues(options.table) if options.format is SqliteFormat.LAST else JsonRows(options, schema)


class SqliteSink:
    """A BlockingSink. With last values it is idempotent: after every epoch the table has the last value per key,
    whatever was repeated. With JSON rows it is exactly once.

    A yes vote is committed together with the rows in the staging table; a commit moves them, and adds a row to the
    ledger, in one transaction. Other programs may read at any time, and write briefly.

    For last values, `event_time` is in microseconds since 1970, or NULL; `epoch` is the epoch of the value. Events
    without a key share one row: that of the empty key. For JSON rows the table's columns are read before each vote, and
    with `create` whatever it lacks is created then, from the `schema` of the rows.
    """

    def __init__(self, options: SqliteOptions, schema: SchemaOf = no_schema) -> None:
        self._options = options
        self._database: sqlite3.Connection | None = None
        self._lock: SinkLock | None = None
        self._refusal = ""
        self._layout = _layout(options, schema)

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        with self._lost():
            make_directory(self._options.path.absolute().parent)
            self._lock = SinkLock(self._options.lock_path)
            self._database = database = self._connect()
            with _transaction(database):
                self._check_format(database)
                for statement in (IN_DOUBT, LEDGER):
                    database.execute(statement)
                self._layout.make_tables(database)
            self._layout.fit(database)
            with _transaction(database):
                check(self._report(database))
                self._settle(database, decided)

    def write(self, block: Block) -> None:
        if self._refusal:
            return
        database = self._opened()
        try:
            if not database.in_transaction:
                database.execute("BEGIN IMMEDIATE")
            self._refusal = self._layout.stage(database, block)
        except sqlite3.Error as error:
            self._refuse(error)

    def prepare(self, transaction: Transaction) -> Vote:
        database = self._opened()
        if not self._refusal:
            try:
                self._vote(database, transaction)
            except sqlite3.Error as error:
                self._refuse(error)
        if not self._refusal:
            return YES
        no = Vote(False, f"{self._where}: {self._refusal}")
        self.abort()
        return no

    def commit(self, transaction: Transaction) -> None:
        with self._lost(), _transaction(self._opened()) as database:
            if self._in_doubt(database) == transaction:
                self._move(database, transaction)
            elif not self._is_done(database, transaction):
                raise SinkLost(
                    f"{self._where}: it has not voted on {transaction.id.decode()}, which is to be committed", _RESTORED
                )

    def abort(self) -> None:
        database = self._opened()
        with self._lost():
            if database.in_transaction:
                database.execute("ROLLBACK")
            self._refusal = ""
            with _transaction(database):
                self._void(database)

    def close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def _where(self) -> str:
        return f"{self._options.path}, table {self._options.table!r}"

    def _connect(self) -> sqlite3.Connection:
        # Threads: calls are made one at a time, but the thread that closes may not be the one that opened.
        database = sqlite3.connect(
            self._options.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if database.execute("PRAGMA page_count").fetchone() == (0,):
                database.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
            database.execute("PRAGMA synchronous = FULL")
        except BaseException:
            database.close()
            raise
        return database

    def _check_format(self, database: sqlite3.Connection) -> None:
        """The format of the tables that all sinks of the database share. If there are none yet, they get this
        version's.
        """
        found = database.execute("SELECT 1 FROM sqlite_master WHERE name IN ('penstock_in_doubt', 'penstock_ledger')")
        is_new = found.fetchone() is None
        database.execute(FORMAT_TABLE)
        if is_new:
            database.execute("DELETE FROM penstock_format")
            database.execute("INSERT INTO penstock_format VALUES (?)", (FORMAT,))
        (version,) = database.execute("SELECT version FROM penstock_format").fetchone() or (None,)
        if version != FORMAT:
            raise UnreadableFormat(f"the bookkeeping of sinks in {self._options.path}", version, FORMAT, _START_OVER)

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise SinkLost(f"{self._where}: it is not open")
        return self._database

    def _report(self, database: sqlite3.Connection) -> SinkReport:
        """The attempt number determines the last transaction, because epoch numbers start again after a reset."""
        rows = database.execute(
            "SELECT transaction_id, end_id FROM penstock_ledger WHERE target = ?", (self._options.table,)
        )
        last = max(rows, key=lambda row: attempt_of(row[0]), default=(b"", 0))
        in_doubt = self._in_doubt(database)
        return SinkReport(Position(*last), None if in_doubt is None else Position(in_doubt.id, in_doubt.end))

    def _settle(self, database: sqlite3.Connection, decided: bytes) -> None:
        self._refusal = ""
        in_doubt = self._in_doubt(database)
        if in_doubt is not None and in_doubt.id == decided:
            self._move(database, in_doubt)
        else:
            self._void(database)

    def _vote(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        """The vote; if it is yes, it is durable when this returns."""
        if not database.in_transaction:
            database.execute("BEGIN IMMEDIATE")
        self._refusal = self._layout.refusal(database, transaction.epoch)
        if self._refusal:
            return
        database.execute(
            "INSERT INTO penstock_in_doubt VALUES (?, ?, ?, ?, ?)",
            (self._options.table, transaction.id, transaction.epoch, transaction.start, transaction.end),
        )
        database.execute("COMMIT")

    def _in_doubt(self, database: sqlite3.Connection) -> Transaction | None:
        row = database.execute(
            "SELECT transaction_id, epoch, start_id, end_id FROM penstock_in_doubt WHERE target = ?",
            (self._options.table,),
        ).fetchone()
        return None if row is None else Transaction(*row)

    def _is_done(self, database: sqlite3.Connection, transaction: Transaction) -> bool:
        found = database.execute(
            "SELECT 1 FROM penstock_ledger WHERE target = ? AND epoch = ? AND transaction_id = ?",
            (self._options.table, transaction.epoch, transaction.id),
        )
        return found.fetchone() is not None

    def _move(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        self._layout.move(database, transaction.epoch)
        # An epoch's number is used again after the pipeline was reset.
        database.execute(
            "INSERT OR REPLACE INTO penstock_ledger VALUES (?, ?, ?, ?, ?)",
            (self._options.table, transaction.epoch, transaction.id, transaction.start, transaction.end),
        )
        database.execute(
            "DELETE FROM penstock_ledger WHERE target = ? AND epoch <= ?",
            (self._options.table, transaction.epoch - LEDGER_EPOCHS_MAX),
        )
        self._void(database)

    def _void(self, database: sqlite3.Connection) -> None:
        self._layout.clear(database)
        database.execute("DELETE FROM penstock_in_doubt WHERE target = ?", (self._options.table,))

    def _refuse(self, error: sqlite3.Error) -> None:
        """A no vote if the database works but refuses this; otherwise raises SinkLost."""
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if not is_full and not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            raise SinkLost(f"{self._where}: {error}") from error
        self._refusal = str(error)

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, StoreInUse) as error:
            raise SinkLost(f"{self._where}: {error}") from error
        except UnreadableFormat as error:
            raise SinkLost(str(error), error.hint) from error


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


_START_OVER = "Use another database for the sink, or drop the tables whose names start with penstock_."
_RESTORED = "Is the database older than the worker's data? Restore both from the same copy."
