"""Queries over sources of different speeds, step by step, for tests of event time on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
from tests.spark.sending import outputs
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
NOON = 1_704_110_400_000
"""2024-01-01T12:00:00Z, in milliseconds."""


def at(second: float, text: bytes = b"") -> tuple[int, bytes]:
    """An event this many seconds after noon."""
    return NOON + round(second * SECOND), text


def seconds(instant: datetime) -> float:
    """Seconds after noon."""
    return instant.timestamp() - NOON / SECOND


class Following:
    """A running query, and its rows so far."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.rows: list[Row] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: self.rows.extend(batch.collect()))
        self.query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()

    def step(self) -> None:
        """Process everything that is stored, and what follows from its watermark. Raises what has ended the query."""
        self.query.processAllAvailable()

    @property
    def dropped(self) -> int:
        """Rows that Spark's operators dropped as late."""
        return sum(operator["numRowsDroppedByWatermark"] for one in self.query.recentProgress for operator in _of(one))

    @property
    def state_rows(self) -> int:
        last = self.query.lastProgress
        assert last is not None
        return sum(operator["numRowsTotal"] for operator in _of(last))


def _of(progress: Any) -> list[Any]:
    operators: list[Any] = progress["stateOperators"]
    return operators


def load(spark: SparkSession, worker: RunningWorker, pipeline: str, source: str) -> DataFrame:
    """An input of the pipeline, named like its source."""
    options = {"worker": f"127.0.0.1:{worker.ports['http']}", "pipeline": pipeline, "input": source, "source": source}
    return spark.readStream.format("penstock").options(**options).load()


def in_pipeline(spark: SparkSession, worker: RunningWorker, pipeline: str, source: str) -> Any:
    """The context for code that builds a frame of this load."""
    http = f"127.0.0.1:{worker.ports['http']}"
    return penstock.session(spark, pipeline=pipeline, worker=http, input=source, source=source)


def late(worker: RunningWorker, pipeline: str) -> list[Any]:
    """The late events of a pipeline with Spark's own sink, once it has asked for more."""
    return outputs(worker.address, pipeline, "late")


@contextmanager
def following(folder: Path, frames: Mapping[str, DataFrame]) -> Iterator[dict[str, Following]]:
    """A query for each frame, at the same time. They start one after the other: each has its own processes."""
    with ExitStack() as stack:
        started = {}
        for name, frame in frames.items():
            started[name] = Following(frame, folder / name)
            stack.callback(started[name].query.stop)
            started[name].step()
        yield started
