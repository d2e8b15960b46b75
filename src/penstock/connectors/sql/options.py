"""The options of `sql`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from penstock.connectors.api import Options
from penstock.connectors.tables import UnknownFields


class SqlOptions(Options):
    """Each value is a JSON object, whose fields go to the columns of the same names; numbers, texts, booleans, dates,
    times and base64 become what the column's type needs. A value that would become another one is refused: 3.7 and
    `true` for a BIGINT column, the text "false" for a BOOLEAN column. Times are stored in UTC where a column has no
    time zone. The database's driver must be installed where the worker runs, such as `pip install pymysql`. `penstock
    sink ddl` prints the statements that make the table fit the pipeline's rows.

    All rows of an epoch, and its number in the table `penstock_sql_epochs`, are written in one transaction of the
    database, so an epoch that is delivered again changes nothing: exactly once. This needs transactional tables. With
    others, such as MySQL's MyISAM, use `upsert`: a row that is written again then replaces itself.

    The sink does not vote: it receives an epoch after transactional sinks have committed it. If the database refuses a
    row, the epoch is tried again until the table, or the row's constraint, has been changed, or an operator parks the
    epoch. `postgres` and `sqlite` vote instead, and are faster.
    """

    url: Annotated[str, Field(min_length=1)]
    """The database, as a SQLAlchemy URL: `mysql+pymysql://me@db.example/shop`. A password can be a reference:
    `${DB_PASSWORD}`."""
    table: str
    """`NAME` or `SCHEMA.NAME`."""
    upsert: tuple[str, ...] = ()
    """Columns with a unique index: a row with the same values there is replaced."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` stops at the epoch, `ignore` drops the
    field."""
    create: bool = False
    """Create the table, and missing columns, to fit the pipeline's rows."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(parts) or parts[-1].startswith("penstock_"):
            raise ValueError(f"{self.table!r} is not a valid table for a sink: write NAME or SCHEMA.NAME")
        if "://" not in self.url:
            raise ValueError("the URL is not a valid SQLAlchemy URL: write DIALECT+DRIVER://USER@HOST/DATABASE")
        return self

    @property
    def table_name(self) -> str:
        return self.table.rpartition(".")[2]

    @property
    def schema_name(self) -> str | None:
        return self.table.rpartition(".")[0] or None
