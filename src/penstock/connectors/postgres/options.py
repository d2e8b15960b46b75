"""The options of `postgres`."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.tables import UnknownFields
from penstock.connectors.values import Seconds, SomeSeconds, check_modes

PARAMETERS = ("host", "port", "user", "dbname", "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Options that go to libpq as they are."""

_OF_MODES = {
    "table": ("write", "poll"),
    "format": ("write",),
    "upsert": ("write",),
    "unknown_fields": ("write",),
    "create": ("write", "changes"),
    "query": ("poll",),
    "column": ("poll",),
    "tie_breaker": ("poll",),
    "settled": ("poll",),
    "lag": ("poll",),
    "poll": ("poll",),
    "batch": ("poll", "changes"),
    "slot": ("changes",),
    "publication": ("changes",),
    "tables": ("changes",),
    "snapshot": ("changes",),
}
"""In which modes an option means something."""


class PostgresFormat(Enum):
    JSON = "json"
    """Each value is a JSON object, whose fields go to the columns of the same names."""
    RAW = "raw"
    """The columns are message_id bigint, event_time timestamptz, key bytea and value bytea."""


class PostgresOptions(Options):
    """What is left out comes from libpq's environment (`PGHOST`, `PGUSER`, …) and defaults. There is no option for a
    password: use a passfile, `PGPASSWORD` or a service file of the worker's user.

    **write** has a port `in`. `penstock sink ddl` prints the statements that make the table fit the pipeline's rows.

    **poll** has a port `out`. Each row of a table or a query is an event, a JSON object, in the order of an increasing
    column. The stream resumes after the last value that is stored. Rows that are updated or deleted are not noticed,
    and neither are rows in which the column is NULL.

    With an integer column (above 0, unique), every row is read exactly once. Beware: a transaction that drew a lower
    number may commit after one with a higher number. `settled` waits for such transactions; it needs a `table`, a
    sequence without CACHE, and a server that is not a standby. With a `query`, set `settled: false`, and make sure that
    rows appear in the order of the column: a row that appears below the last value is never read.

    With a `tie_breaker`, the column is a time. Rows are then read at least once: after a restart, those of the last
    second are read again. `lag` must be longer than any transaction that writes to the table.

    **changes** has a port `out`. It reads the changes to the tables of a publication by logical replication
    (`pgoutput`): first all rows, as of the slot's creation (`op` is `snapshot`), then every later `insert`, `update`,
    `delete` and `truncate`, exactly once, in the order of commits. All tables of a slot are one stream, so that the
    changes of one transaction stay together.

    An event has the fields `op`, `table`, `before`, `after`, `lsn` and `commit_time`. Its event time is that of the
    commit, and its key is a JSON object with the columns of the table's replica identity (empty if that is `FULL` or
    `NOTHING`). `before` has the old identity if it was changed or the row was deleted, or the whole row with
    `REPLICA IDENTITY FULL`; otherwise it is null. The server does not send large values that were not changed: such
    columns are missing in `after`, and named in the field `unchanged`. If an event would have more than 4 MiB, its
    longest values are null, and named in `left_out`.

    The server keeps its log until all pipelines have completed an epoch with the changes. Drop a slot that is no longer
    used: otherwise the server's disk fills up. If the worker is killed in the middle of the snapshot, the next one
    starts over, after a `truncate` event for each table (until the snapshot is complete, the slot is called
    `SLOT_snapshot`). A slot that was dropped and created again by hand begins at its creation, and the changes between
    are lost. The source notices this, and stops, if it has used the slot since the worker was started and the connector
    was last changed; otherwise it cannot know, because PostgreSQL does not report when a slot was created. Schema
    changes, such as added columns, need no action: each row has the columns that the table had at that time.

    In modes `poll` and `changes`, numbers, booleans and JSON stay what they are; timestamps are ISO 8601 text, in UTC
    if they have a time zone; bytea is base64; everything else is PostgreSQL's text.
    """

    mode: Literal["write", "poll", "changes"] = "write"
    """`write`: rows of a table, port `in`. `poll`: new rows by an increasing column, port `out`. `changes`: all
    changes, by logical replication, port `out`."""
    table: str = ""
    """`NAME` or `SCHEMA.NAME`. Upper and lower case matter. Modes `write` and `poll`."""
    query: str = ""
    """A SELECT instead of a table; it can leave out rows and columns. Mode `poll`."""
    column: str = ""
    """The increasing column. It should have an index. Mode `poll`."""
    tie_breaker: str = ""
    """A unique column that orders rows with the same time; the increasing column is then a timestamp. Mode `poll`."""
    settled: bool = True
    """Whether to wait for transactions that may still commit lower numbers. Mode `poll`, without a `tie_breaker`."""
    lag: Seconds = 10.0
    """How old a row's time must be, by the server's clock. Mode `poll`, with a `tie_breaker`."""
    poll: SomeSeconds = 1.0
    """How long to wait when there are no new rows. Mode `poll`."""
    batch: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """How many rows are read at a time; in mode `changes`, from the snapshot. Modes `poll` and `changes`."""
    slot: Annotated[str, Field(pattern=r"^([a-z0-9_]{1,54})?$")] = ""
    """The replication slot: lower case letters, digits and underscores. Mode `changes`."""
    publication: str = ""
    """The publication: which tables, and which of their changes. Mode `changes`."""
    tables: tuple[str, ...] = ()
    """The tables of the publication, if it is created: `NAME` or `SCHEMA.NAME`. Mode `changes`."""
    snapshot: bool = True
    """Whether all rows are sent first, when the slot is created. Mode `changes`."""
    host: str = ""
    """The server's name or address, or the directory of its socket."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The server's port."""
    user: str = ""
    """The role to connect as. In mode `changes` it needs the attribute REPLICATION, and SELECT on the tables."""
    dbname: str = ""
    """The database."""
    format: PostgresFormat = PostgresFormat.JSON
    """`json`: each value is a JSON object, whose fields go to the columns of the same names. `raw`: the columns are
    `message_id`, `event_time`, `key` and `value`; the table is created if it does not exist. Mode `write`."""
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values there is replaced, except for columns that a sequence
    fills. Mode `write`."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` votes no on the epoch, `ignore` drops the
    field. Mode `write`, for `format: json`."""
    create: bool = False
    """Mode `write`, for `format: json`: create the table, and missing columns, to fit the pipeline's rows. Mode
    `changes`: create the slot, and the publication of `tables`, if they do not exist."""
    service: str = ""
    """A service of libpq's service file."""
    passfile: Path | None = None
    """The file with passwords, instead of ~/.pgpass."""
    sslmode: str = ""
    """As libpq has it, such as `verify-full`."""
    sslrootcert: Path | None = None
    """Authorities to trust."""
    sslcert: Path | None = None
    """The client's certificate."""
    sslkey: Path | None = None
    """The key of the client's certificate."""
    connect_timeout: SomeSeconds = 10.0
    """For one attempt to connect."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_modes(self, self.mode, _OF_MODES)
        match self.mode:
            case "write":
                _check_table(self.table)
            case "poll":
                self._check_poll()
            case "changes":
                self._check_changes()
        return self

    def _check_poll(self) -> None:
        if bool(self.table) == bool(self.query):
            raise ValueError("mode poll needs either a table or a query")
        if not self.column:
            raise ValueError("mode poll needs an increasing column: set column")
        if self.table:
            _check_table(self.table)
        if self.query and self.settled and not self.tie_breaker:
            raise ValueError("settled needs a table: with a query, set settled to false, or name a tie_breaker")
        if self.tie_breaker and "settled" in self.model_fields_set:
            raise ValueError("settled is for numbers: with a tie_breaker the column is a time, and lag applies")
        if not self.tie_breaker and "lag" in self.model_fields_set:
            raise ValueError("lag is for times: name a tie_breaker, or leave lag out")

    def _check_changes(self) -> None:
        if not self.slot or not self.publication:
            raise ValueError("mode changes needs a slot and a publication")
        if self.tables and not self.create:
            raise ValueError("tables are those of a publication that is created: add create, or leave them out")
        for table in self.tables:
            _check_table(table)

    @property
    def parameters(self) -> dict[str, str | int]:
        """Of a connection."""
        given = {name: getattr(self, name) for name in PARAMETERS}
        seconds = max(1, round(self.connect_timeout))
        return {name: str(value) for name, value in given.items() if value} | {"connect_timeout": seconds}


def _check_table(table: str) -> None:
    if not table:
        raise ValueError("name the table, as NAME or SCHEMA.NAME")
    parts: Sequence[str] = table.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in table:
        raise ValueError(f"{table!r} is not a valid table: write NAME or SCHEMA.NAME")
