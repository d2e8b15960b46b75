"""Real queries from the source: every event once, in order within its stream, and the same rows when read again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.segments import SegmentClient
from tests.protocol.stored.events import stored
from tests.spark.sending import send
from tests.spark.stored_data import store_events, truncate
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

SEGMENT = "connector/sensors/0"


class Source:
    """A worker, and queries that read from it."""

    def __init__(self, worker: RunningWorker, spark: SparkSession, folder: Path) -> None:
        self.worker = worker
        self.spark = spark
        self.http = f"127.0.0.1:{worker.ports['http']}"
        self.checkpoint = folder / "checkpoint"
        self.batches: list[list[Row]] = []
        self.partitions: list[int] = []

    def send(self, stream: str, count: int, source: str = "sensors") -> None:
        payloads = [f"{stream} {number}".encode() for number in range(count)]
        send(f"127.0.0.1:{self.worker.ports['connector']}", source, stream, payloads, key=stream.encode())

    def batch(self, **options: str) -> list[Row]:
        return self.spark.read.format("penstock").options(**self._options(options)).load().collect()

    def run(self, **options: str) -> list[list[Row]]:
        """Process everything that is available. Returns the rows of each batch. Raises what ends the query."""
        before = len(self.batches)
        frame = self.spark.readStream.format("penstock").options(**self._options(options)).load()
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return self.batches[before:]

    def offsets(self) -> list[Any]:
        """Our part of each entry of Spark's offset log, as text."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [file.read_text().splitlines()[-1] for file in files]

    def _keep(self, frame: DataFrame, _: int) -> None:
        self.partitions.append(frame.rdd.getNumPartitions())
        self.batches.append(frame.collect())

    def _options(self, options: dict[str, str]) -> dict[str, str]:
        return {"worker": self.http, "source": "sensors"} | options


