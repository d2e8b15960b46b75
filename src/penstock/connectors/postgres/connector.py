"""`postgres`: rows of a table in a PostgreSQL database, by two-phase commit."""

from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector
from penstock.connectors.postgres.options import PostgresFormat, PostgresOptions
from penstock.connectors.tables import RowSchema, SchemaOf
from penstock.connectors.url_forms import UrlForm, database
from penstock.core.types import Guarantee
from penstock.protocol.api.delivery import TableDdl

if TYPE_CHECKING:
    from penstock.connectors.sink_api import VotingSink


class Postgres(Connector[PostgresOptions]):
    about = About(
        "postgres",
        "Writes rows to a table in a PostgreSQL database.",
        PostgresOptions,
        Capabilities(
            sink=Guarantee.EXACTLY_ONCE,
            takes_epochs=True,
            votes=True,
            on_stream_started="Opens every stream.",
            interceptors=frozenset(),
        ),
        extra="postgres",
        example={"host": "db.example", "user": "me", "dbname": "shop", "table": "orders", "upsert": ["id"]},
        url=UrlForm(
            written="postgresql://USER@HOST:PORT/DATABASE",
            place=database,
            fields=("user", "host", "port", "dbname"),
            credentials="Put the password into ~/.pgpass, PGPASSWORD or a service file of the worker's user.",
        ),
    )
    has_table = True

    @property
    def needs_schema(self) -> bool:
        return self.options.format is PostgresFormat.JSON

    def make_sink(self, name: str, schema: SchemaOf) -> "VotingSink":
        from penstock.connectors.postgres.sink import PostgresSink
        from penstock.connectors.threaded import Threaded

        return Threaded(PostgresSink(self.options, name, schema), name)

    def describe_table(self, schema: RowSchema) -> TableDdl:
        from penstock.connectors.postgres.ddl import describe

        return describe(self.options, schema)
