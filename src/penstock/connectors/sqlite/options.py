"""The options of `sqlite`."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.tables import UnknownFields
from penstock.connectors.values import SomeSeconds, check_modes
from penstock.core.types import Guarantee

_OF_MODES = {
    "format": ("write",),
    "upsert": ("write",),
    "unknown_fields": ("write",),
    "create": ("write",),
    "column": ("poll",),
    "poll": ("poll",),
    "batch": ("poll",),
}
"""In which modes an option means something."""


class SqliteFormat(Enum):
    LAST = "last"
    """The last value of each key: the columns are key, value, event_time and epoch."""
    JSON = "json"
    """Each value is a JSON object, whose fields go to the columns of the same names."""


class SqliteOptions(Options):
    """Relative paths start in the directory where the worker was started. Other programs may read the database at any
    time, and write to it briefly.

    **write** has a port `in`. `penstock sink ddl` prints the statements that make a table fit the pipeline's rows.

    **poll** has a port `out`. Each row of a table or a view is an event, a JSON object, in the order of an increasing
    integer column; the stream resumes after the last one that is stored, and reads every row exactly once. Blobs are
    base64. The database is opened for reading only. Rows that are updated or deleted are not noticed. SQLite has one
    writer at a time, so rows appear in the order of their rowids. But without AUTOINCREMENT, if the last row is
    deleted, SQLite uses its rowid again: the new row is then not read.
    """

    mode: Literal["write", "poll"] = "write"
    """`write`: rows of a table, port `in`. `poll`: new rows by an increasing column, port `out`."""
    path: Path
    """The database file. In mode `write` it is created if it does not exist, in WAL mode."""
    table: str
    """The table. For `format: last` it is created if it does not exist; an existing one needs the four columns and a
    unique key."""
    column: Annotated[str, Field(min_length=1)] = "rowid"
    """The increasing column: integers above 0, unique. Mode `poll`."""
    poll: SomeSeconds = 1.0
    """How long to wait when there are no new rows. Mode `poll`."""
    batch: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    """How many rows are read at a time. Mode `poll`."""
    format: SqliteFormat = SqliteFormat.LAST
    """`last`: one row for each key, with its last value, in the columns `key`, `value`, `event_time` (in microseconds)
    and `epoch`. `json`: each value is a JSON object, whose fields go to the columns of the same names. Mode
    `write`."""
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values there is replaced. Mode `write`, for
    `format: json`."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` votes no on the epoch, `ignore` drops the
    field. Mode `write`, for `format: json`."""
    create: bool = False
    """Create the table, and missing columns, to fit the pipeline's rows. Mode `write`, for `format: json`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_modes(self, self.mode, _OF_MODES)
        if str(self.path) == ":memory:":
            raise ValueError("a database in memory would lose committed epochs: name a file")
        if not self.table or "\0" in self.table or self.table.startswith(("penstock_", "sqlite_")):
            raise ValueError(f"{self.table!r} is not a valid table: choose another name")
        if self.upsert and self.format is SqliteFormat.LAST:
            raise ValueError("upsert is for rows in JSON, last values have one row for each key: add format json")
        return self

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.format is SqliteFormat.JSON else Guarantee.IDEMPOTENT

    @property
    def lock_path(self) -> Path:
        """Next to the database: one sink at a time has the table."""
        return self.path.with_name(f"{self.path.name}.{quote(self.table, safe='')}.lock")
