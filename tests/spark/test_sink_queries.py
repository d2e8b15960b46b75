"""Real queries into the sink: every row once, in order, all ports together, whatever fails."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import Fenced
from penstock.protocol.stored.bulk import Events, decode
from penstock.spark.python_worker import Task
from penstock.spark.sink.writer import SinkOptions, StreamSink, stage
from tests.spark.asking import segment_names
from tests.spark.sending import outputs, send
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

LINES = 3000
"""Of a file, which is the input of one batch."""


class Sink:
    """A folder whose files are read one per batch, a pipeline, and its output."""

    def __init__(self, worker: RunningWorker, spark: SparkSession, folder: Path) -> None:
        self.worker = worker
        self.spark = spark
        self.folder = folder / "in"
        self.folder.mkdir()
        self.checkpoint = str(folder / "checkpoint")
        self.address = f"127.0.0.1:{worker.ports['http']}"
        self.coordinator = CoordinatorClient(self.address)
        self.generation = 0

    def start(self, *ports: str) -> int:
        """A new generation of the pipeline."""
        self.generation = self.coordinator.start("counts", {}, ports or None).generation
        return self.generation

    def file(self, number: int, lines: int = LINES) -> list[bytes]:
        """Write a file of the input. Returns the lines as expected in the output."""
        text = [f"{number} {line}" for line in range(lines)]
        file = self.folder / f"{number}.txt"
        file.write_text("\n".join(text) + "\n")
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the oldest first
        return [line.encode() for line in text]

    def run(self, rows: Callable[[DataFrame], DataFrame], *, mode: str = "append", **options: str) -> None:
        """Process everything that is available. Raises what ends the query."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder))
        options = {"worker": self.address, "pipeline": "counts", "generation": str(self.generation)} | options
        writer = rows(lines).writeStream.format("penstock").outputMode(mode).options(**options)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def out(self, port: str = "out") -> Events:
        name = f"pipeline/counts/{port}"
        with SegmentClient(self.worker.address) as client:
            length = client.info(name).length
            data = bytearray()
            while len(data) < length:
                data += client.read(name, len(data), length - len(data)).data
        return decode(data)

    def values(self, port: str = "out") -> list[bytes]:
        found = self.out(port).values
        assert found is not None
        return found.rows()


