"""A short real run: a worker, a Spark session, and all flows, checked as in the benchmark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.contenders.ingest import BEGAN_MS
from bench.flows import Batch, Run
from bench.harness import BenchmarkFailed
from bench.windows import (
    AT_MOST,
    BUCKETS,
    FULL,
    GOALS,
    KEYS,
    QUICK,
    Effort,
    WindowsReport,
    builtin,
    measure,
    ours,
    visits,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT = Effort(
    rounds=1,
    batch_rows=100_000,
    batches=1,
    skip=1,
    per_ms=2,
    lateness_ms=1_000,
    small_batches=2,
    small_skip=1,
    total_s_max=0,
)
"""One round: the time is over before a second one."""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_all_flows_are_measured_and_compared(spark: SparkSession, tmp_path: Path) -> None:
    report = measure(spark, SHORT, tmp_path)
    assert set(report.results) == {
        *map(ours, KEYS), *map(builtin, KEYS), *map(visits, BUCKETS),
    }  # fmt: skip
    assert set(report.ratios()) == set(GOALS) > set(AT_MOST)
    told = json.loads(report.to_json())
    assert told["benchmark"] == "windows"
    assert 10 < told["state"]["windows-1m"]["state_bytes_per_key"] < 200


def run_of(rows: int, milliseconds: int) -> Run:
    return Run([Batch(rows, {"triggerExecution": milliseconds})])


def test_ratios_are_of_rows_a_second_and_visits_of_time() -> None:
    flows = {ours("10k"): 90, builtin("10k"): 100, ours("1m"): 300, builtin("1m"): 100}
    results = {name: [run_of(rows, 1000)] for name, rows in flows.items()}
    results |= {visits(count): [run_of(10, 10 * count)] for count in BUCKETS}
    report = WindowsReport(results, {}, {})
    assert report.ratios() == {"builtin_10k": 0.9, "builtin_1m": 3.0, "visits": 8.0}
    assert report.missed() == {}
    results[ours("10k")] = [run_of(70, 1000)]
    assert report.missed() == {"builtin_10k": 0.7}


def test_counts_that_are_not_whole_windows_fail_the_benchmark() -> None:
    from bench.windows import BuiltinFlow

    flow = BuiltinFlow("builtin", 10, 2, 0, "10k", 0, 600)
    first = 600 - BEGAN_MS % 60_000 // 100
    flow._check_counts(first)
    flow._check_counts(first + 1200)
    for wrong in (0, first + 1, 600):
        with pytest.raises(BenchmarkFailed, match="in windows of 600"):
            flow._check_counts(wrong)


def test_a_quick_run_does_less() -> None:
    assert QUICK.rounds < FULL.rounds
    assert QUICK.batch_rows < FULL.batch_rows
