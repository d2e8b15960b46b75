"""An application by its file, as `penstock run` runs it, but in this process: the worker in a thread, and the pipelines
on the session that all tests share. `tests.spark.test_run_command` runs the command itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.application.config.loading import load
from penstock.application.config.types import KnownTypes
from penstock.client.coordinator import CoordinatorClient
from penstock.client.coordinator.client import ApplicationClient
from penstock.spark.run.attempt import RunSettings
from tests.support.running_runner import RunnerThread, running
from tests.support.running_worker import RunningWorker, running_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunningApplication:
    """Its worker, and the runner of its pipelines."""

    def __init__(self, worker: RunningWorker, runner: RunnerThread) -> None:
        self.worker = worker
        self._runner = runner

    def until(self, condition: Callable[[], object]) -> None:
        self._runner.until(condition)

    def is_running(self, pipeline: str) -> bool:
        with CoordinatorClient(self.worker.http) as coordinator:
            return any(each.name == pipeline and each.state == "RUNNING" for each in coordinator.pipelines())


@contextmanager
def running_application(file: Path, spark: SparkSession) -> Iterator[RunningApplication]:
    """Ends as soon as it is left, without draining. Raises what the runner raised."""
    from penstock.application.driver import Driver, carry_by_value
    from penstock.application.functions import pipelines_of
    from penstock.spark.run.runner import Runner

    deployment = load(file, KnownTypes(), os.environ).deployment
    pipelines = pipelines_of(deployment)
    for pipeline in pipelines:
        carry_by_value(pipeline)
    with running_worker(file.parent / "data") as worker:
        with ApplicationClient(worker.http) as client:
            client.apply(deployment, file.name)
            first = client.application()
        with closing(Driver(worker.http, first, print)) as driver:
            settings = RunSettings(worker=worker.http, checkpoints=str(file.parent / "checkpoints"), cores=2)
            driver.runner = Runner(spark, pipelines, settings, change=driver.follow, until_stopped=True)
            with running(driver.runner) as runner:
                yield RunningApplication(worker, runner)
            runner.check()
