"""The pipelines of `script/bench recovery`, for `penstock run`: with windows and their state, and without."""

import logging

from pyspark.sql import DataFrame

from penstock import windows
from penstock.spark import pipeline

logging.getLogger("penstock").setLevel("INFO")  # the benchmark reads when each phase has ended


@pipeline
def plain(events: DataFrame) -> DataFrame:
    return events.selectExpr("event_time", "key", "upper(cast(value as string)) as text")


@pipeline
def windowed(events: DataFrame) -> DataFrame:
    return windows.aggregate(events, windows.tumbling("1 minute"), keys=["key"], events=windows.count())
