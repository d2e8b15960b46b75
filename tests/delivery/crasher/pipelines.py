"""The pipelines that run during the kills: one without a shuffle, one with state."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import pipeline


@pipeline(max_bytes_per_epoch=64 * 1024)
def copy(north: DataFrame, south: DataFrame) -> DataFrame:
    return north.union(south).select("value", "key", "source", "stream", "stream_id", "message_id")


@pipeline(mode="complete")
def tally(north: DataFrame, south: DataFrame) -> DataFrame:
    """Every message counts twice: for its key, and for the total."""
    keys = F.explode(F.array(F.col("key").cast("string"), F.lit("*")))
    events = north.union(south).select(keys.alias("key"), "message_id")
    return events.groupBy("key").agg(F.count("*").alias("count"), F.sum("message_id").alias("sum"))
