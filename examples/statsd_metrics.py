"""The pipeline of statsd_metrics.yaml: what each metric was in ten seconds."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, lit

from penstock import windows


def totals(metrics: DataFrame) -> DataFrame:
    """A counter that was sampled stands for 1 ÷ rate events."""
    weighted = metrics.withColumn("weighted", metrics.number / coalesce(metrics.rate, lit(1.0)))
    return windows.aggregate(
        weighted,
        windows.tumbling("10 seconds"),
        keys=["name", "kind"],
        samples=windows.count(),
        total=windows.sum("weighted"),
        highest=windows.max("number"),
    )
