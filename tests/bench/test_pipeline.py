"""Short real runs: a program, a worker, a Spark session and a file sink, checked as in the benchmark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench import pipeline_flow
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.pipeline import Effort, Options, measure
from penstock.bench.pipeline_report import GOALS, OURS, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHORT = Effort(
    rounds=1, events=40_000, warm=1_000, bytewax=0, bytewax_small=0, flink_sql=0, flink_python=0, total_s_max=0
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No other processor is found, wherever the tests run."""
    from penstock.bench import pipeline_peers

    monkeypatch.setattr(pipeline_peers, "ENVIRONMENTS", tmp_path / "none")


def test_what_the_sink_has_committed_is_the_independent_count(spark: SparkSession, tmp_path: Path) -> None:
    """`measure` itself compares them; a count that is wrong, missing or there twice fails it."""
    report = measure(spark, Options(effort=SHORT), tmp_path)
    (counted,) = report.results[OURS]
    assert counted.events == 40_000
    assert counted.seconds > max(counted.stages_s["ingest"], counted.stages_s["addBatch"]) > 0
    assert counted.stages_s["merge"] > 0
    assert counted.stages_s["delivery"] < counted.seconds
    found = json.loads(to_json(report))
    assert found["contenders"]["penstock"]["events_per_s"] == round(40_000 / counted.seconds)
    assert found["goals"] == GOALS == {"bytewax": 2.0}
    assert set(found["skipped"]) == {"bytewax", "bytewax_small_batches", "flink_sql", "flink_python"}
    assert "script/bench --contenders" in found["skipped"]["flink_sql"]
    assert min(report.peak_rss_mb.values()) > 10


def test_another_count_fails_the_benchmark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as long as the right one: the last two digits of each are swapped."""
    honest, swapped = pipeline_flow.count_per_minute, r"regexp_replace(value, '(\\d)(\\d)$', '$2$1') AS value"
    monkeypatch.setattr(pipeline_flow, "count_per_minute", lambda events: honest(events).selectExpr(swapped))
    with pytest.raises(BenchmarkFailed, match=r"committed 1000 results and not 1000; \d+ of them differ"):
        measure(spark, Options(effort=SHORT), tmp_path)


def test_a_quick_run_does_less() -> None:
    quick, full = Options(quick=True).chosen, Options().chosen
    assert quick.rounds < full.rounds
    assert quick.events < full.events
