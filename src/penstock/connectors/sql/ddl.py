"""The table of an SQL sink that the pipeline's rows need, in the dialect of its database."""

import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.connectors.sql.options import SqlOptions
from penstock.connectors.tables import FoundTable, RowSchema, fields_of, fitting
from penstock.core.errors import RequestError
from penstock.protocol.api.delivery import TableDdl

KEY_CHARACTERS_MAX = 255
"""Of a text in a key: some databases cannot index longer ones."""

_TIME = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_LOCAL_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "boolean": sa.Boolean(),
    "tinyint": sa.SmallInteger(),
    "smallint": sa.SmallInteger(),
    "int": sa.Integer(),
    "bigint": sa.BigInteger(),
    "float": sa.Float(),
    "double": sa.Double(),
    "date": sa.Date(),
    "timestamp": _TIME,
    "timestamp_ntz": _LOCAL_TIME,
}
_NESTED = ("array<", "map<", "struct<", "variant")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_FOLDED = ("sqlite", "mysql", "mariadb", "mssql")
"""Dialects whose names of columns do not depend on upper and lower case."""


def sql_type(kind: str, *, is_key: bool) -> sa.types.TypeEngine[Any]:
    """For a field of this Spark type in JSON: bytes are base64 text, and intervals are text."""
    if decimal := _DECIMAL.fullmatch(kind):
        return sa.Numeric(int(decimal[1]), int(decimal[2]))
    if kind.startswith(_NESTED):
        return sa.JSON()
    return _TYPES.get(kind) or (sa.String(KEY_CHARACTERS_MAX) if is_key else sa.Text())


def folding(dialect: sa.Dialect) -> Callable[[str], str]:
    return str.casefold if dialect.name in _FOLDED else str


def statements(connection: sa.Connection, options: SqlOptions, schema: RowSchema) -> tuple[bool, list[str]]:
    """Whether the table exists, and what it lacks, as its driver takes it: some need a `%` twice."""
    dialect = connection.dialect
    fold, quote = folding(dialect), dialect.identifier_preparer.quote
    columns = {
        quote(name): sql_type(kind, is_key=name in options.upsert).compile(dialect)
        for name, kind in fields_of(schema, options.upsert, fold)
    }
    found = _found(sa.inspect(connection), options, quote, fold)
    table = ".".join(map(quote, options.table.split(".")))
    index = quote("_".join((options.table_name, *options.upsert, "key")))
    return found is not None, fitting(table, columns, [*map(quote, options.upsert)], found, index)


def parse_url(options: SqlOptions) -> sa.URL:
    """Raises RequestError."""
    try:
        return sa.make_url(options.url)
    except sa.exc.ArgumentError:
        raise RequestError(
            "the URL is not a valid SQLAlchemy URL", "Write DIALECT+DRIVER://USER@HOST/DATABASE."
        ) from None


def engine_of(options: SqlOptions) -> sa.Engine:
    """Raises RequestError if its driver is missing."""
    url = parse_url(options)
    try:
        return sa.create_engine(url, poolclass=sa.NullPool)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise RequestError(
            f"the driver of {url.drivername} is not installed: {error}", "Install it where the worker runs."
        ) from None


def describe(options: SqlOptions, schema: RowSchema) -> TableDdl:
    """Raises RequestError with the database's errors."""
    engine = engine_of(options)
    try:
        with engine.connect() as connection:
            exists, lacking = statements(connection, options, schema)
            is_doubled = connection.dialect.paramstyle in ("format", "pyformat")
            return TableDdl(options.table, exists, [one.replace("%%", "%") if is_doubled else one for one in lacking])
    except sa.exc.SQLAlchemyError as error:
        raise RequestError(f"{options.table}: {error}", "Is the database there?") from error
    finally:
        engine.dispose()


def _found(
    inspector: sa.Inspector, options: SqlOptions, quote: Callable[[str], str], fold: Callable[[str], str]
) -> FoundTable | None:
    name, schema = options.table_name, options.schema_name
    if not inspector.has_table(name, schema):
        return None
    unique = [inspector.get_pk_constraint(name, schema)["constrained_columns"]]
    unique += [one["column_names"] for one in inspector.get_unique_constraints(name, schema)]
    unique += [one["column_names"] for one in inspector.get_indexes(name, schema) if one["unique"]]  # type: ignore[misc]
    wanted = {*map(fold, options.upsert)}
    has_key = any({fold(column) for column in columns if column} == wanted for columns in unique)
    return FoundTable({quote(one["name"]) for one in inspector.get_columns(name, schema)}, has_key, fold)
