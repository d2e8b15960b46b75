"""What an SQLite sink is told."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from penstock.connectors.tables import UnknownFields
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee


class SqliteFormat(Enum):
    LAST = "last"
    """The last value of each key: the columns are key, value, event_time and epoch."""
    JSON = "json"
    """The value is a JSON object, whose fields go to the columns of the same names."""


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    path: Path
    """The database's file; it is made where there is none, and is then in WAL mode."""
    table: str
    """For last values it is made where there is none. One that is there needs the four columns, and a unique key."""
    format: SqliteFormat = SqliteFormat.LAST
    upsert: tuple[str, ...] = ()
    """Of JSON rows: columns with a unique index; a row with the same values is replaced."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """Of JSON rows."""
    create: bool = False
    """Make the table of JSON rows, and columns that it lacks, as the pipeline's rows need them."""

    def __post_init__(self) -> None:
        if str(self.path) == ":memory:":
            raise RequestError("a database in memory forgets what it has promised", "Name a file.")
        if not self.table or "\0" in self.table or self.table.startswith(("penstock_", "sqlite_")):
            raise RequestError(f"{self.table!r} cannot be the table of a sink", "Choose another name.")
        if self.upsert and self.format is SqliteFormat.LAST:
            raise RequestError("upsert is for JSON rows: last values have one row for each key", "Add format=json.")

    @property
    def needs_schema(self) -> bool:
        """Whether the table depends on the pipeline's rows."""
        return self.format is SqliteFormat.JSON

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.format is SqliteFormat.JSON else Guarantee.IDEMPOTENT

    @property
    def lock_path(self) -> Path:
        """Beside the database: one sink at a time has the table."""
        return self.path.with_name(f"{self.path.name}.{quote(self.table, safe='')}.lock")
