"""The pipeline of access_log.yaml: requests and errors per hour of event time."""

from pyspark.sql import DataFrame

from penstock import windows


def per_hour(log: DataFrame) -> DataFrame:
    errors = log.withColumn("is_error", (log["status"] >= 500).cast("int"))
    return windows.aggregate(
        errors, windows.tumbling("1 hour"), requests=windows.count(), errors=windows.sum("is_error")
    )
