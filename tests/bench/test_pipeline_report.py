"""What people and programs are told of the pipeline and of its peers."""

import io
import json

from rich.console import Console

from penstock.bench.pipeline_flow import Counted
from penstock.bench.pipeline_report import PipelineReport, print_tables, to_json


def ours(seconds: float) -> Counted:
    return Counted(1000, seconds, {"ingest": seconds / 2, "addBatch": seconds, "merge": 0.01, "delivery": 0.02})


REPORT = PipelineReport(
    {
        "penstock": [ours(1.0), ours(0.5)],
        "bytewax": [Counted(100, 0.2, {}), Counted(100, 0.1, {})],
        "flink_sql": [Counted(4000, 1.0, {}), Counted(4000, 1.0, {})],
    },
    {"flink_python": "script/bench --contenders"},
    {"worker": 200.0},
    {"cores": 2},
)


def text(report: PipelineReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_tables(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ratios_are_ours_by_theirs_round_by_round() -> None:
    assert REPORT.round_ratios() == {"bytewax": [2.0, 2.0], "flink_sql": [0.25, 0.5]}
    assert REPORT.ratios() == {"bytewax": 2.0, "flink_sql": 0.375}
    assert REPORT.missed() == {}


def test_a_rate_below_the_goal_is_a_goal_missed() -> None:
    slow = PipelineReport({"penstock": [ours(1.0)], "bytewax": [Counted(1000, 1.0, {})]}, {}, {}, {})
    assert slow.missed() == {"bytewax": 1.0}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(to_json(REPORT))
    assert found["benchmark"] == "pipeline"
    assert found["ratios"] == {"bytewax": 2.0, "flink_sql": 0.375}
    assert found["goals"] == {"bytewax": 2.0}
    assert found["missed"] == {}
    assert found["contenders"]["flink_sql"]["events_per_s"] == 4000
    assert found["stages_s"] == {"ingest": 0.375, "addBatch": 0.75, "merge": 0.01, "delivery": 0.02}
    assert set(found["guarantees"]) == set(REPORT.results)


def test_guarantees_stand_beside_the_figures_and_missing_peers_below() -> None:
    shown = text(REPORT)
    assert "penstock: from a program's socket to files, exactly once" in shown
    assert "bytewax: from memory to nowhere" in shown
    assert "0.38 (0.25–0.50)" in shown
    assert "flink_python was skipped" in shown
    assert "delivery" in shown


def test_ours_alone_is_compared_with_nothing() -> None:
    alone = PipelineReport({"penstock": [ours(1.0)]}, {}, {}, {})
    assert alone.ratios() == {}
    assert "1,000" in text(alone)
