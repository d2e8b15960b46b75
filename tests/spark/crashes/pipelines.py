"""Pipelines on one source: without a shuffle, with state of Spark, and with windows whose events are sometimes late."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock import windows
from penstock.spark import pipeline

SIZE_MS = 50
LATE_EVERY, LATE_MS = 10, 500
"""Every tenth message of a stream has an event time this much earlier than the others."""


@pipeline(max_bytes_per_epoch=64 * 1024)
def copy(letters: DataFrame) -> DataFrame:
    return letters.select("value", "key", "source", "stream", "stream_id", "message_id")


@pipeline(mode="complete")
def tally(letters: DataFrame) -> DataFrame:
    counts = letters.groupBy(F.col("key").cast("string").alias("key"))
    return counts.agg(F.count("*").alias("count"), F.sum("message_id").alias("sum"))


@pipeline(max_bytes_per_epoch=16 * 1024)
def windowed(letters: DataFrame) -> DataFrame:
    late = F.col("message_id") % LATE_EVERY == 0
    at = F.timestamp_micros(F.unix_micros("event_time") - F.when(late, LATE_MS * 1000).otherwise(0))
    return windows.aggregate(
        letters.select("segment", "offset", "message_id", F.col("key").cast("string").alias("k"), at.alias("at")),
        windows.tumbling(f"{SIZE_MS} ms"),
        keys="k",
        event_time="at",
        buckets=4,
        n=windows.count(),
        ids=windows.sum("message_id"),
    )
