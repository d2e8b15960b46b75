"""Matches orders with payments that arrive within an hour, with Spark's join of two streams. Whichever source is
slower, no pair is lost; an unpaid order is emitted as soon as no payment can arrive any more.

penstock run examples/match_payments.py
An order's and a payment's text is the number of the order, from the sources `orders` and `payments`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

import penstock
from penstock.spark import pipeline


@pipeline
def match_payments(orders: DataFrame, payments: DataFrame) -> DataFrame:
    number = F.col("value").cast("string")
    ordered = penstock.watermarked(orders).select(number.alias("number"), F.col("event_time").alias("ordered"))
    paid = penstock.watermarked(payments).select(number.alias("of"), F.col("event_time").alias("paid"))
    in_time = F.expr("of = number and paid between ordered and ordered + interval 1 hour")
    return ordered.join(paid, in_time, "left").select("number", "ordered", "paid")
