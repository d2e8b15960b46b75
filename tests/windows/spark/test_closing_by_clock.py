"""If the event time is the arrival time, one event is enough: all kinds of windows close by the worker's clock, also in
pipelines that read other pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import watermarked, windows
from penstock.client.coordinator import CoordinatorClient
from penstock.ingest.settings import SourceSettings
from penstock.spark import pipeline
from penstock.windows.kinds import Window
from tests.support.open_stream import open_stream
from tests.support.running_worker import running_worker
from tests.windows.spark.running import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KINDS: dict[str, tuple[Window, str]] = {
    "tumbling": (windows.tumbling("2 seconds"), "1 second"),
    "sliding": (windows.sliding("2 seconds", "1 second"), "0 seconds"),
    "session": (windows.session("2 seconds"), "1 second"),
}


@pytest.fixture
def arriving(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    with running_worker(tmp_path / "data", connector=SourceSettings(event_time_ingest=True)) as worker:
        yield Bench(worker, spark, tmp_path)


@pipeline(max_rows_per_epoch=1)
def every_kind(sales: DataFrame) -> DataFrame:
    rows = sales.select("event_time", "segment", "offset", "key")
    frames = [
        windows.aggregate(rows, window, name=name, allowed_lateness=lateness, buckets=2, n=windows.count()).selectExpr(
            "*", f"'{name}' as kind"
        )
        for name, (window, lateness) in KINDS.items()
    ]
    return frames[0].unionByName(frames[1], True).unionByName(frames[2], True)


@pipeline(inputs={"panes": "pipeline:every_kind/out"})
def panes_per_window(panes: DataFrame) -> DataFrame:
    return windows.aggregate(
        panes.select("event_time", "value"), windows.tumbling("3 seconds"), buckets=2, n=windows.count()
    )


@pipeline
def by_spark(sales: DataFrame) -> DataFrame:
    """Spark's own windows report nothing, but get clock marks too."""
    from pyspark.sql import functions as F  # noqa: N812

    counted = watermarked(sales).groupBy(F.window("event_time", "2 seconds")).agg(F.count("*").alias("n"))
    return counted.selectExpr("cast(n as string) as value")


def test_one_event_is_enough_for_all_windows_to_fire_and_be_removed(arriving: Bench) -> None:
    with (
        CoordinatorClient(arriving.http) as client,
        open_stream(arriving.worker.ports["connector"], "sales", "silent"),
        open_stream(arriving.worker.ports["connector"], "sales", "till") as till,
    ):
        till.send(1, 0)

        def is_over() -> bool:
            if not (arriving.out("panes_per_window") and arriving.out("by_spark")):
                return False
            return not any(operator.open_windows for operator in client.status().windows)

        arriving.run_until(is_over, every_kind, panes_per_window, by_spark)
    panes = arriving.panes("every_kind")
    assert sorted(pane["kind"] for pane in panes) == ["session", "sliding", "sliding", "tumbling"]
    assert {(pane["pane"], pane["n"]) for pane in panes} == {("on_time", 1)}
    assert sum(pane["n"] for pane in arriving.panes("panes_per_window")) == 4
    assert [event.payload for event in arriving.out("by_spark")] == [b"1"]
