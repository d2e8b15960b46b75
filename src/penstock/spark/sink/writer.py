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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.coordinator import CoordinatorClient, Staged
from penstock.client.credentials import parse_worker
from penstock.core.errors import LimitExceeded, RequestError, StoreFailed
from penstock.core.suggestions import nearest
from penstock.core.types import Buffer
from penstock.protocol.segment import BLOCK_SIZE_MAX
from penstock.protocol.stored.bulk import Bytes, encode
from penstock.protocol.stored.event import LENGTH_MIN, NO_TIME
from penstock.protocol.stored.names import STAGING_PREFIX, check_pipeline_name
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.spark.run.checkpoints import local_path
from penstock.spark.sink.schema import check_schema
from penstock.spark.sink.staging import StagedPort, Staging
from penstock.spark.source.options import DEFAULT_WORKER, WORKER_VARIABLE

if TYPE_CHECKING:
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
    """None: this query neither is fenced nor fences others."""
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
            worker=given.get("worker") or os.environ.get(WORKER_VARIABLE) or DEFAULT_WORKER,
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
        yield f"'generation' is {generation!r}, and must be the number that the worker gave"
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


# Rows of Arrow batches as blocks of stored events, by port. No loop here runs over rows.

BLOCK_BYTES = 2**20
"""Encoded and appended at once: from this size on, the cost per block is small."""

EVENT_BYTES_MAX = BLOCK_SIZE_MAX
"""An event is never split, so it must fit into one block of the segment protocol, with its header."""

_TEXTS = ("value", "key", "source", "stream", "metadata")
"""Columns of bytes or text."""

_EVENT_BYTES_MIN = 8 + LENGTH_MIN
"""The size of an event with its header, without key, origin and value."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Events for one port. `data` shares its memory with nothing else."""

    port: str
    data: Buffer
    rows: int


def blocks(batch: pa.RecordBatch, default_port: str) -> Iterator[Block]:
    """All rows of the batch, in order per port. The columns have passed `check_schema`.

    Raises RequestError for a null value and for metadata that is not a map, LimitExceeded for a row that is too large.
    """
    _check_values(batch)
    for port, rows in _by_port(batch, default_port):
        check_pipeline_name(port, "port")
        columns = _Columns.of(rows)
        for start, end in columns.ranges():
            yield Block(port, columns.encoded(start, end), end - start)


def _check_values(batch: pa.RecordBatch) -> None:
    if batch.column("value").null_count:
        row = int(np.argmax(batch.column("value").is_null().to_numpy(zero_copy_only=False)))
        raise RequestError(
            f"`value` is null in row {row} of {batch.num_rows}: an event has a value, which may be empty",
            "Drop such rows (where value is not null), or set one (coalesce).",
        )


def _by_port(batch: pa.RecordBatch, default_port: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The ports in the order of their first rows; the rows of each port keep their order."""
    if not batch.num_rows:
        return
    if "port" not in batch.schema.names:
        yield default_port, batch
        return
    ports = pc.fill_null(batch.column("port"), default_port).dictionary_encode()
    names: list[str] = ports.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    numbers = ports.indices.to_numpy()
    sorted_rows = batch.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
    start = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        yield name, sorted_rows.slice(start, end - start)
        start = end


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """A batch's columns in the form that the kernel needs; None for a missing column."""

    values: Bytes
    keys: Bytes | None
    sources: Bytes | None
    streams: Bytes | None
    event_times: NDArray[np.int64] | None
    stream_ids: NDArray[np.int64] | None
    event_ids: NDArray[np.int64] | None
    metadata: Bytes | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Columns:
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        texts = {name: _bytes(found[name]) for name in _TEXTS if name in found}
        numbers = {name: _numbers(found[name], 0) for name in ("stream_id", "message_id") if name in found}
        times = _numbers(found["event_time"].cast(pa.int64()), NO_TIME) if "event_time" in found else None
        return cls(
            texts["value"],
            texts.get("key"),
            texts.get("source"),
            texts.get("stream"),
            times,
            numbers.get("stream_id"),
            numbers.get("message_id"),
            texts.get("metadata"),
        )

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Runs of rows of about a block each; a larger row forms its own run. Raises LimitExceeded."""
        count = len(self.values)
        ends = np.arange(count + 1, dtype=np.int64) * _EVENT_BYTES_MIN
        for column in (self.values, self.keys, self.sources, self.streams, self.metadata):
            if column is not None:
                ends += np.asarray(column.offsets)
        self._check_sizes(ends)
        start = 0
        while start < count:
            end = int(np.searchsorted(ends, ends[start] + BLOCK_BYTES, side="right")) - 1
            end = max(end, start + 1)
            yield start, end
            start = end

    def encoded(self, start: int, end: int) -> Buffer:
        data = encode(
            _slice(self.values, start, end),
            keys=_slice(self.keys, start, end),
            sources=_slice(self.sources, start, end),
            streams=_slice(self.streams, start, end),
            event_times=None if self.event_times is None else self.event_times[start:end],
            stream_ids=None if self.stream_ids is None else self.stream_ids[start:end],
            event_ids=None if self.event_ids is None else self.event_ids[start:end],
            metadata=_slice(self.metadata, start, end),
        ).data
        if len(data) > EVENT_BYTES_MAX:  # a single row that its origin makes too large
            raise _too_large(len(data), len(self.values.row(start)))
        return data

    def _check_sizes(self, ends: NDArray[np.int64]) -> None:
        sizes = np.diff(ends)
        row = int(np.argmax(sizes))
        if sizes[row] > EVENT_BYTES_MAX:
            raise _too_large(int(sizes[row]), int(self.values.offsets[row + 1] - self.values.offsets[row]))


def _too_large(size: int, value: int) -> LimitExceeded:
    return LimitExceeded(
        f"a row of {size:,} bytes ({value:,} of them its value) is over the limit of {EVENT_BYTES_MAX:,} for one event",
        "Store large objects elsewhere and a reference to them here, or cut them into several rows.",
    )


def _bytes(column: Any) -> Bytes:
    """A binary or string column, of either width, without copying Arrow's data buffer; null becomes empty."""
    if column.null_count:
        column = pc.fill_null(column, pa.scalar("").cast(column.type))
    _, offsets, data = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    starts = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    return Bytes(starts.astype(np.int64), b"" if data is None else memoryview(data))


def _numbers(column: Any, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing) if column.null_count else column
    return np.array(filled.to_numpy())  # a writable copy, which the kernel requires


def _slice(column: Bytes | None, start: int, end: int) -> Any:
    return None if column is None else Bytes(column.offsets[start : end + 1], column.data)  # type: ignore[index]
