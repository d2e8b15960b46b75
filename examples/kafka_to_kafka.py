"""The pipeline of kafka_to_kafka.yaml: payments above a limit, with the currency's usual name."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, upper


def large(payments: DataFrame) -> DataFrame:
    return payments.where(col("amount") >= 1000).select("id", upper("currency").alias("currency"), "amount")
