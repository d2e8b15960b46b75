"""A changed pipeline that is incompatible with the stored state is refused before the running one is stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import windows
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.core.errors import CheckpointFailed, RequestError
from penstock.spark import Pipeline, pipeline
from tests.spark.sending import outputs, send
from tests.support.running_runner import running
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.runner import Runner

pytestmark = pytest.mark.spark

WAIT_SECONDS_MAX = 120
BUCKETS = 3


def counting(*keys: str, buckets: int = BUCKETS, lateness: str = "0 seconds") -> Pipeline:
    """Events by stream, in windows of a minute."""

    def count(numbers: DataFrame) -> DataFrame:
        counted = windows.aggregate(
            numbers,
            windows.tumbling("1 minute"),
            keys=[*keys],
            n=windows.count(),
            buckets=buckets,
            allowed_lateness=lateness,
        )
        return counted.select(*keys, "n")

    return pipeline(name="count", inputs={"numbers": "numbers"})(count)


@dataclass
class Bench:
    worker: RunningWorker
    spark: SparkSession
    folder: Path

    @property
    def settings(self) -> RunSettings:
        from penstock.spark.run.attempt import RestartPolicy, RunSettings

        quick = RestartPolicy(restarts_max=1, pause_seconds_first=0.1)
        checkpoints = str(self.folder / "checkpoints")
        return RunSettings(worker=self.http, checkpoints=checkpoints, cores=2, restarts=quick, follows_buckets=True)

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / "count"

    def send(self, count: int) -> None:
        send(f"127.0.0.1:{self.worker.ports['connector']}", "numbers", "s", [b"%d" % n for n in range(count)])

    def runner(self, *pipelines: Pipeline, **options: Any) -> Runner:
        from penstock.spark.run.runner import Runner

        return Runner(self.spark, pipelines, self.settings, **options)

    def run_all(self, given: Pipeline) -> None:
        """Run on everything that is stored now."""
        from penstock.spark.run.runner import Runner

        Runner(self.spark, [given], replace(self.settings, available_now=True)).run(WAIT_SECONDS_MAX)

    def status(self) -> PipelineStatus:
        with CoordinatorClient(self.http) as coordinator:
            return next(one for one in coordinator.pipelines() if one.name == "count")

    def offsets(self) -> list[str]:
        """Lines of Spark's offset log for its first batch."""
        return (self.checkpoint / "offsets" / "0").read_text().splitlines()


@pytest.fixture
def bench(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(worker, spark, tmp_path)


def test_windows_with_other_keys_are_refused_with_the_difference_and_a_reset_starts_from_scratch(bench: Bench) -> None:
    bench.send(5)
    bench.run_all(counting("stream"))
    generation = bench.status().generation
    partitions = json.loads(bench.offsets()[1])["conf"]["spark.sql.shuffle.partitions"]
    assert partitions == str(BUCKETS), "shuffles follow the buckets where nobody has said otherwise"
    kept = (bench.checkpoint / "penstock.json").read_text()
    changed = counting("stream", "source", buckets=5, lateness="1 minute")
    with pytest.raises(RequestError) as caught:
        bench.run_all(changed)
    assert str(caught.value).splitlines() == [
        "the pipeline 'count' does not fit its stored state",
        "  windows: keys: stored stream string; now stream string, source string",
        "  windows: buckets: stored 3; now 5",
    ]
    assert "You may change filters" in caught.value.hint
    assert "penstock pipeline reset count" in caught.value.hint
    assert "penstock pipeline fork count NEW" in caught.value.hint
    assert bench.status().generation == generation, "no older run was fenced"
    assert (bench.checkpoint / "penstock.json").read_text() == kept

    bench.run_all(counting("stream"))
    with CoordinatorClient(bench.http) as coordinator:
        coordinator.reset("count", accept_partial=True)
    bench.run_all(changed)
    aside = bench.checkpoint.with_name("count~reset")
    assert (aside / "penstock.json").read_text() == kept
    assert "source string" in (bench.checkpoint / "penstock.json").read_text()
    assert bench.status().complete >= 0


def test_a_checkpoint_is_left_alone_if_the_worker_has_no_reset(bench: Bench) -> None:
    """It may belong to a pipeline of the same name at another worker."""
    from penstock.spark.run.checkpoints import LocalCheckpoint
    from penstock.spark.run.generation import is_outdated

    bench.send(1)
    bench.run_all(counting("stream"))
    assert not is_outdated(LocalCheckpoint(bench.checkpoint), "count", bench.http)
    with CoordinatorClient(bench.http) as coordinator:
        coordinator.drop("count")
    assert not is_outdated(LocalCheckpoint(bench.checkpoint), "count", bench.http)


@pytest.fixture
def gateway(spark: SparkSession) -> Any:
    """To the JVM of the session, as the driver of `penstock run` has it, which starts the JVM."""
    return spark.sparkContext._gateway


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_checkpoints_are_read_and_moved_wherever_spark_can(gateway: Any, tmp_path: Path, scheme: str) -> None:
    from penstock.spark.run.checkpoints import HadoopCheckpoint, LocalCheckpoint, incarnation_of

    folder = tmp_path / "p"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "9").write_text('v1\n{"batchWatermarkMs":0}\n{"epoch":9,"incarnation":1}')
    (folder / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0}\n{"epoch":10,"incarnation":2}')
    checkpoint = HadoopCheckpoint(gateway, f"{scheme}{folder}") if scheme else LocalCheckpoint(folder)
    assert checkpoint.batches() == [9, 10]
    assert incarnation_of(checkpoint) == 2
    assert checkpoint.read("penstock.json") is None
    checkpoint.write("penstock.json", "é")
    assert checkpoint.read("penstock.json") == "é"
    (tmp_path / "p~reset").mkdir()
    (tmp_path / "p~reset" / "older").touch()
    assert checkpoint.move_aside() == f"{scheme}{folder}~reset"
    assert not folder.exists()
    assert sorted(one.name for one in (tmp_path / "p~reset").iterdir() if one.suffix != ".crc") == [
        "offsets",
        "penstock.json",
    ]


