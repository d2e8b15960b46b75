"""Spark's own operators follow the watermark of the pipeline: exact results, nothing lost, state removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.feeding import Feed
from tests.spark.following import Following, at, following, in_pipeline, late, load, seconds
from tests.support.running_worker import running_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

STEPS = [
    [("fast", b"a", 10), ("fast", b"a", 90), ("slow", b"b", 5), ("slow", b"b", 50)],
    [("slow", b"a", 130)],
    [("slow", b"b", 20), ("slow", b"d", 90)],  # late; exactly at the watermark
    [("fast", b"e", 599), ("fast", b"a", 600)],
    [("slow", b"b", 600)],
]
"""Stream, key and second of the events. After the steps the watermark is 50, 90, 90, 130, 600."""


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Following]]:
    """A query for each operator, after all steps."""
    from penstock.spark.watermark import watermarked

    folder = tmp_path_factory.mktemp("watermarked")
    operators = {"window": windows, "session": sessions, "timers": timers, "duplicates": without_duplicates}
    with running_worker(folder / "data") as worker, Feed(worker, "clicks", ["fast", "slow"]) as clicks:
        frames = {}
        for name, operator in operators.items():
            within = "1 minute" if name == "duplicates" else "0s"
            with in_pipeline(spark, worker, name, "clicks"):
                clicks_of = watermarked(load(spark, worker, name, "clicks"), duplicates_within=within)
            keyed = clicks_of.selectExpr("cast(key as string) as key", "event_time as at").where("key != 'c'")
            frames[name] = operator(keyed)
        with following(folder, frames) as queries:
            for events in STEPS:
                for stream, key, second in events:
                    clicks.say(stream, at(second), key=key)
                for query in queries.values():
                    query.step()
            yield queries
            for name in operators:
                (event,) = late(worker, name)
                assert (event.key, event.event_time) == (b"b", at(20)[0] * 1000), name


def windows(clicks: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return clicks.groupBy(functions.window("at", "1 minute"), "key").count()


def sessions(clicks: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return clicks.groupBy(functions.session_window("at", "1 minute").alias("window"), "key").count()


def without_duplicates(clicks: DataFrame) -> DataFrame:
    return clicks.dropDuplicatesWithinWatermark(["key"])


def timers(clicks: DataFrame) -> DataFrame:
    """Keys that were silent for a minute, and since when."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Silent(StatefulProcessor):  # in a function, so that it is pickled by value for the Python workers
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            last = max(int(at.timestamp() * 1000) for frame in rows for at in frame["at"].dt.tz_localize("UTC"))
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(last + 60_000)
            yield from ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
            since = pd.Timestamp(expiredTimerInfo.getExpiryTimeInMs() - 60_000, unit="ms")
            yield pd.DataFrame({"key": [key[0]], "since": [since]})

    return clicks.groupBy("key").transformWithStateInPandas(
        Silent(), "key string, since timestamp", "append", "eventTime"
    )


def bounds(row: Row) -> tuple[float, float, str, int]:
    return seconds(row["window"]["start"]), seconds(row["window"]["end"]), row["key"], row["count"]


def test_windows_close_when_the_slowest_stream_has_passed_them(results: dict[str, Following]) -> None:
    query = results["window"]
    assert sorted(map(bounds, query.rows)) == [
        (0, 60, "a", 1),
        (0, 60, "b", 2),
        (60, 120, "a", 1),
        (60, 120, "d", 1),
        (120, 180, "a", 1),
    ]
    assert query.dropped == 0, "the event that came behind its window left before"
    assert query.state_rows == 3, "of the minute that is not over, and of the one whose end the watermark is"


def test_sessions_close_when_the_slowest_stream_has_passed_them(results: dict[str, Following]) -> None:
    query = results["session"]
    assert sorted(map(bounds, query.rows)) == [(5, 110, "b", 2), (10, 70, "a", 1), (90, 150, "d", 1), (90, 190, "a", 2)]
    assert (query.dropped, query.state_rows) == (0, 3)


def test_timers_fire_when_the_slowest_stream_has_passed_them(results: dict[str, Following]) -> None:
    assert [(row["key"], seconds(row["since"])) for row in results["timers"].rows] == [("b", 50), ("d", 90)]
    assert results["timers"].dropped == 0


def test_duplicates_are_found_until_the_slowest_stream_has_passed_them(results: dict[str, Following]) -> None:
    query = results["duplicates"]
    kept = sorted((row["key"], seconds(row["at"])) for row in query.rows)
    assert kept == [("a", 10), ("a", 600), ("b", 5), ("b", 600), ("d", 90), ("e", 599)]
    assert (query.dropped, query.state_rows) == (0, 3)
