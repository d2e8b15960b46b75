"""A generation in the user's own session: kept alive, fenced by the next, and complete when Spark has committed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.core.errors import PipelineError, RequestError
from penstock.spark import begin
from tests.spark.sending import outputs, send
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS_MAX = 120


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def status(worker: RunningWorker, name: str = "mine") -> PipelineStatus:
    with CoordinatorClient(http(worker)) as coordinator:
        return next(each for each in coordinator.pipelines() if each.name == name)


def test_a_generation_has_the_options_for_its_loads_and_its_sink(worker: RunningWorker) -> None:
    with begin("mine", worker=http(worker), inputs={"a": "north", "b": ["south", "segment:raw"]}) as run:
        assert run.input("b", min_partitions=4) == {
            "worker": http(worker),
            "pipeline": "mine",
            "generation": str(run.number),
            "input": "b",
            "source": "south,segment:raw",
            "minPartitions": "4",
        }
        assert run.output() == {"worker": http(worker), "pipeline": "mine", "generation": str(run.number)}
        with pytest.raises(RequestError, match="no input 'c'"):
            run.input("c")
        assert status(worker).state == "STARTING", "no query has asked for an epoch yet"
    assert status(worker).state == "STOPPED"
    assert status(worker).outputs == ["out"]


def test_a_generation_that_fails_is_reported_as_failing_at_once(worker: RunningWorker) -> None:
    with pytest.raises(ZeroDivisionError), begin("mine", worker=http(worker), inputs={"a": "north"}):
        raise ZeroDivisionError
    assert status(worker).state == "FAILING", "nobody waits for its heartbeat to lapse"


def test_a_failure_is_reported_at_once_and_until_the_next_start(
    worker: RunningWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with begin("mine", worker=http(worker), inputs={"a": "north"}) as run:
        run.failed("127.0.0.1:1 cannot be reached", 3, time.monotonic() + 1000)
        until(lambda: status(worker).failure)
        found = status(worker)
        assert found.state == "FAILING"
        assert found.failure is not None
        assert 900 < (found.failure.restart_in_seconds or 0) <= 1000
        sentence = r"it has failed 3 times in a row and restarts in \d+ s: 127.0.0.1:1 cannot be reached"
        assert re.fullmatch(sentence, str(found.failure))
        assert re.search(f"pipeline mine: {sentence}", caplog.text), "the worker logs it"
        run.failed("gone", 1, None)
        until(lambda: str(status(worker).failure) == "it has failed and stays stopped: gone")
        with begin("mine", worker=http(worker), inputs={"a": "north"}):
            assert (status(worker).state, status(worker).failure) == ("STARTING", None)


def test_the_next_generation_fences_it(worker: RunningWorker) -> None:
    first = begin("mine", worker=http(worker), inputs={"a": "north"})
    with begin("mine", worker=http(worker), inputs={"a": "north"}) as second:
        assert second.number > first.number
        first.committed(0)  # its next heartbeat would report it anyway
        until(lambda: first.fenced)
        first.stop()
        assert status(worker).state == "STARTING", "the old one's farewell does not count"


def test_a_generation_can_end_while_its_worker_is_gone(tmp_path: Path) -> None:
    with running_worker(tmp_path / "data") as worker:
        run = begin("mine", worker=http(worker), inputs={"a": "north"})
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < WAIT_SECONDS_MAX / 4


@pytest.mark.spark
def test_a_users_own_query_completes_epochs_with_sparks_own_sink(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.spark import watch

    checkpoint = str(tmp_path / "checkpoint")
    inputs = {"in": "north"}
    with begin("mine", worker=http(worker), inputs=inputs, outputs=[], checkpoint=checkpoint) as run:
        load = spark.readStream.format("penstock").options(**run.input("in")).load()
        writer = load.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            watch(spark, query, run)
            send(f"127.0.0.1:{worker.ports['connector']}", "north", "numbers", [b"1", b"2"])  # acknowledged
        finally:
            query.stop()
    assert status(worker).complete == status(worker).planned == 0
    with pytest.raises(PipelineError, match="no checkpoint"):
        begin("mine", worker=http(worker), inputs=inputs, outputs=[], checkpoint=tmp_path / "another")


@pytest.mark.spark
def test_a_users_own_query_writes_to_the_penstock_sink(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    send(f"127.0.0.1:{worker.ports['connector']}", "north", "numbers", [b"1", b"2"])
    with begin("mine", worker=http(worker), inputs={"in": "north"}) as run:
        load = spark.readStream.format("penstock").options(**run.input("in")).load()
        writer = load.drop("segment", "offset").writeStream.format("penstock").options(**run.output())
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
    assert [event.payload for event in outputs(worker.address, "mine")] == [b"1", b"2"]
    found = spark.read.format("penstock").option("worker", http(worker)).option("source", "pipeline:mine/out").load()
    assert sorted((row["stream"], row["message_id"], bytes(row["value"])) for row in found.collect()) == [
        ("numbers", 1, b"1"),
        ("numbers", 2, b"2"),
    ]
