"""Spark stands still, or takes long: the status names the JVM, or the epoch, within 15 s. See also
`tests/worker/test_situations.py`.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.protocol.api.status import Blockage
from penstock.spark import pipeline
from penstock.spark.run.attempt import RunSettings
from tests.spark.sending import outputs
from tests.support.fair_clock import FairClock
from tests.support.open_stream import open_stream
from tests.support.running_runner import running
from tests.support.running_worker import RunningWorker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NAMED_SECONDS_MAX = 15.0
"""On a machine that is not too busy for the test and Spark's JVM."""


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def named(client: CoordinatorClient, java: int, link: str) -> Blockage:
    """The only link, once it is named, within the time limit."""
    clock = FairClock(java)
    while True:
        status = client.status()
        seconds = clock.seconds()
        found = [one for one in status.blockages if one.is_blocking]
        if found:
            assert [one.link for one in found] == [link]
            return found[0]
        assert seconds <= NAMED_SECONDS_MAX, status.blockages
        time.sleep(0.5)


def test_a_stopped_jvm_a_hanging_function_and_a_long_epoch_are_distinguished(
    worker: RunningWorker, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.spark.run.runner import Runner

    gate = tmp_path / "gate"
    """While it exists, the function does not return."""

    @pipeline
    def passing(numbers: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        def wait(value):  # type: ignore[no-untyped-def]  # Spark takes hints for those of a pandas function
            while gate.exists():
                time.sleep(0.05)
            return bytes(value)

        return numbers.select(functions.udf(wait, "binary")("value").alias("value"))

    http = f"127.0.0.1:{worker.ports['http']}"
    settings = RunSettings(worker=http, checkpoints=str(tmp_path / "checkpoints"), cores=1)
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    with (
        running(Runner(spark, [passing], settings)) as thread,
        CoordinatorClient(http) as client,
        open_stream(worker.ports["connector"], "numbers", "north") as numbers,
    ):

        def is_put_out(count: int) -> None:
            thread.until(lambda: len(outputs(worker.address, "passing")) == count)
            until(lambda: not [one for one in client.status().blockages if one.is_blocking])

        numbers.send(1, 1000)
        is_put_out(1)

        with stopped(java):
            numbers.send(2, 2000)
            found = named(client, java, "Spark's JVM")
            assert re.search(r"pipeline passing is blocked by Spark's JVM: no answer for \d+ s", str(found))
            print(f"the JVM is stopped | {found}")
        is_put_out(2)

        gate.touch()
        numbers.send(3, 3000)
        until(lambda: [one for one in client.pipelines() if one.running_epoch is not None])
        epoch = client.pipelines()[0].running_epoch
        found = named(client, java, f"epoch {epoch}")
        sentence = rf"epoch {epoch} has been running in Spark for \d+ s \(0 of \d+ tasks are done"
        assert re.search(sentence, str(found)), found
        print(f"a function hangs | {found}")
        (status,) = client.pipelines()
        assert status.query is not None
        assert status.query.jvm_silent_seconds < NAMED_SECONDS_MAX, "the JVM answers meanwhile"
        gate.unlink()
        is_put_out(3)
    thread.check()
