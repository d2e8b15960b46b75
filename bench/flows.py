"""Queries on Spark for the benchmarks: where they run, how their batches are timed, and the flows that several use."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.contenders.ingest import KEY_BYTES, STORED_BYTES, Ingest
from bench.harness import MEGABYTE, BenchmarkFailed, base_directory, surroundings
from bench.processes import Peak, Server, peak_of_spark
from bench.smallest_stream import FORMAT, Smallest
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.protocol.stored.names import OUTPUT_PREFIX
from penstock.spark import Generation, begin
from penstock.spark.run.driver import spark_driver
from penstock.spark.run.java import check_installed, use_java
from penstock.spark.source.schema import COLUMNS, spark_schema

MASTER = "local[*]"

WHOLE = "triggerExecution"
"""From the trigger to the commit: all stages, and what is between them."""

STAGES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""Of a batch, in their order."""

LOOK_SECONDS = 0.2
"""Asking Spark for its progress takes time away from the query: not too often."""

QUERY_SILENCE_SECONDS_MAX = 120.0
"""A query without a new batch for so long hangs; the first one of a session takes some 10 s."""

PROGRESS_KEPT = ("spark.sql.streaming.numRecentProgressUpdates", "1000")
"""Spark's setting, so that no batch is forgotten before it is looked at."""

SCHEMA = spark_schema(tuple(COLUMNS))
"""All columns of our source, the same for all flows."""

PLACE = ("segment", "offset")
"""Columns that the sink does not accept: where a row was read."""

PORT = "out"

MESSAGE_BYTES = STORED_BYTES + KEY_BYTES
"""Of a message in its source's segment: so a number of bytes stands for a number of rows."""


@contextmanager
def bench_session(directory: Path | None, master: str = MASTER) -> Iterator[tuple[SparkSession, Path]]:
    """A Spark session, and a directory for what a benchmark writes. Raises RequestError where Java is missing."""
    check_installed()
    use_java()
    with base_directory(directory) as base:
        conf = {"spark.sql.warehouse.dir": str(base / "warehouse")}
        # The worker writes it later. The JVM's Python processes get the environment that the JVM is started with.
        os.environ["PENSTOCK_TOKEN_FILE"] = str(base / "data" / "token")
        with spark_driver("penstock-bench", master, conf, base / "spark.log") as driver:
            yield driver.session, base


@dataclass(slots=True)
class Stage:
    """Where flows run: a session, a worker, and a directory for what Spark writes."""

    spark: SparkSession
    server: Server
    directory: Path
    _peak: Peak = field(default_factory=Peak)
    _names: int = 0

    @property
    def worker(self) -> str:
        return f"127.0.0.1:{self.server.ports['http']}"

    @property
    def cores(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def checkpoint(self, name: str) -> str:
        return str(self.directory / "checkpoints" / name)

    def unique(self, name: str) -> str:
        """A name for a pipeline that no other run has."""
        self._names += 1
        return f"{name}-{self._names}"

    def sample_memory(self) -> None:
        """Python workers end with their query: look at them while they are there."""
        self._peak = self._peak.merged(peak_of_spark())

    def peak_rss_mb(self) -> dict[str, float]:
        self.sample_memory()
        found = {
            "worker": self.server.peak_rss_bytes(),
            "largest_python_worker": self._peak.python,
            "jvm": self._peak.jvm,
        }
        return {name: round(size / MEGABYTE, 1) for name, size in found.items()}

    def settings(self) -> dict[str, object]:
        return surroundings(self.directory) | {"cores": self.cores, "pyspark": version("pyspark")}


@contextmanager
def open_stage(spark: SparkSession, directory: Path, worker: Ingest | None = None) -> Iterator[Stage]:
    """With a worker of its own: as given, or on a disk."""
    spark.conf.set(*PROGRESS_KEPT)
    spark.dataSource.register(Smallest)
    with (worker or Ingest(1, 1)).start(directory) as server:
        yield Stage(spark, server, directory)


# The batches of a query: how many rows, and how long each stage took, as Spark reports it.


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


def summary(rounds: Sequence[Run]) -> dict[str, object]:
    """Medians over the rounds of one flow."""
    return {
        "rounds": len(rounds),
        "batch_rows": round(median(run.rows / len(run.batches) for run in rounds)),
        "batch_ms": round(median(run.batch_ms for run in rounds), 1),
        "batch_ms_rounds": [round(run.batch_ms, 1) for run in rounds],
        "rows_per_s": round(median(run.rows_per_s for run in rounds)),
    }


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
    if silent_seconds > QUERY_SILENCE_SECONDS_MAX:
        raise BenchmarkFailed(f"a query has done nothing for {silent_seconds:.0f} s: {query.status}")


@dataclass(frozen=True, slots=True)
class Flow(ABC):
    """`run` measures `batches` batches of about `batch_rows` rows, after `skip` more that warm the query up."""

    name: str
    batch_rows: int
    batches: int
    skip: int

    @abstractmethod
    def run(self, stage: Stage) -> Run:
        """Under a name of its own. Raises BenchmarkFailed."""

    def check(self, run: Run) -> Run:
        """Raises BenchmarkFailed: figures for other rows than were asked for mean nothing."""
        wanted = self.batches * self.batch_rows
        if not 0.8 * wanted <= run.rows <= 1.01 * wanted:
            raise BenchmarkFailed(f"{self.name} took {run.rows:,} rows, and not {wanted:,}")
        return run


@dataclass(frozen=True, slots=True)
class ParquetFlow(Flow):
    """Spark's own stream of Parquet files, to a sink that takes everything and does nothing."""

    directory: Path
    batch_files: int
    columns: tuple[str, ...] = field(default=tuple(COLUMNS), kw_only=True)

    def run(self, stage: Stage) -> Run:
        reader = stage.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.batch_files)
        read = reader.parquet(str(self.directory)).select(*self.columns)
        checkpoint = stage.checkpoint(stage.unique(self.name))
        return self.check(run_query(read.writeStream.format("noop"), checkpoint, self.batches, self.skip))


