"""Two pipelines on one source: one without a shuffle, one with state."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import pipeline


@pipeline(max_bytes_per_epoch=64 * 1024)
def copy(letters: DataFrame) -> DataFrame:
    return letters.select("value", "key", "source", "stream", "stream_id", "message_id")


@pipeline(mode="complete")
def tally(letters: DataFrame) -> DataFrame:
    counts = letters.groupBy(F.col("key").cast("string").alias("key"))
    return counts.agg(F.count("*").alias("count"), F.sum("message_id").alias("sum"))
