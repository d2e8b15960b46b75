"""The pipeline of log_lake.yaml: the columns of the table."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import to_date


def per_day(logs: DataFrame) -> DataFrame:
    return logs.select("at", to_date("at").alias("day"), "level", "message", "tags")
