"""A table whose columns are the fields of JSON objects.

    TABLE                     a column for each field
    penstock_rows_TABLE       the rows of the transaction that is being written, or is in doubt

SQLite's own JSON functions do everything: true is 1, a list or an object is the text of its JSON. To them `User` and
`user` are two fields; to SQLite they are one column.
"""

import sqlite3
from dataclasses import dataclass

from penstock.connectors.sink_api import Block, SinkLost
from penstock.connectors.sqlite.ddl import ddl_statements, find_columns, folded, quoted, row_identity
from penstock.connectors.sqlite.options import SqliteOptions
from penstock.connectors.tables import (
    BOUNDS,
    MISSING_TABLE_HINT,
    REPLACES,
    UNKNOWN_ROWS_HINT,
    SchemaOf,
    UnknownFields,
    applies_replaces,
    no_column,
    nullable_keys,
)
from penstock.core.errors import RequestError
from penstock.protocol.stored.event import NO_TIME


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target that can be written."""

    name: str
    default: str | None
    """Its expression, used for a JSON object without that field."""
    is_key: bool
    """Part of the primary key: an updated row keeps it."""


class JsonRows:
    """A Layout. Every row is inserted, or with `upsert` replaces the row with the same values there; a pane deletes the
    panes that it replaces.
    """

    def __init__(self, options: SqliteOptions, schema: SchemaOf) -> None:
        self._options = options
        self._schema = schema
        self._upsert = options.upsert
        self._target, self._staged = quoted(options.table), quoted(f"penstock_rows_{options.table}")
        self._columns: list[TargetColumn] = []
        self._fields: dict[str, str] = {}
        """How the staged rows spell a column's field, by the column's folded name."""
        self._identity: list[str] = []
        self._count = 0

    def make_tables(self, database: sqlite3.Connection) -> None:
        columns = "number INTEGER PRIMARY KEY, message_id INTEGER NOT NULL, value TEXT NOT NULL"
        database.execute(f"CREATE TABLE IF NOT EXISTS {self._staged} ({columns})")
        self._create(database)

    def fit(self, database: sqlite3.Connection) -> None:
        """Read the columns of the table as it is now, and how the staged rows name them. Raises SinkLost."""
        found = find_columns(database, self._options.table)
        self._columns = [TargetColumn(one.name, one.default, one.key > 0) for one in found if one.is_writable]
        self._fields = self._field_names(database)
        self._identity = row_identity(database, self._options.table) if applies_replaces(self._upsert) else []
        if self._columns:
            for statement in self._moves(None):
                database.execute(f"EXPLAIN {statement}")
        elif not self._options.create:
            raise SinkLost(f"{self._options.path}: table {self._options.table!r} not found", MISSING_TABLE_HINT)

    def stage(self, database: sqlite3.Connection, block: Block) -> str:
        rows, at = [], block.first_id
        for value in block.values.rows():
            try:
                rows.append((self._count, at, bytes(value).decode()))
            except UnicodeDecodeError:
                return f"message {at} is not UTF-8"
            self._count += 1
            at += len(value)
        database.executemany(f"INSERT INTO {self._staged} VALUES (?, ?, ?)", rows)  # noqa: S608
        return ""

    def refusal(self, database: sqlite3.Connection, epoch: int) -> str:
        """Why the staged rows cannot be moved, or "": found out by trying."""
        reason = self._not_an_object(database)
        if reason:
            return reason
        self._create(database)
        self.fit(database)
        if not self._columns:
            return f"it does not exist, and its columns are not known. {UNKNOWN_ROWS_HINT}"
        return self._unknown_field(database) or self._trial(database, epoch)

    def move(self, database: sqlite3.Connection, epoch: int) -> None:  # noqa: ARG002
        for statement in self._moves(None):
            database.execute(statement)

    def clear(self, database: sqlite3.Connection) -> None:
        database.execute(f"DELETE FROM {self._staged}")  # noqa: S608
        self._count = 0

    def _create(self, database: sqlite3.Connection) -> None:
        schema = self._schema() if self._options.create else None
        if schema is not None:
            for statement in ddl_statements(database, self._options, schema):
                database.execute(statement)

    def _not_an_object(self, database: sqlite3.Connection) -> str:
        # In this order: json_type fails for what is not JSON.
        found = database.execute(f"""
            SELECT message_id, number FROM {self._staged}
            WHERE CASE WHEN json_valid(value) THEN json_type(value) <> 'object' ELSE true END ORDER BY number LIMIT 1
        """).fetchone()  # noqa: S608
        return "" if found is None else f"{_row(*found)}: it is not a JSON object"

    def _field_names(self, database: sqlite3.Connection) -> dict[str, str]:
        names = [column.name for column in self._columns]
        found = database.execute(
            f"""
            SELECT DISTINCT f.key FROM {self._staged} s, json_each(s.value) f
            WHERE f.key COLLATE NOCASE IN ({", ".join("?" * len(names))})
            """,  # noqa: S608
            names,
        )
        # A field with exactly the column's name wins over one that differs in case, which is then refused as unknown.
        return {folded(key): key for (key,) in sorted(found, key=lambda one: (one[0] in names, one[0]))}

    def _unknown_field(self, database: sqlite3.Connection) -> str:
        if self._options.unknown_fields is UnknownFields.IGNORE:
            return ""
        known = [*self._fields.values()] + ([REPLACES] if applies_replaces(self._upsert) else [])
        found = database.execute(
            f"""
            SELECT s.message_id, s.number, f.key FROM {self._staged} s, json_each(s.value) f
            WHERE f.key NOT IN ({", ".join("?" * len(known))}) ORDER BY s.number LIMIT 1
            """,  # noqa: S608
            known,
        ).fetchone()
        return "" if found is None else no_column(_row(*found[:2]), found[2])

    def _trial(self, database: sqlite3.Connection, epoch: int) -> str:
        database.execute("SAVEPOINT trial")
        try:
            self.move(database, epoch)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            database.execute("ROLLBACK TO trial")
            return self._blame(database) or str(error)
        finally:
            database.execute("ROLLBACK TO trial")
        return ""

    def _blame(self, database: sqlite3.Connection) -> str:
        """Names the first row that is refused, trying them one by one; "" if none is by itself."""
        rows = database.execute(f"SELECT message_id, number FROM {self._staged} ORDER BY number").fetchall()  # noqa: S608
        for message_id, number in rows:
            try:
                for statement in self._moves(number):
                    database.execute(statement)
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                return f"{_row(message_id, number)}: {error}"
        return ""

    # The statements.

    def _moves(self, number: int | None) -> list[str]:
        """For all rows, or for the one with this number."""
        insert = self._insert(number)
        return [self._delete_replaced(number), insert] if applies_replaces(self._upsert) else [insert]

    def _insert(self, number: int | None) -> str:
        names = ", ".join(quoted(column.name) for column in self._columns)
        values = ", ".join(map(self._value, self._columns))
        later, wanted = self._later(number) if applies_replaces(self._upsert) else ("", "true")
        return f"""
            INSERT INTO {self._target} ({names})
            SELECT {values} FROM {self._staged} s {later}
            WHERE {_only(number)} AND {wanted} ORDER BY s.number {self._on_conflict()}
        """  # noqa: S608

    def _later(self, number: int | None) -> tuple[str, str]:
        """A join with the last row that replaces one, and the rows to insert: those that no later row replaces.

        Grouped, so that SQLite computes it once and looks the keys up: otherwise it would parse all JSON again for each
        row.
        """
        keys = ", ".join(map(quoted, self._upsert))
        last = f"SELECT max(penstock_number) AS penstock_number, {keys} FROM ({self._replaced(number)}) GROUP BY {keys}"  # noqa: S608
        same = " AND ".join(f"p.{quoted(name)} {self._same(name)} {self._field(name)}" for name in self._upsert)
        return f"LEFT JOIN ({last}) p ON {same}", "(p.penstock_number IS NULL OR p.penstock_number <= s.number)"

    def _on_conflict(self) -> str:
        if not self._upsert:
            return ""
        keys = {*map(folded, self._upsert)}
        others = [one.name for one in self._columns if folded(one.name) not in keys and not one.is_key]
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
        action = f"UPDATE SET {changes}" if others else "NOTHING"
        return f"ON CONFLICT ({', '.join(map(quoted, self._upsert))}) DO {action}"

    def _delete_replaced(self, number: int | None) -> str:
        same = " AND ".join(f"t.{quoted(name)} {self._same(name)} p.{quoted(name)}" for name in self._upsert)
        rows = ", ".join(f"t.{name}" for name in self._identity)
        # CROSS: iterate over what is replaced, and look it up in the target, which may be large.
        found = f"SELECT {rows} FROM ({self._replaced(number)}) p CROSS JOIN {self._target} t ON {same}"  # noqa: S608
        return f"DELETE FROM {self._target} WHERE ({', '.join(self._identity)}) IN ({found})"  # noqa: S608

    def _replaced(self, number: int | None) -> str:
        """The keys of panes that rows replace, with the numbers of these rows: a row's own key with the bounds that it
        names. A row that keeps its key replaces itself by the upsert, unless a part of the key is null: unique indexes
        do not treat two nulls as equal.
        """
        keys = {name: _field(name, "e.value") if name in BOUNDS else self._field(name) for name in self._upsert}
        selected = ", ".join(f"{text} AS {quoted(name)}" for name, text in keys.items())
        moved = " OR ".join(f"{text} IS NOT {self._field(name)}" for name, text in keys.items())
        own = ", ".join(map(self._field, self._upsert))
        has_null = " OR ".join([f"{self._field(name)} IS NULL" for name in nullable_keys(self._upsert)] or ["false"])
        place = _literal(_path(REPLACES))
        return f"""
            SELECT s.number AS penstock_number, {selected} FROM {self._staged} s, json_each(s.value, {place}) e
            WHERE {_only(number)} AND json_type(s.value, {place}) = 'array' AND e.type = 'object' AND ({moved})
            UNION ALL SELECT s.number, {own} FROM {self._staged} s WHERE {_only(number)} AND ({has_null})
        """  # noqa: S608

    def _same(self, name: str) -> str:
        return "IS" if name in nullable_keys(self._upsert) else "="

    def _value(self, column: TargetColumn) -> str:
        field = self._field(column.name)
        if column.default is None:
            return field
        place = _literal(_path(self._field_name(column.name)))
        return f"CASE WHEN json_type(s.value, {place}) IS NULL THEN ({column.default}) ELSE {field} END"

    def _field(self, column: str) -> str:
        return _field(self._field_name(column))

    def _field_name(self, column: str) -> str:
        return self._fields.get(folded(column), column)


def _row(message_id: int, number: int) -> str:
    return f"message {message_id} (row {number + 1} of the epoch)"


def _only(number: int | None) -> str:
    return "true" if number is None else f"s.number = {number}"


def _field(name: str, of: str = "s.value") -> str:
    return f"json_extract({of}, {_literal(_path(name))})"


def _path(name: str) -> str:
    """The path of a field. SQLite cannot express a quotation mark in it."""
    if '"' in name:
        raise RequestError(
            f"the column {name!r} has a quotation mark in its name: SQLite's JSON functions cannot name such a field"
        )
    return f'$."{name}"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# A table with the last value of each key.
#
#     TABLE                     key, value, event_time, epoch
#     penstock_staged_TABLE     the rows of the transaction that is being written, or is in doubt


class LastValues:
    """A Layout."""

    def __init__(self, table: str) -> None:
        target, staged = quoted(table), quoted(f"penstock_staged_{table}")
        columns = "key BLOB PRIMARY KEY, value BLOB, event_time INTEGER"
        self._tables = (
            f"CREATE TABLE IF NOT EXISTS {target} ({columns}, epoch INTEGER)",
            f"CREATE TABLE IF NOT EXISTS {staged} ({columns}) WITHOUT ROWID",
        )
        self._stage = f"INSERT OR REPLACE INTO {staged} VALUES (?, ?, ?)"  # noqa: S608 (quoted, as all below)
        self._move = f"""
            INSERT INTO {target} (key, value, event_time, epoch)
            SELECT key, value, event_time, ? FROM {staged} WHERE true
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, event_time = excluded.event_time, epoch = excluded.epoch
        """  # noqa: S608
        self._clear = f"DELETE FROM {staged}"  # noqa: S608

    def make_tables(self, database: sqlite3.Connection) -> None:
        for statement in self._tables:
            database.execute(statement)

    def fit(self, database: sqlite3.Connection) -> None:
        database.execute(f"EXPLAIN {self._move}", (0,))

    def stage(self, database: sqlite3.Connection, block: Block) -> str:
        times = [None if time == NO_TIME else time for time in block.times.tolist()]
        # Only the last row of each key is left.
        last = dict(zip(block.keys.rows(), zip(block.values.rows(), times, strict=True), strict=True))
        database.executemany(self._stage, [(key, *rest) for key, rest in last.items()])
        return ""

    def refusal(self, database: sqlite3.Connection, epoch: int) -> str:
        """Tries what a commit will do: a table may have its own rules."""
        database.execute("SAVEPOINT trial")
        self.move(database, epoch)
        database.execute("ROLLBACK TO trial")
        return ""

    def move(self, database: sqlite3.Connection, epoch: int) -> None:
        database.execute(self._move, (epoch,))

    def clear(self, database: sqlite3.Connection) -> None:
        database.execute(self._clear)
