"""The pipeline of shop.yaml: the turnover of each shop per ten seconds of event time."""

from pyspark.sql import DataFrame

from penstock import windows


def per_shop(orders: DataFrame) -> DataFrame:
    return windows.aggregate(
        orders, windows.tumbling("10 seconds"), keys=["shop"], orders=windows.count(), total=windows.sum("amount")
    )
