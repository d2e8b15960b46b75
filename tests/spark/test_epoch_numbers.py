"""Epoch N is Spark's batch N: in offsets, in the worker's ledger and status, and in the transactions of a sink."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.client.segments import SegmentClient
from tests.delivery.matrix.journal import decisions
from tests.spark.feeding import Feed
from tests.spark.following import at, in_pipeline, load
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def counts(spark: SparkSession, worker: RunningWorker) -> DataFrame:
    """With Spark's own operator: Spark closes its windows in batches without new input."""
    from pyspark.sql import functions

    from penstock.spark.watermark import watermarked

    with in_pipeline(spark, worker, "p", "clicks"):
        clicks = watermarked(load(spark, worker, "p", "clicks"))
    return clicks.groupBy(functions.window("event_time", "1 minute")).count().selectExpr("cast(count as string) value")


def read_by_batch(query: StreamingQuery) -> dict[int, int]:
    """For each batch that Spark has run, the epoch of its end offset."""
    ran = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
    return {one["batchId"]: json.loads(one["sources"][0]["endOffset"])["epoch"] for one in ran}


def committed_at(database: Path) -> dict[int, str]:
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT epoch, transaction_id FROM penstock_ledger ORDER BY epoch").fetchall()
    connection.close()
    return {epoch: txn_id.decode() for epoch, txn_id in found}


def test_an_epoch_has_one_number_from_the_spark_batch_to_the_transaction_of_the_sink(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    address, database = f"127.0.0.1:{worker.ports['http']}", tmp_path / "last.db"
    with (
        CoordinatorClient(address) as client,
        SegmentClient(worker.address) as segments,
        Feed(worker, "clicks", ["one"]) as clicks,
    ):
        client.bind("p", {"table": SinkSpec("out", f"sqlite:{database}?table=latest")})
        writer = counts(spark, worker).writeStream.format("penstock").options(worker=address, pipeline="p")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            for second in (10, 130, 250, 370):
                clicks.say("one", at(second))
                query.processAllAvailable()
            read = read_by_batch(query)
        finally:
            query.stop()
        with_input = {batch: epoch for batch, epoch in read.items() if epoch != read.get(batch - 1)}
        without_input = read.keys() - with_input.keys()
        assert [*read] == [*range(len(read))]
        assert with_input == {batch: batch for batch in with_input}
        assert without_input, "Spark has run batches without new input between the others"
        assert max(with_input) > min(without_input)
        deadline = time.monotonic() + SECONDS_MAX
        while client.epochs("p"):
            assert time.monotonic() < deadline, client.sinks()
            time.sleep(0.01)
        (status,) = client.pipelines()
        assert (status.planned, status.merged, status.complete) == (max(read),) * 3
        committed = committed_at(database)
        assert committed.keys() <= read.keys()
        assert [*committed.values()] == decisions(segments, "p")
        assert {epoch: txn_id.split(":")[:2] for epoch, txn_id in committed.items()} == {
            epoch: ["p", str(epoch)] for epoch in committed
        }
        assert committed.keys() & without_input, "what they have put out has their number"
