"""The pipeline of postgres_changes.yaml: a row for each change. The last one of an `id` is the order as it is now."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce


def history(changes: DataFrame) -> DataFrame:
    order = coalesce("after.id", "before.id").alias("id")
    return changes.select("op", order, "after.customer", "after.amount", "commit_time", "lsn")
