"""Whether PostgreSQL will take the rows of a transaction, found out by trying; and if not, which one is to blame."""

from collections.abc import Callable

import psycopg
from psycopg import errors

from penstock.connectors.postgres.options import PostgresFormat
from penstock.connectors.postgres.statements import Statements, TargetColumn
from penstock.connectors.tables import no_column

REASON_CHARACTERS_MAX = 500
"""Of a server's message: it may quote all of a row."""

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
"""The server works, and will not do it as things are."""

SAVEPOINT_TRIES_MAX = 64
"""More halvings than a transaction can have rows for."""


def refusal(connection: psycopg.Connection, statements: Statements, columns: list[TargetColumn], count: int) -> str:
    """Why the `count` staged rows cannot be moved, or "". In a transaction, in which nothing stays of the trial."""

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
    """Which field of the staged objects would be lost, or ""."""
    found = connection.execute(statements.unknown_field(columns)).fetchone()
    if found is None:
        return ""
    message_id, number, name = found
    where = f"message {message_id} (row {number + 1} of the epoch)"
    return no_column(where, name)


def described(error: psycopg.Error) -> str:
    """In the server's words."""
    found = error.diag
    text = "; ".join(part for part in (found.message_primary, found.message_detail) if part) or str(error)
    return text if len(text) <= REASON_CHARACTERS_MAX else f"{text[:REASON_CHARACTERS_MAX]}…"


def _can_refuse_nothing(connection: psycopg.Connection, statements: Statements) -> bool:
    """Then no trial is needed, which would leave dead rows in the target."""
    if statements.format is not PostgresFormat.RAW:
        return False
    return connection.execute(statements.can_refuse_nothing()).fetchone() == (True,)


def _blame(
    connection: psycopg.Connection, statements: Statements, move: Callable[[range | None], None], count: int
) -> str:
    """Name the first row that is refused; "" if none is by itself."""
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
    """By halving: what was taken stays, so that rows are tried behind those before them, and each about once."""
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
