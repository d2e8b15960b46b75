"""`delta`: a Delta table, by two-phase commit; the epoch is an application transaction of the table."""

from typing import TYPE_CHECKING

from penstock.connectors.api import About, ShownBy
from penstock.connectors.lake.connector import LakeConnector
from penstock.connectors.lake.options import CAPABILITIES, LakeOptions
from penstock.connectors.url_forms import UrlForm, path

if TYPE_CHECKING:
    from penstock.connectors.lake.sink import MakeTable


class DeltaOptions(LakeOptions):
    """Paths without a scheme are directories; relative ones start in the directory where the worker was started. The
    credentials of a bucket come from the worker's environment and its files in ~/.aws, as for `--store`.

    An epoch is one commit of the table's log, with all its files, or none: readers see whole epochs. The commit also
    sets the application transaction `penstock/PIPELINE/SINK`, by which the sink recognises an epoch that is in the
    table already. Other programs may write to the table, compact and vacuum it at any time.

    A crash may leave files that the log does not name. `VACUUM` deletes them; retain at least an hour, since a vote in
    doubt names files that the log does not have yet.

    The sink writes checkpoints of the log, but deletes nothing from it. The table's maintainer cleans it: Spark
    does so after each checkpoint that it writes, and `DeltaTable.cleanup_metadata()` of delta-rs when it is called.

    In the tests, what it writes is read by delta-rs, and its data files also by Spark: no second reader of the
    log was tried.
    """


class Delta(LakeConnector[DeltaOptions]):
    about = About(
        "delta",
        "Writes rows to a Delta table in a directory or a bucket, an epoch as one transaction.",
        DeltaOptions,
        CAPABILITIES,
        extra="delta",
        example={"path": "lake/orders", "partition_by": ["country"]},
        url=UrlForm(written="delta:PATH", place=path, fields=("path",)),
        shown_by=ShownBy(
            sink="tests/connectors/stores/test_lake_contract.py::TestDelta",
        ),
    )

    def tables(self) -> "MakeTable":
        from penstock.connectors.delta.table import DeltaLog

        return DeltaLog
