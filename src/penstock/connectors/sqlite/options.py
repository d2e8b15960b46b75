"""The options of `sqlite`."""

from enum import Enum
from pathlib import Path
from typing import Self
from urllib.parse import quote

from pydantic import model_validator

from penstock.connectors.api import Options
from penstock.connectors.tables import UnknownFields
from penstock.core.types import Guarantee


class SqliteFormat(Enum):
    LAST = "last"
    """The last value of each key: the columns are key, value, event_time and epoch."""
    JSON = "json"
    """Each value is a JSON object, whose fields go to the columns of the same names."""


class SqliteOptions(Options):
    """Relative paths start in the directory where the worker was started. Other programs may read the database at any
    time, and write to it briefly. `penstock sink ddl` prints the statements that make a table fit the pipeline's rows.
    """

    path: Path
    """The database file. It is created if it does not exist, in WAL mode."""
    table: str
    """The table. For `format: last` it is created if it does not exist; an existing one needs the four columns and a
    unique key."""
    format: SqliteFormat = SqliteFormat.LAST
    """`last`: one row for each key, with its last value, in the columns `key`, `value`, `event_time` (in microseconds)
    and `epoch`. `json`: each value is a JSON object, whose fields go to the columns of the same names."""
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values there is replaced. For `format: json`."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` votes no on the epoch, `ignore` drops the
    field. For `format: json`."""
    create: bool = False
    """Create the table, and missing columns, to fit the pipeline's rows. For `format: json`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if str(self.path) == ":memory:":
            raise ValueError("a database in memory would lose committed epochs: name a file")
        if not self.table or "\0" in self.table or self.table.startswith(("penstock_", "sqlite_")):
            raise ValueError(f"{self.table!r} is not a valid table for a sink: choose another name")
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
