"""The pipeline of csv_backfill.yaml: requests of each client per day of event time."""

from pyspark.sql import DataFrame

from penstock import windows


def per_day(history: DataFrame) -> DataFrame:
    return windows.aggregate(history, windows.tumbling("1 day"), keys="client", requests=windows.count())
