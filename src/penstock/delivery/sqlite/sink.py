"""A sink that keeps the last value of each key in a table of an SQLite database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from penstock.core.errors import RequestError, StoreInUse
from penstock.delivery.block import Block
from penstock.delivery.file.rotating_file import make_directory
from penstock.delivery.sink import YES, SinkLost, Transaction, Vote
from penstock.delivery.sink_lock import SinkLock
from penstock.delivery.sqlite.statements import Statements
from penstock.protocol.stored.layout import NO_TIME

BUSY_SECONDS = 10.0
"""How long another program may hold the database before the sink counts as lost, and is tried again later."""

LEDGER_EPOCHS_MAX = 10_000
"""Epochs that the ledger keeps of a table, for people to look at: one would do."""


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    path: Path
    """The database's file; it is made where there is none, and is then in WAL mode."""
    table: str
    """It is made where there is none. One that is there needs the four columns, and a unique key."""

    def __post_init__(self) -> None:
        if str(self.path) == ":memory:":
            raise RequestError("a database in memory forgets what it has promised", "Name a file.")
        if not self.table or "\0" in self.table or self.table.startswith(("penstock_", "sqlite_")):
            raise RequestError(f"{self.table!r} cannot be the table of a sink", "Choose another name.")

    @property
    def lock_path(self) -> Path:
        """Beside the database: one sink at a time has the table."""
        return self.path.with_name(f"{self.path.name}.{quote(self.table, safe='')}.lock")


class SqliteSink:
    """A BlockingSink, idempotent: after every epoch the table holds the last value per key, whatever was repeated.

    A vote of yes is committed together with the rows in the staging table; a commit moves them, with a line of the
    ledger, in one transaction. `event_time` is in microseconds since 1970, or NULL; `epoch` that of the value. Events
    without a key share one row: that of the empty key. Other programs may read at any time, and write shortly.
    """

    def __init__(self, options: SqliteOptions) -> None:
        self._options = options
        self._database: sqlite3.Connection | None = None
        self._lock: SinkLock | None = None
        self._refusal = ""
        self._sql = Statements(options.table)

    def open(self, decided: bytes) -> None:
        with self._lost():
            make_directory(self._options.path.absolute().parent)
            self._lock = SinkLock(self._options.lock_path)
            self._database = database = self._connect()
            with _transaction(database):
                for statement in self._sql.tables:
                    database.execute(statement)
            # It fails here if the table is another one, and not when there is a promise to keep.
            database.execute(f"EXPLAIN {self._sql.move}", (0,))
            with _transaction(database):
                self._settle(database, decided)

    def write(self, block: Block) -> None:
        if self._refusal:
            return
        database = self._opened()
        times = [None if time == NO_TIME else time for time in block.times.tolist()]
        # The last one of each key is left.
        last = dict(zip(block.keys.rows(), zip(block.values.rows(), times, strict=True), strict=True))
        try:
            if not database.in_transaction:
                database.execute("BEGIN IMMEDIATE")
            database.executemany(self._sql.stage, [(key, *rest) for key, rest in last.items()])
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
        no = Vote(False, self._refusal)
        self.abort()
        return no

    def commit(self, transaction: Transaction) -> None:
        with self._lost(), _transaction(self._opened()) as database:
            if self._in_doubt(database) == transaction:
                self._move(database, transaction)
            elif not self._is_done(database, transaction):
                raise SinkLost(f"{self._where}: there is no vote on {transaction.id.decode()}", _RESTORED)

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
        # Threads: one call at a time is made, but the one that closes may not be the one that opened.
        database = sqlite3.connect(
            self._options.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if database.execute("PRAGMA page_count").fetchone() == (0,):
                database.execute("PRAGMA journal_mode = WAL")  # readers hold nobody up
            database.execute("PRAGMA synchronous = FULL")
        except BaseException:
            database.close()
            raise
        return database

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise SinkLost(f"{self._where}: it is not open")
        return self._database

    def _settle(self, database: sqlite3.Connection, decided: bytes) -> None:
        self._refusal = ""
        in_doubt = self._in_doubt(database)
        if in_doubt is not None and in_doubt.id == decided:
            self._move(database, in_doubt)
        else:
            self._void(database)

    def _vote(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        """Durable when this returns. It has tried what a commit will do: a table may have rules of its own."""
        if not database.in_transaction:
            database.execute("BEGIN IMMEDIATE")
        database.execute("SAVEPOINT trial")
        database.execute(self._sql.move, (transaction.epoch,))
        database.execute("ROLLBACK TO trial")
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
        database.execute(self._sql.move, (transaction.epoch,))
        # An epoch's number comes again when the pipeline was reset.
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
        database.execute(self._sql.clear)
        database.execute("DELETE FROM penstock_in_doubt WHERE target = ?", (self._options.table,))

    def _refuse(self, error: sqlite3.Error) -> None:
        """A vote of no, if the database can work and does not want this; else SinkLost."""
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if not is_full and not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
            raise SinkLost(f"{self._where}: {error}") from error
        self._refusal = f"{self._where}: {error}"

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, StoreInUse) as error:
            raise SinkLost(f"{self._where}: {error}") from error


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


_RESTORED = "Is the database older than the worker's data? Restore both from the same copy."
