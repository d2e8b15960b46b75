"""A short real run: a worker, a Spark session, and all flows, checked as in the benchmark itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench.flows import STAGES, Batch, Run
from bench.harness import BenchmarkFailed
from bench.spark import FULL, GOALS, LABELS, QUICK, RATIOS, Effort, SparkReport, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHORT = Effort(rounds=1, batch_rows=100_000, batches=1, small_batches=3, small_skip=1, total_s_max=0)
"""One round: the time is over before a second one."""


@pytest.mark.long
@pytest.mark.spark
def test_all_flows_are_measured_and_compared(spark: SparkSession, tmp_path: Path) -> None:
    report = measure(spark, SHORT, tmp_path)
    assert set(report.results) == set(LABELS)
    assert set(report.ratios()) == set(RATIOS) > set(GOALS)
    assert all(value > 0 for value in report.ratios().values())
    rows = {name: sum(run.rows for run in rounds) for name, rounds in report.results.items()}
    assert rows["parquet"] == rows["source"] == rows["sink"]
    assert rows["small"] == rows["smallest"] == 30
    assert min(report.peak_rss_mb.values()) > 10
    stages = json.loads(report.to_json())["stages_ms"]["small"]
    assert set(STAGES) < set(stages)
    assert 0 < stages["addBatch"] < stages["triggerExecution"]


def test_rows_that_are_missing_fail_the_benchmark() -> None:
    from bench.flows import SmallestFlow

    flow = SmallestFlow("smallest", 10, 2, 0)
    told = [Batch(10, {}), Batch(5, {})]
    assert flow.check(Run(told[:1] * 2)).rows == 20
    with pytest.raises(BenchmarkFailed, match="15 rows, and not 20"):
        flow.check(Run(told))


def test_a_quick_run_does_less() -> None:
    assert QUICK.rounds < FULL.rounds
    assert FULL.batches * FULL.batch_rows == 5_000_000


def run(rows: int, *milliseconds: int) -> Run:
    return Run([Batch(rows, {"triggerExecution": ms, "addBatch": ms - 10}) for ms in milliseconds])


REPORT = SparkReport(
    {
        "parquet": [run(1000, 200, 200), run(1000, 100, 100)],
        "source": [run(1000, 100, 100), run(1000, 100, 100)],
        "sink": [run(1000, 400), run(1000, 200)],
        "sink_tenth": [run(100, 40), run(100, 40)],
        "smallest": [run(10, 50, 60, 70), run(10, 50, 50, 50)],
        "small": [run(10, 120, 90, 5000), run(10, 80, 80, 80)],
    },
    {"worker": 123.0},
    {"cores": 2},
)


def text(report: SparkReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    report.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_has_the_rate_of_all_its_batches_and_the_time_of_the_one_in_the_middle() -> None:
    mixed = run(1000, 100, 300, 200)
    assert mixed.rows_per_s == 5000
    assert mixed.batch_ms == 200
    assert mixed.stage_ms("addBatch") == 190
    assert mixed.stage_ms("latestOffset") == 0


def test_rates_are_ours_by_theirs_and_so_are_times() -> None:
    assert REPORT.round_ratios() == {
        "parquet": [2.0, 1.0],
        "sink": [0.25, 0.5],
        "growth": [10.0, 5.0],
        "small_batch": [2.0, 1.6],
    }
    assert REPORT.ratios()["parquet"] == 1.5


def test_a_time_above_its_goal_is_a_goal_missed() -> None:
    assert REPORT.missed() == {"small_batch": 1.8}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(REPORT.to_json())
    assert found["benchmark"] == "spark"
    assert found["ratios"] == {"parquet": 1.5, "sink": 0.375, "growth": 7.5, "small_batch": 1.8}
    assert found["goals"] == {"parquet": 0.9, "parquet_message": 1.0, "growth": 10.0, "small_batch": 1.5}
    assert found["at_most"] == ["growth", "small_batch"]
    assert found["missed"] == {"small_batch": 1.8}
    assert found["flows"]["source"]["rows_per_s"] == 10_000
    assert found["stages_ms"]["smallest"]["addBatch"] == 45
    assert found["peak_rss_mb"] == {"worker": 123.0}


def test_the_tables_show_flows_ratios_and_stages() -> None:
    shown = text(REPORT)
    assert "1.80 (1.60–2.00)" in shown
    assert "≤ 1.5" in shown
    assert "where the time of a small batch goes" in shown
    assert "worker 123" in shown


def test_flows_that_did_not_run_are_compared_with_nothing() -> None:
    alone = SparkReport({"parquet": [run(10, 1)]}, {}, {})
    assert alone.ratios() == {}
    assert alone.missed() == {}
    assert "Parquet" in text(alone)
