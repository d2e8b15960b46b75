"""A backup is taken while a pipeline with windows runs and delivers. After a restore it continues with an exact
result, though worker, checkpoint and sink were copied at different moments.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import windows
from penstock.backup.archive import Archive, restore
from penstock.backup.backup import BackupOptions, back_up
from penstock.client import Message, Source
from penstock.client.coordinator import CoordinatorClient, SinkSpec
from penstock.connectors.file import read_committed_parts
from penstock.core.retry import RetryPolicy
from penstock.delivery import backoff
from penstock.spark import pipeline
from penstock.spark.run.attempt import RestartPolicy, RunSettings
from tests.support.running_runner import RunnerThread, running
from tests.support.running_worker import RunningWorker, running_worker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVENTS = 3000
PER_WINDOW = 50


@pipeline(max_rows_per_epoch=100)
def counts(ticks: DataFrame) -> DataFrame:
    rows = ticks.selectExpr("event_time", "segment", "offset")
    return windows.aggregate(rows, windows.tumbling(f"{PER_WINDOW} ms"), buckets=2, n=windows.count())


class Ticks:
    """A source program that can send everything again. Only the events up to `limit` exist yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._is_stopped = False
        self._program: Source | None = None

    def stop(self) -> None:
        """Call it before the worker ends: otherwise it retries for a while."""
        assert self._program is not None
        self._is_stopped = True
        self._program.stop()

    def send(self, worker: RunningWorker) -> threading.Thread:
        program = Source(f"127.0.0.1:{worker.ports['connector']}", source="ticks", http=http(worker), poll_seconds=0.01)
        program.stream("clock", self._messages)
        self._program = program

        def run() -> None:
            program.run()
            if not self._is_stopped:
                program.finish()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _messages(self, after: int | None) -> Iterator[Message | None]:
        number = 1 if after is None else after + 1
        while number <= EVENTS:
            if number > self.limit:
                yield None
                continue
            yield Message(number, b"tick", number - 1)
            number += 1


def http(worker: RunningWorker) -> str:
    return f"127.0.0.1:{worker.ports['http']}"


def run_pipeline(
    spark: SparkSession, worker: RunningWorker, data: Path, sink: Path
) -> AbstractContextManager[RunnerThread]:
    from penstock.spark.run.runner import Runner

    never = RestartPolicy(restarts_max=0, pause_seconds_first=0.1)
    settings = RunSettings(worker=http(worker), checkpoints=str(data / "checkpoints"), cores=2, restarts=never)
    chosen = replace(counts, sinks={"files": SinkSpec("out", f"file:{sink}")})
    return running(Runner(spark, [chosen], settings))


def found(sink: Path) -> list[dict[str, object]]:
    parts = read_committed_parts(sink) if (sink / "state").exists() else ()
    return [json.loads(line) for part in parts for line in part.path.read_bytes()[: part.size].splitlines()]


def copying(sink: Path, copy: Path, send_on: Callable[[], None]) -> Callable[[], None]:
    """Copies the sink as docs/operating.md says, its log first; then the pipeline continues."""

    def copy_sink() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sink / "state", copy / "state")
        for part in sink.glob("part-*"):
            shutil.copy(part, copy)
        send_on()

    return copy_sink


def test_a_restored_worker_and_checkpoint_continue_exactly_with_a_sink_that_was_copied_earlier(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "RETRIES", RetryPolicy(0.01, 0.05))
    data, restored, sink, copy = (tmp_path / name for name in ("data", "restored", "sink", "copy"))
    archive, ticks = Archive(tmp_path / "backup"), Ticks(EVENTS // 4)

    def send_on(until_rows: int) -> None:
        ticks.limit = until_rows * PER_WINDOW + PER_WINDOW
        until(lambda: len(found(sink)) >= until_rows)

    with running_worker(data) as worker, run_pipeline(spark, worker, data, sink) as run:
        sending = ticks.send(worker)
        run.until(lambda: len(found(sink)) >= 10)
        options = BackupOptions(
            data=data,
            worker=http(worker),
            checkpoints=data / "checkpoints",
            before=copying(sink, copy, lambda: send_on(20)),
        )
        later_ticks = threading.Thread(target=lambda: send_on(40))

        def on_bytes(_: int) -> None:
            """Epochs are merged and checkpointed while the backup copies."""
            if not later_ticks.ident:
                later_ticks.start()
                later_ticks.join()

        taken = back_up(archive, options, on_bytes)
        assert len(found(sink)) >= 40
        assert sending.is_alive(), "there is more to send"
        ticks.stop()
        sending.join()
    assert taken.manifest.pipelines["counts"] >= 0
    assert len(found(copy)) < 20
    shutil.rmtree(sink)
    shutil.rmtree(data)
    shutil.move(copy, sink)
    restore(archive, taken.manifest, restored)
    ticks = Ticks(EVENTS)
    with running_worker(restored) as worker, CoordinatorClient(http(worker)) as client:
        until(lambda: [one.state for one in client.sinks()] == ["DIVERGED"])
        client.rewind("counts", "files", accept_gap=False, accept_duplicates=False)
        with run_pipeline(spark, worker, restored, sink) as run:
            sending = ticks.send(worker)
            run.until(lambda: len(found(sink)) >= EVENTS // PER_WINDOW)
            sending.join()
    rows = found(sink)
    starts = Counter(str(row["window_start"]) for row in rows)
    assert len(rows) == len(starts) == EVENTS // PER_WINDOW
    assert {row["n"] for row in rows} == {PER_WINDOW}
