"""The options of `postgres`."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.tables import UnknownFields
from penstock.connectors.values import SomeSeconds

PARAMETERS = ("host", "port", "user", "dbname", "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey")
"""Options that go to libpq as they are."""


class PostgresFormat(Enum):
    JSON = "json"
    """Each value is a JSON object, whose fields go to the columns of the same names."""
    RAW = "raw"
    """The columns are message_id bigint, event_time timestamptz, key bytea and value bytea."""


class PostgresOptions(Options):
    """What is left out comes from libpq's environment (`PGHOST`, `PGUSER`, …) and defaults. There is no option for a
    password: use a passfile, `PGPASSWORD` or a service file of the worker's user. `penstock sink ddl` prints the
    statements that make the table fit the pipeline's rows.
    """

    table: str
    """`NAME` or `SCHEMA.NAME`. Upper and lower case matter."""
    host: str = ""
    """The server's name or address, or the directory of its socket."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The server's port."""
    user: str = ""
    """The role to connect as."""
    dbname: str = ""
    """The database."""
    format: PostgresFormat = PostgresFormat.JSON
    """`json`: each value is a JSON object, whose fields go to the columns of the same names. `raw`: the columns are
    `message_id`, `event_time`, `key` and `value`; the table is created if it does not exist."""
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values there is replaced, except for columns that a sequence
    fills."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` votes no on the epoch, `ignore` drops the
    field. For `format: json`."""
    create: bool = False
    """Create the table, and missing columns, to fit the pipeline's rows. For `format: json`."""
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
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts) or "\0" in self.table:
            raise ValueError(f"{self.table!r} is not a valid table: write NAME or SCHEMA.NAME")
        return self

    @property
    def parameters(self) -> dict[str, str | int]:
        """Of a connection."""
        given = {name: getattr(self, name) for name in PARAMETERS}
        seconds = max(1, round(self.connect_timeout))
        return {name: str(value) for name, value in given.items() if value} | {"connect_timeout": seconds}
