"""`penstock.watermarked`: Spark's own operators follow the watermark of the pipeline.

Spark derives its watermark from the event times of rows that pass a `withWatermark`. Here only control rows do: each
batch has one, whose time is the pipeline's watermark, and a filter after it drops them all. The data is united with
this empty stream, and its event time gets the mark that `withWatermark` would set: `withWatermark` itself would also
count the data's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from penstock.core.durations import parse_duration_ms
from penstock.core.errors import RequestError
from penstock.protocol.stored.dead_letters import LATE
from penstock.spark.pipeline_context import PipelineContext, current_pipeline
from penstock.spark.source.control import control_rows

Late: TypeAlias = Literal["keep", "drop"]

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

DELAY_KEY = "spark.watermarkDelayMs"
"""The key in a column's metadata by which Spark recognizes that the column has a watermark."""

BEFORE_1970 = (
    "the watermark is before 1970, and Spark treats all events up to 1970 as late: use penstock.windows for such times"
)


def watermarked(
    frame: DataFrame, *, event_time: str = "event_time", duplicates_within: str = "0s", late: Late = "keep"
) -> DataFrame:
    """The same rows, for which Spark's `window`, `session_window`, joins of streams, event-time timers and
    `dropDuplicatesWithinWatermark` use the watermark of the frame's pipeline: only events behind it are late. A batch
    is returned unchanged.

    With `late="keep"`, events behind the watermark at the start of their epoch leave through the port `late`, each once
    and with its original bytes, and are not in the result. `late="drop"` hands them on: Spark's operators then drop
    those that they cannot use, and count them.

    `event_time`: the column with Penstock's event time, if it has another name. `duplicates_within`: the minimum
    distance in event time within which `dropDuplicatesWithinWatermark` finds duplicates. Raises RequestError outside a
    pipeline, and for a frame that has a watermark already.
    """
    if not frame.isStreaming:
        return frame
    _check(frame.schema, event_time)
    if late not in get_args(Late):
        raise RequestError(f"late={late!r} is not valid", 'Write "keep" or "drop".')
    context = current_pipeline("watermarked")
    delay_ms = parse_duration_ms(duplicates_within)
    metadata = frame.schema[event_time].metadata | {DELAY_KEY: delay_ms}
    if late == "keep":
        frame = _on_time(frame, event_time, context)
    return frame.withMetadata(event_time, metadata).union(_control(frame, event_time, context))


def _on_time(frame: DataFrame, event_time: str, context: PipelineContext) -> DataFrame:
    """The rows that are not late. The others leave through `late`."""
    from penstock.spark.dead_letters.columns import carried
    from penstock.spark.late_rows import is_on_time

    name = context.operator("watermarked", LATE)
    return frame.where(is_on_time(context.origin(), name, frame[event_time], carried(frame)))


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


def _control(frame: DataFrame, event_time: str, context: PipelineContext) -> DataFrame:
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

    known = control_rows(frame.sparkSession, context, [0]).where("watermark is not null")
    marks = known.select(functions.expr(_TIME).alias("at")).withWatermark("at", "0 seconds")
    return marks.select(*map(column, frame.schema)).where(functions.col("at") < functions.expr(_NEVER))


_NEVER = "timestamp_micros(-62135596800000000)"
"""The year 1: no watermark is before 1970."""

_TIME = f"timestamp_micros(if(watermark < 0, raise_error('{BEFORE_1970}'), watermark - 1))"
"""Spark's watermark is in whole milliseconds, and an event exactly at it is late. So ours minus 1 µs, so that an event
exactly at ours is not late."""
