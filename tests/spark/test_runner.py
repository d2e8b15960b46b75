"""Pipelines run in a session: every event is processed once, across restarts; failures are retried or reported."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.coordinator import CoordinatorClient, InputSpec, PipelineStatus
from penstock.core.errors import PipelineError, RequestError
from penstock.spark import Pipeline, pipeline
from penstock.spark.run.attempt import RestartPolicy
from tests.spark.sending import outputs, send
from tests.support.ports import free_port
from tests.support.running_runner import RunnerThread, running
from tests.support.running_worker import RunningWorker
from tests.support.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.runner import Runner

pytestmark = pytest.mark.spark

WAIT_SECONDS_MAX = 120


@dataclass
class Bench:
    """A worker, a Spark session, and a folder for checkpoints."""

    worker: RunningWorker
    spark: SparkSession
    folder: Path

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    @property
    def settings(self) -> RunSettings:
        from penstock.spark.run.attempt import RunSettings

        quick = RestartPolicy(restarts_max=3, pause_seconds_first=0.1)
        return RunSettings(worker=self.http, checkpoints=str(self.folder / "checkpoints"), cores=2, restarts=quick)

    def send(self, source: str, payloads: list[bytes], stream: str = "numbers", *, key: bytes = b"") -> None:
        send(f"127.0.0.1:{self.worker.ports['connector']}", source, stream, payloads, key=key)

    def runner(self, *pipelines: Pipeline, settings: RunSettings | None = None) -> Runner:
        from penstock.spark.run.runner import Runner

        return Runner(self.spark, pipelines, settings or self.settings)

    def run_all(self, *pipelines: Pipeline) -> None:
        """Run on everything that is stored now."""
        self.runner(*pipelines, settings=replace(self.settings, available_now=True)).run(WAIT_SECONDS_MAX)

    @contextmanager
    def running(self, *pipelines: Pipeline, runner: Runner | None = None) -> Iterator[RunnerThread]:
        """In a thread. What it raises is raised at the end."""
        with running(runner or self.runner(*pipelines)) as thread:
            yield thread
        thread.check()

    def out(self, name: str, port: str = "out") -> list[bytes]:
        return [event.payload for event in outputs(self.worker.address, name, port)]

    def status(self, name: str) -> PipelineStatus:
        with CoordinatorClient(self.http) as coordinator:
            return next(status for status in coordinator.pipelines() if status.name == name)


@pytest.fixture
def bench(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(worker, spark, tmp_path)


def payloads(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@pipeline
def copy(numbers: DataFrame) -> DataFrame:
    return numbers


def test_all_stored_events_are_processed_once_and_then_the_run_ends(bench: Bench) -> None:
    bench.send("numbers", payloads(1, 2, 3), key=b"k")
    bench.run_all(copy)
    assert bench.out("copy") == payloads(1, 2, 3)
    (first, *_) = outputs(bench.worker.address, "copy")
    assert (first.key, first.event_id, first.metadata["source"], first.metadata["stream"]) == (
        b"k",
        1,
        "numbers",
        "numbers",
    )
    bench.run_all(copy)
    assert bench.out("copy") == payloads(1, 2, 3), "the second run found nothing new"
    assert bench.status("copy").state == "STOPPED"


def test_a_sink_of_an_unknown_port_is_reported_and_nothing_is_bound(bench: Bench) -> None:
    misbound = pipeline(name="misbound", sinks={"uot": "stdout:"})(copy.function)
    with pytest.raises(RequestError, match="is bound to port 'uot', which the pipeline does not have") as caught:
        bench.run_all(misbound)
    assert 'Did you mean "out"?' in caught.value.hint
    with CoordinatorClient(bench.http) as client:
        assert client.sinks() == []


def test_a_run_ends_after_the_given_time(bench: Bench) -> None:
    began = time.monotonic()
    bench.runner(copy).run(0.5)
    assert time.monotonic() - began < WAIT_SECONDS_MAX
    assert bench.status("copy").state == "STOPPED"


def test_a_running_pipeline_acknowledges_what_it_has_output(bench: Bench) -> None:
    with bench.running(copy) as running:
        running.until(lambda: running.first.is_running)
        running.until(lambda: bench.status("copy").state == "RUNNING")
        bench.send("numbers", payloads(1, 2))
        assert bench.out("copy") == payloads(1, 2), "the acknowledgement came after the result"
        running.until(lambda: running.first.progress)
        bench.send("numbers", payloads(1, 2, 3))
        assert bench.out("copy") == payloads(1, 2, 3)
        progress = running.first.progress
        assert progress is not None
        assert progress.epoch == progress.cut, "Spark's batch is the epoch"
    assert bench.status("copy").state == "STOPPED"


@pipeline
def sort(numbers: DataFrame) -> dict[str, DataFrame]:
    number = numbers.selectExpr("cast(cast(value as string) as int) as number")
    return {"even": number.where("number % 2 = 0"), "odd": number.where("number % 2 = 1")}


def test_several_ports_are_output_together(bench: Bench) -> None:
    bench.send("numbers", payloads(1, 2, 3, 4))
    bench.run_all(sort)
    assert [json.loads(row)["number"] for row in bench.out("sort", "even")] == [2, 4]
    assert [json.loads(row)["number"] for row in bench.out("sort", "odd")] == [1, 3]


@pipeline(inputs={"copied": "pipeline:copy/out", "others": ["letters", "numbers"]})
def join(copied: DataFrame, others: DataFrame) -> DataFrame:
    return copied.union(others)


def test_pipelines_of_one_session_may_read_each_other(bench: Bench) -> None:
    bench.send("numbers", payloads(1, 2))
    bench.send("letters", [b"a"], "letters")
    with bench.running(copy, join) as running:
        running.until(lambda: sorted(bench.out("join")) == [b"1", b"1", b"2", b"2", b"a"])


def test_epochs_of_sparks_own_sinks_complete_without_a_next_batch(bench: Bench) -> None:
    path = str(bench.folder / "parquet")

    @pipeline
    def archive(numbers: DataFrame) -> Any:
        return numbers.selectExpr("cast(value as string) as text").writeStream.format("parquet").option("path", path)

    with bench.running(archive) as running:
        running.until(lambda: running.first.is_running)
        bench.send("numbers", payloads(1, 2))  # returns when they are acknowledged
        found = bench.spark.read.schema("text string").parquet(path).collect()
        assert sorted(row["text"] for row in found) == ["1", "2"]
        status = bench.status("archive")
        assert status.outputs == []
        assert status.complete == status.planned


def test_an_error_in_the_function_is_final_and_shows_its_line(bench: Bench) -> None:
    @pipeline
    def broken(numbers: DataFrame) -> DataFrame:
        return numbers.select("no_such_column")

    with pytest.raises(RequestError, match="no_such_column") as caught:
        bench.run_all(broken)
    assert 'return numbers.select("no_such_column")' in str(caught.value)
    assert f'File "{__file__}"' in str(caught.value)
    assert "site-packages" not in str(caught.value)
    with CoordinatorClient(bench.http) as coordinator:
        assert coordinator.pipelines() == [], "nothing was registered for it"


def test_a_failed_query_is_restarted_and_loses_nothing(bench: Bench) -> None:
    mended = bench.folder / "mended"

    def check(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if not mended.exists():
                raise ConnectionError("not yet")
            yield batch

    @pipeline
    def careful(numbers: DataFrame) -> DataFrame:
        return numbers.select("value").mapInArrow(check, "value binary")

    bench.send("numbers", payloads(1, 2))
    with bench.running(careful) as running:
        running.until(lambda: running.first.restarts.in_a_row)
        failure = running.first.last_failure
        assert failure is not None
        assert failure.text.endswith("ConnectionError: not yet")
        assert "in check" in failure.text
        more = bench.settings.restarts.restarts_max + 1
        running.until(lambda: running.first.restarts.in_a_row > more)  # an outage may last any length of time
        running.until(lambda: (found := bench.status("careful").failure) and found.failures > more)
        assert "ConnectionError: not yet" in str(bench.status("careful").failure)
        mended.touch()
        running.until(lambda: bench.out("careful") == payloads(1, 2))


def test_a_pipeline_waits_for_its_worker_as_long_as_necessary(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.spark.run.attempt import RunSettings
    from penstock.spark.run.runner import Runner

    worker = WorkerProcess(tmp_path / "data")
    worker.http_port = free_port()
    quick = RestartPolicy(restarts_max=1, pause_seconds_first=0.05, pause_seconds_max=0.2)
    address = f"127.0.0.1:{worker.http_port}"
    runner = Runner(spark, [copy], RunSettings(worker=address, checkpoints=str(tmp_path), cores=2, restarts=quick))
    try:
        with running(runner) as thread:
            thread.until(lambda: thread.first.restarts.in_a_row > 5)
            failure = thread.first.last_failure
            assert failure is not None
            assert failure.text.startswith(f"the worker at {address} cannot be reached")
            worker.start()
            send(f"127.0.0.1:{worker.connector_port}", "numbers", "numbers", payloads(1))
            # Not at once: the event is acknowledged before the pipeline is bound if it was stored before.
            thread.until(lambda: [event.payload for event in outputs(worker.address, "copy")] == payloads(1))
        thread.check()
    finally:
        worker.close()


def parse(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        _ = [int(value) for value in batch.column("value").to_pylist()]
        yield batch


@pipeline
def strict(numbers: DataFrame) -> DataFrame:
    return numbers.select("value").mapInArrow(parse, "value binary")


def skip_words(numbers: DataFrame) -> DataFrame:
    digits = numbers.select("value").where("cast(value as string) rlike '^[0-9]+$'")
    return digits.mapInArrow(parse, "value binary")


def test_an_error_in_user_code_is_one_message_with_the_line_the_events_and_what_to_do(bench: Bench) -> None:
    bench.send("numbers", [*payloads(1), b"two"])
    runner = bench.runner(strict)
    with pytest.raises(RequestError) as caught:
        runner.run(WAIT_SECONDS_MAX)
    text = str(caught.value)
    line = parse.__code__.co_firstlineno + 2
    assert f'File "{__file__}", line {line}, in parse\n    _ = [int(value) for value' in text
    assert "ValueError: invalid literal for int() with base 10: b'two'" in text
    assert re.search(r"at an event of epoch 0: connector/numbers/\d @ 0 to \d+$", text)
    assert "\tat " not in text, "no stack of the JVM"
    assert "penstock.dead_letters.apply" in caught.value.hint
    assert caught.value.hint.startswith("Find the events that fail, and bury them")
    assert "penstock pipeline bisect strict " in caught.value.hint
    assert "test_runner.py\n" in caught.value.hint
    assert runner.pipelines[0].restarts.in_a_row == 2, "it was given one more chance"
    assert bench.out("strict") == []
    status = bench.status("strict")
    assert (status.state, runner.pipelines[0].given_up) == ("FAILING", caught.value)
    assert status.failure is not None
    assert re.search(r"base 10: b'two', at an event of epoch 0: connector/numbers/\d @ 0 to \d+$", status.failure.text)
    assert "penstock pipeline bisect strict" in status.failure.hint


def test_a_python_worker_that_dies_is_reported_as_such(bench: Bench) -> None:
    def leave(batches: Iterator[Any]) -> Iterator[Any]:
        os._exit(3)

    @pipeline
    def fatal(numbers: DataFrame) -> DataFrame:
        return numbers.select("value").mapInArrow(leave, "value binary")

    bench.send("numbers", payloads(1))
    with pytest.raises(RequestError, match="the Python worker ended") as caught:
        bench.runner(fatal).run(WAIT_SECONDS_MAX)
    assert "\tat " not in str(caught.value)
    assert "os._exit" in caught.value.hint


def test_a_failed_pipeline_does_not_end_the_others(bench: Bench) -> None:
    from penstock.spark.run.runner import Runner

    @pipeline
    def broken(numbers: DataFrame) -> DataFrame:
        return numbers.select("no_such_column")

    waiting: list[Pipeline] = []
    runner = Runner(
        bench.spark,
        [replace(broken, name="broken_at_once"), replace(strict, inputs={"numbers": ("doomed",)}), copy],
        bench.settings,
        change=lambda: runner.put(waiting.pop()) if waiting else None,
        until_stopped=True,
    )

    def given_up() -> dict[str, str]:
        return {one.pipeline.name: str(one.given_up) for one in runner.pipelines if one.given_up is not None}

    bench.send("doomed", [b"one"])
    with bench.running(runner=runner) as running:
        running.until(lambda: "strict" in given_up())
        waiting.append(broken)
        running.until(lambda: "broken" in given_up())
        assert "ValueError" in given_up()["strict"]
        assert "no_such_column" in given_up()["broken"]
        assert "no_such_column" in given_up()["broken_at_once"]
        bench.send("numbers", payloads(1, 2))
        assert bench.out("copy") == payloads(1, 2)
        skipping = pipeline(name="strict", inputs={"numbers": "doomed"})(skip_words)
        waiting.append(skipping)
        bench.send("doomed", [b"one", b"2"])
        assert bench.out("strict") == [b"2"], "a changed one goes on where it was"


def test_an_unusable_checkpoint_blocks_only_its_own_pipeline(bench: Bench) -> None:
    from penstock.spark.run.runner import Runner

    blocked = replace(copy, name="blocked")
    folder = bench.folder / "checkpoints" / "blocked"
    folder.parent.mkdir()
    folder.touch()  # a file in place of the folder
    patient = RestartPolicy(restarts_max=1000, pause_seconds_first=0.1, pause_seconds_max=0.5)
    runner = Runner(bench.spark, [copy, blocked], replace(bench.settings, restarts=patient), until_stopped=True)
    with bench.running(runner=runner) as running:
        running.until(lambda: runner.pipelines[1].last_failure)
        failure = runner.pipelines[1].last_failure
        assert failure is not None
        assert failure.text.startswith(f"the checkpoint {folder} cannot be used: ")
        with pytest.raises(
            RequestError, match=f"'blocked' cannot be compared .*: the checkpoint {folder} cannot be used"
        ):
            runner.check(blocked)
        bench.send("numbers", payloads(1))
        assert bench.out("copy") == payloads(1)
        folder.unlink()
        running.until(lambda: bench.out("blocked") == payloads(1))


def failing_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_only_a_failed_connection_counts_as_the_end_of_the_jvm(bench: Bench) -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

    from penstock.spark.run.runner import Runner

    for gone in (Py4JNetworkError("no answer"), Py4JError("An error occurred while calling"), ConnectionRefusedError()):
        with pytest.raises(RequestError, match="Spark's JVM is gone"):
            Runner(bench.spark, [copy], bench.settings, change=failing_with(gone)).run(WAIT_SECONDS_MAX)
    with pytest.raises(PermissionError):
        Runner(bench.spark, [copy], bench.settings, change=failing_with(PermissionError())).run(WAIT_SECONDS_MAX)


def test_a_run_in_which_no_pipeline_can_be_built_ends_at_once(bench: Bench) -> None:
    @pipeline
    def broken(numbers: DataFrame) -> DataFrame:
        return numbers.select("no_such_column")

    from penstock.spark.run.runner import Runner

    runner = Runner(bench.spark, [broken], bench.settings, until_stopped=True)
    with pytest.raises(RequestError, match="no_such_column"):
        runner.run(WAIT_SECONDS_MAX)
    with CoordinatorClient(bench.http) as coordinator:
        assert coordinator.pipelines() == [], "nothing was registered for it"


def test_an_older_run_of_the_same_pipeline_is_fenced_and_ends(bench: Bench) -> None:
    bench.send("numbers", payloads(1))

    def run_until_another_starts() -> None:
        with bench.running(copy) as running, CoordinatorClient(bench.http) as coordinator:
            running.until(lambda: bench.out("copy"))
            coordinator.start("copy", {"numbers": InputSpec(["numbers"])}, ["out"])
            running.until(lambda: not running.is_alive())

    with pytest.raises(RequestError, match=r"was replaced by generation"):
        run_until_another_starts()


def test_a_lost_checkpoint_is_refused(bench: Bench) -> None:
    bench.send("numbers", payloads(1))
    bench.run_all(copy)
    elsewhere = replace(bench.settings, checkpoints=str(bench.folder / "elsewhere"))
    with pytest.raises(PipelineError, match="no checkpoint"):
        bench.runner(copy, settings=elsewhere).run(WAIT_SECONDS_MAX)
    assert bench.out("copy") == payloads(1)
