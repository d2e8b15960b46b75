"""Counts clicks once that a browser sends twice within ten minutes, with Spark's `dropDuplicatesWithinWatermark`. Spark
forgets them when the slowest stream has passed them.

penstock run examples/without_duplicates.py
"""

from pyspark.sql import DataFrame

import penstock
from penstock.spark import pipeline


@pipeline
def without_duplicates(clicks: DataFrame) -> DataFrame:
    return penstock.watermarked(clicks, duplicates_within="10 minutes").dropDuplicatesWithinWatermark(["key", "value"])
