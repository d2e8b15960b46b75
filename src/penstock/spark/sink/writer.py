"""`writeStream.format("penstock")`: writes rows to the output segments of a pipeline, each epoch atomically.

A task stages its rows in segments of its own (`write`, on an executor). The driver merges what the winning tasks have
staged (`commit`): one record of the worker's journal commits the whole epoch, for all ports. A second merge of the same
epoch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.coordinator import CoordinatorClient, Staged
from penstock.client.credentials import DEFAULT_WORKER, default_worker, parse_worker
from penstock.core.errors import PipelineError, RequestError
from penstock.core.suggestions import nearest
from penstock.protocol.api.pipelines import Span
from penstock.protocol.stored.names import Form, Source, check_pipeline_name
from penstock.spark.carried import Carried
from penstock.spark.python_worker import Task, coordinator, freeze, hinted, link
from penstock.spark.run.checkpoint_files import sync_checkpoint
from penstock.spark.side_outputs import Origin
from penstock.spark.sink.plan import parse_plan
from penstock.spark.sink.schema import check_schema
from penstock.spark.sink.staging import StagedPort, Staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.sink.rows import Block

# The options of the sink.

DEFAULT_PORT = "out"

_OURS = (
    "worker",
    "advertisedWorker",
    "carriesToken",
    "pipeline",
    "generation",
    "port",
    "target",
    "encoding",
    "store",
    "tlsCa",
    "tlsCert",
    "tlsKey",
)
_SPARKS = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes to every sink."""

