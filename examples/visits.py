"""Visits to a site, with Spark's `session_window`: clicks of a user less than half an hour apart.

penstock run examples/visits.py
A click is the JSON of a user and a page, from the source `clicks`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

import penstock
from penstock.spark import pipeline


@pipeline
def visits(clicks: DataFrame) -> DataFrame:
    user = F.get_json_object(F.col("value").cast("string"), "$.user")
    known = penstock.watermarked(clicks).select("event_time", user.alias("user")).where("user is not null")
    counted = known.groupBy(F.session_window("event_time", "30 minutes").alias("visit"), "user").count()
    return counted.select("user", "visit.start", "visit.end", F.col("count").alias("clicks"))
