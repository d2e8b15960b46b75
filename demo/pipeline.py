"""The demo's pipeline: how many, and how much, for each key in each window; emitted when all streams have passed it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

from demo.events import WINDOW_MS
from penstock import windows
from penstock.spark import pipeline


@pipeline(max_rows_per_epoch=2_000)  # many epochs, so that there is something to see, and to kill, between them
def traffic(north: DataFrame, south: DataFrame) -> DataFrame:
    passing = north.union(south).withColumns(
        {"vehicle": F.col("key").cast("string"), "amount": F.col("value").cast("string").cast("int")}
    )
    return windows.aggregate(
        passing,
        windows.tumbling(f"{WINDOW_MS} ms"),
        keys=["vehicle"],
        count=windows.count(),
        amount=windows.sum("amount"),
    )
