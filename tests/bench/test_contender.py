"""What is printed for people and for programs."""

import io
import json

from rich.console import Console

from bench.contender import LoadReport, Measurement
from bench.processes import Cpu


def rounds(*rates: int, read: float | None = None) -> list[Measurement]:
    return [Measurement(rate, 1.0, 100, (1.0, 2.0, 3.0), read, 50_000_000, Cpu(0.5, 0.25)) for rate in rates]


def report(**results: list[Measurement]) -> LoadReport:
    return LoadReport("append", results, {"nats": "pip install it"}, {"bare": 0.5, "redis": 5.0}, {"rounds": 3})


FULL = report(
    bare=rounds(1000, 2000, 1000, read=400.0),
    penstock=rounds(600, 800, 700, read=100.0),
    redis=rounds(200, 200, 200),
)


def text(shown: LoadReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    shown.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert FULL.ratios() == {"bare": 0.6, "redis": 3.5, "read": 0.25}


def test_goals_that_were_not_reached_are_named_with_their_figures() -> None:
    assert FULL.missed() == {"redis": 3.5}


def test_without_ours_there_are_no_ratios_and_no_missed_goals() -> None:
    alone = report(bare=rounds(1, 2, 3, read=1.0))
    assert alone.ratios() == {}
    assert alone.missed() == {}


def test_json_is_one_object_with_the_goals_figures_by_name() -> None:
    found = json.loads(FULL.to_json())
    assert found["benchmark"] == "append"
    assert found["ratios"] == {"bare": 0.6, "redis": 3.5, "read": 0.25}
    assert found["ratio_rounds"]["bare"] == [0.6, 0.4, 0.7]
    assert found["goals"] == {"bare": 0.5, "redis": 5.0}
    assert found["skipped"] == {"nats": "pip install it"}
    assert found["latency_ms"]["redis"] == {"p50": 2.0, "p99": 3.0}
    assert found["contenders"]["penstock"]["peak_rss_mb"] == 50.0


def test_the_table_shows_the_ratio_and_its_spread() -> None:
    assert "0.60 (0.40–0.70)" in text(FULL)


def test_the_table_reports_how_to_install_what_was_skipped() -> None:
    assert "nats was skipped, it is not installed: pip install it" in text(FULL)


def test_ours_with_more_to_do_is_compared_the_other_way_round() -> None:
    results = {"ingest": rounds(1000), "redis": rounds(200), "many": rounds(900)}
    shown = LoadReport(
        "ingest", results, {}, {"many": 0.8}, {}, ours="ingest", harder=("many",), ns_per_event={"scan": 8.25}
    )
    assert shown.ratios() == {"redis": 5.0, "many": 0.9}
    assert shown.missed() == {}
    assert "0.90 (0.90–0.90)" in text(shown)
    assert "The other way round: many ÷ ours." in text(shown)
    assert "scan 8" in text(shown)
    assert json.loads(shown.to_json())["ns_per_event"] == {"scan": 8.2}
