"""What people and programs are told of latencies."""

import io
import json

from rich.console import Console

from penstock.bench.latency_flow import Timing
from penstock.bench.latency_report import LatencyReport, print_tables, to_json

PARTS = {"triggerExecution": 60.0, "merge": 4.0, "delivery": 9.0}


def timing(p50_ms: float) -> Timing:
    return Timing(100, p50_ms, 2 * p50_ms, PARTS)


REPORT = LatencyReport(
    {
        "smallest": [timing(44), timing(88)],
        "fsync": [timing(1), timing(2)],
        "at_1000": [timing(100), timing(100)],
        "at_50000": [timing(150), timing(50)],
    },
    (1000, 50_000),
    {"cores": 2},
)


def test_the_floor_is_a_smallest_batch_and_six_fsyncs() -> None:
    assert REPORT.floors_ms() == [50, 100]


def test_the_rate_that_is_worse_counts() -> None:
    assert REPORT.round_ratios() == {
        "empty_batch": [3.0, 1.0],
        "empty_batch_1000": [2.0, 1.0],
        "empty_batch_50000": [3.0, 0.5],
    }
    assert REPORT.ratios()["empty_batch"] == 2.0
    assert REPORT.missed() == {}


def test_a_time_above_its_goal_is_a_goal_missed() -> None:
    slow = LatencyReport({**REPORT.results, "at_1000": [timing(200), timing(400)]}, (1000,), {})
    assert slow.missed() == {"empty_batch": 4.0}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(to_json(REPORT))
    assert found["benchmark"] == "latency"
    assert found["goals"] == {"empty_batch": 2.5}
    assert found["at_most"] == ["empty_batch"]
    assert found["latency_ms"]["at_1000"]["p50"] == 100
    assert found["latency_ms"]["at_1000"]["p99"] == 200
    assert found["floor_ms"] == 75
    assert found["parts_ms"]["at_50000"] == PARTS


def test_the_tables_show_times_ratios_and_parts() -> None:
    console = Console(file=io.StringIO(), width=200)
    print_tables(REPORT, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "send → commit at the sink, 50,000 messages/s" in shown
    assert "2.00 (1.00–3.00)" in shown
    assert "≤ 2.5" in shown
    assert "delivery" in shown


def test_a_timing_has_the_middle_and_the_end_of_its_samples() -> None:
    found = Timing.of([float(n) for n in range(1, 101)])
    assert (found.count, found.p50_ms, found.p99_ms) == (100, 50, 99)