@pytest.fixture
def sink(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Iterator[Sink]:
    sink = Sink(worker, spark, tmp_path)
    sink.start()
    yield sink
    sink.coordinator.close()


def as_they_are(lines: DataFrame) -> DataFrame:
    return lines


def test_every_row_arrives_once_and_in_order(sink: Sink) -> None:
    expected = [line for number in range(3) for line in sink.file(number)]
    sink.run(as_they_are)
    assert sink.values() == expected
    expected += sink.file(3)
    sink.run(as_they_are)
    assert sink.values() == expected
    assert segment_names(sink.worker, "staging/") == []


def test_the_plain_snippet_of_the_readme_copies_a_source(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    """Unchanged except for the worker's address and the checkpoint, in the session of the tests."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (snippet,) = (one for one in programs if "readStream" in one)
    ours = f'.format("penstock").option("worker", "127.0.0.1:{worker.ports["http"]}")'
    assert snippet.count('.format("penstock")') == 2
    assert '"copy-checkpoint"' in snippet
    snippet = snippet.replace('.format("penstock")', ours).replace("copy-checkpoint", str(tmp_path / "copy"))
    send(f"127.0.0.1:{worker.ports['connector']}", "example", "numbers", [b"1", b"2"], key=b"k")
    exec(snippet, {})
    found = outputs(worker.address, "copy")
    assert [(bytes(event.payload), bytes(event.key)) for event in found] == [(b"1", b"k"), (b"2", b"k")]


def test_the_order_of_many_partitions_is_kept(sink: Sink) -> None:
    expected = sink.file(0, 20_000)
    sink.spark.conf.set("spark.sql.files.maxPartitionBytes", "20k")
    try:
        sink.run(as_they_are)
    finally:
        sink.spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert sink.values() == expected


def test_an_event_has_everything_in_its_row(sink: Sink) -> None:
    sink.file(0, 2)
    sink.run(
        lambda lines: lines.selectExpr(
            "value",
            "encode(value, 'UTF-8') AS key",
            "timestamp_micros(1700000000000001) AS event_time",
            "'lane 4' AS stream",
            "'sensors' AS source",
            "-7L AS stream_id",
            "42L AS message_id",
        )
    )
    found = sink.out()
    assert found.keys is not None
    assert found.keys.rows() == [b"0 0", b"0 1"]
    assert found.event_times is not None
    assert found.event_times.tolist() == [1700000000000001] * 2
    assert found.sources is not None
    assert found.sources.rows() == [b"sensors"] * 2
    assert found.streams is not None
    assert found.streams.rows() == [b"lane 4"] * 2
    assert found.stream_ids is not None
    assert found.stream_ids.tolist() == [-7, -7]
    assert found.event_ids is not None
    assert found.event_ids.tolist() == [42, 42]


def test_the_ports_of_an_epoch_are_merged_together(sink: Sink) -> None:
    expected = sink.file(0)
    port = "CASE WHEN value LIKE '%7' THEN 'late' WHEN value LIKE '%3' THEN null ELSE 'main' END AS port"
    sink.run(lambda lines: lines.selectExpr("value", port), port="threes")
    assert sink.values("late") == [line for line in expected if line.endswith(b"7")]
    assert sink.values("threes") == [line for line in expected if line.endswith(b"3")]
    assert sink.values("main") == [line for line in expected if line[-1] not in b"73"]


def test_an_epoch_without_rows_is_merged_too(sink: Sink) -> None:
    sink.file(0)
    sink.run(lambda lines: lines.where("false"))
    assert segment_names(sink.worker, "pipeline/") == []
    with pytest.raises(Exception, match="does not follow epoch 0"):
        sink.coordinator.merge("counts", 2, [], generation=sink.generation)


def test_a_failed_batch_leaves_nothing_and_its_restart_one_copy(sink: Sink, tmp_path: Path) -> None:
    expected = sink.file(0)
    broken = tmp_path / "broken"
    broken.touch()

    def fails_late(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if broken.exists():
            raise ZeroDivisionError("the user's own")

    def rows(lines: DataFrame) -> DataFrame:
        return lines.mapInArrow(fails_late, "value string")

    with pytest.raises(Exception, match="the user's own"):
        sink.run(rows)
    assert segment_names(sink.worker, "staging/") == []
    assert segment_names(sink.worker, "pipeline/") == []
    broken.unlink()
    sink.run(rows)
    assert sink.values() == expected


def test_complete_mode_appends_the_whole_result_of_every_epoch(sink: Sink) -> None:
    sink.file(0, 10)
    sink.file(1, 5)
    sink.run(lambda lines: lines.groupBy().count().selectExpr("string(count) AS value"), mode="complete")
    assert sink.values() == [b"10", b"15"]


def test_rows_that_cannot_be_written_end_the_query_with_all_errors(sink: Sink) -> None:
    sink.file(0)
    with pytest.raises(
        Exception, match=r"column `value` .*is missing.*`text` \(string\) is not a column.*`key` is int"
    ) as caught:
        sink.run(lambda lines: lines.selectExpr("value AS text", "1 AS key"))
    assert "to_json(struct(" in str(caught.value)


def test_a_null_value_ends_the_query(sink: Sink) -> None:
    sink.file(0)
    with pytest.raises(Exception, match="`value` is null in row 0"):
        sink.run(lambda lines: lines.selectExpr("CAST(null AS string) AS value"))


def test_a_batch_job_is_refused_with_an_alternative(sink: Sink) -> None:
    frame = sink.spark.range(1).selectExpr("string(id) AS value")
    writer = frame.write.format("penstock").mode("append").options(worker=sink.address, pipeline="counts")
    with pytest.raises(Exception, match="writeStream"):
        writer.save()


def test_an_older_generation_can_merge_nothing(sink: Sink) -> None:
    sink.file(0)
    old = sink.start()
    sink.start()
    with pytest.raises(Exception, match="Fenced"):
        sink.run(as_they_are, generation=str(old))
    assert segment_names(sink.worker, "pipeline/") == []


# The same without a query: what Spark does after a crash, call by call.


@pytest.fixture
def options(sink: Sink) -> SinkOptions:
    return SinkOptions(pipeline="counts", worker=sink.address, generation=sink.generation, checkpoint=str(sink.folder))


def writer_of(options: SinkOptions) -> StreamSink:
    from pyspark.sql.types import BinaryType, StructType

    return StreamSink(options, StructType().add("value", BinaryType()))


def rows_of(*values: bytes) -> list[Any]:
    import pyarrow as pa

    return [pa.record_batch({"value": pa.array(values, pa.binary())})]


def test_a_second_commit_of_the_same_batch_changes_nothing(sink: Sink, options: SinkOptions) -> None:
    staged = stage(options, Task(0, 0, 0), rows_of(b"a", b"b"))
    writer = writer_of(options)
    writer.commit([staged], 0)
    writer.commit([staged], 0)
    assert sink.values() == [b"a", b"b"]
    again = stage(options, Task(0, 0, 1), rows_of(b"a", b"b"))
    writer.commit([again], 0)
    assert sink.values() == [b"a", b"b"]
    assert segment_names(sink.worker, "staging/") == []


def test_of_two_attempts_at_a_partition_one_is_merged(sink: Sink, options: SinkOptions) -> None:
    stage(options, Task(0, 0, 0), rows_of(b"lost"))
    winner = stage(options, Task(0, 0, 1), rows_of(b"won"))
    writer = writer_of(options)
    writer.commit([winner], 0)
    assert sink.values() == [b"won"]
    writer.commit([stage(options, Task(1, 0, 2), rows_of(b"next"))], 1)
    assert sink.values() == [b"won", b"next"]


def test_an_abort_leaves_nothing_of_any_attempt(sink: Sink, options: SinkOptions) -> None:
    stage(options, Task(0, 0, 0), rows_of(b"lost"))
    staged = stage(options, Task(0, 1, 1), rows_of(b"staged"))
    writer_of(options).abort([staged, None], 0)
    assert segment_names(sink.worker, "staging/") == []
    assert segment_names(sink.worker, "pipeline/") == []


def test_segments_staged_by_an_older_generation_are_refused(sink: Sink, options: SinkOptions) -> None:
    staged = stage(options, Task(0, 0, 0), rows_of(b"old"))
    sink.start()
    with pytest.raises(Fenced):
        writer_of(options).commit([staged], 0)
    assert segment_names(sink.worker, "pipeline/") == []
