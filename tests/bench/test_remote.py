"""The report of `script/bench remote`. The benchmark itself needs Spark and some minutes."""

from rich.console import Console

from bench.remote import CORES, FAR, NEAR, RemoteReport, Spent


def test_seconds_and_core_seconds_are_compared_round_by_round() -> None:
    found = {NEAR: [Spent(10.0, 4.0), Spent(2.0, 4.0)], FAR: [Spent(11.0, 6.0), Spent(2.2, 6.0)]}
    report = RemoteReport(found, {"cores": 2})
    assert report.round_ratios() == {FAR: [1.1, 1.1], CORES: [1.5, 1.5]}
    assert report.missed() == {CORES: 1.5}
    console = Console(record=True, width=120)
    report.print(console)
    text = console.export_text()
    assert "1.10 (1.10–1.10)" in text
    assert "1.50 (1.50–1.50)" in text
