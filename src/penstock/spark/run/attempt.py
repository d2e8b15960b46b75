"""One attempt to run a pipeline: a generation, its loads and its query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.client.coordinator import CoordinatorClient
from penstock.core.errors import RequestError, UnreadableFormat
from penstock.core.retry import RetryPolicy
from penstock.protocol.stored.dead_letters import ERR
from penstock.spark.input_frames import InputFrame, OperatorNote
from penstock.spark.outputs import Leaving, leaving
from penstock.spark.pipeline_context import PipelineContext, in_pipeline
from penstock.spark.run.checkpoint_mirror import is_superseded
from penstock.spark.run.checkpoints import PLAN, Checkpoint, adopt_moved, checkpoint_of, opened
from penstock.spark.run.failures import shown_at_the_users_line
from penstock.spark.run.generation import (
    ExecutorAccess,
    Generation,
    is_outdated,
    move_outdated_aside,
    start_generation,
)
from penstock.spark.run.plan_text import following_writers, state_plan_of
from penstock.spark.run.query_probe import QueryProbe, QueryQuestion
from penstock.spark.run.session import SHUFFLE_PARTITIONS
from penstock.spark.run.state_plan import Companion, StatePlan, changes_taken_over, check_compatible
from penstock.spark.run.takeover import closing
from penstock.spark.sink.plan import plan_text
from penstock.spark.source.control import pretend
from penstock.spark.source.decoding import decoder_of
from penstock.spark.source.options import SourceOptions, branches_text
from penstock.spark.source.schema import COLUMNS, source_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.spark.codecs.batch_decoder import Decoder
    from penstock.spark.pipelines import Pipeline

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.0
"""At a start nothing waits for an absent worker: the runner tries again, and meanwhile looks after other pipelines."""

# When a failed query is restarted.


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    restarts_max: int = 6
    """In a row, and outages do not count. With the pauses they take about a minute. A longer failure is not transient,
    unless something outside is unavailable: then there is no limit."""

    pause_seconds_first: float = 1.0
    pause_seconds_max: float = 30.0
    """Each pause is twice the previous one, up to this limit."""

    healthy_seconds: float = 60.0
    """A query that has made progress for this long has recovered: its next failure counts from zero."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How many times in a row a pipeline was restarted."""

    in_a_row: int = 0
    limited: int = 0
    """Those that count towards the limit."""

    def after_failure(
        self, healthy_for_seconds: float, policy: RestartPolicy, *, is_outage: bool = False
    ) -> tuple[Restarts, float | None]:
        """Also returns the pause before the next start, or None to give up. `healthy_for_seconds`: from the start of
        the query to its last progress. `is_outage`: something outside was unavailable.
        """
        before = Restarts() if healthy_for_seconds >= policy.healthy_seconds else self
        if not is_outage and before.limited >= policy.restarts_max:
            return self, None
        after = Restarts(before.in_a_row + 1, before.limited + (not is_outage))
        pauses = RetryPolicy(policy.pause_seconds_first, policy.pause_seconds_max, jitter=0.0)
        return after, pauses.pause(after.in_a_row)


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
    gateway: Any = None
    """Py4J's, to the session's JVM: for checkpoints that are not on this machine."""
    executors: ExecutorAccess | None = None
    """Set if tasks do not run on this machine."""

    def checkpoint(self, pipeline: str) -> str:
        return checkpoint_of(self.checkpoints, pipeline)

    def opened(self, pipeline: str) -> Checkpoint:
        return opened(self.checkpoint(pipeline), self.gateway)


@dataclass(frozen=True, slots=True)
class Attempt:
    generation: Generation
    query: StreamingQuery
    query_id: str
    ports: tuple[str, ...]
    state: StatePlan


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known about a pipeline before it starts."""

    ports: tuple[str, ...]
    state: StatePlan
    operators: tuple[OperatorNote, ...] = ()


def plan_of(spark: SparkSession, pipeline: Pipeline) -> Planned:
    """Call the pipeline's function with placeholder streams to find out what it returns. Starts and fences nothing.
    Raises RequestError at the user's line.
    """
    inputs = {name: _pretended_input(spark, pipeline, name) for name in pipeline.inputs}
    options = _pretended_options(pipeline, next(iter(pipeline.inputs)))
    context = PipelineContext(options, [*inputs.values()], is_pretended=True)
    with following_writers() as written:
        left = built(pipeline, inputs, context)
    frame = left.frame if left.writer is None else written.of(left.writer)
    assert frame is not None
    return Planned(left.ports, state_plan_of(frame), tuple(context.notes))


def _pretended_input(spark: SparkSession, pipeline: Pipeline, name: str) -> InputFrame:
    """A placeholder stream with the source's columns, without a Python process: each takes a second to start."""
    from pyspark.sql import functions

    from penstock.spark.codecs.decoder import with_variants
    from penstock.spark.dead_letters.apply import fields_of

    options = {**_pretended_options(pipeline, name), **_decoding_options(pipeline, name)}
    rate = spark.readStream.format("rate").options(**pretend(options)).load()
    decoder = _decoder(pipeline, name)
    ddl = source_schema(pipeline.columns) + ("" if decoder is None else f", {decoder.ddl()}")
    kinds = fields_of(ddl)
    nothing = (functions.lit(None).cast(one.dataType).alias(one.name, metadata=one.metadata) for one in kinds)
    frame = rate.select(*nothing)
    return InputFrame(frame if decoder is None else with_variants(frame, decoder), options, frame.schema)


