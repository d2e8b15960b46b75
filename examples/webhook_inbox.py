"""The pipeline of webhook_inbox.yaml: the columns that are kept of a delivery."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import col


def who_did_what(deliveries: DataFrame) -> DataFrame:
    return deliveries.select(
        col("event_time").alias("at"),
        col("repository.full_name").alias("repository"),
        col("sender.login").alias("who"),
        col("action").alias("what"),
    )
