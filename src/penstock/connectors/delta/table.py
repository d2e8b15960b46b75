"""A Delta table, by delta-rs: its log names the files, and knows the last vote of each sink."""

import time
from collections.abc import Mapping

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from penstock.connectors.lake.credentials import s3_settings
from penstock.connectors.lake.places import Place
from penstock.connectors.lake.record import SinkState, VoteRecord
from penstock.connectors.lake.schemas import plain
from penstock.connectors.sink_api import SinkLost
from penstock.core.retry import RetryPolicy

CONFLICTS = RetryPolicy(0.05, 2.0)
"""Other writers may commit between reading the log and writing to it."""

CONFLICT_SECONDS_MAX = 30.0
"""How long others may keep winning before the sink counts as lost, and is tried again later."""


class DeltaLog:
    """A LakeTable. A commit is written as exactly the next version of the log that was read: if another writer has
    written it, the log is read again, and whether the vote is in it. So two processes with the same vote commit once.
    """

    errors: tuple[type[Exception], ...] = (DeltaError,)
    keeps_partitions = False
    is_staged = False
    folder = ""
    log = "_delta_log"

    def __init__(self, place: Place, home: str, name: str) -> None:  # noqa: ARG002
        self._url = place.url
        self._application = f"penstock/{name}"
        self._table: DeltaTable | None = None

    def load(self, state: SinkState) -> None:  # noqa: ARG002
        try:
            self._table = DeltaTable(self._url, storage_options=self._options())
        except TableNotFoundError:
            self._table = None
        else:
            _check_features(self._table.metadata().configuration)

    @property
    def schema(self) -> pa.Schema | None:
        return None if self._table is None else plain(pa.schema(self._table.schema().to_arrow()))

    @property
    def partition_by(self) -> tuple[str, ...] | None:
        return None if self._table is None else tuple(self._table.metadata().partition_columns)

    @property
    def version(self) -> int:
        return 0 if self._table is None else self._table.transaction_version(self._application) or 0

    def extend(self, schema: pa.Schema, added: tuple[pa.Field, ...], partition_by: tuple[str, ...]) -> None:
        """Another writer may do the same at the same time: then the table is as it should be, or the epoch is tried
        again.
        """
        if self._table is None:
            by, options = [*partition_by], self._options()
            self._table = DeltaTable.create(
                self._url, schema, mode="ignore", partition_by=by or None, storage_options=options
            )
        else:
            fields: list[Field] = Schema.from_arrow(pa.schema(added)).fields
            self._table.alter.add_columns(fields)

    def commit(self, vote: VoteRecord) -> None:
        for attempt in CONFLICTS.retrying(CONFLICT_SECONDS_MAX, CommitFailedError):
            with attempt:
                self._commit(vote)

    def _commit(self, vote: VoteRecord) -> None:
        self.load(SinkState())
        if self._table is None:
            raise SinkLost(f"{self._url}: the table is gone", "Restore it: a vote on an epoch depends on it.")
        if vote.version > self.version:
            self._write(self._table, vote)

    def _write(self, table: DeltaTable, vote: VoteRecord) -> None:
        now_ms = int(time.time() * 1000)
        properties = CommitProperties(
            custom_metadata={"penstock.transaction": vote.transaction, "penstock.epoch": str(vote.epoch)},
            max_commit_retries=0,
            app_transactions=[Transaction(self._application, vote.version, now_ms)],
        )
        table.create_write_transaction(
            [AddAction(file.key, file.size, file.partition, now_ms, True, file.stats) for file in vote.files],
            "append",
            table.schema(),
            table.metadata().partition_columns or None,
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )

    def close(self) -> None:
        self._table = None

    def _options(self) -> dict[str, str] | None:
        """Nothing but what the environment does not have: keys from files are read each time, and may change."""
        return {f"aws_{name}": value for name, value in s3_settings(self._url).items()} or None


def _check_features(configuration: Mapping[str, str]) -> None:
    """Raises SinkLost for a table whose rules delta-rs does not apply to files that it is given."""
    found = [name for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.append("delta.columnMapping.mode")
    if found:
        raise SinkLost(f"the table has {', '.join(found)}, which this sink cannot honour", "Use another table.")
