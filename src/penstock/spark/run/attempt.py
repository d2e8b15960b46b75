"""One attempt to run a pipeline: a generation, its loads and its query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.client.coordinator import CoordinatorClient
from penstock.core.retry import RetryPolicy
from penstock.spark.outputs import Leaving, leaving
from penstock.spark.run.checkpoints import PLAN, checkpoint_of, is_fresh, opened
from penstock.spark.run.failures import shown_at_the_users_line
from penstock.spark.run.generation import Generation, is_outdated, move_outdated_aside, start_generation
from penstock.spark.run.session import SHUFFLE_PARTITIONS
from penstock.spark.run.state_plan import StatePlan, check_compatible, state_plan_of
from penstock.spark.source.control import pretend
from penstock.spark.source.schema import ASKED_COLUMNS, COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.spark.pipelines import Pipeline

# When a failed query is restarted.


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    restarts_max: int = 6
    """In a row. With the pauses they take about a minute: enough for a worker or a disk to come back. A longer failure
    is not transient."""

    pause_seconds_first: float = 1.0
    pause_seconds_max: float = 30.0
    """Each pause is twice the previous one, up to this limit."""

    healthy_seconds: float = 60.0
    """A query that has made progress for this long has recovered: its next failure counts from zero."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How many times in a row a pipeline was restarted."""

    in_a_row: int = 0

    def after_failure(self, healthy_for_seconds: float, policy: RestartPolicy) -> tuple[Restarts, float | None]:
        """Also returns the pause before the next start, or None to give up. `healthy_for_seconds`: from the start of
        the query to its last progress.
        """
        before = 0 if healthy_for_seconds >= policy.healthy_seconds else self.in_a_row
        if before >= policy.restarts_max:
            return self, None
        pauses = RetryPolicy(policy.pause_seconds_first, policy.pause_seconds_max, jitter=0.0)
        return Restarts(before + 1), pauses.pause(before + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How pipelines are run. The pipeline's own declaration decides whatever is None."""

    worker: str
    checkpoints: str
    """The folder or URL that contains a checkpoint per pipeline."""
    cores: int
    """The minimum number of splits into which a load divides an epoch."""
    trigger_ms: int | None = None
    available_now: bool = False
    """Process what is stored now, then end."""
    follows_buckets: bool = False
    """The number of shuffle partitions is not configured: a query with windows uses as many as it has buckets."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)

    def checkpoint(self, pipeline: str) -> str:
        return checkpoint_of(self.checkpoints, pipeline)


@dataclass(frozen=True, slots=True)
class Attempt:
    generation: Generation
    query: StreamingQuery
    query_id: str
    ports: tuple[str, ...]
    moved_aside: str | None = None
    """The new location of a checkpoint that a reset has invalidated."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known about a pipeline before it starts."""

    ports: tuple[str, ...]
    state: StatePlan


def plan_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """Call the pipeline's function with placeholder streams to find out what it returns. Starts and fences nothing.
    Raises RequestError at the user's line.
    """
    left = _left(pipeline, {name: _pretended_input(spark, pipeline, name) for name in pipeline.inputs})
    frame = left.frame if left.writer is None else left.writer._df  # noqa: SLF001  a writer does not show its frame
    assert frame is not None
    return Planned(left.ports, state_plan_of(frame))


def _pretended_input(spark: SparkSession, pipeline: Pipeline, name: str) -> DataFrame:
    """A placeholder stream with the source's columns, without a Python process: each takes a second to start."""
    from pyspark.sql import functions

    kinds = COLUMNS | ASKED_COLUMNS
    columns = [functions.lit(None).cast(kinds[name]).alias(name) for name in pipeline.columns]
    options = {"pipeline": pipeline.name, "input": name, "source": ",".join(pipeline.inputs[name])}
    return spark.readStream.format("rate").options(**pretend(options)).load().select(*columns)


def check_state(spark: SparkSession, name: str, state: StatePlan, settings: RunSettings) -> None:
    """Raises RequestError if a query with this plan cannot continue from the pipeline's checkpoint. Changes nothing."""
    checkpoint = opened(spark, settings.checkpoint(name))
    stored = StatePlan.parse(checkpoint.read(PLAN) or "")
    if stored is not None and checkpoint.batches() and not is_outdated(checkpoint, name, settings.worker):
        check_compatible(name, stored, state)


def keep_state_plan(spark: SparkSession, name: str, state: StatePlan, settings: RunSettings) -> None:
    """Called once the query has run an epoch: from then on its state belongs to this plan."""
    checkpoint = opened(spark, settings.checkpoint(name))
    if checkpoint.read(PLAN) != state.text():
        checkpoint.write(PLAN, state.text())


def start_attempt(
    spark: SparkSession, pipeline: Pipeline, planned: Planned, settings: RunSettings, *, bind: bool
) -> Attempt:
    """Fence older generations and start the query. With `bind` the pipeline's sinks are bound before the query can end
    an epoch. A checkpoint from before a reset is moved aside. Raises RequestError for errors that the user must fix.
    """
    checkpoint, ports = settings.checkpoint(pipeline.name), planned.ports
    moved = move_outdated_aside(opened(spark, checkpoint), pipeline.name, settings.worker)
    generation = start_generation(
        pipeline.name,
        settings.worker,
        pipeline.inputs,
        ports,
        starting=pipeline.starting,
        limits=pipeline.limits,
        fresh=is_fresh(checkpoint),
    )
    try:
        if bind and pipeline.sinks:
            with CoordinatorClient(settings.worker) as coordinator:
                coordinator.bind(pipeline.name, pipeline.sinks)
        inputs = {
            name: _load(spark, pipeline, generation.input(name, min_partitions=settings.cores))
            for name in pipeline.inputs
        }
        left = _left(pipeline, inputs)
        generation.describe(left.schemas)
        writer = _writer(left, pipeline, generation).queryName(pipeline.name)
        writer = _triggered(writer, pipeline, settings).option("checkpointLocation", checkpoint)
        with (
            _shuffles_by(spark, planned.state.buckets if settings.follows_buckets else None),
            shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be started"),
        ):
            query = writer.start()
        return Attempt(generation, query, query.id, ports, moved)
    except BaseException:
        generation.stop(failed=True)
        raise


@contextmanager
def _shuffles_by(spark: SparkSession, partitions: int | None) -> Iterator[None]:
    """Sets the session's shuffle partitions while a query starts: the query copies the settings at that moment."""
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    if partitions is not None:
        spark.conf.set(SHUFFLE_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(SHUFFLE_PARTITIONS, before)


def _left(pipeline: Pipeline, inputs: Mapping[str, DataFrame]) -> Leaving:
    with shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be built"):
        return leaving(pipeline(**inputs), pipeline.outputs)


def _load(spark: SparkSession, pipeline: Pipeline, options: dict[str, Any]) -> DataFrame:
    columns = {} if pipeline.columns == tuple(COLUMNS) else {"columns": ",".join(pipeline.columns)}
    return spark.readStream.format("penstock").options(**options, **columns).load()


def _writer(left: Leaving, pipeline: Pipeline, generation: Generation) -> DataStreamWriter:
    if left.writer is not None:
        return left.writer
    assert left.frame is not None
    return left.frame.writeStream.format("penstock").options(**generation.output()).outputMode(pipeline.mode)


def _triggered(writer: DataStreamWriter, pipeline: Pipeline, settings: RunSettings) -> DataStreamWriter:
    """The command line takes precedence over the declaration; a user's own writer may have a trigger already."""
    if settings.available_now:
        return writer.trigger(availableNow=True)
    trigger_ms = pipeline.trigger_ms if settings.trigger_ms is None else settings.trigger_ms
    return writer if trigger_ms is None else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
