"""What `penstock.watermarked` accepts, what it refuses, and what Spark's optimizer must not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.core.errors import RequestError
from penstock.spark import pipeline
from tests.spark.feeding import Feed
from tests.spark.following import following, in_pipeline, load
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Change = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture(autouse=True)
def in_a_pipeline(spark: SparkSession) -> Iterator[None]:
    with penstock.session(spark, pipeline="p", source="clicks"):
        yield


def clicks(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").options(**{"source": "clicks", "pipeline": "p"} | options).load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop("event_time"), "column 'event_time' not found"),
        (lambda frame: frame.withColumn("event_time", frame["offset"]), "'event_time' is bigint, not timestamp"),
        (lambda frame: frame.withWatermark("event_time", "1 hour"), "'event_time' has a watermark already"),
        (lambda frame: penstock.watermarked(frame), "'event_time' has a watermark already"),
    ],
)
def test_a_frame_without_a_penstock_watermark_is_refused(spark: SparkSession, change: Change, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        penstock.watermarked(change(clicks(spark)))


def test_a_batch_frame_is_returned_unchanged(spark: SparkSession) -> None:
    batch = spark.createDataFrame([(1,)], "n int")
    assert penstock.watermarked(batch) is batch


def test_the_columns_of_a_frame_are_unchanged(spark: SparkSession) -> None:
    frame = clicks(spark).selectExpr("event_time as seen", "key", "named_struct('a', array(offset)) as place")
    marked = penstock.watermarked(frame, event_time="seen", duplicates_within="5 minutes")
    assert marked.dtypes == frame.dtypes
    assert marked.schema["seen"].metadata == {"spark.watermarkDelayMs": 300_000}
    assert marked.select(frame["key"]).columns == ["key"], "columns of the frame itself are still known"


def test_the_ports_of_a_pipeline_are_found_without_a_worker(spark: SparkSession) -> None:
    from penstock.spark.run.attempt import plan_of

    @pipeline
    def minutes(clicks: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        return penstock.watermarked(clicks).groupBy(functions.window("event_time", "1 minute")).count()

    assert plan_of(spark, minutes).ports == ("out", "err", "late")


def by_minute(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return frame.groupBy(functions.window("event_time", "1 minute")).count()


CHANGES: dict[str, Change] = {
    "only the time": lambda frame: by_minute(frame.select("event_time")),
    "a filter on a column": lambda frame: by_minute(frame.where("key = 'x'").drop("key")),
    "a filter on nulls": lambda frame: by_minute(frame.where("key is not null and stream is not null")),
    "a filter on the time": lambda frame: by_minute(frame.where("event_time > timestamp '2020-01-01' and key > 'a'")),
    "a filter on what was computed": lambda frame: by_minute(
        frame.selectExpr("event_time", "length(concat(key, value)) as n").where("n > 3")
    ),
    "other keys": lambda frame: frame.dropDuplicatesWithinWatermark(["key"]).where("offset > 5"),
    "a join": lambda frame: frame.where("key = 'a'").join(
        frame.where("key = 'b'").selectExpr("stream_id", "event_time as other"), "stream_id"
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_filter_is_pushed_below_the_watermark_of_the_control_rows(
    spark: SparkSession, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    CHANGES[name](penstock.watermarked(clicks(spark))).explain("extended")
    plan = capsys.readouterr().out.partition("== Optimized")[2].partition("== Physical")[0]
    marks = plan.split("EventTimeWatermark")[1:]
    assert len(marks) == (2 if name == "a join" else 1)
    for mark in marks:
        below, control, _ = mark.partition("rows=control")
        assert control, "the control rows are there"
        assert [line for line in below.splitlines() if "Filter" in line and "isnotnull(watermark" not in line] == []


def test_times_before_1970_are_refused_rather_than_dropped(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    with in_pipeline(spark, worker, "old", "old"):
        frame = by_minute(penstock.watermarked(load(spark, worker, "old", "old")))
    with Feed(worker, "old", ["one"]) as old, following(tmp_path, {"old": frame}) as queries:
        old.say("one", (-1, b"the day before"))
        with pytest.raises(Exception, match="the watermark is before 1970"):
            queries["old"].step()
