"""`writeStream.format("penstock")`: rows leave for the output segments of a pipeline, each epoch's all at once.

A task stages its rows in segments of its own (`write`, on an executor). The driver merges what the winning tasks have
staged (`commit`): one record of the worker's journal holds the whole epoch, for all ports. A second merge of the same
epoch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.coordinator import CoordinatorClient, Staged
from penstock.core.errors import RequestError
from penstock.protocol.stored.names import STAGING_PREFIX
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.spark.sink_checkpoint import sync_checkpoint
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_schema import check_schema
from penstock.spark.staging import StagedPort, Staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH_ID = "streaming.sql.batchId"
"""The local property that tells a task its batch: `write` is not told."""

_ABORT_SECONDS_MAX = 5.0
"""How long an abort waits for a worker that is away: the query has failed already, and what stays is swept."""


@dataclass(frozen=True, slots=True)
class StagedOutput(WriterCommitMessage):
    """What one task has staged; all of it is durable."""

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
            raise RequestError("this is no task of a streaming query", "Write with writeStream.format('penstock').")
        return cls(int(batch), context.partitionId(), context.taskAttemptId())

    def prefix(self, pipeline: str, generation: int | None) -> str:
        """Where it stages. A generation and Spark's attempt make a name that was never used before; where there is no
        generation, a driver that was started anew counts its attempts from 0 again: then chance makes it new.
        """
        attempt = f"{self.partition}-{self.attempt}"
        if generation is None:
            return f"{STAGING_PREFIX}{pipeline}/-/{self.batch}/{attempt}-{uuid4().hex}"
        return f"{STAGING_PREFIX}{pipeline}/{generation}/{self.batch}/{attempt}"


class StreamSink(DataSourceStreamArrowWriter):
    """Spark makes one for planning and one for every commit: it has no state.

    `overwrite` (output mode Complete) changes nothing: every epoch appends its whole result.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises RequestError for rows that cannot be written."""
        freeze()
        with hinted():
            check_schema(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOutput:
        """All rows are durable when it returns. What a failed attempt has staged is deleted, as well as that goes."""
        with hinted():
            return stage(self._options, Task.running(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Make the epoch part of the output segments, once, however often it is called. Spark's checkpoint is durable
        before: else a power cut could leave an epoch merged that Spark plans anew.
        """
        with hinted():
            sync_checkpoint(self._options.checkpoint)
            worker = coordinator(self._options.worker)
            worker.merge(self._options.pipeline, batchId, in_order(messages), generation=self._options.generation)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete what the batch has staged, the attempts among it that no message tells of."""
        with hinted(), CoordinatorClient(self._options.worker, _ABORT_SECONDS_MAX) as worker:
            worker.abort(self._options.pipeline, batchId, generation=self._options.generation)


def stage(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> StagedOutput:
    from penstock.spark.sink_rows import blocks  # here: the driver's processes need neither pyarrow nor the kernels

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
    """All that was staged, in the order of the partitions. A task without rows has staged nothing."""
    told = [message for message in messages if isinstance(message, StagedOutput)]
    told.sort(key=lambda message: message.partition)
    return [Staged(port.port, port.segment, port.length, port.rows) for message in told for port in message.ports]