@dataclass(frozen=True, slots=True)
class SmallestFlow(Flow):
    """From Python to Python and nothing else, in one partition."""

    def run(self, stage: Stage) -> Run:
        reader = stage.spark.readStream.format(FORMAT).schema(SCHEMA).option("rows", self.batch_rows)
        writer = reader.load().drop(*PLACE).writeStream.format(FORMAT)
        checkpoint = stage.checkpoint(stage.unique(self.name))
        return self.check(run_query(writer, checkpoint, self.batches, self.skip))


@dataclass(frozen=True, slots=True)
class SourceFlow(Flow):
    """Our source, as a pipeline that is registered, to the sink that does nothing."""

    source: str
    columns: tuple[str, ...] = field(default=tuple(COLUMNS), kw_only=True)
    """What the pipeline asks for."""

    def run(self, stage: Stage) -> Run:
        name = stage.unique(self.name)
        with self.generation(stage, name, []) as generation:
            writer = self.read(stage, generation).writeStream.format("noop")
            run = run_query(writer, stage.checkpoint(name), self.batches, self.skip)
        with CoordinatorClient(stage.worker) as coordinator:
            coordinator.drop(name)
        return self.check(run)

    def generation(self, stage: Stage, name: str, outputs: list[str]) -> Generation:
        return begin(
            name,
            worker=stage.worker,
            inputs={"in": self.source},
            outputs=outputs,
            max_bytes_per_epoch=self.batch_rows * MESSAGE_BYTES,
        )

    def read(self, stage: Stage, generation: Generation) -> DataFrame:
        options = generation.input("in", min_partitions=stage.cores) | {"columns": ",".join(self.columns)}
        return stage.spark.readStream.format("penstock").options(**options).load()


@dataclass(frozen=True, slots=True)
class SinkFlow(SourceFlow):
    """Our source to our sink."""

    def run(self, stage: Stage) -> Run:
        name = stage.unique(self.name)
        with self.generation(stage, name, [PORT]) as generation:
            rows = self.read(stage, generation).drop(*PLACE)
            writer = rows.writeStream.format("penstock").options(**generation.output())
            run = run_query(writer, stage.checkpoint(name), self.batches, self.skip)
        self._check_output(stage, name, run)
        return self.check(run)

    def _check_output(self, stage: Stage, name: str, run: Run) -> None:
        """What went in must have come out."""
        output = f"{OUTPUT_PREFIX}{name}/{PORT}"
        with (
            CoordinatorClient(stage.worker) as coordinator,
            SegmentClient(f"127.0.0.1:{stage.server.ports['segment']}") as segments,
        ):
            length = segments.info(output).length
            coordinator.drop(name)
        if length < run.rows * STORED_BYTES:
            raise BenchmarkFailed(f"{run.rows:,} rows need more than the {length:,} bytes in {output}")


def retain(stage: Stage, sources: list[str]) -> None:
    """Keep the sources' messages, however often they are read: a pipeline that never reads them retains them."""
    with CoordinatorClient(stage.worker) as coordinator:
        coordinator.start("retain", {"in": InputSpec(sources)}, [])


def parquet_flow(stage: Stage, name: str, flow: SourceFlow) -> ParquetFlow:
    """The same rows as the flow's batches, as Parquet with Spark's defaults; as many files for each batch as there are
    cores, or fewer if its rows were read by fewer tasks.
    """
    directory = stage.directory / name

    def write(rows: DataFrame, _: int) -> None:
        rows.coalesce(stage.cores).write.mode("append").parquet(str(directory))

    with flow.generation(stage, name, []) as generation:
        writer = flow.read(stage, generation).writeStream.foreachBatch(write)
        run_query(writer, stage.checkpoint(name), flow.batches, flow.skip)
    with CoordinatorClient(stage.worker) as coordinator:
        coordinator.drop(name)
    files = len(list(directory.glob("*.parquet")))
    return ParquetFlow(name, flow.batch_rows, flow.batches, flow.skip, directory, files // (flow.batches + flow.skip))
