"""The pipeline of avro_lake.yaml: orders that have a price, with the columns of the table."""

from pyspark.sql import DataFrame


def checked(orders: DataFrame) -> DataFrame:
    return orders.where(orders.price > 0).select("id", "country", "price")
