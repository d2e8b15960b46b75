"""Short real runs: a program, a worker, a Spark session and a file sink, checked as in the benchmark itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench import pipeline, pipeline_flow, remote
from bench.harness import BenchmarkFailed
from bench.pipeline import FULL, GOALS, OURS, QUICK, Effort, PipelineReport, find_others, measure
from bench.pipeline_flow import Counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SHORT = Effort(
    rounds=1,
    events=40_000,
    warm=1_000,
    bytewax=0,
    bytewax_small=0,
    flink_sql=0,
    flink_python=0,
    other_shard=remote.Effort(rounds=0, events=5_000, total_s_max=0),
    total_s_max=0,
)
BESIDE = {remote.NEAR: [remote.Spent(2.0, 4.0)], remote.FAR: [remote.Spent(2.2, 4.4)]}
REMOTE_RATIOS = {remote.FAR: 1.1, remote.CORES: 1.1}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No other processor is found, wherever the tests run."""
    monkeypatch.setattr(pipeline, "ENVIRONMENTS", tmp_path / "none")


@pytest.mark.spark
def test_what_the_sink_has_committed_is_the_independent_count(spark: SparkSession, tmp_path: Path) -> None:
    """`measure` itself compares them; a count that is wrong, missing or there twice fails it."""
    report = measure(spark, SHORT, tmp_path, *find_others(SHORT))
    (counted,) = report.results[OURS]
    assert counted.events == 40_000
    assert counted.seconds > max(counted.stages_s["ingest"], counted.stages_s["addBatch"]) > 0
    assert counted.stages_s["merge"] > 0
    assert counted.stages_s["delivery"] < counted.seconds
    assert set(counted.core_s) == {"sender", "worker", "driver", "jvm", "python"}
    assert min(counted.core_s.values()) >= 0
    assert counted.core_s["worker"] > 0
    found = json.loads(report.to_json())
    assert found["contenders"]["penstock"]["events_per_s"] == round(40_000 / counted.seconds)
    assert found["goals"] == GOALS == {"bytewax": 4.0, "flink_sql": 1.0, remote.FAR: 1.2, remote.CORES: 1.2}
    assert min(found["remote"]["seconds"][name][0] for name in (remote.NEAR, remote.FAR)) > 0
    assert set(found["ratios"]) == {remote.FAR, remote.CORES}
    assert set(found["skipped"]) == {"bytewax", "bytewax_small_batches", "flink_sql", "flink_python"}
    assert "script/bench --contenders" in found["skipped"]["flink_sql"]
    assert min(report.peak_rss_mb.values()) > 10


@pytest.mark.long
@pytest.mark.spark
def test_another_count_fails_the_benchmark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as long as the right one: the last two digits of each are swapped."""
    honest, swapped = pipeline_flow.count_per_minute, r"regexp_replace(value, '(\\d)(\\d)$', '$2$1') AS value"
    monkeypatch.setattr(pipeline_flow, "count_per_minute", lambda events: honest(events).selectExpr(swapped))
    with pytest.raises(BenchmarkFailed, match=r"committed 1000 results and not 1000; \d+ of them differ"):
        measure(spark, SHORT, tmp_path, *find_others(SHORT))


def test_a_quick_run_does_less() -> None:
    assert QUICK.rounds < FULL.rounds
    assert QUICK.events < FULL.events


def ours(seconds: float) -> Counted:
    stages = {"ingest": seconds / 2, "addBatch": seconds, "merge": 0.01, "delivery": 0.02}
    return Counted(1000, seconds, stages, {"worker": seconds / 1000, "jvm": 0.002})


REPORT = PipelineReport(
    {
        "penstock": [ours(1.0), ours(0.5)],
        "bytewax": [Counted(100, 0.2, {}), Counted(100, 0.1, {})],
        "flink_sql": [Counted(4000, 1.0, {}), Counted(4000, 1.0, {})],
    },
    {"flink_python": "script/bench --contenders"},
    {"worker": 200.0},
    {"cores": 2},
    BESIDE,
)


def text(report: PipelineReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    report.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ratios_are_ours_by_theirs_round_by_round() -> None:
    beside = {name: [value] for name, value in REMOTE_RATIOS.items()}
    assert REPORT.round_ratios() == {"bytewax": [2.0, 2.0], "flink_sql": [0.25, 0.5], **beside}
    assert REPORT.ratios() == {"bytewax": 2.0, "flink_sql": 0.375, **REMOTE_RATIOS}
    assert REPORT.missed() == {"bytewax": 2.0, "flink_sql": 0.375}


def test_a_rate_below_the_goal_is_a_goal_missed() -> None:
    slow = PipelineReport({"penstock": [ours(1.0)], "bytewax": [Counted(1000, 1.0, {})]}, {}, {}, {}, BESIDE)
    assert slow.missed() == {"bytewax": 1.0}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(REPORT.to_json())
    assert found["benchmark"] == "pipeline"
    assert found["ratios"] == {"bytewax": 2.0, "flink_sql": 0.375, **REMOTE_RATIOS}
    assert found["goals"] == GOALS
    assert found["missed"] == {"bytewax": 2.0, "flink_sql": 0.375}
    assert found["contenders"]["flink_sql"]["events_per_s"] == 4000
    assert found["stages_s"] == {"ingest": 0.375, "addBatch": 0.75, "merge": 0.01, "delivery": 0.02}
    assert found["core_s_per_10m_events"] == {"worker": 7.5, "jvm": 20.0}
    assert set(found["guarantees"]) == set(REPORT.results)


def test_guarantees_stand_beside_the_figures_and_missing_peers_below() -> None:
    shown = text(REPORT)
    assert "penstock: from a program's socket to files, exactly once" in shown
    assert "bytewax: from memory to nowhere" in shown
    assert "0.38 (0.25–0.50)" in shown
    assert "flink_python was skipped" in shown
    assert "delivery" in shown
    assert "27.50" in shown


def test_ours_alone_is_compared_with_nothing() -> None:
    alone = PipelineReport({"penstock": [ours(1.0)]}, {}, {}, {}, BESIDE)
    assert alone.ratios() == REMOTE_RATIOS
    assert "1,000" in text(alone)
