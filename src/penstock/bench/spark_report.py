"""What `penstock bench spark` found: as tables for people, as one JSON object for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from penstock.bench.batches import STAGES, WHOLE, Run
from penstock.bench.goals import goal_cell, missed, ratios_as_json, spread_cell
from penstock.bench.measurement import ratios
from penstock.bench.tables import closing, figures

PARQUET, SOURCE, SINK, TENTH, SMALLEST, SMALL = "parquet", "source", "sink", "sink_tenth", "smallest", "small"
"""The flows."""

LABELS = {
    PARQUET: "Parquet files → noop",
    SOURCE: "our source → noop",
    SINK: "our source → our sink",
    TENTH: "the same, a tenth of the rows",
    SMALLEST: "smallest Python source → sink",
    SMALL: "our source → our sink, few rows",
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two flows' figures, `upper` ÷ `lower`, round by round."""

    upper: str
    lower: str
    figure: Callable[[Run], float]
    meaning: str


def _rate(run: Run) -> float:
    return run.rows_per_s


def _time(run: Run) -> float:
    return run.batch_ms


RATIOS = {
    "parquet": Ratio(SOURCE, PARQUET, _rate, "rows/s of our source ÷ of Parquet files"),
    "sink": Ratio(SINK, SOURCE, _rate, "rows/s with our sink ÷ without"),
    "growth": Ratio(SINK, TENTH, _time, "time of a batch ÷ of one with a tenth of the rows"),
    "small_batch": Ratio(SMALL, SMALLEST, _time, "time of a small batch ÷ of the smallest possible"),
}

GOALS = {"parquet": 1.0, "growth": 10.0, "small_batch": 1.5}
AT_MOST = ("growth", "small_batch")
"""Goals that are upper limits."""


@dataclass(frozen=True, slots=True)
class SparkReport:
    """`results` has every flow's rounds, in the same order for all."""

    results: Mapping[str, Sequence[Run]]
    peak_rss_mb: Mapping[str, float]
    settings: Mapping[str, object]

    def round_ratios(self) -> dict[str, list[float]]:
        return {
            name: ratios(*([ratio.figure(run) for run in self.results[flow]] for flow in (ratio.upper, ratio.lower)))
            for name, ratio in RATIOS.items()
            if ratio.upper in self.results and ratio.lower in self.results
        }

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios: the goals' figures."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        return missed(self.ratios(), GOALS, AT_MOST)

    def stages_ms(self) -> dict[str, dict[str, float]]:
        """Where the time of a small batch goes, ours and the smallest: medians over the rounds."""
        return {
            flow: {stage: median(run.stage_ms(stage) for run in self.results[flow]) for stage in (*STAGES, WHOLE)}
            for flow in (SMALL, SMALLEST)
            if flow in self.results
        }


def summary(rounds: Sequence[Run]) -> dict[str, object]:
    return {
        "rounds": len(rounds),
        "batch_rows": round(median(run.rows / len(run.batches) for run in rounds)),
        "batch_ms": round(median(run.batch_ms for run in rounds), 1),
        "batch_ms_rounds": [round(run.batch_ms, 1) for run in rounds],
        "rows_per_s": round(median(run.rows_per_s for run in rounds)),
    }


def to_json(report: SparkReport) -> str:
    """One object on one line."""
    found = {
        "benchmark": "spark",
        **ratios_as_json(report.round_ratios(), GOALS, AT_MOST),
        "flows": {name: summary(rounds) for name, rounds in report.results.items()},
        "stages_ms": report.stages_ms(),
        "peak_rss_mb": dict(report.peak_rss_mb),
        "settings": dict(report.settings),
    }
    return json.dumps(found)


def print_tables(report: SparkReport, console: Console) -> None:
    for table in (_flows(report), _ratios(report), _stages(report)):
        console.print(table)
    memory = ", ".join(f"{name} {value:,.0f}" for name, value in report.peak_rss_mb.items())
    count = max(map(len, report.results.values()), default=0)
    console.print(f"Peak RSS in MB: {memory}.")
    console.print(closing(count, report.settings))


def _flows(report: SparkReport) -> Table:
    table = figures("penstock bench spark", "flow", "rows in a batch", "ms for a batch", "rows/s")
    for name, rounds in report.results.items():
        facts = summary(rounds)
        table.add_row(LABELS[name], f"{facts['batch_rows']:,}", f"{facts['batch_ms']:,}", f"{facts['rows_per_s']:,}")
    return table


def _ratios(report: SparkReport) -> Table:
    table = figures("ratios", "", "ratio", "goal")
    for name, values in report.round_ratios().items():
        cell = spread_cell(values, is_missed=name in report.missed())
        table.add_row(f"{name}: {RATIOS[name].meaning}", cell, goal_cell(name, GOALS, AT_MOST))
    return table


def _stages(report: SparkReport) -> Table:
    table = figures("where the time of a small batch goes, in ms", "flow", *STAGES, "in all")
    for flow, stages in report.stages_ms().items():
        table.add_row(LABELS[flow], *(f"{value:g}" for value in stages.values()))
    return table
