"""Archives sensor readings as Parquet files, with one of Spark's own sinks. Epochs complete as with any other sink.

penstock run examples/archive.py
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark import pipeline


@pipeline(trigger="10s")
def archive(sensors: DataFrame) -> DataStreamWriter:
    rows = sensors.selectExpr("stream", "event_time", "cast(value as string) as text")
    return rows.writeStream.format("parquet").option("path", os.environ.get("ARCHIVE", "archive"))
