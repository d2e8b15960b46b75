"""Spark reads and writes streams of Pravega's own client, a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import RequestError
from penstock.pravega.settings import ControllerSettings
from penstock.spark.sink.writer import SinkOptions
from tests.pravega.conftest import Client, Controller, result, wait_for
from tests.pravega.test_client import assert_in_order
from tests.pravega.test_operation import worker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Plant:
    """A worker with a controller, Pravega's client, and Spark."""

    def __init__(self, spark: SparkSession, http: int, controller: int, folder: Path) -> None:
        self.spark = spark
        self.http = f"127.0.0.1:{http}"
        self.client = Client(f"tcp://127.0.0.1:{controller}", "")
        self.controller = Controller(controller, "")
        self.folder = folder

    def read(self, scope: str, **options: str) -> DataFrame:
        given = {"worker": self.http, "source": f"pravega:{scope}/s"} | options
        return self.spark.readStream.format("penstock").options(**given).load()

    def collect(self, scope: str, **options: str) -> list[str]:
        """All that is there now, and was not read by an earlier query with its checkpoint. Raises what ends it."""
        found: list[str] = []

        def take(frame: DataFrame, _: int) -> None:
            found.extend(bytes(row["value"]).decode() for row in frame.select("value").collect())

        writer = self.read(scope, **options).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(self.folder / scope)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return found

    def active(self, scope: str) -> Any:
        return self.controller.call("getCurrentSegments", scope=scope, stream="s").segmentRanges

    def close(self) -> None:
        self.client.close()
        self.controller.close()


@pytest.fixture
def plant(spark: SparkSession, tmp_path: Path) -> Iterator[Plant]:
    pytest.importorskip("pravega_client", reason="Pravega's client has wheels for Python 3.11 on Linux alone")
    with running(spark, tmp_path) as plant:
        yield plant


@contextmanager
def running(spark: SparkSession, folder: Path) -> Iterator[Plant]:
    with worker(folder / "data", ControllerSettings()) as own:
        plant = Plant(spark, own.ports["http"], own.ports["controller"], folder)
        try:
            yield plant
        finally:
            plant.close()


def test_events_of_the_client_are_rows_once_and_rows_are_its_events_in_order_while_streams_are_scaled(
    plant: Plant,
) -> None:
    client, controller, count = plant.client, plant.controller, 1500
    source, target = client.new_scope(1), client.new_scope(2)
    frame = plant.read(source, pipeline="copy").selectExpr("value", "split(cast(value as string), ':')[0] as key")
    options = {"worker": plant.http, "pipeline": "copy", "target": f"pravega:{target}/s"}
    writer = frame.writeStream.format("penstock").options(**options)
    query = writer.option("checkpointLocation", str(plant.folder / "checkpoint")).start()
    try:
        reader = client.start("read", target, "readers", "r", count)
        wait_for(reader, "reader is there")
        writing = client.start("write", source, 0, count, 11)
        wait_for(writing, "written 300")
        controller.scale(source, (0, 0.3), (0.3, 0.6), (0.6, 1))
        until(lambda: query.lastProgress is not None and query.lastProgress["batchId"] >= 1)
        controller.scale(target, (0, 0.2), (0.2, 0.7), (0.7, 1))
        wait_for(writing, "written 800")
        controller.scale(source, (0, 0.5), (0.5, 1))
        assert result(writing) == count
        assert_in_order(result(reader), count)
    finally:
        query.stop()
    assert [round(one.maxKey, 1) for one in plant.active(target)] == [0.2, 0.7, 1], "whatever epochs did meanwhile"
    client.run("write", target, 0, 11, 11)
    events = client.run("read", target, "again", "r", count + 11)
    assert {*by_segment(plant, target)} == {"k" + str(number) for number in range(11)}
    assert len(events) == count + 11


def by_segment(plant: Plant, scope: str) -> dict[str, str]:
    """Key → the active segment with its last events; raises AssertionError if two have some of them."""
    found: dict[str, str] = {}
    active = {f"{scope}/s/{one.segmentId.segmentId & 0xFFFFFFFF}" for one in plant.active(scope)}
    rows = plant.spark.read.format("penstock").options(worker=plant.http, source=f"pravega:{scope}/s").load().collect()
    for row in rows:
        key, segment = bytes(row["value"]).decode().partition(":")[0], row["segment"].partition(".#")[0]
        if segment in active:
            assert found.setdefault(key, segment) == segment, "the client and Spark choose the same segment for a key"
    return found


def test_what_was_truncated_before_spark_has_read_it_is_an_error_unless_the_query_continues_without_it(
    plant: Plant,
) -> None:
    client, controller = plant.client, plant.controller
    scope = client.new_scope(1)
    stream = {"scope": scope, "stream": "s"}
    client.run("write", scope, 0, 10, 2)
    assert len(plant.collect(scope, pipeline="p")) == 10
    client.run("write", scope, 10, 10, 2)
    controller.scale(scope, (0, 0.5), (0.5, 1))
    client.run("write", scope, 20, 10, 2)
    cut = [{"key": one.segmentId.segmentId, "value": 0} for one in plant.active(scope)]
    assert controller.call("truncateStream", streamInfo=stream, cut=cut).status == 0
    with pytest.raises(Exception, match="were removed before they were read"):
        plant.collect(scope, pipeline="p")
    rest = plant.collect(scope, pipeline="p", failOnDataLoss="false")
    assert sorted(rest) == [f"k{number % 2}:{number}" for number in (*range(20, 30, 2), *range(21, 30, 2))]


@pytest.mark.parametrize("target", ["numbers", "segment:numbers", "pravega:scope"])
def test_a_target_is_a_stream_of_pravegas_clients(target: str) -> None:
    with pytest.raises(RequestError, match="target"):
        SinkOptions.parse({"pipeline": "p", "target": target})
