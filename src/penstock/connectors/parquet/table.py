"""A directory of Parquet files as a table: its schema is what the sink has written so far."""

import pyarrow as pa

from penstock.connectors.lake.places import Place
from penstock.connectors.lake.record import SinkState, VoteRecord
from penstock.connectors.lake.sink import recalled, staged_key


class ParquetFiles:
    """A LakeTable. Files are staged in the sink's own folder and moved by the commit, each in one step: by renaming in
    a directory, by a create-only write in a bucket. Their names are in the vote, so a repeated commit finds them done.
    """

    errors: tuple[type[Exception], ...] = ()
    keeps_partitions = False
    is_staged = True
    folder = ""
    log = ""
    version = 0

    def __init__(self, place: Place, home: str, name: str) -> None:  # noqa: ARG002
        self._place = place
        self._home = home
        self.schema: pa.Schema | None = None
        self.partition_by: tuple[str, ...] | None = None

    def load(self, state: SinkState) -> None:
        self.schema, self.partition_by = recalled(state.schema) if state.schema else (None, None)

    def extend(self, schema: pa.Schema, added: tuple[pa.Field, ...], partition_by: tuple[str, ...]) -> None:
        """The schema is in the record, and comes with the vote."""

    def commit(self, vote: VoteRecord) -> None:
        for file in vote.files:
            self._place.publish(staged_key(self._home, file.key), file.key)

    def close(self) -> None:
        """Nothing is open."""
