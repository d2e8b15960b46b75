"""One try of a pipeline: a generation, the loads and the query that belong to it."""

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

# When a query that has failed is started again.


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    restarts_max: int = 6
    """In a row; with the pauses between them about a minute, in which a worker or a disk comes back. What fails
    longer is not passing."""

    pause_seconds_first: float = 1.0
    pause_seconds_max: float = 30.0
    """Each pause is twice the one before, up to this."""

    healthy_seconds: float = 60.0
    """A query that has made progress for so long has recovered: what fails then is counted again."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often in a row a pipeline was started again."""

    in_a_row: int = 0

    def after_failure(self, healthy_for_seconds: float, policy: RestartPolicy) -> tuple[Restarts, float | None]:
        """The pause before the next start; None: it is given up. `healthy_for_seconds`: from the start of the query
        to its last progress.
        """
        before = 0 if healthy_for_seconds >= policy.healthy_seconds else self.in_a_row
        if before >= policy.restarts_max:
            return self, None
        pauses = RetryPolicy(policy.pause_seconds_first, policy.pause_seconds_max, jitter=0.0)
        return Restarts(before + 1), pauses.pause(before + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How pipelines are run. What is None is left to the pipeline's own declaration."""

    worker: str
    checkpoints: str
    """The folder, or URL, in which each pipeline has its checkpoint."""
    cores: int
    """Splits that a load makes of an epoch, at least."""
    trigger_ms: int | None = None
    available_now: bool = False
    """Process what is there, then end."""
    follows_buckets: bool = False
    """Nobody has set how many partitions a shuffle has: those of a query with windows are as many as its buckets."""
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
    """Where the checkpoint is that a reset has made useless."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a pipeline before it is started."""

    ports: tuple[str, ...]
    state: StatePlan


def plan_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """What its function gives, found by calling it with streams that only look like its inputs: nothing is started or
    fenced by it. Raises RequestError at the user's line.
    """
    left = _left(pipeline, {name: _pretended_input(spark, pipeline, name) for name in pipeline.inputs})
    frame = left.frame if left.writer is None else left.writer._df  # noqa: SLF001  a writer does not show its frame
    assert frame is not None
    return Planned(left.ports, state_plan_of(frame))


def _pretended_input(spark: SparkSession, pipeline: Pipeline, name: str) -> DataFrame:
    """A stream with the source's columns, made without a Python process: those take a second each."""
    from pyspark.sql import functions

    kinds = COLUMNS | ASKED_COLUMNS
    columns = [functions.lit(None).cast(kinds[name]).alias(name) for name in pipeline.columns]
    options = {"pipeline": pipeline.name, "input": name, "source": ",".join(pipeline.inputs[name])}
    return spark.readStream.format("rate").options(**pretend(options)).load().select(*columns)


def check_state(spark: SparkSession, name: str, state: StatePlan, settings: RunSettings) -> None:
    """Whether a query with this plan can continue what is in the pipeline's checkpoint. Nothing is changed. Raises
    RequestError where it cannot.
    """
    checkpoint = opened(spark, settings.checkpoint(name))
    kept = StatePlan.parse(checkpoint.read(PLAN) or "")
    if kept is not None and checkpoint.batches() and not is_outdated(checkpoint, name, settings.worker):
        check_compatible(name, kept, state)


def keep_state_plan(spark: SparkSession, name: str, state: StatePlan, settings: RunSettings) -> None:
    """Once the query has run an epoch: from now on its state is this plan's."""
    checkpoint = opened(spark, settings.checkpoint(name))
    if checkpoint.read(PLAN) != state.text():
        checkpoint.write(PLAN, state.text())


def start_attempt(
    spark: SparkSession, pipeline: Pipeline, planned: Planned, settings: RunSettings, *, bind: bool
) -> Attempt:
    """Older generations are fenced from here on; with `bind` the pipeline's sinks are bound before its query can end an
    epoch. A checkpoint from before a reset is moved aside. Raises RequestError for what the user must mend.
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
    """A query takes the session's settings with it when it is started."""
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
    """The command line's word, then the declaration's; a writer of the user's own may have its trigger already."""
    if settings.available_now:
        return writer.trigger(availableNow=True)
    trigger_ms = pipeline.trigger_ms if settings.trigger_ms is None else settings.trigger_ms
    return writer if trigger_ms is None else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
