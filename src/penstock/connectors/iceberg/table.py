"""An Iceberg table, by pyiceberg: its snapshots name the files, and its properties know the last vote of each sink."""

import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.exceptions import TableAlreadyExistsError as AlreadyExists
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType
from sqlalchemy.exc import SQLAlchemyError

from penstock.connectors.file.parts import make_directory
from penstock.connectors.iceberg.options import IcebergOptions
from penstock.connectors.lake.credentials import s3_settings
from penstock.connectors.lake.places import Place
from penstock.connectors.lake.record import SinkState, VoteRecord
from penstock.connectors.lake.schemas import Refused, plain
from penstock.connectors.sink_api import SinkLost
from penstock.core.retry import RetryPolicy

CONFLICTS = RetryPolicy(0.05, 2.0)
"""Other writers may commit between reading the table's metadata and replacing them."""

CONFLICT_SECONDS_MAX = 30.0
"""How long others may keep winning before the sink counts as lost, and is tried again later."""

_TIMES = (DateType, TimestampType, TimestamptzType)

_IO_NAMES = {
    "endpoint_url": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


class IcebergSnapshots:
    """A LakeTable. A commit replaces exactly the metadata that were read: if another writer has replaced them, they are
    read again, and whether the vote is in them. So two processes with the same vote commit once.
    """

    errors: tuple[type[Exception], ...] = (SQLAlchemyError, CommitFailedException, NoSuchTableError, ValueError)
    keeps_partitions = True  # pyiceberg finds a file's partition in its columns
    is_staged = False
    folder = "data/"
    log = "metadata"

    def __init__(self, options: IcebergOptions, place: Place, home: str, name: str) -> None:  # noqa: ARG002
        self._options = options
        self._url = url_of(place.url)
        self._property = f"penstock.{name}"
        self._catalog: SqlCatalog | None = None
        self._table: Table | None = None

    def load(self, state: SinkState) -> None:  # noqa: ARG002
        try:
            self._table = self._opened().load_table(self._options.table)
        except NoSuchTableError:
            self._table = None
        else:
            self._check_location(self._table.location())
            # pyiceberg would commit on top of whatever has come first, perhaps this very vote.
            self._table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"

    def _check_location(self, found: str) -> None:
        """Files and metadata are in `path`, where the sink looks for what it must make durable."""
        if url_of(found) != url_of(self._url):
            raise SinkLost(f"the table {self._options.table} is in {found}", f"Set path: {found}")

    @property
    def schema(self) -> pa.Schema | None:
        return None if self._table is None else plain(self._table.schema().as_arrow())

    @property
    def partition_by(self) -> tuple[str, ...] | None:
        if self._table is None:
            return None
        fields = self._table.spec().fields
        for field in fields:
            if not isinstance(field.transform, IdentityTransform):
                raise Refused(
                    f"it is partitioned by {field.transform} of a column", "Use a table that is partitioned by columns."
                )
        return tuple(str(self._table.schema().find_column_name(field.source_id)) for field in fields)

    @property
    def version(self) -> int:
        return 0 if self._table is None else int(self._table.properties.get(self._property, 0))

    def extend(self, schema: pa.Schema, added: tuple[pa.Field, ...], partition_by: tuple[str, ...]) -> None:
        if self._table is not None:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema(added))
            return
        catalog, name = self._opened(), self._options.table
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(name.rpartition(".")[0])
        with (
            suppress(AlreadyExists, CommitFailedException),  # another sink was faster: the vote looks again
            catalog.create_table_transaction(name, schema, self._url) as transaction,
            transaction.update_spec() as spec,
        ):
            for column in partition_by:
                spec.add_identity(column)

    def commit(self, vote: VoteRecord) -> None:
        for attempt in CONFLICTS.retrying(CONFLICT_SECONDS_MAX, CommitFailedException):
            with attempt:
                try:
                    self._commit(vote)
                except OverflowError:  # pyiceberg takes bounds for Python's dates, of the years 1 to 9999
                    self._commit(vote, bounds_times=False)

    def _commit(self, vote: VoteRecord, *, bounds_times: bool = True) -> None:
        self.load(SinkState())
        if self._table is None:
            raise SinkLost(f"{self._options.table}: the table is gone", "Restore it: a vote depends on it.")
        if vote.version <= self.version:
            return
        if not bounds_times:
            _leave_out_bounds(self._table, self.partition_by or ())
        properties = {"penstock.transaction": vote.transaction, "penstock.epoch": str(vote.epoch)}
        with self._table.transaction() as transaction:
            transaction.set_properties({self._property: str(vote.version)})
            transaction.add_files(
                [f"{self._url}/{file.key}" for file in vote.files], properties, check_duplicate_files=False
            )

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _opened(self) -> SqlCatalog:
        if self._catalog is None:
            if self._options.catalog_file is not None:
                make_directory(self._options.catalog_file.absolute().parent)
            settings = s3_settings(self._url)
            given = {_IO_NAMES[name]: value for name, value in settings.items() if name in _IO_NAMES}
            self._catalog = SqlCatalog(
                self._options.catalog_name, uri=self._options.catalog, warehouse=self._url, **given
            )
        return self._catalog


def url_of(location: str) -> str:
    """One form for what engines write differently: `/x` and `file:/x` are `file:///x`, and `s3a://` is `s3://`."""
    if "://" not in location:
        location = Path(location.removeprefix("file:")).absolute().as_uri()
    return re.sub("^s3[an]://", "s3://", location).rstrip("/")


def _leave_out_bounds(table: Table, partition_by: tuple[str, ...]) -> None:
    """Of times and dates, in what this process has read: the table's own properties stay as they are. Partition columns
    keep theirs, from which pyiceberg takes the partition.
    """
    schema = table.schema()
    for name in schema.column_names:
        if name not in partition_by and isinstance(schema.find_type(name), _TIMES):
            table.metadata.properties[f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{name}"] = "counts"