_KNOWN = {name.lower(): name for name in _OURS + _SPARKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    pipeline: str
    worker: str = DEFAULT_WORKER
    """Host and port of its HTTP side, on the driver."""
    carried: Carried | None = field(default=None, compare=False)
    """On a cluster: the worker's address on executors, and the token. None: tasks run where the driver does."""
    generation: int | None = None
    """None: this query is not fenced, and fences no other."""
    port: str = DEFAULT_PORT
    """The port of rows that name none."""
    target: str | None = None
    """`pravega:SCOPE/STREAM`: the rows of that port are written there instead."""
    checkpoint: str | None = None
    encoding: str | None = None
    """The plan by which rows are encoded, as `plan_text` writes it; None: all of them have a `value`."""
    store: str | None = None
    """The URL of the bucket into which the checkpoint is mirrored, as the worker has reported it; None: it is not."""
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    """PEM files: authority, certificate, key; None: taken from the executors' environment."""

    @property
    def task_worker(self) -> str:
        """The worker's HTTP address where tasks run."""
        return self.worker if self.carried is None else self.carried.advertised

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Names are case-insensitive, as in Spark. Raises RequestError that lists all problems at once."""
        given = {name.lower(): text for name, text in options.items()}
        problems = [*_problems(given)]
        if problems:
            raise RequestError(f"options of the sink: {'; '.join(problems)}", f"The options are {', '.join(_OURS)}.")
        generation = given.get("generation")
        worker = given.get("worker") or default_worker()
        return cls(
            pipeline=given["pipeline"],
            worker=worker,
            carried=_carried(given, worker),
            generation=None if generation is None else int(generation),
            port=given.get("port", DEFAULT_PORT),
            target=given.get("target"),
            checkpoint=given.get("checkpointlocation"),
            encoding=given.get("encoding"),
            store=given.get("store"),
            tls=(given.get("tlsca"), given.get("tlscert"), given.get("tlskey")),
        )


def _carried(given: Mapping[str, str], worker: str) -> Carried | None:
    advertised = given.get("advertisedworker")
    has_token = given.get("carriestoken", "true").strip().lower() != "false"
    return None if advertised is None else Carried(worker, advertised, has_token)


def _problems(given: Mapping[str, str]) -> Iterator[str]:
    for name in given.keys() - _KNOWN.keys():
        near = nearest(name, _KNOWN)
        yield f"unknown option {name!r}" + (f": is it {_KNOWN[near]!r}?" if near else "")
    if "pipeline" not in given:
        yield "'pipeline' is missing: the name under which the worker keeps the epochs"
    for name in ("pipeline", "port"):
        if name in given:
            yield from _refused(name, given[name])
    if "target" in given:
        yield from _refused_target(given["target"])
    generation = given.get("generation", "0")
    if not (generation.isascii() and generation.isdigit()):
        yield f"'generation' is {generation!r}, and must be the number that the worker assigned"
    for name in ("worker", "advertisedworker"):
        if name in given:
            yield from _refused_address(_KNOWN[name], given[name])


def _refused(name: str, text: str) -> Iterator[str]:
    try:
        check_pipeline_name(text, name)
    except RequestError as error:
        yield f"{error} ({error.hint.rstrip('.')})"


def _refused_target(text: str) -> Iterator[str]:
    try:
        is_valid = Source.parse(text).form is Form.PRAVEGA
    except RequestError:
        is_valid = False
    if not is_valid:
        yield f"'target' is {text!r}, and must be pravega:SCOPE/STREAM"


def _refused_address(name: str, text: str) -> Iterator[str]:
    try:
        parse_worker(text)
    except RequestError as error:
        yield f"{name!r}: {error}"


_MERGES_MAX = 3
"""For one epoch. The second finds all parts, unless the worker has lost empty registrations with a crash."""

_ABORT_SECONDS_MAX = 5.0
"""How long an abort waits for an unreachable worker: the query has failed already, and what remains is swept."""


@dataclass(frozen=True, slots=True)
class StagedOutput(WriterCommitMessage):
    """The staged output of one task; all of it is durable."""

    partition: int
    ports: tuple[StagedPort, ...]


class StreamSink(DataSourceStreamArrowWriter):
    """Spark creates one for planning and one for every commit: it has no state.

    `overwrite` (output mode Complete) changes nothing: every epoch appends its whole result.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises RequestError for a schema that cannot be written."""
        freeze()
        if options.encoding is None:
            with hinted():
                check_schema(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOutput:
        """All rows are durable when it returns. Deletes what a failed attempt has staged, best effort."""
        with hinted():
            return stage(self._options, Task.running(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Merge the epoch into the output segments, once, however often it is called. Spark's checkpoint is made
        durable first: otherwise a power cut, or the loss of this machine if the worker has a bucket, could leave an
        epoch merged that Spark plans again.
        """
        with hinted():
            manifest = mirrored(self._options, batchId)
            sync_checkpoint(self._options.checkpoint)
            merge(self._options, batchId, in_order(messages), manifest)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the batch has staged, including attempts without a message."""
        with hinted(), CoordinatorClient(self._options.worker, _ABORT_SECONDS_MAX) as worker:
            worker.abort(self._options.pipeline, batchId, generation=self._options.generation)


def stage(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> StagedOutput:
    freeze()
    staging = Staging(
        link(options.task_worker, *options.tls, options.pipeline), task.prefix(options.pipeline, options.generation)
    )
    try:
        spans = _spans(options, task)
        for batch in batches:
            for block in _staged_blocks(options, task, spans, batch):
                staging.append(block.port, block.data, block.rows, block.target)
        return StagedOutput(task.partition, staging.finish())
    except BaseException:
        staging.discard()
        raise


def _spans(options: SinkOptions, task: Task) -> Sequence[Span]:
    """The segments of the target, the same for all tasks of the epoch."""
    if options.target is None:
        return ()
    worker = coordinator(options.task_worker)
    return worker.route(options.pipeline, task.batch, options.target, generation=options.generation)


def _staged_blocks(options: SinkOptions, task: Task, spans: Sequence[Span], batch: pa.RecordBatch) -> Iterator[Block]:
    """With a target, the rows of the sink's own port are routed to its segments; all others stay outputs."""
    if options.target is None:
        yield from encoded_blocks(batch, options.port, options.encoding)
        return
    from penstock.spark.sink.routing import routed_blocks
    from penstock.spark.sink.rows import blocks, by_port  # here: as below

    for port, rows in by_port(batch, options.port):
        for name, values in _encoded(rows, port, options.encoding):
            if name == options.port:
                yield from routed_blocks(values, name, spans, task.partition)
            else:
                yield from blocks(values, name)


def _encoded(rows: pa.RecordBatch, port: str, encoding: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if encoding is None:
        yield port, rows
        return
    from penstock.spark.sink.encoding import encoded  # here: few sinks need codecs

    yield from encoded(rows, port, parse_plan(encoding))


def encoded_blocks(batch: pa.RecordBatch, default_port: str, encoding: str | None) -> Iterator[Block]:
    """The rows as they are stored. `encoding`: the text of the plan for rows without a value. Raises RequestError."""
    from penstock.spark.sink.rows import (
        blocks,
        by_port,
    )  # here: planning and commits need no kernels, which load slowly

    if encoding is None:
        yield from blocks(batch, default_port)
        return
    for port, rows in by_port(batch, default_port):
        for target, values in _encoded(rows, port, encoding):
            yield from blocks(values, target)


def mirrored(options: SinkOptions, batch: int) -> str:
    """The manifest of the checkpoint in the worker's bucket; "" if the worker has none."""
    if options.store is None:
        return ""
    from penstock.spark.run.checkpoint_mirror import mirror_running  # here: other drivers do not need it

    worker, place = coordinator(options.worker), (options.store, options.checkpoint)
    return mirror_running(worker, *place, options.pipeline, options.generation, batch)


def merge(options: SinkOptions, batch: int, staged: Sequence[Staged], manifest: str = "") -> None:
    """Parts that no task has finished are decoded here, for their dead letters: then the epoch can be merged."""
    worker, generation = coordinator(options.worker), options.generation
    for _ in range(_MERGES_MAX):
        merged = worker.merge(options.pipeline, batch, staged, generation=generation, manifest=manifest)
        if not merged.missing:
            return
        from penstock.spark.source.decoding import decode_missing  # here: few commits need codecs

        origin = Origin(options.worker, options.pipeline, options.generation, options.tls)
        for part in merged.missing:
            decode_missing(origin, part)
    raise PipelineError(f"epoch {batch} of pipeline {options.pipeline!r} still has parts that were not decoded")


def in_order(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Everything that was staged, ordered by partition. A task without rows has staged nothing."""
    outputs = [message for message in messages if isinstance(message, StagedOutput)]
    outputs.sort(key=lambda message: message.partition)
    return [Staged(*astuple(port)) for output in outputs for port in output.ports]
