"""What a task of a control-only load does: it reads nothing, and says where the watermark is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.spark.python_worker import freeze
from penstock.spark.source_options import SourceOptions
from penstock.spark.source_partitions import ControlRows
from penstock.spark.source_schema import CONTROL_COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


def control_batches(options: SourceOptions, rows: ControlRows) -> Iterator[pa.RecordBatch]:
    """One batch, with a row for each bucket, in their order."""
    import pyarrow as pa

    freeze()
    assert options.buckets is not None
    count = len(options.buckets)
    columns = [options.buckets, [rows.epoch] * count, [rows.before] * count, [rows.watermark] * count]
    schema = arrow_schema(tuple(CONTROL_COLUMNS))
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
