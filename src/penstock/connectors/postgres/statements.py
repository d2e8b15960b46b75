"""The tables of a PostgreSQL sink, and the statements that name them.

    TABLE                     where the rows go
    penstock_staged_SINK      the rows of the transaction that is being written, or is in doubt
    penstock_in_doubt         yes votes that are not decided, at most one for each sink
    penstock_ledger           the latest transactions that were committed

All but TABLE are in the first schema of the search path. No statement has parameters, because then a `%` in a name or
in a column's default would be special: values are quoted as literals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import LiteralString

from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.connectors.postgres.options import PostgresFormat
from penstock.connectors.sink_api import Transaction
from penstock.connectors.tables import REPLACES, applies_replaces, nullable_keys

IDENTIFIER_BYTES_MAX = 63
"""PostgreSQL truncates longer names."""

LEDGER_EPOCHS_MAX = 10_000
"""Epochs of each sink that the ledger retains, for people to look at: one would be enough."""

FORMAT = 1
"""The version of the tables that all sinks of a database share. Tables without one are from before 0.1, when epochs
were not numbered as Spark's batches are.
"""

FORMAT_NAME, IN_DOUBT_NAME, LEDGER_NAME = map(Identifier, ("penstock_format", "penstock_in_doubt", "penstock_ledger"))

FORMAT_TABLE = SQL("CREATE TABLE penstock_format AS SELECT {}::integer AS version").format(Literal(FORMAT))

IN_DOUBT = SQL("""
    CREATE TABLE penstock_in_doubt (
        sink text PRIMARY KEY, transaction_id text NOT NULL, epoch bigint NOT NULL,
        start_id bigint NOT NULL, end_id bigint NOT NULL
    )
""")

LEDGER = SQL("""
    CREATE TABLE penstock_ledger (
        sink text, epoch bigint, transaction_id text NOT NULL,
        start_id bigint NOT NULL, end_id bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (sink, epoch)
    )
