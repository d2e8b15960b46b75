"""The pipeline of http_reply.yaml: replies with the sum of the numbers in a request, or with what is wrong with it."""

from pyspark.sql import DataFrame, functions


def sums(requests: DataFrame) -> DataFrame:
    """The columns of the request stay in the row, because they identify the request to reply to. Without a `value`, the
    connector's codec writes the row. `metadata` may contain the status.
    """
    total = functions.aggregate("numbers", functions.lit(0.0), lambda total, number: total + number)
    status = functions.when(requests.numbers.isNull(), 422).otherwise(200)
    replies = requests.withColumn("sum", total).withColumn("metadata", functions.struct(status.alias("status")))
    return replies.drop("value", "numbers")
