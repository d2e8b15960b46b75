"""`postgres`: rows of a table by two-phase commit, new rows of a table, or all changes of tables.

write      rows of a table                                                        exactly-once, transactional
poll       rows by a growing number, or by a time with a tie-breaker              exactly-once, at-least-once
changes    logical replication: a snapshot, then every change                     exactly-once
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, ShownBy
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
        "Writes rows to a table in a PostgreSQL database, reads new rows, or reads all changes to tables.",
        PostgresOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.EXACTLY_ONCE,
            resumes=True,
            takes_epochs=True,
            votes=True,
            on_stream_started="Opens every stream. In mode `poll` with `tie_breaker`, the port `out` is at-least-once.",
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
        shown_by=ShownBy(
            source="tests/connectors/databases/test_postgres_changes.py::test_killed_workers_and_servers_lose_and_repeat_nothing",
            sink="tests/application/test_database_sinks.py::test_transactional_sinks_have_each_event_once_though_the_worker_is_killed",
        ),
    )
    has_table = True

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options)
        self._confirmed = 0
        """How far the slot's changes were acknowledged, for the next `run`; 0: it is not known."""

    @classmethod
    def capabilities(cls, options: PostgresOptions) -> Capabilities:
        if options.mode == "write":
            return replace(cls.about.capabilities, source=None, resumes=False)
        guarantee = Guarantee.AT_LEAST_ONCE if options.tie_breaker else Guarantee.EXACTLY_ONCE
        return Capabilities(
            source=guarantee,
            resumes=True,
            own_event_times=options.mode == "changes",
            interceptors=frozenset(),
            claims=frozenset({f"the replication slot {options.slot}"} if options.slot else ()),
        )

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

    async def run(self, host: Host) -> None:
        match self.options.mode:
            case "write":
                await super().run(host)
            case "poll":
                await self._poll(host)
            case "changes":
                from penstock.connectors.postgres.source import ChangesSource

                source = ChangesSource(self.options, host, self._confirmed)
                try:
                    await source.run()
                finally:
                    self._confirmed = source.confirmed

    async def _poll(self, host: Host) -> None:
        from penstock.connectors.growing import follow
        from penstock.connectors.postgres.polling import PostgresReader

        options = self.options
        name = f"{options.table or 'query'} by {options.column}"
        await follow(host, name, PostgresReader(options, host.name), options.poll)
