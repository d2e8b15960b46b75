"""Pipelines as `penstock run` runs them, over a real source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client import Message, Source
from penstock.protocol.stored import StoredEvent
from penstock.spark import Pipeline
from penstock.spark.run.attempt import RestartPolicy
from tests.spark.sending import outputs
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 200


class Bench:
    """A worker, a Spark session, and a folder for checkpoints."""

    def __init__(self, worker: RunningWorker, spark: SparkSession, folder: Path) -> None:
        self.worker, self.spark, self.folder = worker, spark, folder

    def send(self, *messages: tuple[int, Any]) -> None:
        """Event times in milliseconds, and values to encode as JSON. One stream, with a record for each event: each is
        acknowledged before the next is sent.
        """
        program = Source(f"127.0.0.1:{self.worker.ports['connector']}", source="sales", poll_seconds=0.01)

        def given(_: int | None) -> Iterator[Message | None]:
            for number, (time_ms, value) in enumerate(messages, 1):
                yield Message(number, json.dumps(value).encode(), time_ms, b"key")
                while sending.acknowledged != number:
                    yield None

        sending = program.stream("till", given)
        program.run()

    def run(self, *pipelines: Pipeline) -> None:
        """Run on everything that is stored now."""
        self._run(pipelines, lambda: False, available_now=True)

    def run_until(self, is_enough: Callable[[], bool], *pipelines: Pipeline) -> None:
        """Run continuously until `is_enough`."""
        self._run(pipelines, is_enough, available_now=False)
        assert is_enough()

    def _run(self, pipelines: Sequence[Pipeline], is_enough: Callable[[], bool], *, available_now: bool) -> None:
        from penstock.spark.run.attempt import RunSettings
        from penstock.spark.run.runner import Runner

        def change() -> None:
            if is_enough():
                runner.stop()

        settings = RunSettings(worker=self.http, checkpoints=str(self.folder / "checkpoints"), cores=2)
        never = RestartPolicy(restarts_max=0, pause_seconds_first=0.1)
        settings = replace(settings, available_now=available_now, restarts=never)
        runner = Runner(self.spark, pipelines, settings, change=change)
        runner.run(SECONDS_MAX)

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.worker.ports['http']}"

    def out(self, name: str, port: str = "out") -> list[StoredEvent]:
        return outputs(self.worker.address, name, port)

    def panes(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(event.payload) for event in self.out(name)]
