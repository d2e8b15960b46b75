"""The pipeline of http_reply.yaml: the sum of the numbers in a request, or what is wrong with it."""

from pyspark.sql import DataFrame, functions


def sums(requests: DataFrame) -> DataFrame:
    """Beside the reply's own columns, those of the request stay: they say whose reply it is. Without a `value`, a row
    is written by the connector's codec. `metadata` may tell the status.
    """
    total = functions.aggregate("numbers", functions.lit(0.0), lambda total, number: total + number)
    status = functions.when(requests.numbers.isNull(), 422).otherwise(200)
    replies = requests.withColumn("sum", total).withColumn("metadata", functions.struct(status.alias("status")))
    return replies.drop("value", "numbers")
