"""`writeStream.format("penstock")`: writes rows to the output segments of a pipeline, each epoch atomically.

A task stages its rows in segments of its own (`write`, on an executor). The driver merges what the winning tasks have
staged (`commit`): one record of the worker's journal commits the whole epoch, for all ports. A second merge of the same
epoch changes nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.coordinator import CoordinatorClient, Staged
from penstock.client.credentials import DEFAULT_WORKER, default_worker, parse_worker
from penstock.core.errors import RequestError, StoreFailed
from penstock.core.suggestions import nearest
from penstock.protocol.stored.names import STAGING_PREFIX, check_pipeline_name
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.spark.run.checkpoints import local_path
from penstock.spark.sink.schema import check_schema
from penstock.spark.sink.staging import StagedPort, Staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# The options of the sink.

DEFAULT_PORT = "out"

_OURS = ("worker", "pipeline", "generation", "port", "tlsCa", "tlsCert", "tlsKey")
_SPARKS = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes to every sink."""

_KNOWN = {name.lower(): name for name in _OURS + _SPARKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    pipeline: str
    worker: str = DEFAULT_WORKER
    """Host and port of its HTTP side."""
    generation: int | None = None
    """None: this query is not fenced, and fences no other."""
    port: str = DEFAULT_PORT
    """The port of rows that name none."""
    checkpoint: str | None = None
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    """PEM files: authority, certificate, key; None: taken from the executors' environment."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Names are case-insensitive, as in Spark. Raises RequestError that lists all problems at once."""
        given = {name.lower(): text for name, text in options.items()}
        problems = [*_problems(given)]
        if problems:
            raise RequestError(f"options of the sink: {'; '.join(problems)}", f"The options are {', '.join(_OURS)}.")
        generation = given.get("generation")
        return cls(
            pipeline=given["pipeline"],
            worker=given.get("worker") or default_worker(),
            generation=None if generation is None else int(generation),
            port=given.get("port", DEFAULT_PORT),
            checkpoint=given.get("checkpointlocation"),
            tls=(given.get("tlsca"), given.get("tlscert"), given.get("tlskey")),
        )


def _problems(given: Mapping[str, str]) -> Iterator[str]:
    for name in given.keys() - _KNOWN.keys():
        near = nearest(name, _KNOWN)
        yield f"unknown option {name!r}" + (f": is it {_KNOWN[near]!r}?" if near else "")
    if "pipeline" not in given:
        yield "'pipeline' is missing: the name under which the worker keeps the epochs"
    for name in ("pipeline", "port"):
        if name in given:
            yield from _refused(name, given[name])
    generation = given.get("generation", "0")
    if not (generation.isascii() and generation.isdigit()):
        yield f"'generation' is {generation!r}, and must be the number that the worker assigned"
    if "worker" in given:
        yield from _refused_address(given["worker"])


def _refused(name: str, text: str) -> Iterator[str]:
    try:
        check_pipeline_name(text, name)
    except RequestError as error:
        yield f"{error} ({error.hint.rstrip('.')})"


def _refused_address(text: str) -> Iterator[str]:
    try:
        parse_worker(text)
    except RequestError as error:
        yield f"'worker': {error}"


# Makes Spark's checkpoint durable: Spark itself never syncs a local one.


def sync_checkpoint(location: str | None) -> None:
    """When it returns, everything that Spark has written there survives a power cut.

    If the location is unknown, everything on this machine is synced. A location with a scheme other than `file:` is
    left to its own file system. Raises StoreFailed when the disk fails.
    """
    path = None if location is None else local_path(location)
    if path is None:
        if location is None:
            os.sync()
        return
    try:
        _sync_file_system(path)
    except FileNotFoundError:
        os.sync()  # without a scheme it may be on Spark's default file system, or here under another name
    except OSError as error:
        raise StoreFailed(
            f"the checkpoint in {path} cannot be made durable: {error.strerror}", "Look at the disk, then start again."
        ) from error


def _sync_file_system(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        syncfs = _syncfs()
        if syncfs is None:
            os.sync()
        elif syncfs(directory):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(directory)


@cache
def _syncfs() -> Any:
    """On Linux only: it syncs one file system and reports errors, unlike sync(2)."""
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


_BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of a task's batch: Spark does not pass it to `write`."""

_ABORT_SECONDS_MAX = 5.0
"""How long an abort waits for an unreachable worker: the query has failed already, and what remains is swept."""


@dataclass(frozen=True, slots=True)
class StagedOutput(WriterCommitMessage):
    """The staged output of one task; all of it is durable."""

    partition: int
    ports: tuple[StagedPort, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at one partition of one batch."""

    batch: int
    partition: int
    attempt: int

    @classmethod
    def running(cls) -> Task:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH_ID)
        if context is None or batch is None:
            raise RequestError("not a task of a streaming query", "Write with writeStream.format('penstock').")
        return cls(int(batch), context.partitionId(), context.taskAttemptId())

    def prefix(self, pipeline: str, generation: int | None) -> str:
        """The prefix of its staging segments. A generation and Spark's attempt id make it unique. Without a generation,
        a restarted driver counts its attempts from 0 again, so a random part makes it unique.
        """
        attempt = f"{self.partition}-{self.attempt}"
        if generation is None:
            return f"{STAGING_PREFIX}{pipeline}/-/{self.batch}/{attempt}-{uuid4().hex}"
        return f"{STAGING_PREFIX}{pipeline}/{generation}/{self.batch}/{attempt}"


class StreamSink(DataSourceStreamArrowWriter):
    """Spark creates one for planning and one for every commit: it has no state.

    `overwrite` (output mode Complete) changes nothing: every epoch appends its whole result.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises RequestError for a schema that cannot be written."""
        freeze()
        with hinted():
            check_schema(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOutput:
        """All rows are durable when it returns. Deletes what a failed attempt has staged, best effort."""
        with hinted():
            return stage(self._options, Task.running(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Merge the epoch into the output segments, once, however often it is called. Spark's checkpoint is made
        durable first: otherwise a power cut could leave an epoch merged that Spark plans again.
        """
        with hinted():
            sync_checkpoint(self._options.checkpoint)
            worker = coordinator(self._options.worker)
            worker.merge(self._options.pipeline, batchId, in_order(messages), generation=self._options.generation)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the batch has staged, including attempts without a message."""
        with hinted(), CoordinatorClient(self._options.worker, _ABORT_SECONDS_MAX) as worker:
            worker.abort(self._options.pipeline, batchId, generation=self._options.generation)


def stage(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> StagedOutput:
    from penstock.spark.sink.rows import blocks  # here: planning and commits need no kernels, which load slowly

    freeze()
    staging = Staging(link(options.worker, *options.tls), task.prefix(options.pipeline, options.generation))
    try:
        for batch in batches:
            for block in blocks(batch, options.port):
                staging.append(block.port, block.data, block.rows)
        return StagedOutput(task.partition, staging.finish())
    except BaseException:
        staging.discard()
        raise


def in_order(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Everything that was staged, ordered by partition. A task without rows has staged nothing."""
    outputs = [message for message in messages if isinstance(message, StagedOutput)]
    outputs.sort(key=lambda message: message.partition)
    return [Staged(port.port, port.segment, port.length, port.rows) for output in outputs for port in output.ports]
