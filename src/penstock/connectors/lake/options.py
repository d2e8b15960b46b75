"""The options that `parquet`, `delta` and `iceberg` share."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, model_validator

from penstock.connectors.api import Capabilities, Options
from penstock.connectors.tables import UnknownFields
from penstock.connectors.values import Size
from penstock.core.ddl import parse_ddl
from penstock.core.errors import RequestError
from penstock.core.types import Guarantee

BUCKET_SCHEMES = ("s3", "gs", "az", "memory")

CAPABILITIES = Capabilities(
    sink=Guarantee.EXACTLY_ONCE,
    takes_epochs=True,
    votes=True,
    on_stream_started="Opens every stream.",
    interceptors=frozenset(),
)


class LakeFormat(Enum):
    JSON = "json"
    """Each value is a JSON object, whose fields go to the columns of the same names."""
    RAW = "raw"
    """The columns are message_id, event_time, key and value."""


class LakeOptions(Options):
    """Paths without a scheme are directories; relative ones start in the directory where the worker was started. The
    credentials of a bucket come from the worker's environment and its files in ~/.aws, as for `--store`.
    """

    path: Annotated[str, Field(min_length=1)]
    """The directory of the table, or a prefix in a bucket: `s3://BUCKET/PREFIX`, `gs://…` or `az://…`."""
    format: LakeFormat = LakeFormat.JSON
    """`json`: each value is a JSON object, whose fields go to the columns of the same names. `raw`: the columns are
    `message_id`, `event_time`, `key` and `value`."""
    columns: str = ""
    """The columns of the rows in Spark's syntax, such as `id BIGINT, at TIMESTAMP`. For a pipeline that returns `value`
    itself: otherwise its own columns are used."""
    partition_by: tuple[str, ...] = ()
    """Columns whose values are directories: `date=2026-01-31/`. A table that exists keeps its own. An empty text
    counts as null there, as in Hive."""
    create: bool = True
    """Create the table, and columns that it lacks. They accept nulls. Without it, rows must fit the table as it is."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to an object with a field that has no column: `refuse` votes no on the epoch, `ignore` drops the
    field. For `format: json`."""
    file_bytes: Annotated[Size, Field(le=1 << 30)] = 128 << 20
    """Start a new file when one has about this size. An epoch starts new files anyway. With a bucket, the worker keeps
    one whole file in memory until it is stored."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.path)
        if "://" in self.path and parts.scheme not in (*BUCKET_SCHEMES, "file"):
            raise ValueError(
                f"{parts.scheme}:// is not a supported kind of store: write a directory, s3://, gs:// or az://"
            )
        if "@" in parts.netloc:
            raise ValueError("the address of a bucket must not contain credentials: they come from the environment")
        if len({*self.partition_by}) < len(self.partition_by):
            raise ValueError("partition_by names a column twice")
        if self.columns:
            try:
                parse_ddl(self.columns)
            except RequestError as error:
                raise ValueError(f"columns: {error} {error.hint}".rstrip()) from None
        return self

    @property
    def directory(self) -> Path | None:
        """None if the table is in a bucket."""
        parts = urlsplit(self.path)
        if "://" not in self.path:
            return Path(self.path).absolute()
        return Path(unquote(parts.path)) if parts.scheme == "file" else None