""")

RAW_COLUMNS = ("message_id", "event_time", "key", "value")

RAW_TYPES = "event_time timestamp with time zone, key bytea, message_id bigint, value bytea"
"""The columns of the table as the sink creates it, in the order of their names."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target that can be written."""

    name: str
    default: str | None = None
    """Its expression, used for a JSON object without that field."""
    is_numbered: bool = False
    """By a sequence: an updated row keeps its number."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one sink."""

    sink: str
    table: Identifier
    format: PostgresFormat
    upsert: Sequence[str]

    @property
    def staged(self) -> Identifier:
        return Identifier(staged_name(self.sink))

    @property
    def advisory_key(self) -> int:
        """The key of the lock that one connection at a time has."""
        return int.from_bytes(sha256(b"penstock sink " + self.sink.encode()).digest()[:8], "big", signed=True)

    def tables(self) -> Iterator[tuple[Identifier, SQL | Composed]]:
        """The tables that are created if they are missing, and how."""
        yield IN_DOUBT_NAME, IN_DOUBT
        yield LEDGER_NAME, LEDGER
        staged = "number bigint, message_id bigint, event_time timestamptz, key bytea, value bytea"
        yield self.staged, SQL("CREATE TABLE {} ({})").format(self.staged, SQL(staged))
        if self.format is PostgresFormat.RAW:
            columns = "message_id bigint NOT NULL, event_time timestamptz, key bytea NOT NULL, value bytea NOT NULL"
            unique = SQL(", UNIQUE ({})").format(_names(self.upsert)) if self.upsert else SQL("")
            yield self.table, SQL("CREATE TABLE {} ({}{})").format(self.table, SQL(columns), unique)

    def copy(self) -> Composed:
        return SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(self.staged)

    def clear(self) -> Composed:
        return SQL("TRUNCATE {}").format(self.staged)

    def message_id(self, number: int) -> Composed:
        return SQL("SELECT message_id FROM {} WHERE number = {}").format(self.staged, Literal(number))

    def columns(self) -> Composed:
        """Name, default and whether a sequence numbers it, for columns that can be written. An error if the table is
        missing.
        """
        return SQL("""
            SELECT a.attname::text,
                CASE WHEN a.attidentity = 'd'
                    THEN format('nextval(%L)', pg_get_serial_sequence({table}, a.attname))
                    ELSE pg_get_expr(d.adbin, d.adrelid) END,
                a.attidentity = 'd' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false)
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = {table}::regclass AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' AND a.attidentity <> 'a'
            ORDER BY a.attnum
        """).format(table=Literal(self.table.as_string()))

    def can_refuse_nothing(self) -> Composed:
        """Whether the target is a raw table that accepts every row: no other columns, no rules of any kind."""
        return SQL("""
            SELECT c.relkind = 'r' AND NOT (c.relhastriggers OR c.relhasrules OR c.relhasindex OR c.relrowsecurity)
                AND NOT c.relispartition
                AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype <> 'n')
                AND {types} = (
                    SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attname)
                    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
                AND NOT EXISTS (
                    SELECT FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attname = 'event_time' AND a.attnotnull)
            FROM pg_class c WHERE c.oid = {table}::regclass
        """).format(types=Literal(RAW_TYPES), table=Literal(self.table.as_string()))

    def vote(self, transaction: Transaction) -> Composed:
        return SQL("INSERT INTO penstock_in_doubt VALUES ({})").format(_literals(self._fields(transaction)))

    def in_doubt(self) -> Composed:
        """Locked until the end of the current transaction."""
        wanted = "SELECT transaction_id, epoch, start_id, end_id FROM penstock_in_doubt WHERE sink = {} FOR UPDATE"
        return SQL(wanted).format(Literal(self.sink))

    def forget_vote(self) -> Composed:
        return SQL("DELETE FROM penstock_in_doubt WHERE sink = {}").format(Literal(self.sink))

    def enter(self, transaction: Transaction) -> Composed:
        """Adds to the ledger. An epoch's number is used again after the pipeline was reset."""
        return SQL("""
            INSERT INTO penstock_ledger (sink, transaction_id, epoch, start_id, end_id) VALUES ({})
            ON CONFLICT (sink, epoch) DO UPDATE SET transaction_id = EXCLUDED.transaction_id,
                start_id = EXCLUDED.start_id, end_id = EXCLUDED.end_id, committed_at = EXCLUDED.committed_at
        """).format(_literals(self._fields(transaction)))

    def prune(self, epoch: int) -> Composed:
        old = Literal(epoch - LEDGER_EPOCHS_MAX)
        return SQL("DELETE FROM penstock_ledger WHERE sink = {} AND epoch <= {}").format(Literal(self.sink), old)

    def is_done(self, transaction: Transaction) -> Composed:
        wanted = "SELECT 1 FROM penstock_ledger WHERE sink = {} AND epoch = {} AND transaction_id = {}"
        return SQL(wanted).format(*map(Literal, (self.sink, transaction.epoch, transaction.id.decode())))

    def committed(self) -> Composed:
        """The last transaction, by its attempt: the numbers of epochs start again after a reset."""
        wanted = """
            SELECT transaction_id, end_id FROM penstock_ledger WHERE sink = {}
            ORDER BY substring(transaction_id FROM '[0-9]+$')::numeric DESC NULLS LAST LIMIT 1
        """
        return SQL(wanted).format(Literal(self.sink))

    @property
    def applies_replaces(self) -> bool:
        return self.format is PostgresFormat.JSON and applies_replaces(self.upsert)

    def moves(self, columns: Sequence[TargetColumn], rows: range | None = None) -> list[Composed]:
        """From the staging table into the target, one statement after the other: all rows, or those with these numbers.

        In order, so that sequences number rows in the order of arrival. Raw rows have their ids, and need no sorting.
        """
        insert = self._insert(columns, rows)
        return [self._delete_replaced(rows), insert] if self.applies_replaces else [insert]

    def _insert(self, columns: Sequence[TargetColumn], rows: range | None) -> Composed:
        is_raw = self.format is PostgresFormat.RAW
        source = self._raw_source(rows) if is_raw else self._json_source(columns, rows)
        names = [column.name for column in columns]
        return SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) x {} {} {}").format(
            self.table,
            _names(names),
            _names(names, "x"),
            self._last_ones(source) if self.upsert else source,
            self._unless_replaced(rows) if self.applies_replaces else SQL(""),
            SQL("" if is_raw else "ORDER BY x.penstock_number"),
            self._on_conflict(columns),
        )

    def _delete_replaced(self, rows: range | None) -> Composed:
        """Deletes replaced rows from the target. Those that are in the same transaction are never inserted."""
        # Keys with a null have their own statement, because IS NOT DISTINCT FROM cannot use an index.
        conditions = [self._equal_key()] + ([self._equal_key_with_null()] if nullable_keys(self.upsert) else [])
        deletes = [SQL("DELETE FROM {} t USING p WHERE {}").format(self.table, one) for one in conditions]
        more = [SQL(", d AS ({})").format(one) for one in deletes[1:]]
        return SQL("WITH p AS ({}){} {}").format(self._replaced(rows), SQL("").join(more), deletes[0])

    def _unless_replaced(self, rows: range | None) -> Composed:
        """Keys are compared as JSON: null equals null, and unlike with IS NOT DISTINCT FROM they can be hashed."""
        return SQL("""
            LEFT JOIN (
                SELECT jsonb_build_array({}) AS key, max(penstock_number) AS number FROM ({}) y GROUP BY 1
            ) p ON p.key = jsonb_build_array({})
            WHERE p.number IS NULL OR p.number <= x.penstock_number
        """).format(_names(self.upsert), self._replaced(rows), _names(self.upsert, "x"))

    def _replaced(self, rows: range | None) -> Composed:
        """The keys of panes that rows replace, with the numbers of these rows: a row's own key with the bounds that it
        names. A row that keeps its key replaces itself by the upsert, unless a part of the key is null: unique indexes
        do not treat two nulls as equal.
        """
        nulls = [SQL("OR {} IS NULL").format(Identifier("r", name)) for name in nullable_keys(self.upsert)]
        return SQL("""
            SELECT s.number AS penstock_number, {keys} FROM {staged} s
            CROSS JOIN LATERAL (SELECT convert_from(s.value, 'UTF8')::json AS fields OFFSET 0) d
            CROSS JOIN LATERAL json_populate_record(NULL::{table}, d.fields) r
            CROSS JOIN LATERAL (
                SELECT json_array_elements(
                    CASE json_typeof(d.fields -> {replaces}) WHEN 'array' THEN d.fields -> {replaces} ELSE '[]' END
                )
                UNION ALL SELECT '{{}}'
            ) e (bounds)
            CROSS JOIN LATERAL json_populate_record(
                r, CASE json_typeof(e.bounds) WHEN 'object' THEN e.bounds ELSE '{{}}' END
            ) p
            WHERE (({keys}) IS DISTINCT FROM ({own}) {nulls}) {between}
        """).format(
            keys=_names(self.upsert, "p"),
            own=_names(self.upsert, "r"),
            nulls=SQL(" ").join(nulls),
            staged=self.staged,
            table=self.table,
            replaces=Literal(REPLACES),
            between=_between(rows, "AND"),
        )

    def _equal_key(self) -> Composed:
        return SQL(" AND ").join(map(_equal, self.upsert))

    def _equal_key_with_null(self) -> Composed:
        keys = nullable_keys(self.upsert)
        has_null = SQL(" OR ").join(SQL("t.{} IS NULL").format(Identifier(name)) for name in keys)
        same = [_equal_or_null(name) if name in keys else _equal(name) for name in self.upsert]
        return SQL("({}) AND {}").format(has_null, SQL(" AND ").join(same))

    def unknown_field(self, columns: Sequence[TargetColumn]) -> Composed:
        """Message, row and name of the first field that is not a column. Fields that the sink applies itself are not
        lost.
        """
        known = [column.name for column in columns] + ([REPLACES] if self.applies_replaces else [])
        return SQL("""
            SELECT s.message_id, s.number, f.name
            FROM {} s CROSS JOIN LATERAL json_object_keys(convert_from(s.value, 'UTF8')::json) f (name)
            WHERE f.name NOT IN ({}) ORDER BY s.number LIMIT 1
        """).format(self.staged, _literals(known))

    def _fields(self, transaction: Transaction) -> tuple[str | int, ...]:
        return (self.sink, transaction.id.decode(), transaction.epoch, transaction.start, transaction.end)

    def _raw_source(self, rows: range | None) -> Composed:
        wanted = "SELECT s.number AS penstock_number, {} FROM {} s {}"
        return SQL(wanted).format(_names(RAW_COLUMNS), self.staged, _between(rows))

    def _json_source(self, columns: Sequence[TargetColumn], rows: range | None) -> Composed:
        return SQL("""
            SELECT s.number AS penstock_number, {} FROM {} s
            CROSS JOIN LATERAL (SELECT convert_from(s.value, 'UTF8')::json AS fields OFFSET 0) d
            CROSS JOIN LATERAL json_populate_record(NULL::{}, d.fields) r {}
        """).format(SQL(", ").join(map(_field, columns)), self.staged, self.table, _between(rows))

    def _last_ones(self, source: Composed) -> Composed:
        """The last of the rows with the same key: the statement may not change a row twice. A NULL equals nothing."""
        keys = _names(self.upsert)
        is_null = SQL(" OR ").join(SQL("{} IS NULL").format(Identifier(name)) for name in self.upsert)
        key = SQL("{}, CASE WHEN {} THEN penstock_number END").format(keys, is_null)
        wanted = "SELECT DISTINCT ON ({}) * FROM ({}) y ORDER BY {}, penstock_number DESC"
        return SQL(wanted).format(key, source, key)

    def _on_conflict(self, columns: Sequence[TargetColumn]) -> Composed:
        if not self.upsert:
            return Composed([])
        others = [column.name for column in columns if column.name not in self.upsert and not column.is_numbered]
        changes = SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(Identifier(name)) for name in others)
        action = SQL("UPDATE SET {}").format(changes) if others else SQL("NOTHING")
        return SQL("ON CONFLICT ({}) DO {}").format(_names(self.upsert), action)


