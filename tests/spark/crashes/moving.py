"""A pipeline with windows, in epochs of a few events."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock import windows
from penstock.spark import pipeline


@pipeline(max_rows_per_epoch=20)
def moving(letters: DataFrame) -> DataFrame:
    keyed = letters.select("segment", "offset", "message_id", "event_time", F.col("key").cast("string").alias("k"))
    return windows.aggregate(
        keyed,
        windows.tumbling("30 ms"),
        keys="k",
        buckets=2,
        n=windows.count(),
        ids=windows.sum("message_id"),
    )
