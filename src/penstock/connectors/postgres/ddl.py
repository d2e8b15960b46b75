"""The table of a PostgreSQL sink that the pipeline's rows need."""

import re

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.connectors.postgres.connection import identifier_of
from penstock.connectors.postgres.options import PostgresFormat, PostgresOptions
from penstock.connectors.tables import FoundTable, RowSchema, fields_of, fitting
from penstock.protocol.api.delivery import TableDdl

RAW_FIELDS = {
    "message_id": "bigint NOT NULL",
    "event_time": "timestamptz",
    "key": "bytea NOT NULL",
    "value": "bytea NOT NULL",
}

_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_NESTED = ("array<", "map<", "struct<", "variant")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def postgres_type(kind: str) -> str:
    """For a field of this Spark type in JSON: bytes are base64 text, and intervals are text."""
    if decimal := _DECIMAL.fullmatch(kind):
        return f"numeric({decimal[1]}, {decimal[2]})"
    return "jsonb" if kind.startswith(_NESTED) else _TYPES.get(kind, "text")


def statements(connection: psycopg.Connection, options: PostgresOptions, schema: RowSchema) -> list[str]:
    """Against the table as it is now. For a raw table the schema does not matter."""
    return fitting(*_wanted(options, schema), _found(connection, options))


def describe(options: PostgresOptions, schema: RowSchema) -> TableDdl:
    """Raises psycopg.Error."""
    parameters = options.parameters
    with psycopg.connect(**parameters, application_name="penstock sink ddl", autocommit=True) as connection:  # type: ignore[arg-type]
        found = _found(connection, options)
        return TableDdl(options.table, found is not None, fitting(*_wanted(options, schema), found))


def exists(connection: psycopg.Connection, options: PostgresOptions) -> bool:
    """Checked in a way that does not end a transaction."""
    table = Literal(identifier_of(options.table).as_string())
    return connection.execute(SQL("SELECT to_regclass({})").format(table)).fetchone() != (None,)


def _wanted(options: PostgresOptions, schema: RowSchema) -> tuple[str, dict[str, str], list[str]]:
    if options.format is PostgresFormat.RAW:
        fields = RAW_FIELDS
    else:
        fields = {name: postgres_type(kind) for name, kind in fields_of(schema, options.upsert)}
    columns = {_quoted(name): kind for name, kind in fields.items()}
    return identifier_of(options.table).as_string(), columns, [*map(_quoted, options.upsert)]


def _found(connection: psycopg.Connection, options: PostgresOptions) -> FoundTable | None:
    if not exists(connection, options):
        return None
    table = Literal(identifier_of(options.table).as_string())
    names = connection.execute(SQL(_COLUMNS).format(table)).fetchall()
    (has_key,) = connection.execute(_has_key(table, options.upsert)).fetchone() or (False,)
    return FoundTable({_quoted(name) for (name,) in names}, has_key)


_COLUMNS = """
    SELECT attname::text FROM pg_attribute WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped
"""


def _has_key(table: Literal, upsert: tuple[str, ...]) -> Composed:
    return SQL("""
        SELECT EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = {}::regclass AND i.indisunique AND i.indpred IS NULL
            AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
                = {}::text[])
    """).format(table, Literal(sorted(upsert)))


def _quoted(name: str) -> str:
    return Identifier(name).as_string()
