"""`spark.read.format("penstock")`: what is stored, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.coordinator import CoordinatorClient, InputOffset
from penstock.core.errors import RequestError
from penstock.protocol.stored import Source
from penstock.spark.python_worker import hinted
from penstock.spark.source_options import SourceOptions
from penstock.spark.source_partitions import SegmentRanges, plan_partitions

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Where the batch begins and ends is decided when Spark plans it; what comes later is not in it."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with hinted(), CoordinatorClient(options.worker) as coordinator:
            end = InputOffset(coordinator.resolve(options.sources, options.ending))
            _check_known(options.sources, end)
            start = InputOffset(coordinator.resolve(options.sources, options.starting))
            # Spark takes no partitions at all for one that it can make up itself.
            return plan_partitions(coordinator, options, start, end) or [SegmentRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.source_reading import read_partition  # here: kernels and Arrow take a second to import

        assert isinstance(partition, SegmentRanges)
        return read_partition(self._options, self._columns, partition)


def _check_known(sources: Sequence[str], end: InputOffset) -> None:
    """A stream waits for sources that are still to come; a batch of one that is not there is a mistake."""
    for source in map(Source.parse, sources):
        if not any(map(source.owns, end.segments)):
            raise RequestError(f"there is no source {str(source)!r}", "Look which there are: penstock status")
