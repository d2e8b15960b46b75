"""`penstock apply` with pipelines that have state: incompatible changes are refused, and running pipelines continue."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from penstock.application.config import load
from penstock.application.config.types import KnownTypes
from penstock.cli.app import app
from penstock.client.coordinator import CoordinatorClient, PipelineStatus
from penstock.client.coordinator.client import ApplicationClient
from tests.application.peers import Sender
from tests.support.ports import free_port
from tests.support.running_runner import running
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.run.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

WAIT_SECONDS_MAX = 240

APPLICATION = """
connector:
  - id: lines
    type: tcp-server
    config: {{port: {port}}}
    codec: string
    interceptors: {{in: [{{type: split}}]}}
  - {{id: nowhere, type: "null", codec: json}}
pipeline:
  - {{id: count, spark: counts.py:count}}
binding:
  id: b
  links:
    connector/lines/out: [pipeline/count/in, pipeline/system::passthrough/in]
    pipeline/count/out: connector/nowhere/in
    pipeline/system::passthrough/out: connector/nowhere/in
"""

FUNCTION = """
from penstock import windows

def count(lines):
    chosen = lines.where("{where}")
    found = windows.aggregate(chosen, windows.tumbling("1 minute"), keys=[{keys}], n=windows.count(), buckets=2)
    return found.select({keys}, "n")
"""


@dataclass
class Stage:
    worker: RunningWorker
    spark: SparkSession
    folder: Path
    port: int = field(default_factory=free_port)
    said: list[str] = field(default_factory=list)
    runner: Runner | None = None

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    @property
    def file(self) -> Path:
        return self.folder / "app.yaml"

    def write(self, *keys: str, where: str = "true") -> None:
        self.file.write_text(APPLICATION.format(port=self.port))
        named = ", ".join(map(repr, keys))
        (self.folder / "counts.py").write_text(FUNCTION.format(keys=named, where=where))

    def command(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--worker", self.http])

    def apply(self) -> Result:
        return self.command("apply", str(self.file))

    @contextmanager
    def driven(self) -> Iterator[None]:
        """The application in the file is deployed, and a driver runs it, as in `penstock run`."""
        from penstock.application.driver import Driver
        from penstock.application.functions import pipelines_of
        from penstock.spark.run.attempt import RunSettings
        from penstock.spark.run.runner import Runner

        deployment = load(self.file, KnownTypes(), os.environ).deployment
        with ApplicationClient(self.http) as client:
            client.apply(deployment)
            first = client.application()
        settings = RunSettings(worker=self.http, checkpoints=str(self.folder / "checkpoints"), cores=2)
        with closing(Driver(self.http, first, self.said.append)) as driver:
            runner = driver.runner = self.runner = Runner(
                self.spark, pipelines_of(deployment), settings, change=driver.follow, until_stopped=True
            )
            with running(runner):
                yield

    def status(self, name: str = "count") -> PipelineStatus:
        with CoordinatorClient(self.http) as coordinator:
            return next(one for one in coordinator.pipelines() if one.name == name)

    def failures(self) -> list[str]:
        assert self.runner is not None
        return [f"{one.pipeline.name}: {one.last_failure} {one.given_up}" for one in self.runner.pipelines]

    def is_given_up(self) -> bool:
        assert self.runner is not None
        return any(one.given_up is not None for one in self.runner.pipelines if one.pipeline.name == "count")

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, lambda: f"it never happened: {self.said} {self.failures()}", WAIT_SECONDS_MAX)

    def completes(self, sender: Sender) -> None:
        """An event passes through both pipelines."""
        before = self.status().complete, self.status("passthrough.b").complete
        sender.send("a line")
        self.until(lambda: self.status().complete > before[0] and self.status("passthrough.b").complete > before[1])


@pytest.fixture
def stage(worker: RunningWorker, spark: SparkSession, tmp_path: Path) -> Stage:
    return Stage(worker, spark, tmp_path)


def test_an_incompatible_change_is_refused_and_a_reset_lets_it_start_from_scratch(stage: Stage) -> None:
    checkpoint = stage.folder / "checkpoints" / "count"
    stage.write("stream")
    with stage.driven():
        stage.until(lambda: stage.status().state == "RUNNING")
        with Sender(stage.port) as sender:
            stage.completes(sender)
            stage.until(lambda: (checkpoint / "penstock.json").exists())
            generation = stage.status().generation

            stage.write("stream", "source")
            refused = stage.apply()
            text = str(refused.exception)
            assert refused.exit_code == 1
            assert (
                "nothing was changed: what runs now keeps running\nthe pipeline 'count' does not fit its stored" in text
            )
            assert "windows: keys: stored stream string; now stream string, source string" in text
            assert "You may change filters" in text
            stage.write("no_such_column")
            assert "no_such_column" in str(stage.apply().exception)
            stage.completes(sender)
            assert stage.status().generation == generation, "it was not even restarted"

            reset = stage.command("pipeline", "reset", "count", "--yes")
            assert "count is running" in str(reset.exception)

            stage.write("stream", where="text != 'nothing'")
            assert "pipelines to restart: count" in stage.apply().output
            stage.until(lambda: stage.status().generation > generation)
            stage.completes(sender)
    stage.write("stream", "source")
    with stage.driven():
        stage.until(lambda: stage.status("passthrough.b").state == "RUNNING")
        stage.until(stage.is_given_up)
        with Sender(stage.port) as sender:
            sender.send("kept until count runs again")
            reset = stage.command("pipeline", "reset", "count", "--yes", "--accept-partial")
            assert re.search(r"of .* of its input is still stored", reset.output), reset.output
            assert "count is reset: its next start renames the old checkpoint" in reset.output
            stage.until(lambda: "count was reset and starts from scratch" in stage.said)
            stage.until(lambda: stage.status().complete >= 0)
            stage.completes(sender)
        stage.until((checkpoint / "penstock.json").exists)  # it is written beside the first epoch
        assert "stream string, source string" in (checkpoint / "penstock.json").read_text()
        assert checkpoint.with_name("count~reset").is_dir()
