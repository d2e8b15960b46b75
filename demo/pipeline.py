"""The demo's pipeline: how many, and how much, for each key in each window of five seconds."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from penstock.spark import pipeline


@pipeline(mode="complete")
def traffic(north: DataFrame, south: DataFrame) -> DataFrame:
    events = north.union(south).select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").cast("int").alias("amount"),
        "event_time",
    )
    totals = events.groupBy(F.window("event_time", "5 seconds").alias("window"), "key").agg(
        F.count("*").alias("count"), F.sum("amount").alias("amount")
    )
    return totals.select("key", F.unix_millis("window.start").alias("window_ms"), "count", "amount")
