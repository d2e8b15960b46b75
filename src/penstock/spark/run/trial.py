"""Tries a pipeline's function on some events of an epoch, as `penstock pipeline bisect` does.

A trial is a query of its own, with a checkpoint of its own that is deleted afterwards. It reads from the worker, and
changes nothing there: it has no generation, stages no output and registers nothing. So the pipeline may run meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RequestError, Unavailable
from penstock.protocol.api.dead_letters import EventPlace
from penstock.protocol.api.pipelines import BatchRanges, Range
from penstock.spark.pipeline_context import PipelineContext
from penstock.spark.pipelines import DEFAULT_PORT
from penstock.spark.python_worker import hinted, link, places_of
from penstock.spark.run.attempt import built, loaded
from penstock.spark.run.failures import Failure, exception_text, failure_of, shown_at_the_users_line
from penstock.spark.run.plan_text import following_writers
from penstock.spark.sink.plan import plan_text
from penstock.spark.sink.writer import encoded_blocks
from penstock.spark.source.options import Trial
from penstock.spark.source.partitions import without

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.outputs import Leaving
    from penstock.spark.pipelines import Pipeline

_LOOK_SECONDS = 1
"""Between two looks at a query: Ctrl-C has an effect after at most so long."""

_WRITTEN = "rows bigint"
"""The result of a trial's last stage, which nothing reads."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochEvents:
    """The events that an epoch reads, by number: segment by segment, in the order of their offsets."""

    epoch: BatchRanges
    segments: Sequence[tuple[Range, NDArray[Any]]]
    """What any input reads of a segment, and the offsets of the events there."""
    left_out: Sequence[Range] = ()
    """Buried events, which the epoch does not read."""

    @classmethod
    def read(cls, worker: str, epoch: BatchRanges, left_out: Sequence[Range] = ()) -> EpochEvents:
        """Raises DataLoss if some of them are gone, Unavailable."""
        import numpy as np

        found = []
        for whole in _united(one for ranges in epoch.inputs.values() for one in ranges):
            buried = [one.start for one in left_out if one.segment == whole.segment]
            offsets = np.concatenate([np.empty(0, np.int64), *_offsets(worker, whole)])
            found.append((whole, offsets[~np.isin(offsets, buried)]))
        return cls(epoch, found, left_out)

    def __len__(self) -> int:
        return sum(len(offsets) for _, offsets in self.segments)

    def place(self, number: int) -> EventPlace:
        for whole, offsets in self.segments:
            if number < len(offsets):
                return EventPlace(whole.segment, int(offsets[number]))
            number -= len(offsets)
        raise IndexError(number)

    def ranges(self, start: int, end: int, but: Sequence[int] = ()) -> dict[str, list[Range]]:
        """Input → what it reads of the events from `start` to `end`, without some of them."""
        chosen: list[Range] = []
        before = 0
        for whole, offsets in self.segments:
            first, last = max(0, start - before), min(len(offsets), end - before)
            if first < last:
                stop = int(offsets[last]) if last < len(offsets) else whole.end
                chosen.append(Range(whole.segment, int(offsets[first]), stop))
            before += len(offsets)
        holes = [*self.left_out, *(_alone(self, number) for number in but)]
        kept = without(chosen, holes)
        return {
            name: [both for one in ranges for part in kept if (both := _both(one, part)) is not None]
            for name, ranges in self.epoch.inputs.items()
        }


def _alone(events: EpochEvents, number: int) -> Range:
    """A single event: up to the next one, or the end of what is read."""
    at = number
    for whole, offsets in events.segments:
        if at < len(offsets):
            end = int(offsets[at + 1]) if at + 1 < len(offsets) else whole.end
            return Range(whole.segment, int(offsets[at]), end)
        at -= len(offsets)
    raise IndexError(number)


