"""A short real run: a worker, a Spark session, and all flows, checked as in the benchmark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench.batches import STAGES, Batch, Run
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.spark import Effort, Options, measure
from penstock.bench.spark_report import GOALS, LABELS, RATIOS, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHORT = Effort(rounds=1, batch_rows=100_000, batches=1, small_batches=3, small_skip=1, total_s_max=0)
"""One round: the time is over before a second one."""


def test_all_flows_are_measured_and_compared(spark: SparkSession, tmp_path: Path) -> None:
    report = measure(spark, SHORT, tmp_path)
    assert set(report.results) == set(LABELS)
    assert set(report.ratios()) == set(RATIOS) > set(GOALS)
    assert all(value > 0 for value in report.ratios().values())
    rows = {name: sum(run.rows for run in rounds) for name, rounds in report.results.items()}
    assert rows["parquet"] == rows["source"] == rows["sink"]
    assert rows["small"] == rows["smallest"] == 30
    assert min(report.peak_rss_mb.values()) > 10
    stages = json.loads(to_json(report))["stages_ms"]["small"]
    assert set(STAGES) < set(stages)
    assert 0 < stages["addBatch"] < stages["triggerExecution"]


def test_rows_that_are_missing_fail_the_benchmark() -> None:
    from penstock.bench.flows import SmallestFlow

    flow = SmallestFlow("smallest", 10, 2, 0)
    told = [Batch(10, {}), Batch(5, {})]
    assert flow.check(Run(told[:1] * 2)).rows == 20
    with pytest.raises(BenchmarkFailed, match="15 rows, and not 20"):
        flow.check(Run(told))


def test_a_quick_run_does_less() -> None:
    quick, full = Options(quick=True).chosen, Options().chosen
    assert quick.rounds < full.rounds
    assert full.batches * full.batch_rows == 5_000_000