def _decoder(pipeline: Pipeline, name: str) -> Decoder | None:
    """Of an input whose events are decoded."""
    branches = pipeline.decoding.get(name)
    if branches is None:
        return None
    options = {**_pretended_options(pipeline, name), **_decoding_options(pipeline, name)}
    return decoder_of(SourceOptions.parse(options))


def _decoding_options(pipeline: Pipeline, name: str) -> dict[str, str]:
    columns = {} if pipeline.columns == tuple(COLUMNS) else {"columns": ",".join(pipeline.columns)}
    branches = pipeline.decoding.get(name)
    return columns if branches is None else columns | {"decoding": branches_text(branches)}


def _pretended_options(pipeline: Pipeline, name: str) -> dict[str, str]:
    return {"pipeline": pipeline.name, "input": name, "source": ",".join(pipeline.inputs[name])}


def check_state(name: str, state: StatePlan, settings: RunSettings) -> list[str]:
    """Returns what differs from the plan of the pipeline's state and is taken over. Raises RequestError if a query with
    this plan cannot continue from the pipeline's checkpoint. Changes nothing.
    """
    checkpoint = settings.opened(name)
    if is_outdated(checkpoint, name, settings.worker, retry_seconds=_RETRY_SECONDS):
        return []
    if is_superseded(settings.checkpoint(name), name, settings.worker, retry_seconds=_RETRY_SECONDS):
        return []
    stored = _stored_plan(checkpoint, name)
    if stored is None:
        return []
    check_compatible(name, stored, state)
    return changes_taken_over(stored, state)


def _stored_plan(checkpoint: Checkpoint, name: str) -> StatePlan | None:
    """The plan of the state of the pipeline `name`; None if there is no state or nothing is known about it. Raises
    RequestError for one of another version.
    """
    text = checkpoint.read(PLAN)
    if text is None or not checkpoint.batches():
        return None
    try:
        return Companion.parse(text, name).current(checkpoint.committed())
    except UnreadableFormat as error:
        raise RequestError(str(error), error.hint) from None


def take_over_state(planned: Planned, settings: RunSettings, generation: Generation) -> StatePlan:
    """The plan with which the query continues its state. Before its first batch the companion of the checkpoint names
    both plans, from which batch on the new one holds, and which windows remain closed.
    """
    checkpoint = settings.opened(generation.name)
    stored = _stored_plan(checkpoint, generation.name)
    if stored is None:
        return planned.state
    state = planned.state.taking_over(stored, _watermark(planned, settings, generation))
    following = None if state == stored else state
    text = Companion(stored, following, checkpoint.committed() + 1).text()
    if checkpoint.read(PLAN) != text:
        checkpoint.write(PLAN, text)
    return state


def _watermark(planned: Planned, settings: RunSettings, generation: Generation) -> int | None:
    """The watermark that the state has reached, or a later one. Only merges say which epoch is committed: for Spark's
    own sinks the last planned one may be.
    """
    with CoordinatorClient(settings.worker, _RETRY_SECONDS) as coordinator:
        if planned.ports:
            return coordinator.running(generation.name, generation.number).before
        known = (one for one in coordinator.pipelines() if one.name == generation.name)
        return next((one.watermark for one in known), None)


def keep_state_plan(name: str, state: StatePlan, settings: RunSettings) -> None:
    """Called once the query has run an epoch: from then on its state belongs to this plan alone."""
    checkpoint = settings.opened(name)
    text = Companion(state).text()
    if checkpoint.read(PLAN) != text:
        checkpoint.write(PLAN, text)


