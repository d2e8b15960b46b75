"""Pipelines in a session of Spark Connect. They run in a process of their own: where PySpark is connected to a server,
it is so for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock.spark
from penstock import dead_letters, windows
from penstock.spark.pipeline_context import current_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS_MAX = 120

Build = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client finds everything."""

    server: str
    worker: str
    """Its HTTP address."""
    folder: Path

    @property
    def spark(self) -> SparkSession:
        return penstock.spark.connect(self.server)


@contextmanager
def _started(
    place: Place, name: str, source: str, build: Build, *, is_input: bool = False, **options: str
) -> Iterator[Any]:
    """A query that processes everything that is stored, an event in each epoch. `is_input`: the frame is known as an
    input of the pipeline.
    """
    spark, checkpoint = place.spark, str(place.folder / name)
    with penstock.begin(
        name, worker=place.worker, inputs={"in": source}, checkpoint=checkpoint, max_rows_per_epoch=2
    ) as run:
        plain = spark.readStream.format("penstock").options(**run.input("in"), **options)
        frame = run.load(spark, "in", **options) if is_input else plain.load()
        with penstock.session(spark, pipeline=run):
            built = build(frame)
        writer = built.writeStream.format("penstock").options(**run.output()).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        penstock.watch(spark, query, run)
        try:
            yield query
        finally:
            query.stop()


def _run(place: Place, name: str, source: str, build: Build, *, is_input: bool = False, **options: str) -> int:
    """Returns how many epochs it took."""
    with _started(place, name, source, build, is_input=is_input, **options) as query:
        assert query.awaitTermination(SECONDS_MAX)
        return sum(any(source["numInputRows"] for source in report["sources"]) for report in query.recentProgress)


def _as_json(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(F.to_json(F.struct("*")).alias("value"))


def copy(place: Place) -> int:
    return _run(place, "copy", "lines", lambda frame: frame.select("value", "key"))


def decode(place: Place) -> int:
    def doubled(frame: DataFrame) -> DataFrame:
        return _as_json(frame.where("n < 100").selectExpr("n * 2 as n"))

    return _run(place, "decode", "numbers", doubled, codec="json", schema="n bigint")


def count(place: Place) -> int:
    def per_minute(frame: DataFrame) -> DataFrame:
        counted = windows.aggregate(frame, windows.tumbling("1 minute"), keys=["stream"], n=windows.count(), buckets=2)
        return _as_json(counted.selectExpr("stream", "unix_micros(window_start) as start", "n"))

    return _run(place, "count", "clicks", per_minute)


def count_fused(place: Place) -> int:
    """The readers compute what the windows need: their frame is an input itself."""

    def per_minute(frame: DataFrame) -> DataFrame:
        counted = windows.aggregate(
            frame,
            windows.tumbling("1 minute"),
            keys=["stream"],
            where="message_id > 0",
            select={"size": "message_id + 1"},
            n=windows.count(),
            largest=windows.max("size"),
            buckets=2,
        )
        (note,) = current_pipeline("a test").notes
        assert note.not_fused is None, note
        return _as_json(counted.selectExpr("stream", "unix_micros(window_start) as start", "n", "largest"))

    return _run(place, "count", "clicks", per_minute, is_input=True)


def mistaken(place: Place) -> str:
    from penstock.core.errors import RequestError

    def per_minute(frame: DataFrame) -> DataFrame:
        return windows.aggregate(frame, windows.tumbling("1 minute"), where="amount > 1", n=windows.count())

    try:
        _run(place, "mistaken", "clicks", per_minute, is_input=True)
    except RequestError as error:
        return str(error)
    return "there is such a column"


def in_order(place: Place) -> int:
    def ordered(frame: DataFrame) -> DataFrame:
        return windows.ordered(frame, keys=["stream"], buckets=2).select("value")

    return _run(place, "order", "clicks", ordered)


def distinct(place: Place) -> int:
    def once(frame: DataFrame) -> DataFrame:
        return penstock.watermarked(frame).dropDuplicatesWithinWatermark(["value"]).select("value")

    return _run(place, "distinct", "clicks", once)


def share(place: Place) -> int:
    def of_twelve(row: dict[str, Any]) -> dict[str, Any]:
        return {"share": 12 // int(row["value"])}

    def shares(frame: DataFrame) -> DataFrame:
        return _as_json(dead_letters.apply(frame, of_twelve, "share int", per="row"))

    return _run(place, "share", "numbers", shares)


def fail(place: Place) -> str:
    """Returns how Penstock reports the end of a query."""
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.spark.run.failures import exception_text, failure_of

    def parsed(text: str) -> int:
        return int(text)

    number = F.udf(parsed, "int")
    with _started(
        place, "fail", "lines", lambda frame: _as_json(frame.select(number(F.col("value").cast("string"))))
    ) as query:
        try:
            query.awaitTermination(SECONDS_MAX)
        except Exception as error:
            return f"{failure_of(exception_text(query) or '').summary} / {type(error).__name__}"
    return "it did not fail"


def written(place: Place) -> bool:
    """Whether the frame of a user's own writer is known."""
    from penstock.spark.run.plan_text import following_writers

    frame = place.spark.readStream.format("rate").load()
    with following_writers() as frames:
        return frames.of(frame.writeStream.format("noop")) is frame


def display(place: Place) -> str:
    from penstock.core.errors import RequestError

    try:
        penstock.display(place.spark.readStream.format("rate").load())
    except RequestError as error:
        return str(error)
    return "it is displayed"
