"""What a PostgreSQL sink is told."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from psycopg.sql import Identifier

from penstock.connectors.tables import UnknownFields
from penstock.core.errors import RequestError

PARAMETERS = ("host", "port", "user", "dbname", "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Options that go to libpq as they are."""


class PostgresFormat(Enum):
    JSON = "json"
    """The value is a JSON object, whose fields go to the columns of the same names."""
    RAW = "raw"
    """The columns are message_id bigint, event_time timestamptz, key bytea and value bytea."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """Where it is left empty, libpq's environment (PGHOST, PGUSER, …) and defaults decide.

    There is no password here: give it in a passfile, in PGPASSWORD, or in a service file.
    """

    table: str
    """NAME or SCHEMA.NAME, as it is stored: upper and lower case count."""
    host: str = ""
    port: int | None = None
    user: str = ""
    dbname: str = ""
    format: PostgresFormat = PostgresFormat.JSON
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values is replaced, but for columns that a sequence numbers."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """Of JSON objects."""
    create: bool = False
    """Make the table, and columns that it lacks, as the pipeline's rows need them. A raw table is made anyway."""
    service: str = ""
    passfile: Path | None = None
    sslmode: str = ""
    sslrootcert: Path | None = None
    sslcert: Path | None = None
    sslkey: Path | None = None
    connect_seconds: int = 10

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts) or "\0" in self.table:
            raise RequestError(f"{self.table!r} is no table", "Write NAME or SCHEMA.NAME.")

    @property
    def identifier(self) -> Identifier:
        return Identifier(*self.table.split("."))

    @property
    def needs_schema(self) -> bool:
        """Whether the table depends on the pipeline's rows."""
        return self.format is PostgresFormat.JSON

    @property
    def parameters(self) -> dict[str, str | int]:
        """Of a connection."""
        given = {name: getattr(self, name) for name in PARAMETERS}
        return {name: str(value) for name, value in given.items() if value} | {"connect_timeout": self.connect_seconds}
