"""What runs on Spark, each flow beside others: a source, a sink, and how many rows make a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.batches import Run, run_query
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.contenders.ingest import STORED_BYTES
from penstock.bench.messages import KEY_BYTES
from penstock.bench.smallest_stream import FORMAT
from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.client.segments import SegmentClient
from penstock.protocol.stored.names import OUTPUT_PREFIX
from penstock.spark import begin
from penstock.spark.source.schema import COLUMNS, spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark import Generation

SCHEMA = spark_schema(tuple(COLUMNS))
"""All columns of our source, the same for all flows."""

PLACE = ("segment", "offset")
"""Columns that the sink does not take: where a row was read."""

PORT = "out"

MESSAGE_BYTES = STORED_BYTES + KEY_BYTES
"""Of a message in its source's segment: so a number of bytes stands for a number of rows."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where flows run: a session, a worker, and a directory for what Spark writes."""

    spark: SparkSession
    ports: Mapping[str, int]
    directory: Path

    @property
    def worker(self) -> str:
        return f"127.0.0.1:{self.ports['http']}"

    @property
    def cores(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def checkpoint(self, name: str) -> str:
        return str(self.directory / "checkpoints" / name)


@dataclass(frozen=True, slots=True)
class Flow(ABC):
    """`run` gives `batches` batches of about `batch_rows` rows, after `skip` more that warm the query up."""

    name: str
    batch_rows: int
    batches: int
    skip: int

    @abstractmethod
    def run(self, stage: Stage, number: int) -> Run:
        """Under a name that `number` makes new. Raises BenchmarkFailed."""

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

    def run(self, stage: Stage, number: int) -> Run:
        reader = stage.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.batch_files)
        read = reader.parquet(str(self.directory))
        checkpoint = stage.checkpoint(f"{self.name}-{number}")
        return self.check(run_query(read.writeStream.format("noop"), checkpoint, self.batches, self.skip))


@dataclass(frozen=True, slots=True)
class SmallestFlow(Flow):
    """From Python to Python and nothing else, in one partition."""

    def run(self, stage: Stage, number: int) -> Run:
        reader = stage.spark.readStream.format(FORMAT).schema(SCHEMA).option("rows", self.batch_rows)
        writer = reader.load().drop(*PLACE).writeStream.format(FORMAT)
        checkpoint = stage.checkpoint(f"{self.name}-{number}")
        return self.check(run_query(writer, checkpoint, self.batches, self.skip))


@dataclass(frozen=True, slots=True)
class SourceFlow(Flow):
    """Our source, as a pipeline that is registered, to the sink that does nothing."""

    source: str

    def run(self, stage: Stage, number: int) -> Run:
        name = f"{self.name}-{number}"
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
        options = generation.input("in", min_partitions=stage.cores)
        return stage.spark.readStream.format("penstock").options(**options).load()


@dataclass(frozen=True, slots=True)
class SinkFlow(SourceFlow):
    """Our source to our sink."""

    def run(self, stage: Stage, number: int) -> Run:
        name = f"{self.name}-{number}"
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
            SegmentClient(f"127.0.0.1:{stage.ports['segment']}") as segments,
        ):
            length = segments.info(output).length
            coordinator.drop(name)
        if length < run.rows * STORED_BYTES:
            raise BenchmarkFailed(f"{run.rows:,} rows need more than the {length:,} bytes in {output}")


def hold(stage: Stage, sources: list[str]) -> None:
    """Keep what the sources hold, however often it is read: a pipeline that never takes anything waits for it."""
    with CoordinatorClient(stage.worker) as coordinator:
        coordinator.start("hold", {"in": InputSpec(sources)}, [])


def parquet_flow(stage: Stage, name: str, flow: SourceFlow) -> ParquetFlow:
    """The very rows of the flow's batches as Parquet, as Spark writes it unless it is told otherwise; as many files for
    each batch as there are cores, or fewer if its rows were read by fewer tasks.
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