def staged_name(sink: str) -> str:
    """A unique name for every sink, as readable as possible."""
    name = f"penstock_staged_{sink}"
    if len(name.encode()) <= IDENTIFIER_BYTES_MAX:
        return name
    return f"penstock_staged_{sha256(sink.encode()).hexdigest()[:40]}"


def _field(column: TargetColumn) -> Composed:
    name = Identifier(column.name)
    if column.default is None:
        return SQL("r.{}").format(name)
    # The expression is the server's own text.
    default = SQL(column.default)
    wanted = "CASE WHEN (d.fields -> {}) IS NULL THEN {} ELSE r.{} END AS {}"
    return SQL(wanted).format(Literal(column.name), default, name, name)


def _between(rows: range | None, word: LiteralString = "WHERE") -> Composed:
    if rows is None:
        return Composed([])
    between = SQL("s.number >= {} AND s.number < {}").format(Literal(rows.start), Literal(rows.stop))
    return SQL("{} {}").format(SQL(word), between)


def _equal(name: str) -> Composed:
    return SQL("t.{0} = p.{0}").format(Identifier(name))


def _equal_or_null(name: str) -> Composed:
    return SQL("(t.{0} = p.{0} OR (t.{0} IS NULL AND p.{0} IS NULL))").format(Identifier(name))


def _names(names: Sequence[str], *of: str) -> Composed:
    return SQL(", ").join(Identifier(*of, name) for name in names)


def _literals(values: Sequence[str | int]) -> Composed:
    return SQL(", ").join(map(Literal, values))
