"""A sink that writes rows to a table of a PostgreSQL database, exactly once, without prepared transactions there.

Needs psycopg: `pip install penstock-streams[postgres]`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors
from psycopg.sql import SQL, Identifier, Literal

from penstock.connectors.postgres import ddl
from penstock.connectors.postgres.connection import described, identifier_of
from penstock.connectors.postgres.copy_kernel import compiled
from penstock.connectors.postgres.options import PostgresFormat, PostgresOptions
from penstock.connectors.postgres.statements import (
    FORMAT,
    FORMAT_NAME,
    FORMAT_TABLE,
    IN_DOUBT_NAME,
    LEDGER_NAME,
    RAW_COLUMNS,
    Statements,
    TargetColumn,
)
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
)
from penstock.connectors.tables import (
    MISSING_TABLE_HINT,
    UNKNOWN_ROWS_HINT,
    SchemaOf,
    UnknownFields,
    no_column,
    no_schema,
)
from penstock.core.errors import UnreadableFormat
from penstock.protocol.stored.event import NO_TIME

__all__ = ["PostgresFormat", "PostgresOptions", "PostgresSink", "UnknownFields"]

# PostgreSQL's binary COPY: the columns number, message_id, event_time, key, value. The kernel encodes blocks.

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, flags, and length of the extension."""

TRAILER = b"\xff\xff"

EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000."""

TIME_US_MIN = -210_866_803_200_000_000
"""PostgreSQL's first instant, in 4714 BC; its last one is later than any event time."""

OUT_OF_RANGE = -(2**63) + 1
"""Replaces a time that PostgreSQL cannot represent: PostgreSQL rejects it."""


def message_out_of_range(block: Block) -> int | None:
    """The id of the first message whose time PostgreSQL cannot represent."""
    for row, time in enumerate(block.times.tolist()):
        if NO_TIME < time < TIME_US_MIN:
            offsets = block.values.offsets
            return block.first_id + int(offsets[row]) - int(offsets[0])
    return None


# Finds out by trying whether PostgreSQL accepts the rows of a transaction, and if not, which row is to blame.

ROW_ERRORS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.InternalError,
    errors.RaiseException,
    errors.WithCheckOptionViolation,
    errors.ProgramLimitExceeded,
    errors.StatementTooComplex,
)
"""A row is to blame: it cannot be converted, a constraint or a trigger refuses it, or it is too large."""

OTHER_REFUSALS = (psycopg.ProgrammingError, psycopg.NotSupportedError, errors.DiskFull)
"""The server works, but refuses this in its current state."""

SAVEPOINT_TRIES_MAX = 64
"""More halvings than the rows of a transaction can need."""


def refusal(connection: psycopg.Connection, statements: Statements, columns: list[TargetColumn], count: int) -> str:
    """Why the `count` staged rows cannot be moved, or "". Runs in a transaction, which keeps nothing of the trial."""

    def move(rows: range | None) -> None:
        for statement in statements.moves(columns, rows):
            connection.execute(statement)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    try:
        if _can_refuse_nothing(connection, statements):
            return ""
        with connection.transaction(force_rollback=True):
            move(None)
    except ROW_ERRORS as error:
        return _blame(connection, statements, move, count) or described(error)
    except OTHER_REFUSALS as error:
        return described(error)
    return ""


def unknown_field(connection: psycopg.Connection, statements: Statements, columns: list[TargetColumn]) -> str:
    """A field of the staged objects that has no column, or ""."""
    found = connection.execute(statements.unknown_field(columns)).fetchone()
    if found is None:
        return ""
    message_id, number, name = found
    where = f"message {message_id} (row {number + 1} of the epoch)"
    return no_column(where, name)


def _can_refuse_nothing(connection: psycopg.Connection, statements: Statements) -> bool:
    """Whether every row is accepted. Then no trial is needed, which would leave dead rows in the target."""
    if statements.format is not PostgresFormat.RAW:
        return False
    return connection.execute(statements.can_refuse_nothing()).fetchone() == (True,)


def _blame(
    connection: psycopg.Connection, statements: Statements, move: Callable[[range | None], None], count: int
) -> str:
    """Names the first row that is refused; "" if none is by itself."""
    number, error = 0, None
    with connection.transaction(force_rollback=True):
        number, error = _first_refused(connection, move, count)
    if error is None:
        return ""
    found = connection.execute(statements.message_id(number)).fetchone()
    assert found is not None
    return f"message {found[0]} (row {number + 1} of the epoch): {described(error)}"


