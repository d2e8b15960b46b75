"""What people and programs are told of the flows on Spark."""

import io
import json

from rich.console import Console

from penstock.bench.batches import Batch, Run
from penstock.bench.spark_report import SparkReport, print_tables, to_json


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
    print_tables(report, console)
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
    found = json.loads(to_json(REPORT))
    assert found["benchmark"] == "spark"
    assert found["ratios"] == {"parquet": 1.5, "sink": 0.375, "growth": 7.5, "small_batch": 1.8}
    assert found["goals"] == {"parquet": 1.0, "growth": 10.0, "small_batch": 1.5}
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
