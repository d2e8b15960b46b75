"""What Spark tells of the batches of a query: how many rows, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from penstock.bench.contender import BenchmarkFailed

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WHOLE = "triggerExecution"
"""From the trigger to the commit: all stages, and what is between them."""

STAGES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""Of a batch, in their order."""

LOOK_SECONDS = 0.2
"""Asking Spark for its progress takes time away from the query: not too often."""

SILENCE_SECONDS_MAX = 120.0
"""A query without a new batch for so long hangs; the first one of a session takes some 10 s."""

PROGRESS_KEPT = ("spark.sql.streaming.numRecentProgressUpdates", "1000")
"""Spark's setting, so that no batch is forgotten before it is looked at."""


@dataclass(frozen=True, slots=True)
class Batch:
    rows: int
    stages_ms: Mapping[str, int]

    @property
    def milliseconds(self) -> int:
        return self.stages_ms[WHOLE]

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Batch:
        return cls(progress["numInputRows"], dict(progress["durationMs"]))


@dataclass(frozen=True, slots=True)
class Run:
    """The batches of one query, those that warmed it up left out."""

    batches: Sequence[Batch]

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def rows_per_s(self) -> float:
        return self.rows * 1000 / sum(batch.milliseconds for batch in self.batches)

    @property
    def batch_ms(self) -> float:
        """The median: one batch that a collection of garbage hits does not count."""
        return median(batch.milliseconds for batch in self.batches)

    def stage_ms(self, stage: str) -> float:
        return median(batch.stages_ms.get(stage, 0) for batch in self.batches)


def run_query(
    writer: DataStreamWriter,
    checkpoint: str,
    batches: int,
    skip: int,
    look: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Run:
    """Run until `skip` batches with rows and then `batches` more are done; the latter are the result. `look` is shown
    the progress of every batch at the end.

    Raises BenchmarkFailed if it fails or hangs. The query is stopped in any case.
    """
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        found = _wait(query, batches + skip)
    finally:
        query.stop()
    for progress in query.recentProgress:
        look(progress)
    return Run(found[skip : skip + batches])


def _wait(query: StreamingQuery, wanted: int) -> list[Batch]:
    """Batches without rows are passed over: there are some where a source had nothing for a while."""
    done, heard = -1, time.monotonic()
    while True:
        time.sleep(LOOK_SECONDS)
        last = query.lastProgress
        if last is not None and last["batchId"] > done:
            done, heard = last["batchId"], time.monotonic()
            if done + 1 >= wanted:
                found = [batch for batch in map(Batch.of, query.recentProgress) if batch.rows]
                if len(found) >= wanted:
                    return found
        _check(query, time.monotonic() - heard)


def _check(query: StreamingQuery, silent_seconds: float) -> None:
    error = query.exception()
    if error is not None:
        raise BenchmarkFailed(f"a query failed: {error}")
    if silent_seconds > SILENCE_SECONDS_MAX:
        raise BenchmarkFailed(f"a query has done nothing for {silent_seconds:.0f} s: {query.status}")