def _first_refused(
    connection: psycopg.Connection, move: Callable[[range | None], None], count: int
) -> tuple[int, psycopg.Error | None]:
    """Find the row by bisection. Accepted rows stay, so that each row is tried after those before it, and
    about once.
    """
    first, end = 0, count
    for _ in range(SAVEPOINT_TRIES_MAX):
        middle = max((first + end) // 2, first + 1)
        try:
            with connection.transaction():
                move(range(first, middle))
        except ROW_ERRORS as error:
            if middle == first + 1:
                return first, error
            end = middle
        else:
            first = middle
        if first >= end:
            break
    return first, None


LOCK_SECONDS = 10
"""How long another session may lock what the sink needs before the sink counts as lost, and is tried again later."""

TABLES_KEY = 0x50454E5354434B
"""The key of the advisory lock for creating tables: concurrent IF NOT EXISTS statements are not safe."""

SYNCHRONOUS = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"


class PostgresSink:
    """A BlockingSink, exactly once.

    A yes vote is committed together with the rows, as they arrived, in the staging table of this sink. Before it, the
    move into the target is tried and rolled back, so triggers run twice and sequences have gaps; a raw table without
    any rules needs no trial. A commit moves the rows, and adds a row to the ledger, in one transaction.

    If a row cannot be converted or inserted, the sink votes no and names its message. It does the same for a JSON
    object with a field that is not a column, unless the options choose to drop it. Columns without a field get their
    default. The table's columns are read before each vote, so that an altered table is seen when an epoch is tried
    again. With `create`, whatever the table lacks is created then, from the `schema` of the rows.

    `name` must be the same whenever the sink runs: one connection at a time owns it.
    """

    def __init__(self, options: PostgresOptions, name: str, schema: SchemaOf = no_schema) -> None:
        self._options = options
        self._name = name
        self._schema = schema
        self._sql = Statements(name, identifier_of(options.table), options.format, options.upsert)
        self._connection: psycopg.Connection | None = None
        self._columns: list[TargetColumn] = []
        self._rows = 0
        self._refusal = ""

    def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        with self._lost():
            self._connection = connection = self._connect()
            self._lock(connection)
            with connection.transaction():
                self._make_tables(connection)
                self._create(connection)
            self._columns = self._find_columns(connection)
            # Fails here if the table does not fit, and not after a yes vote.
            for statement in self._sql.moves(self._columns) if self._columns else ():
                connection.execute(SQL("EXPLAIN {}").format(statement))
            self._settle(connection, decided, check)

    def write(self, block: Block) -> None:
        if self._refusal:
            return
        connection = self._opened()
        with self._lost():
            if not self._rows:
                connection.execute("BEGIN")
            try:
                with connection.cursor() as cursor, cursor.copy(self._sql.copy()) as copy:
                    copy.write(compiled(block, self._rows))
                self._rows += len(block)
            except (*ROW_ERRORS, errors.DiskFull) as error:
                message_id = message_out_of_range(block)
                blamed = "" if message_id is None else f"message {message_id}: "
                self._refusal = blamed + described(error)

    def prepare(self, transaction: Transaction) -> Vote:
        connection = self._opened()
        with self._lost():
            if not self._refusal and not self._rows:
                connection.execute("BEGIN")
            reason = self._refusal or self._fit(connection)
            if not reason:
                reason = refusal(connection, self._sql, self._columns, self._rows)
            if not reason and self._refuses_unknown:
                reason = unknown_field(connection, self._sql, self._columns)
            if not reason:
                connection.execute(self._sql.vote(transaction))
                connection.execute("COMMIT")
                self._rows = 0
                return YES
        self.abort()
        return Vote(False, f"table {self._options.table}: {reason}")

    def commit(self, transaction: Transaction) -> None:
        connection = self._opened()
        with self._lost(), connection.transaction():
            if self._in_doubt(connection) == transaction:
                self._move(connection, transaction)
            elif connection.execute(self._sql.is_done(transaction)).fetchone() is None:
                raise SinkLost(
                    f"{self._where}: it has not voted on {transaction.id.decode()}, which is to be committed", _RESTORED
                )

    def abort(self) -> None:
        connection = self._opened()
        self._rows, self._refusal = 0, ""
        with self._lost():
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            with connection.transaction():
                if self._in_doubt(connection) is not None:
                    self._void(connection)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    @property
    def _refuses_unknown(self) -> bool:
        options = self._options
        return options.format is PostgresFormat.JSON and options.unknown_fields is UnknownFields.REFUSE

    @property
    def _where(self) -> str:
        return f"PostgreSQL, table {self._options.table}"

    def _connect(self) -> psycopg.Connection:
        # Statements are not prepared: tables may be altered, and poolers run each transaction in another session.
        return psycopg.connect(
            **self._options.parameters,  # type: ignore[arg-type]
            application_name=f"penstock {self._name}",
            client_encoding="UTF8",
            autocommit=True,
            prepare_threshold=None,
        )

    def _opened(self) -> psycopg.Connection:
        if self._connection is None:
            raise SinkLost(f"{self._where}: it is not open")
        return self._connection

    def _lock(self, connection: psycopg.Connection) -> None:
        connection.execute(SQL("SET lock_timeout = {}").format(Literal(f"{LOCK_SECONDS}s")))
        # A vote that is not durable does not count.
        connection.execute(SYNCHRONOUS)
        try:
            connection.execute(SQL("SELECT pg_advisory_lock({})").format(Literal(self._sql.advisory_key)))
        except errors.LockNotAvailable:
            hint = "Stop the other worker, or rename its pipeline or sink."
            raise SinkLost(f"{self._where}: another session has the sink {self._name}", hint) from None

    def _make_tables(self, connection: psycopg.Connection) -> None:
        connection.execute(SQL("SELECT pg_advisory_xact_lock({})").format(Literal(TABLES_KEY)))
        self._check_format(connection)
        for table, statement in self._sql.tables():
            # IF NOT EXISTS requires the right to create the table, even if it exists.
            if not _exists(connection, table):
                connection.execute(statement)

    def _check_format(self, connection: psycopg.Connection) -> None:
        """The format of the tables that all sinks of the database share. If there are none yet, they get this
        version's.
        """
        if not _exists(connection, FORMAT_NAME):
            if any(_exists(connection, table) for table in (IN_DOUBT_NAME, LEDGER_NAME)):
                raise UnreadableFormat(f"{self._where}: the bookkeeping of sinks", None, FORMAT, _START_OVER)
            connection.execute(FORMAT_TABLE)
        (version,) = connection.execute(SQL("SELECT version FROM {}").format(FORMAT_NAME)).fetchone() or (None,)
        if version != FORMAT:
            raise UnreadableFormat(f"{self._where}: the bookkeeping of sinks", version, FORMAT, _START_OVER)

    def _fit(self, connection: psycopg.Connection) -> str:
        """Read the table as it is now: it may have been altered because of the last vote. Returns why it cannot be
        used, or "".
        """
        self._create(connection)
        self._columns = self._find_columns(connection)
        return "" if self._columns else f"it does not exist, and its columns are not known. {UNKNOWN_ROWS_HINT}"

    def _create(self, connection: psycopg.Connection) -> None:
        """Creates what the table lacks, in the open transaction, and only if something is missing: most roles may not
        create tables.
        """
        schema = self._schema() if self._options.create and self._options.format is PostgresFormat.JSON else None
        if schema is None or not ddl.statements(connection, self._options, schema):
            return
        connection.execute(SQL("SELECT pg_advisory_xact_lock({})").format(Literal(TABLES_KEY)))
        for statement in ddl.statements(connection, self._options, schema):
            connection.execute(SQL(statement))

    def _find_columns(self, connection: psycopg.Connection) -> list[TargetColumn]:
        """Empty if the table does not exist, and will be created as soon as its rows are known."""
        if self._options.format is PostgresFormat.RAW:
            return [TargetColumn(name) for name in RAW_COLUMNS]
        if ddl.exists(connection, self._options):
            return [TargetColumn(*row) for row in connection.execute(self._sql.columns())]
        if self._options.create:
            return []
        raise SinkLost(f"{self._where}: no such table", f"{MISSING_TABLE_HINT} Or use format=raw.")

    def _settle(self, connection: psycopg.Connection, decided: bytes, check: CheckReport) -> None:
        self._rows, self._refusal = 0, ""
        with connection.transaction():
            in_doubt = self._in_doubt(connection)
            voted = None if in_doubt is None else Position(in_doubt.id, in_doubt.end)
            check(SinkReport(self._committed(connection), voted))
            if in_doubt is not None and in_doubt.id == decided:
                self._move(connection, in_doubt)
            elif in_doubt is not None:
                self._void(connection)

    def _committed(self, connection: psycopg.Connection) -> Position:
        row = connection.execute(self._sql.committed()).fetchone()
        return Position(b"", 0) if row is None else Position(row[0].encode(), row[1])

    def _in_doubt(self, connection: psycopg.Connection) -> Transaction | None:
        row = connection.execute(self._sql.in_doubt()).fetchone()
        return None if row is None else Transaction(row[0].encode(), *row[1:])

    def _move(self, connection: psycopg.Connection, transaction: Transaction) -> None:
        for statement in self._sql.moves(self._columns):
            connection.execute(statement)
        connection.execute(self._sql.enter(transaction))
        connection.execute(self._sql.prune(transaction.epoch))
        self._void(connection)

    def _void(self, connection: psycopg.Connection) -> None:
        """Rows are in the staging table only together with a vote: nothing else was committed there."""
        connection.execute(self._sql.clear())
        connection.execute(self._sql.forget_vote())

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise SinkLost(f"{self._where}: {described(error)}") from error
        except UnreadableFormat as error:
            raise SinkLost(str(error), error.hint) from error


def _exists(connection: psycopg.Connection, table: Identifier) -> bool:
    found = connection.execute(SQL("SELECT to_regclass({})").format(Literal(table.as_string()))).fetchone()
    return found != (None,)


_START_OVER = "Use another database for the sink, or drop the tables whose names start with penstock_."
_RESTORED = "Is the database older than the worker's data? Restore both from the same copy."
