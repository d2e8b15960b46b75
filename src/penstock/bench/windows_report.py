"""What `penstock bench windows` found: as tables for people, as one JSON object for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from penstock.bench.batches import STAGES, WHOLE, Run
from penstock.bench.goals import goal_cell, missed, ratios_as_json, spread_cell
from penstock.bench.measurement import ratios
from penstock.bench.spark_report import summary
from penstock.bench.tables import closing, figures

KEYS = {"10k": 10_000, "1m": 1_000_000}
"""Sources, and how many keys each has."""

BUCKETS = (8, 16, 32, 64)

GOALS = {"builtin_10k": 0.8, "builtin_1m": 2.0, "visits": float(BUCKETS[-1] // BUCKETS[0])}
AT_MOST = ("visits",)
"""Goals that are upper limits."""

MEANINGS = {
    "builtin_10k": "rows/s of our windows ÷ of Spark's own, 10,000 keys",
    "builtin_1m": "the same, 1,000,000 keys",
    "visits": f"time of an epoch of a few rows, {BUCKETS[-1]} buckets ÷ {BUCKETS[0]}",
}


def ours(keys: str) -> str:
    return f"windows-{keys}"


def builtin(keys: str) -> str:
    return f"builtin-{keys}"


def visits(buckets: int) -> str:
    return f"buckets-{buckets}"


@dataclass(frozen=True, slots=True)
class WindowsReport:
    """`results` has every flow's rounds, in the same order for all; `sizes` what flows have told of their state."""

    results: Mapping[str, Sequence[Run]]
    sizes: Mapping[str, Mapping[str, float]]
    settings: Mapping[str, object]

    def round_ratios(self) -> dict[str, list[float]]:
        found = {
            f"builtin_{keys}": ratios(*([run.rows_per_s for run in self.results[f(keys)]] for f in (ours, builtin)))
            for keys in KEYS
        }
        most, least = ([run.batch_ms for run in self.results[visits(n)]] for n in (BUCKETS[-1], BUCKETS[0]))
        return found | {"visits": ratios(most, least)}

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios: the goals' figures."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        return missed(self.ratios(), GOALS, AT_MOST)

    def stages_ms(self) -> dict[str, dict[str, float]]:
        return {
            name: {stage: median(run.stage_ms(stage) for run in rounds) for stage in (*STAGES, WHOLE)}
            for name, rounds in self.results.items()
        }


def to_json(report: WindowsReport) -> str:
    """One object on one line."""
    found = {
        "benchmark": "windows",
        **ratios_as_json(report.round_ratios(), GOALS, AT_MOST),
        "flows": {name: summary(rounds) for name, rounds in report.results.items()},
        "state": {name: {key: round(value, 1) for key, value in told.items()} for name, told in report.sizes.items()},
        "stages_ms": report.stages_ms(),
        "settings": dict(report.settings),
    }
    return json.dumps(found)


def print_tables(report: WindowsReport, console: Console) -> None:
    for table in (_flows(report), _ratios(report)):
        console.print(table)
    count = max(map(len, report.results.values()), default=0)
    console.print(closing(count, report.settings))


def _flows(report: WindowsReport) -> Table:
    columns = ("flow", "rows in a batch", "ms for a batch", "rows/s", "state bytes per key and window")
    table = figures("penstock bench windows", *columns)
    for name, rounds in report.results.items():
        facts = summary(rounds)
        size = report.sizes.get(name, {}).get("state_bytes_per_key")
        cells = (f"{facts['batch_rows']:,}", f"{facts['batch_ms']:,}", f"{facts['rows_per_s']:,}")
        table.add_row(name, *cells, "" if size is None else f"{size:.1f}")
    return table


def _ratios(report: WindowsReport) -> Table:
    table = figures("ratios", "", "ratio", "goal")
    for name, values in report.round_ratios().items():
        cell = spread_cell(values, is_missed=name in report.missed())
        table.add_row(f"{name}: {MEANINGS[name]}", cell, goal_cell(name, GOALS, AT_MOST))
    return table
