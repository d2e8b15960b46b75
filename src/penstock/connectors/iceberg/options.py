"""The options of `iceberg`."""

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from penstock.connectors.lake.options import LakeOptions

_SQLITE = "sqlite:///"
_UNSUPPORTED = ("az", "memory")
"""Schemes of buckets that pyiceberg does not know."""


class IcebergOptions(LakeOptions):
    """Paths without a scheme are directories; relative ones start in the directory where the worker was started. The
    credentials of a bucket come from the worker's environment and its files in ~/.aws, as for `--store`.

    An epoch is one snapshot of the table, with all its files, or none: readers see whole epochs. The snapshot's
    properties `penstock.transaction` and `penstock.epoch` name it. The same commit sets the table's property
    `penstock.PIPELINE/SINK`, by which the sink recognises an epoch that is in the table already, also after snapshots
    have expired. Other programs may write to the table, compact it and expire snapshots at any time.

    A crash may leave files that no snapshot names: `remove_orphan_files` of Iceberg deletes them.

    In the tests, what it writes is read by pyiceberg, and its data files also by Spark: no second reader of the
    snapshots was tried.
    """

    path: Annotated[str, Field(min_length=1)]
    """The directory of the table, or a prefix in a bucket: `s3://BUCKET/PREFIX` or `gs://…`. A table that exists must
    be there."""
    catalog: Annotated[str, Field(min_length=1)]
    """The SQL catalogue, as a URL of SQLAlchemy: `sqlite:///catalog.db`, or `postgresql+psycopg://…`, whose password
    should come from the environment: `${env:CATALOG}`."""
    table: Annotated[str, Field(min_length=1)]
    """`NAMESPACE.NAME` in the catalogue. The namespace is created if it does not exist."""
    catalog_name: Annotated[str, Field(min_length=1)] = "default"
    """The catalogue's name: one database may have several."""

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if not all(self.table.split(".")) or "." not in self.table:
            raise ValueError(f"{self.table!r} is not a valid table: write NAMESPACE.NAME")
        if (scheme := urlsplit(self.path).scheme) in _UNSUPPORTED:
            raise ValueError(f"pyiceberg cannot use {scheme}://: write a directory, s3:// or gs://")
        if self.catalog.lower().startswith("sqlite"):
            self._check_sqlite()
        return self

    def _check_sqlite(self) -> None:
        """The file that is opened must be the one whose path the worker's permissions are checked for."""
        file = self.catalog.removeprefix(_SQLITE)
        if file == self.catalog or file.startswith("file:") or "?" in file or "%" in file:
            raise ValueError("a catalogue in SQLite is sqlite:///PATH, without a driver, a query, `file:` or `%`")
        if self.catalog_file is None:
            raise ValueError("a catalogue in memory would lose committed epochs: write sqlite:///PATH")

    @property
    def catalog_file(self) -> Path | None:
        """The file of a catalogue in SQLite."""
        file = self.catalog.removeprefix(_SQLITE)
        return Path(file) if self.catalog.startswith(_SQLITE) and file not in ("", ":memory:") else None
