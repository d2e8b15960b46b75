"""A pipeline reads `system/streams`: starts and ends of streams are rows like any others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.spark import pipeline
from penstock.spark.run.attempt import RunSettings
from tests.spark.sending import outputs, send
from tests.support.running_worker import RunningWorker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pipeline(inputs={"events": "system/streams"})
def signals(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    row = f.from_json(events.value.cast("string"), "signal string, connector string, stream string, at bigint")
    text = f.concat_ws(" ", row.signal, row.connector, row.stream)
    return events.select(text.cast("binary").alias("value"))


def test_a_pipeline_reads_which_streams_have_started_and_ended(
    worker: RunningWorker, client: CoordinatorClient, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.spark.run.runner import Runner

    http = f"127.0.0.1:{worker.ports['http']}"
    settings = RunSettings(worker=http, checkpoints=str(tmp_path / "checkpoints"), cores=2)
    once = replace(settings, available_now=True)
    Runner(spark, [signals], once).run(120)
    send(f"127.0.0.1:{worker.ports['connector']}", "sensors", "lab", [b"1", b"2"])
    Runner(spark, [signals], once).run(120)
    found = [event.payload for event in outputs(worker.address, "signals")]
    assert found == [b"stream-started sensors lab", b"stream-closed sensors lab"]
    (status,) = client.pipelines()
    assert status.inputs == {"events": ["system.streams"]}
