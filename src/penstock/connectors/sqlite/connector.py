"""`sqlite`: rows of a table in an SQLite database, written by two-phase commit, or read as they are added.

write      the last value of each key, or rows                idempotent or exactly-once, transactional
poll       rows by a column that grows                        exactly-once
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, ShownBy
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
        "Writes rows, or the last value of each key, to a table in an SQLite file, or reads new rows from one.",
        SqliteOptions,
        Capabilities(
            source=Guarantee.EXACTLY_ONCE,
            sink=Guarantee.IDEMPOTENT,
            resumes=True,
            own_event_times=False,
            takes_epochs=True,
            votes=True,
            on_stream_started="Opens every stream. The guarantee is exactly-once with `format: json`.",
            interceptors=frozenset(),
        ),
        example={"path": "results.db", "table": "results", "format": "json", "upsert": ["id"], "create": True},
        url=UrlForm(written="sqlite:PATH", place=path, fields=("path",)),
        shown_by=ShownBy(
            source="tests/connectors/databases/test_sqlite_poll.py::test_killed_workers_lose_and_repeat_no_row",
            sink="tests/application/test_database_sinks.py::test_transactional_sinks_have_each_event_once_though_the_worker_is_killed",
        ),
    )
    has_table = True

    @classmethod
    def capabilities(cls, options: SqliteOptions) -> Capabilities:
        if options.mode == "poll":
            return Capabilities(
                source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False, interceptors=frozenset()
            )
        claims = frozenset({f"the table {options.table} in {options.path}"})
        return replace(cls.about.capabilities, source=None, resumes=False, sink=options.guarantee, claims=claims)

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

    async def run(self, host: Host) -> None:
        if self.options.mode == "write":
            await super().run(host)
            return
        from penstock.connectors.growing import follow
        from penstock.connectors.sqlite.polling import SqliteReader

        options = self.options
        await follow(host, f"{options.table} by {options.column}", SqliteReader(options), options.poll)
