"""`parquet`: a directory of Parquet files, by two-phase commit."""

from typing import TYPE_CHECKING

from penstock.connectors.api import About, ShownBy
from penstock.connectors.lake.connector import LakeConnector
from penstock.connectors.lake.options import CAPABILITIES, LakeOptions
from penstock.connectors.url_forms import UrlForm, path

if TYPE_CHECKING:
    from penstock.connectors.lake.sink import MakeTable


class ParquetOptions(LakeOptions):
    """Paths without a scheme are directories; relative ones start in the directory where the worker was started. The
    credentials of a bucket come from the worker's environment and its files in ~/.aws, as for `--store`.

    A plain directory of files has no transactions: while an epoch with several files is committed, a reader may see
    some of them. It sees each file as a whole, and after a crash the rest follows when the sink is opened again. Use
    `delta` or `iceberg` where a reader must see whole epochs.

    Files that were written before a column was added do not have it: readers merge the schemas, Spark with the option
    `mergeSchema`.
    """


class Parquet(LakeConnector[ParquetOptions]):
    about = About(
        "parquet",
        "Writes Parquet files to a directory or a bucket, in Hive's layout of partitions.",
        ParquetOptions,
        CAPABILITIES,
        extra="parquet",
        example={"path": "lake/orders", "partition_by": ["country"]},
        url=UrlForm(written="parquet:PATH", place=path, fields=("path",)),
        shown_by=ShownBy(
            sink="tests/connectors/stores/test_lake_contract.py::TestParquet",
        ),
    )

    def tables(self) -> "MakeTable":
        from penstock.connectors.parquet.table import ParquetFiles

        return ParquetFiles
