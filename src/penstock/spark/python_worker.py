"""State that a Python worker of Spark keeps between calls: workers are reused, and forked before they do anything."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Self
from uuid import uuid4

from penstock.client.coordinator import CoordinatorClient
from penstock.client.credentials import accept_worker, parse_worker, tls_context
from penstock.client.segments.failures import RETRY_SECONDS
from penstock.client.segments.short_circuit import ShortCircuit
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.core.logs import set_up_logging
from penstock.protocol.stored.names import epoch_prefix
from penstock.spark.carried import unreachable_hint
from penstock.spark.sink.staging import Link, segment_address

_calls = 0


def freeze() -> None:
    """Called first in each task of these processes. Excludes all existing objects from garbage collection: Spark's
    workers collect after each task, and traversing PySpark's modules costs 60 ms of every batch. Also sets up logging,
    as their stderr is part of Spark's log.

    Modules and kernels are also loaded by later tasks, of other stages and other queries: so calls 1, 2, 4, 8 and so on
    freeze. Not every call: what a task has in cycles is then retained forever, and of that there may be a little of a
    few tasks, but not of all.
    """
    global _calls  # noqa: PLW0603  one for the process
    if not _calls:
        set_up_logging()
    _calls += 1
    if _calls.bit_count() == 1:
        gc.freeze()


@contextmanager
def hinted() -> Iterator[None]:
    """Appends an error's hint to its traceback: Spark shows nothing else."""
    try:
        yield
    except PenstockError as error:
        hint = (unreachable_hint() if isinstance(error, Unavailable) else None) or error.hint
        if hint and hint not in getattr(error, "__notes__", ()):
            error.add_note(hint)
        raise


_BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of a task's batch: Spark passes it to no function."""


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at one partition of one batch."""

    batch: int
    partition: int
    attempt: int
    stage: int = 0

    @classmethod
    def running(cls) -> Self:
        """Raises RequestError in a task that does not know its batch: nothing guesses it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(_BATCH_ID)
        if context is None or batch is None:
            raise RequestError("not a task of a streaming query", _NO_BATCH_HINT)
        return cls(int(batch), context.partitionId(), context.taskAttemptId(), context.stageId())

    def prefix(self, pipeline: str, generation: int | None) -> str:
        """The prefix of its staging segments. A generation and Spark's attempt id make it unique. Without a generation,
        a restarted driver counts its attempts from 0 again, so a random part makes it unique.
        """
        unique = "" if generation is not None else f"-{uuid4().hex}"
        return f"{epoch_prefix(pipeline, generation, self.batch)}{self.partition}-{self.attempt}{unique}"


_NO_BATCH_HINT = (
    "Write with writeStream; in foreachBatch, use the batch in the function's own thread: Spark does not pass the "
    "number of the batch to other threads."
)


_closers: list[Callable[[], None]] = []
"""Of the connections in the caches below, which cannot be listed."""


@cache
def coordinator(worker: str, retry_seconds: float = RETRY_SECONDS) -> CoordinatorClient:
    """Cached, with its connection."""
    client = CoordinatorClient(worker, retry_seconds)
    _closers.append(client.close)
    return client


def places_of(home: str, segments: Iterable[str]) -> dict[str, str]:
    """Segment → the HTTP address of the worker that serves it; one that is not named is at `home`."""
    found = coordinator(home).places(segments)
    for worker in {*found.values()}:
        accept_worker(worker, home)
    return found


@cache
def link(worker: str, ca: str | None, cert: str | None, key: str | None, use: str = "") -> Link:  # noqa: ARG001  part of the key
    """The connection to the worker's segment port. TLS files that are None are taken from the environment. `use`: what
    stages and reads at the same time needs a connection for each.
    """
    tls = tls_context(parse_worker(worker)[0].host, ca, cert, key)
    found = Link(lambda: segment_address(worker, tls=tls is not None), tls)
    _closers.append(found.drop)
    return found


@cache
def journal_files(worker: str) -> ShortCircuit:  # noqa: ARG001  one for each worker: it remembers what the worker allows
    """Reads the worker's files, if it runs on this machine or they are in a bucket."""
    return ShortCircuit()


def close() -> None:
    """Close and forget all connections, for a process that runs tasks itself. Spark's workers end with theirs."""
    coordinator.cache_clear()
    link.cache_clear()
    while _closers:
        _closers.pop()()
