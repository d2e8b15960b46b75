"""`sql`: rows of a table in any database that SQLAlchemy reaches."""

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, ShownBy
from penstock.connectors.permissions import Permissions
from penstock.connectors.sql.options import SqlOptions
from penstock.connectors.tables import RowSchema, SchemaOf
from penstock.core.types import Guarantee
from penstock.protocol.api.delivery import TableDdl

if TYPE_CHECKING:
    from penstock.connectors.sink_api import NonVotingSink

_SERVERS = ("postgresql", "mysql", "mariadb", "oracle", "mssql")
"""Dialects whose databases are not files."""


class Sql(Connector[SqlOptions]):
    about = About(
        "sql",
        "Writes rows to a table in any database that SQLAlchemy supports.",
        SqlOptions,
        Capabilities(
            sink=Guarantee.EXACTLY_ONCE,
            takes_epochs=True,
            on_stream_started="Opens every stream. The guarantee needs transactional tables.",
            interceptors=frozenset(),
        ),
        extra="sql",
        example={"url": "mysql+pymysql://me@db.example/shop", "table": "orders", "upsert": ["id"]},
        shown_by=ShownBy(
            sink="tests/application/test_database_sinks.py::test_redis_and_sql_have_each_event_once_though_the_worker_and_their_servers_are_killed",
        ),
    )
    has_table = True

    @classmethod
    def check_permitted(cls, options: SqlOptions, permissions: Permissions) -> None:
        """The database of a dialect that is not known to be a server is a file."""
        from penstock.connectors.sql.ddl import parse_url

        url = parse_url(options)
        if url.get_backend_name() not in _SERVERS and url.database and url.database != ":memory:":
            permissions.check_path(Path(url.database))

    @property
    def needs_schema(self) -> bool:
        return True

    def make_sink(self, name: str, schema: SchemaOf) -> "NonVotingSink":
        from penstock.connectors.sql.sink import SqlSink

        return SqlSink(self.options, name, schema)

    def describe_table(self, schema: RowSchema) -> TableDdl:
        from penstock.connectors.sql.ddl import describe

        return describe(self.options, schema)
