"""A pipeline whose input's watermark rises without data gets an epoch without rows for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient, InputSpec
from penstock.protocol.stored.event import END_OF_TIME
from tests.support.open_stream import open_stream
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WAIT_SECONDS_MAX = 120


class Upstream:
    """A pipeline over source `s` that outputs nothing."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client
        self._generation = client.start("upstream", {"in": InputSpec(["s"])}, ["out"]).generation
        self._at = client.initial("upstream", self._generation, "in")
        self._batch = 0

    def epoch(self) -> int | None:
        self._at = self._client.cut("upstream", self._generation, "in", self._at, wait_ms=20_000).offset
        self._client.merge("upstream", self._batch, [], generation=self._generation)
        self._batch += 1
        return self._at.watermark


@contextmanager
def reading(spark: SparkSession, http: str, checkpoint: Path, rows: list[int]) -> Iterator[None]:
    def keep(frame: DataFrame, _: int) -> None:
        rows.append(frame.count())

    frame = spark.readStream.format("penstock").options(worker=http, pipeline="reader", source="pipeline:upstream/out")
    query = frame.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield
    finally:
        query.stop()


def wait_for(client: CoordinatorClient, watermark: int, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while {one.name: one.watermark for one in client.pipelines()}.get("reader") != watermark or not is_done():
        assert time.monotonic() < deadline, client.pipelines()
        time.sleep(0.1)


def test_a_watermark_that_rises_without_output_reaches_the_next_pipeline(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    http, rows = f"127.0.0.1:{worker.ports['http']}", list[int]()
    with CoordinatorClient(http) as client, open_stream(worker.ports["connector"], "s", "one") as stream:
        upstream = Upstream(client)
        stream.send(1, 7)
        while upstream.epoch() != 7_000:
            pass
        with reading(spark, http, tmp_path / "checkpoint", rows):
            wait_for(client, 7_000, lambda: len(rows) >= 1)
            stream.send(2, 9)
            while upstream.epoch() != 9_000:
                pass
            wait_for(client, 9_000, lambda: len(rows) >= 2)
        client.end_source("s")
        while upstream.epoch() != END_OF_TIME:
            pass
        with reading(spark, http, tmp_path / "checkpoint", rows):
            wait_for(client, END_OF_TIME, lambda: len(rows) >= 3)
    assert set(rows) == {0}
