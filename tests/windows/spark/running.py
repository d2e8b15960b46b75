"""Pipelines as `penstock run` runs them, over a real source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client import Message, Source
from penstock.protocol.stored import StoredEvent
from penstock.spark import Pipeline
from penstock.spark.restarts import RestartPolicy
from tests.running_worker import RunningWorker
from tests.spark.sending import outputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 200


class Bench:
    """A worker, a Spark session, and a folder for checkpoints."""

    def __init__(self, worker: RunningWorker, spark: SparkSession, folder: Path) -> None:
        self.worker, self.spark, self.folder = worker, spark, folder

    def send(self, *messages: tuple[int, Any]) -> None:
        """Event times in milliseconds, and what becomes JSON: one stream, a record for each, as each is acknowledged
        before the next is sent.
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
        """All that is there now."""
        from penstock.spark.attempt import RunSettings
        from penstock.spark.runner import Runner

        worker = f"127.0.0.1:{self.worker.ports['http']}"
        settings = RunSettings(worker=worker, checkpoints=str(self.folder / "checkpoints"), cores=2)
        never = RestartPolicy(restarts_max=0, pause_seconds_first=0.1)
        Runner(self.spark, pipelines, replace(settings, available_now=True, restarts=never)).run(SECONDS_MAX)

    def out(self, name: str, port: str = "out") -> list[StoredEvent]:
        return outputs(self.worker.address, name, port)

    def panes(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(event.payload) for event in self.out(name)]