def _united(ranges: Iterator[Range]) -> list[Range]:
    """One for each segment: inputs that read the same one may begin at different offsets."""
    found: dict[str, Range] = {}
    for one in ranges:
        known = found.get(one.segment, one)
        found[one.segment] = Range(one.segment, min(known.start, one.start), max(known.end, one.end))
    return [found[name] for name in sorted(found)]


def _both(one: Range, other: Range) -> Range | None:
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Range(one.segment, start, end) if one.segment == other.segment and start < end else None


def _offsets(worker: str, whole: Range) -> Iterator[NDArray[Any]]:
    """Of the events in the range, in batches."""
    import numpy as np

    from penstock.spark.source.arrow import SegmentBatches, read_events, stream_names

    batches = SegmentBatches(whole.segment, ("offset",), lambda name: stream_names(worker, name))
    there = places_of(worker, [whole.segment]).get(whole.segment, worker)
    for events in read_events(link(there, None, None, None), whole, batches, fail_on_data_loss=True):
        yield np.asarray(events.offsets)


class Trials:
    """Of one pipeline and one epoch, one after the other in a session."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        worker: str,
        events: EpochEvents,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called every second or so during a trial, which ends if it raises."""
        self._check = check
        self._spark = spark
        self._pipeline = pipeline
        self._worker = worker
        self._events = events

    def fails(self, start: int, end: int, but: Sequence[int] = ()) -> Failure | None:
        """How the function fails on these events; None if it does not. Raises RequestError for a function that cannot
        be built, PenstockError for a failure that is not one of the function.
        """
        with tempfile.TemporaryDirectory(prefix="penstock-bisect-") as folder:
            self._spark.createDataFrame([], "any int")  # sets this thread's session, without which Spark finds no sink
            query = self._start(self._events.ranges(start, end, but), Path(folder))
            try:
                return _failure(query, self._check)
            finally:
                query.stop()

    def _start(self, ranges: Mapping[str, Sequence[Range]], folder: Path) -> StreamingQuery:
        pipeline, watermark = self._pipeline, self._events.epoch.watermark
        options = {name: self._options(name, Trial(tuple(ranges.get(name, ())), watermark)) for name in pipeline.inputs}
        inputs = {name: loaded(self._spark, pipeline, name, given) for name, given in options.items()}
        with following_writers() as written:
            context = PipelineContext(next(iter(options.values())), [*inputs.values()])
            left = built(pipeline, inputs, context)
        frame = _tried(left) if left.writer is None else written.of(left.writer)  # a user's writer writes elsewhere
        writer = frame.writeStream.format("noop").outputMode(pipeline.mode)
        writer = writer.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
        with shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be started"):
            return writer.start()

    def _options(self, name: str, trial: Trial) -> dict[str, str]:
        pipeline = self._pipeline
        sources = ",".join(pipeline.inputs[name])
        given = {"worker": self._worker, "pipeline": pipeline.name, "input": name, "source": sources}
        return given | {"trial": trial.text()}


def _tried(left: Leaving) -> DataFrame:
    """The rows that leave, encoded as the sink would."""
    assert left.frame is not None
    return left.frame.mapInArrow(partial(_encoded, plan_text(left.plan) if left.plan else None), _WRITTEN)


def _encoded(plan: str | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encodes all rows, and returns none of them."""
    with hinted():
        for batch in batches:
            for _ in encoded_blocks(batch, DEFAULT_PORT, plan):
                pass
        yield from ()


def _failure(query: StreamingQuery, check: Callable[[], None]) -> Failure | None:
    """When it has ended. Raises PenstockError for anything that a task of the function has not caused."""
    from pyspark.errors import StreamingQueryException

    with suppress(StreamingQueryException):
        while not query.awaitTermination(_LOOK_SECONDS):
            check()
    text = exception_text(query)
    if text is None:
        return None
    failure = failure_of(text)
    if failure.is_of_a_batch and not failure.is_outage:
        return failure
    raise (RequestError if failure.is_final else Unavailable)(failure.text, failure.hint)
