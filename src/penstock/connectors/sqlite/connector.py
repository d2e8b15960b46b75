"""`sqlite`: rows of a table in an SQLite database, by two-phase commit."""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector
from penstock.connectors.sqlite.options import SqliteFormat, SqliteOptions
from penstock.connectors.tables import RowSchema, SchemaOf
from penstock.connectors.url_forms import UrlForm, path
from penstock.core.types import Guarantee
from penstock.protocol.api.delivery import TableDdl

if TYPE_CHECKING:
    from penstock.connectors.sink_api import VotingSink


class Sqlite(Connector[SqliteOptions]):
    about = About(
        "sqlite",
        "Writes to a table in an SQLite file: the last value of each key, or rows from JSON objects.",
        SqliteOptions,
        Capabilities(
            sink=Guarantee.IDEMPOTENT,
            takes_epochs=True,
            votes=True,
            on_stream_started="Opens every stream. The guarantee is exactly-once with `format: json`.",
            interceptors=frozenset(),
        ),
        example={"path": "results.db", "table": "results", "format": "json", "upsert": ["id"], "create": True},
        url=UrlForm(written="sqlite:PATH", place=path, fields=("path",)),
    )
    has_table = True

    @classmethod
    def capabilities(cls, options: SqliteOptions) -> Capabilities:
        claims = frozenset({f"the table {options.table} in {options.path}"})
        return replace(cls.about.capabilities, sink=options.guarantee, claims=claims)

    @property
    def needs_schema(self) -> bool:
        return self.options.format is SqliteFormat.JSON

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":
        from penstock.connectors.sqlite.sink import SqliteSink
        from penstock.connectors.threaded import Threaded

        return Threaded(SqliteSink(self.options, schema), name)

    def describe_table(self, schema: RowSchema) -> TableDdl:
        from penstock.connectors.sqlite.ddl import describe

        return describe(self.options, schema)
