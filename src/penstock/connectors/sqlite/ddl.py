"""The tables of an SQLite sink: the one that the pipeline's rows need, and those that all sinks of a database share."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from penstock.connectors.sqlite.options import SqliteFormat, SqliteOptions
from penstock.connectors.tables import FoundTable, RowSchema, fields_of, fitting
from penstock.protocol.api.delivery import TableDdl

# The tables that all SQLite sinks of a database share.
#
#     penstock_in_doubt     yes votes that are not decided, at most one for each table
#     penstock_ledger       the latest transactions that were committed
#     penstock_format       one row: the version of the format of these tables

FORMAT = 1
"""Tables without one are from before 0.1, when epochs were not numbered as Spark's batches are."""

FORMAT_TABLE = "CREATE TABLE IF NOT EXISTS penstock_format (version INTEGER NOT NULL)"

IN_DOUBT = """
    CREATE TABLE IF NOT EXISTS penstock_in_doubt (
        target TEXT PRIMARY KEY, transaction_id BLOB NOT NULL, epoch INTEGER NOT NULL,
        start_id INTEGER NOT NULL, end_id INTEGER NOT NULL
    )
"""

LEDGER = """
    CREATE TABLE IF NOT EXISTS penstock_ledger (
        target TEXT, epoch INTEGER, transaction_id BLOB NOT NULL,
        start_id INTEGER NOT NULL, end_id INTEGER NOT NULL, PRIMARY KEY (target, epoch)
    ) WITHOUT ROWID
"""


def quoted(name: str) -> str:
    """Names cannot be parameters of a statement."""
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Equal for names that SQLite treats as the same: only ASCII is folded."""
    return name.encode().lower().decode()


LAST_FIELDS = {"key": "BLOB", "value": "BLOB", "event_time": "INTEGER", "epoch": "INTEGER"}

ROWID_NAMES = ("rowid", "_rowid_", "oid")
"""A column may have taken one of them."""

_TYPES = dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint"), "INTEGER") | dict.fromkeys(
    ("float", "double"), "REAL"
)


class Column(NamedTuple):
    name: str
    default: str | None
    key: int
    """Its place in the primary key, from 1; 0 if it is not part of it."""
    is_writable: bool
    """False for a computed column."""


def sqlite_type(kind: str) -> str:
    """For a field of this Spark type in JSON: times are text, and lists and objects are the text of their JSON."""
    return "NUMERIC" if kind.startswith("decimal") else _TYPES.get(kind, "TEXT")


def find_columns(database: sqlite3.Connection, table: str) -> list[Column]:
    """None if the table does not exist."""
    rows = database.execute("SELECT name, dflt_value, pk, hidden FROM pragma_table_xinfo(?)", (table,))
    return [Column(name, default, key, hidden == 0) for name, default, key, hidden in rows]


def row_identity(database: sqlite3.Connection, table: str) -> list[str]:
    """Columns, quoted, that identify rows and are never null."""
    # For a table without rowids this names the primary key; for others nothing.
    keys = [name for (name,) in database.execute("SELECT name FROM pragma_index_info(?)", (table,))]
    taken = {folded(one.name) for one in find_columns(database, table)}
    return [*map(quoted, keys)] or [next(name for name in ROWID_NAMES if name not in taken)]


def ddl_statements(database: sqlite3.Connection, options: SqliteOptions, schema: RowSchema) -> list[str]:
    """Against the table as it is now. For the last values of keys the schema does not matter."""
    return fitting(*_wanted(options, schema), _found(database, options), _index(options))


def describe(options: SqliteOptions, schema: RowSchema) -> TableDdl:
    """Writes nothing, and creates no file. Raises sqlite3.Error."""
    if not options.path.exists():
        return TableDdl(options.table, False, fitting(*_wanted(options, schema), None))
    with closing(sqlite3.connect(f"{options.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        found = _found(database, options)
        statements = fitting(*_wanted(options, schema), found, _index(options))
        return TableDdl(options.table, found is not None, statements)


def _upsert(options: SqliteOptions) -> Sequence[str]:
    return ("key",) if options.format is SqliteFormat.LAST else options.upsert


def _wanted(options: SqliteOptions, schema: RowSchema) -> tuple[str, dict[str, str], list[str]]:
    if options.format is SqliteFormat.LAST:
        fields = LAST_FIELDS
    else:
        fields = {name: sqlite_type(kind) for name, kind in fields_of(schema, options.upsert, folded)}
    keys = [quoted(name) for name in _upsert(options)]
    return quoted(options.table), {quoted(name): kind for name, kind in fields.items()}, keys


def _index(options: SqliteOptions) -> str:
    return quoted("_".join((options.table, *_upsert(options), "key")))


def _found(database: sqlite3.Connection, options: SqliteOptions) -> FoundTable | None:
    columns = find_columns(database, options.table)
    if not columns:
        return None
    unique = [*_unique(database, options.table), {folded(one.name) for one in columns if one.key}]
    has_key = {*map(folded, _upsert(options))} in unique
    return FoundTable({quoted(one.name) for one in columns}, has_key, folded)


def _unique(database: sqlite3.Connection, table: str) -> list[set[str]]:
    """The columns, folded, of each unique index that covers all rows."""
    indexes = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
    columns = "SELECT name FROM pragma_index_info(?)"
    names = database.execute(indexes, (table,)).fetchall()
    return [{folded(column) for (column,) in database.execute(columns, name)} for name in names]