def test_a_plan_is_written_to_file_systems_that_cannot_replace_a_file(
    spark: SparkSession, gateway: Any, tmp_path: Path
) -> None:
    from penstock.spark.run.checkpoints import HadoopCheckpoint

    checkpoint = HadoopCheckpoint(gateway, f"file://{tmp_path}/p")
    hadoop, setting = spark._jsc.hadoopConfiguration(), "fs.AbstractFileSystem.file.impl"
    supported = hadoop.get(setting)
    hadoop.unset(setting)
    try:
        assert checkpoint._file_context() is None
        for text in ("first", "second"):
            checkpoint.write("penstock.json", text)
            assert checkpoint.read("penstock.json") == text
    finally:
        hadoop.set(setting, supported)


def test_an_error_of_a_hadoop_file_system_names_the_checkpoint(gateway: Any, tmp_path: Path) -> None:
    from penstock.spark.run.checkpoints import HadoopCheckpoint

    (tmp_path / "p" / "penstock.json").mkdir(parents=True)
    with pytest.raises(CheckpointFailed, match=f"the checkpoint file://{tmp_path}/p cannot be used: ") as caught:
        HadoopCheckpoint(gateway, f"file://{tmp_path}/p").read("penstock.json")
    assert "\tat " not in str(caught.value), "no stack of the JVM"
    for wrong in ("nosuch://bucket/p", "file:p"):
        with pytest.raises(CheckpointFailed, match=f"the checkpoint {wrong} cannot be used: "):
            HadoopCheckpoint(gateway, wrong)


def test_a_change_that_only_spark_can_refuse_is_rolled_back(bench: Bench) -> None:
    def joined(sides: str) -> Pipeline:
        """Rows of both sides are state: with another column Spark refuses it."""

        def count(numbers: DataFrame) -> DataFrame:
            left = numbers.selectExpr("message_id", "value")
            right = numbers.selectExpr("message_id as other", sides)
            found = left.join(right, left["message_id"] == right["other"])
            return found.selectExpr("message_id", "cast(value as string) as text", "side")

        return pipeline(name="count", inputs={"numbers": "numbers"})(count)

    waiting: list[Pipeline] = []
    runner: Runner = bench.runner(
        joined("source as side"), until_stopped=True, change=lambda: runner.put(waiting.pop()) if waiting else None
    )
    with running(runner):
        bench.send(2)
        until(lambda: len(outputs(bench.worker.address, "count")) == 2)
        until(lambda: (bench.checkpoint / "penstock.json").exists())
        changed = joined("length(value) as side")
        runner.check(changed)
        waiting.append(changed)
        until(lambda: runner.pipelines[0].pipeline is changed)
        bench.send(4)  # returns when they are acknowledged
        assert runner.pipelines[0].replaced is not None
        assert len(outputs(bench.worker.address, "count")) == 4
        assert "numbers" in outputs(bench.worker.address, "count")[-1].payload.decode()