@pytest.fixture
def source(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Source:
    return Source(worker, spark, tmp_path)


def values(rows: list[Row], stream: str) -> list[bytes]:
    return [bytes(row["value"]) for row in rows if row["stream"] == stream]


def test_a_batch_has_all_columns_of_all_events(source: Source) -> None:
    source.send("door", 1000)
    source.send("window", 500)
    rows = source.batch()
    assert values(rows, "door") == [f"door {n}".encode() for n in range(1000)]
    assert values(rows, "window") == [f"window {n}".encode() for n in range(500)]
    assert len(rows) == 1500
    first = next(row for row in rows if row["stream"] == "door")
    assert (first["source"], bytes(first["key"]), first["message_id"]) == ("sensors", b"door", 1)
    assert first["segment"] in ("connector/sensors/0", "connector/sensors/1")
    assert [int(row["event_time"].timestamp() * 1000) for row in rows[:1]] == [first["message_id"]]
    assert rows[0].asDict().keys() == {
        "source", "stream", "stream_id", "message_id", "event_time", "key", "value", "segment", "offset",
    }  # fmt: skip


def test_a_streaming_query_continues_from_its_checkpoint(source: Source) -> None:
    source.send("door", 300)
    (first,) = source.run()
    assert values(first, "door") == [f"door {n}".encode() for n in range(300)]
    source.send("door", 500)
    source.send("late", 10)
    second = [row for batch in source.run() for row in batch]
    assert values(second, "door") == [f"door {n}".encode() for n in range(300, 500)]
    assert values(second, "late") == [f"late {n}".encode() for n in range(10)]
    assert source.run() == []


def test_offsets_are_json_with_sorted_keys(source: Source) -> None:
    source.send("door", 10)
    source.run(pipeline="p", input="left")
    text = source.offsets()[-1]
    offset = json.loads(text)
    assert list(offset) == ["epoch", "incarnation", "segments", "watermark"]
    assert list(offset["segments"]) == sorted(offset["segments"])
    assert json.dumps(offset) == text


def test_an_epoch_has_at_most_the_configured_number_of_rows(source: Source) -> None:
    for count in range(100, 1000, 100):
        source.send("door", count)
    batches = source.run(maxRowsPerEpoch="250")
    assert len(batches) >= 4
    assert all(0 < len(rows) <= 250 for rows in batches)
    assert [v for rows in batches for v in values(rows, "door")] == [f"door {n}".encode() for n in range(900)]


def numbered(first: int, last: int, size: int = 100) -> list[bytes]:
    return [stored(1, n, n, b"", b"x" * size) for n in range(first, last)]


def message_ids(rows: list[Row]) -> list[int]:
    return [row["message_id"] for row in rows]


def test_a_rerun_batch_has_the_same_rows(source: Source) -> None:
    """Spark has logged the batch and not its commit."""
    store_events(source.worker, SEGMENT, numbered(0, 100))
    source.run(pipeline="p")
    store_events(source.worker, SEGMENT, numbered(100, 200))
    (second,) = source.run(pipeline="p")
    assert message_ids(second) == [*range(100, 200)]
    (source.checkpoint / "commits" / "1").unlink()
    (source.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    store_events(source.worker, SEGMENT, numbered(200, 300))
    again, rest = source.run(pipeline="p")
    assert again == second
    assert message_ids(rest) == [*range(200, 300)]


def test_a_read_may_start_and_end_at_any_position(source: Source) -> None:
    source.send("door", 100)
    everything = source.batch()
    segment = everything[0]["segment"]
    places = [row["offset"] for row in everything if row["segment"] == segment]
    with SegmentClient(source.worker.address) as client:
        end = client.info(segment).length
    some = source.batch(startingOffsets=json.dumps({segment: places[10]}), endingOffsets=json.dumps({segment: end}))
    assert [row["offset"] for row in some] == places[10:]
    assert source.batch(startingOffsets="latest") == []
    assert len(source.batch(minPartitions="1000000")) == 100
    assert source.batch(endingOffsets=json.dumps({segment: 0})) == []
    source.send("door", 150)
    assert source.batch(startingOffsets="latest") == []


def test_a_streaming_query_may_start_at_the_end(source: Source) -> None:
    source.send("door", 100)
    assert not any(source.run(startingOffsets="latest"))
    source.send("door", 120)
    rows = [row for batch in source.run(startingOffsets="latest") for row in batch]
    assert values(rows, "door") == [f"door {n}".encode() for n in range(100, 120)]


def test_large_ranges_are_read_by_all_cores_and_streams_keep_their_order(source: Source) -> None:
    events = [stored(n % 7, n // 7 + 1, n, b"", b"%d " % n + b"x" * 2000) for n in range(18_000)]
    store_events(source.worker, SEGMENT, events)
    (rows,) = source.run(columns="stream_id,message_id,value", minPartitions="4")
    assert source.partitions == [4]
    assert [(row["stream_id"], row["message_id"]) for row in rows] == [(n % 7, n // 7 + 1) for n in range(18_000)]
    assert bytes(rows[-1]["value"]).startswith(b"17999 ")


def test_raw_segments_and_several_sources_can_be_read_together(source: Source) -> None:
    with SegmentClient(source.worker.address) as client, client.appender("numbers", create=True) as appender:
        appender.append_many([b"one", b"two"])
    source.send("door", 2)
    rows = source.batch(source="sensors, segment:numbers")
    assert sorted((row["source"], row["stream"], bytes(row["value"])) for row in rows if row["stream"]) == [
        ("sensors", "door", b"door 0"),
        ("sensors", "door", b"door 1"),
    ]
    raw = [row for row in rows if row["segment"] == "numbers"]
    assert [(row["source"], bytes(row["value"]), row["offset"]) for row in raw] == [
        ("segment:numbers", b"one", 0),
        ("segment:numbers", b"two", 11),
    ]
    assert {row[name] for row in raw for name in ("stream", "stream_id", "message_id", "event_time", "key")} == {None}


def test_the_output_of_a_pipeline_is_a_source_with_the_origin_of_its_rows(source: Source) -> None:
    source.send("door", 50)
    options = {"worker": source.http, "pipeline": "copy"}
    frame = source.spark.readStream.format("penstock").options(**options, source="sensors").load()
    chosen = frame.select("source", "stream", "stream_id", "message_id", "event_time", "key", "value")
    query = (
        chosen.writeStream.format("penstock").options(**options)
        .option("checkpointLocation", str(source.checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    names = ("source", "stream", "stream_id", "message_id", "event_time", "key", "value")
    first, second = source.batch(), source.batch(source="pipeline:copy/out")
    assert [[row[name] for name in names] for row in second] == [[row[name] for name in names] for row in first]
    assert {row["segment"] for row in second} == {"pipeline/copy/out"}


class TestSeveralLoads:
    def load(self, source: Source, name: str, **options: str) -> DataFrame:
        given = {"worker": source.http, "pipeline": "p", "source": name} | options
        return source.spark.readStream.format("penstock").options(**given).load()

    def copy(self, source: Source, frame: DataFrame, **trigger: bool) -> StreamingQuery:
        writer = frame.select("value").writeStream.format("penstock").option("worker", source.http)
        writer = writer.option("pipeline", "p").option("checkpointLocation", str(source.checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    def test_a_run_to_the_end_reads_new_events_of_any_load(self, source: Source) -> None:
        frames = [self.load(source, name, input=name) for name in ("sensors", "doors")]
        store_events(source.worker, SEGMENT, numbered(0, 10))
        for number in range(2):  # the second time only the second load has something new
            store_events(source.worker, "connector/doors/0", numbered(20 * number, 20 * (number + 1)))
            self.copy(source, frames[0].union(frames[1]), availableNow=True).awaitTermination()
            assert len(source.batch(source="pipeline:p/out")) == 10 + 20 * (number + 1)

    def test_a_dataframe_that_is_joined_with_itself_reads_the_same_epochs_on_both_sides(self, source: Source) -> None:
        events = self.load(source, "sensors")
        query = self.copy(source, events.alias("a").join(events.alias("b"), "message_id").select("a.value"))
        try:
            for number in range(8):
                store_events(source.worker, SEGMENT, numbered(number, number + 1))
                query.processAllAvailable()
                time.sleep(
                    0.3 + 0.05 * number
                )  # one side has got the answer that there is nothing new, the other one waits
            query.processAllAvailable()
        finally:
            query.stop()
        logs = [file.read_text().splitlines()[-2:] for file in (source.checkpoint / "offsets").glob("[0-9]*")]
        assert len(logs) > 2
        assert [left for left, right in logs if left != right] == []
        assert len(source.batch(source="pipeline:p/out")) == 8

    def test_loads_of_different_sources_must_not_share_an_input(self, source: Source) -> None:
        frames = [self.load(source, name) for name in ("sensors", "doors")]
        with pytest.raises(Exception, match="Use a separate `input` for each load"):
            self.copy(source, frames[0].union(frames[1]), availableNow=True).awaitTermination()


def test_data_removed_by_retention_stops_the_query_with_a_clear_error(source: Source) -> None:
    source_events = numbered(0, 2000)
    store_events(source.worker, SEGMENT, source_events)
    source.run(maxRowsPerEpoch="600")
    store_events(source.worker, SEGMENT, numbered(2000, 4000))
    truncate(source.worker, SEGMENT, 3000 * len(source_events[0]))
    with pytest.raises(Exception, match="DataLoss") as caught:
        source.run()
    assert "failOnDataLoss=false" in str(caught.value)
    (rows,) = source.run(failOnDataLoss="false")
    assert message_ids(rows) == [*range(3000, 4000)]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"startingOffset": "latest"}, ["unknown option 'startingoffset'", 'Did you mean "startingOffsets"?']),
        ({"source": "nobody"}, ["source 'nobody' not found", "penstock status"]),
        ({"pipeline": "p"}, ["the option pipeline is for spark.readStream"]),
    ],
)
def test_errors_reach_the_user_with_a_clear_message(source: Source, options: dict[str, str], texts: list[str]) -> None:
    with pytest.raises(Exception, match="RequestError") as caught:
        source.batch(**options)
    for text in texts:
        assert text in str(caught.value)