def begin_attempt(pipeline: Pipeline, planned: Planned, settings: RunSettings) -> tuple[Generation, str | None]:
    """Fence older generations. A checkpoint from before a reset is moved aside: also returns its new location. Raises
    RequestError for errors that the user must fix.
    """
    checkpoint = settings.checkpoint(pipeline.name)
    found = settings.opened(pipeline.name)
    moved = move_outdated_aside(found, pipeline.name, settings.worker, retry_seconds=_RETRY_SECONDS)
    adopt_moved(checkpoint)
    generation = start_generation(
        pipeline.name,
        settings.worker,
        pipeline.inputs,
        planned.ports,
        starting=pipeline.starting,
        limits=pipeline.limits,
        checkpoint=checkpoint,
        fresh=not found.batches(),
        executors=settings.executors,
        retry_seconds=_RETRY_SECONDS,
    )
    if generation.is_restored:
        _check_restored(pipeline, planned, settings, generation)
    return generation, moved


def _check_restored(pipeline: Pipeline, planned: Planned, settings: RunSettings, generation: Generation) -> None:
    """As before a start: until now there was no state, or an older one."""
    try:
        for change in check_state(pipeline.name, planned.state, settings):
            log.warning("%s: %s", pipeline.name, change)
    except BaseException:
        generation.stop(failed=True)
        raise


def start_query(
    spark: SparkSession,
    pipeline: Pipeline,
    planned: Planned,
    settings: RunSettings,
    generation: Generation,
    *,
    bind: bool,
) -> Attempt:
    """With `bind` the pipeline's sinks are bound before the query can end an epoch. Raises RequestError for errors that
    the user must fix.
    """
    if bind and pipeline.sinks:
        with CoordinatorClient(settings.worker, _RETRY_SECONDS) as coordinator:
            coordinator.bind(pipeline.name, pipeline.sinks)
    inputs = {
        name: loaded(spark, pipeline, name, generation.input(name, min_partitions=settings.cores))
        for name in pipeline.inputs
    }
    state = take_over_state(planned, settings, generation)
    with closing(state.closed_to()):
        left = built(pipeline, inputs, PipelineContext(generation.load_options(), [*inputs.values()]))
    generation.describe(left.schemas, retry_seconds=_RETRY_SECONDS)
    writer = _writer(left, pipeline, generation).queryName(pipeline.name)
    writer = _triggered(writer, pipeline, settings).option("checkpointLocation", settings.checkpoint(pipeline.name))
    with (
        _shuffles_by(spark, planned.state.buckets if settings.follows_buckets else None),
        shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be started"),
    ):
        query = writer.start()
    generation.watch(QueryProbe(QueryQuestion(spark, query)))
    return Attempt(generation, query, query.id, planned.ports, state)


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


def built(pipeline: Pipeline, inputs: Mapping[str, InputFrame], context: PipelineContext) -> Leaving:
    """Call the pipeline's function. Raises RequestError at the user's line."""
    if pipeline.decoding:
        context.operator("codecs", ERR)
    with shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be built"), in_pipeline(context):
        given = pipeline(**{name: one.frame for name, one in inputs.items()})
    with shown_at_the_users_line(f"the pipeline {pipeline.name!r} cannot be built"):
        return leaving(given, pipeline.outputs, context.side_ports)


def loaded(spark: SparkSession, pipeline: Pipeline, name: str, options: dict[str, Any]) -> InputFrame:
    """The frame of an input."""
    from penstock.spark.codecs.decoder import with_variants

    given = {**options, **_decoding_options(pipeline, name)}
    frame = spark.readStream.format("penstock").options(**given).load()
    decoder = _decoder(pipeline, name)
    return InputFrame(frame if decoder is None else with_variants(frame, decoder), given, frame.schema)


def _writer(left: Leaving, pipeline: Pipeline, generation: Generation) -> DataStreamWriter:
    if left.writer is not None:
        return left.writer
    assert left.frame is not None
    encoding = {"encoding": plan_text(left.plan)} if left.plan else {}
    target = {} if pipeline.target is None else {"target": pipeline.target}
    options = {**generation.output(), **encoding, **target}
    return left.frame.writeStream.format("penstock").options(**options).outputMode(pipeline.mode)


def _triggered(writer: DataStreamWriter, pipeline: Pipeline, settings: RunSettings) -> DataStreamWriter:
    """The command line takes precedence over the declaration; a user's own writer may have a trigger already."""
    if settings.available_now:
        return writer.trigger(availableNow=True)
    trigger_ms = pipeline.trigger_ms if settings.trigger_ms is None else settings.trigger_ms
    return writer if trigger_ms is None else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
