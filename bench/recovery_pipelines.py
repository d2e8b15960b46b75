"""The pipelines of `script/bench recovery`, for `penstock run`: with windows and their state, and without.

Each has a source of its own: an event is acknowledged when all pipelines that read it have committed it.
"""

import logging

from pyspark.sql import DataFrame

from penstock import windows
from penstock.spark import pipeline

logging.getLogger("penstock").setLevel("INFO")  # the benchmark reads when each phase has ended


@pipeline(inputs={"events": "events_of_plain"})
def plain(events: DataFrame) -> DataFrame:
    return events.selectExpr("event_time", "key", "upper(cast(value as string)) as text")


@pipeline(inputs={"events": "events_of_windowed"})
def windowed(events: DataFrame) -> DataFrame:
    return windows.aggregate(events, windows.tumbling("1 minute"), keys=["key"], events=windows.count())
