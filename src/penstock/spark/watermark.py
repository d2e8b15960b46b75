"""`penstock.watermarked`: Spark's own operators follow the watermark of the pipeline.

Spark derives its watermark from the event times of rows that pass a `withWatermark`. Here only control rows do: each
batch has one, whose time is the pipeline's watermark, and a filter after it drops them all. The data is united with
this empty stream, and its event time gets the mark that `withWatermark` would set: `withWatermark` itself would also
count the data's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.spark.source.control import control_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

DELAY_KEY = "spark.watermarkDelayMs"
"""The key in a column's metadata by which Spark recognizes that the column has a watermark."""

BEFORE_1970 = (
    "the watermark is before 1970, and Spark treats all events up to 1970 as late: use penstock.windows for such times"
)


def watermarked(frame: DataFrame, *, event_time: str = "event_time", duplicates_within: str = "0s") -> DataFrame:
    """The same rows, for which Spark's `window`, `session_window`, joins of streams, event-time timers and
    `dropDuplicatesWithinWatermark` use the watermark of the frame's pipeline: only events behind it are late. A batch
    is returned unchanged.

    `event_time`: the column with Penstock's event time, if it has another name. `duplicates_within`: the minimum
    distance in event time within which `dropDuplicatesWithinWatermark` finds duplicates. Raises RequestError for a
    frame that does not read from a load of a pipeline, or that has a watermark already.
    """
    if not frame.isStreaming:
        return frame
    _check(frame.schema, event_time)
    delay_ms = parse_duration_ms(duplicates_within)
    metadata = frame.schema[event_time].metadata | {DELAY_KEY: delay_ms}
    return frame.withMetadata(event_time, metadata).union(_control(frame, event_time))


def _check(schema: StructType, event_time: str) -> None:
    if event_time not in schema.names:
        raise RequestError(
            f"column {event_time!r} not found", "Keep the event time, or name it: watermarked(frame, event_time=…)"
        )
    if (kind := schema[event_time].dataType.simpleString()) != "timestamp":
        raise RequestError(f"the column {event_time!r} is {kind}, not timestamp", "Do not convert the event time.")
    if marked := [field.name for field in schema if DELAY_KEY in field.metadata]:
        raise RequestError(
            f"the column {marked[0]!r} has a watermark already", "Use penstock.watermarked once, and no withWatermark."
        )


def _control(frame: DataFrame, event_time: str) -> DataFrame:
    """A stream with the frame's columns and without rows, which advances Spark's watermark.

    Spark must not push the users' filters below the watermark: there they would drop the control rows. It pushes no
    filter below nondeterministic columns, and none on the event time below its watermark. The last filter is one on the
    event time too, and Spark cannot know that nothing passes it.
    """
    from pyspark.sql import functions

    def column(field: StructField) -> Column:
        if field.name == event_time:
            return functions.col("at")
        nothing = functions.array(functions.lit(None).cast(field.dataType))
        return functions.get(nothing, functions.rand(seed=0).cast("int"))

    known = control_rows(frame, [0]).where("watermark is not null")
    marks = known.select(functions.expr(_TIME).alias("at")).withWatermark("at", "0 seconds")
    return marks.select(*map(column, frame.schema)).where(functions.col("at") < functions.expr(_NEVER))


_NEVER = "timestamp_micros(-62135596800000000)"
"""The year 1: no watermark is before 1970."""

_TIME = f"timestamp_micros(if(watermark < 0, raise_error('{BEFORE_1970}'), watermark - 1))"
"""Spark's watermark is in whole milliseconds, and an event exactly at it is late. So ours minus 1 µs, so that an event
exactly at ours is not late."""
