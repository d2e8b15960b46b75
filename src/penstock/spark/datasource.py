"""`format("penstock")`, for reading and for writing. The modules are imported on first use: Spark looks for sources in
a process that needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.core.errors import RequestError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    """Spark creates one for each load and each write, with its options, in any process that needs it."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        """The source's columns. Spark calls this for a sink too, whose options are checked when it is created."""
        from penstock.spark.python_worker import hinted
        from penstock.spark.source.options import SourceOptions
        from penstock.spark.source.schema import COLUMNS, FUSED_COLUMNS, source_schema, spark_schema

        with hinted():
            if "source" not in self.options:
                return source_schema(tuple(COLUMNS))
            options = SourceOptions.parse(self.options)
            if options.fused is not None:
                return spark_schema(tuple(FUSED_COLUMNS))
            if not options.branches:
                return source_schema(options.columns)
            from penstock.spark.source.decoding import decoder_of

            return f"{source_schema(options.columns)}, {decoder_of(options).ddl()}"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's names
        from penstock.spark.python_worker import hinted
        from penstock.spark.source.options import SourceOptions
        from penstock.spark.source.schema import check_control, columns_of
        from penstock.spark.source.stream import StreamReader

        with hinted():
            options = SourceOptions.for_stream(self.options)
            if options.buckets is not None:
                return StreamReader(options, check_control(schema, is_fused=options.fused is not None))
            return StreamReader(options, options.columns if options.branches else columns_of(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.python_worker import hinted
        from penstock.spark.source.options import SourceOptions
        from penstock.spark.source.schema import columns_of
        from penstock.spark.source.stream import BatchReader

        with hinted():
            options = SourceOptions.for_batch(self.options)
            return BatchReader(options, options.columns if options.branches else columns_of(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from penstock.spark.python_worker import hinted
        from penstock.spark.sink.writer import SinkOptions, StreamSink

        with hinted():
            return StreamSink(SinkOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        from penstock.spark.python_worker import hinted

        with hinted():
            raise RequestError(
                "penstock writes streaming queries only: a batch job that is run again would store its rows twice",
                "Read the same data with readStream, and write it with writeStream and trigger(availableNow=True).",
            )
