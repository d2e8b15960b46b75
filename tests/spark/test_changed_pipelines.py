"""Pipelines that are added, removed and changed while a runner runs: each continues, and the others never stop."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.spark import Pipeline, pipeline
from tests.spark.sending import outputs, send
from tests.support.running_runner import running
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.run.runner import Runner

pytestmark = pytest.mark.spark

WAIT_SECONDS_MAX = 120


def copying(name: str, *sources: str) -> Pipeline:
    def copy(given: DataFrame) -> DataFrame:
        return given.select("value", "source")

    return pipeline(name=name, inputs={"given": sources})(copy)


@dataclass
class Bench:
    worker: RunningWorker
    spark: SparkSession
    folder: Path
    changes: queue.Queue[Callable[[Runner], None]] = field(default_factory=queue.Queue)

    @contextmanager
    def running(self) -> Iterator[None]:
        from penstock.spark.run.attempt import RunSettings
        from penstock.spark.run.runner import Runner

        http = f"127.0.0.1:{self.worker.ports['http']}"
        settings = RunSettings(worker=http, checkpoints=str(self.folder / "checkpoints"), cores=2)
        runner = Runner(self.spark, [], settings, change=lambda: self._change(runner), until_stopped=True)
        with running(runner):
            yield

    def _change(self, runner: Runner) -> None:
        while not self.changes.empty():
            self.changes.get()(runner)
            self.changes.task_done()

    def change(self, change: Callable[[Runner], None]) -> None:
        self.changes.put(change)
        self.changes.join()

    def send(self, source: str, count: int) -> None:
        payloads = [b"%s %d" % (source.encode(), number) for number in range(count)]
        send(f"127.0.0.1:{self.worker.ports['connector']}", source, "numbers", payloads)

    def out(self, name: str) -> list[str]:
        return sorted(event.payload.decode() for event in outputs(self.worker.address, name))

    def spark_names(self) -> list[str]:
        return [query.name for query in self.spark.streams.active if query.name]

    def generation(self, name: str) -> int:
        with CoordinatorClient(f"127.0.0.1:{self.worker.ports['http']}") as client:
            return next(one.generation for one in client.pipelines() if one.name == name)


@pytest.fixture
def bench(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(worker, spark, tmp_path)


def numbers(source: str, count: int) -> list[str]:
    return [f"{source} {number}" for number in range(count)]


def test_sources_are_added_and_removed_without_a_reset_and_other_pipelines_keep_running(bench: Bench) -> None:
    with bench.running():
        bench.change(lambda runner: runner.put(copying("p", "a")))
        bench.change(lambda runner: runner.put(copying("other", "a")))
        until(lambda: "p" in bench.spark_names() and "other" in bench.spark_names())
        bench.send("a", 3)
        until(lambda: bench.out("p") == bench.out("other") == numbers("a", 3))
        untouched = bench.generation("other")

        bench.send("b", 2)
        bench.change(lambda runner: runner.put(copying("p", "a", "b")))
        until(lambda: bench.out("p") == numbers("a", 3) + numbers("b", 2))
        bench.send("a", 4)
        bench.send("b", 3)
        until(lambda: bench.out("p") == numbers("a", 4) + numbers("b", 3))

        bench.change(lambda runner: runner.put(copying("p", "b")))
        bench.send("a", 5)
        bench.send("b", 4)
        until(lambda: bench.out("p") == numbers("a", 4) + numbers("b", 4))
        until(lambda: bench.out("other") == numbers("a", 5))

        bench.change(lambda runner: runner.put(copying("p", "a", "b")))
        until(lambda: bench.out("p") == numbers("a", 5) + numbers("b", 4))
        assert bench.generation("other") == untouched

        bench.change(lambda runner: runner.remove("p"))
        assert "p" not in bench.spark_names()
        bench.send("b", 4)
        assert "other" in bench.spark_names()
