"""Finds sensors that were silent for five minutes, with event-time timers of Spark's `transformWithState`. Time is the
event time of the slowest sensor, not a clock: after an outage of the pipeline the result is the same as without it.

penstock run examples/silent_sensors.py
python examples/random_sensor.py
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock
from penstock.spark import pipeline

SILENCE_MS = 5 * 60 * 1000


class Silence(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        due = max(row["at"] for row in rows) + SILENCE_MS
        timers = [*self._handle.listTimers()]
        if due > max(timers, default=0):
            for timer in timers:
                self._handle.deleteTimer(timer)
            self._handle.registerTimer(due)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        last_ms = expiredTimerInfo.getExpiryTimeInMs() - SILENCE_MS
        yield Row(sensor=key[0], silent_since=datetime.fromtimestamp(last_ms / 1000, UTC))

    def close(self) -> None:
        pass


@pipeline
def silent_sensors(sensors: DataFrame) -> DataFrame:
    heard = penstock.watermarked(sensors).selectExpr("stream", "event_time", "unix_millis(event_time) as at")
    return heard.groupBy("stream").transformWithState(
        Silence(), "sensor string, silent_since timestamp", "Append", "EventTime"
    )
