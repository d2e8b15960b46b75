"""What `penstock bench pipeline` found: as tables for people, as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from penstock.bench.goals import goal_cell, missed, spread_cell
from penstock.bench.measurement import ratios

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.bench.pipeline_flow import Counted

OURS, BYTEWAX, BYTEWAX_SMALL = "penstock", "bytewax", "bytewax_small_batches"
FLINK_SQL, FLINK_PYTHON = "flink_sql", "flink_python"
"""The contenders."""

GOALS = {BYTEWAX: 2.0}

_IN_MEMORY = "from memory to nowhere, nothing is durable: a crash loses the counts"

GUARANTEES = {
    OURS: "from a program's socket to files, exactly once: durable before the ack, durable state, two-phase commit",
    BYTEWAX: f"{_IN_MEMORY}; batches of 100,000",
    BYTEWAX_SMALL: f"{_IN_MEMORY}; batches of 1,000, as its file and Kafka inputs give unless they are told otherwise",
    FLINK_SQL: f"{_IN_MEMORY}; no Python for an event",
    FLINK_PYTHON: f"{_IN_MEMORY}; Python for every event",
}
"""What each one does for its figure."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """`results` has every contender's rounds, in the same order for all."""

    results: Mapping[str, Sequence[Counted]]
    skipped: Mapping[str, str]
    """How to install each peer that is not here."""
    peak_rss_mb: Mapping[str, float]
    settings: Mapping[str, object]

    def round_ratios(self) -> dict[str, list[float]]:
        """Our events/s ÷ theirs in each round, by name."""
        rates = {name: [counted.events_per_s for counted in rounds] for name, rounds in self.results.items()}
        return {name: ratios(rates[OURS], theirs) for name, theirs in rates.items() if name != OURS}

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios: the goals' figures."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        return missed(self.ratios(), GOALS)

    def stages_s(self) -> dict[str, float]:
        """Where the time goes of a run of ours: medians over the rounds."""
        rounds = self.results[OURS]
        return {stage: median(counted.stages_s[stage] for counted in rounds) for stage in rounds[0].stages_s}


def summary(rounds: Sequence[Counted]) -> dict[str, object]:
    return {
        "rounds": len(rounds),
        "events": rounds[0].events,
        "seconds": round(median(counted.seconds for counted in rounds), 3),
        "events_per_s": round(median(counted.events_per_s for counted in rounds)),
        "events_per_s_rounds": [round(counted.events_per_s) for counted in rounds],
    }


def to_json(report: PipelineReport) -> str:
    """One object on one line."""
    found = {
        "benchmark": "pipeline",
        "ratios": {name: round(value, 3) for name, value in report.ratios().items()},
        "ratio_rounds": {name: [round(v, 3) for v in values] for name, values in report.round_ratios().items()},
        "goals": GOALS,
        "missed": {name: round(value, 3) for name, value in report.missed().items()},
        "contenders": {name: summary(rounds) for name, rounds in report.results.items()},
        "guarantees": {name: GUARANTEES[name] for name in report.results},
        "stages_s": {stage: round(value, 3) for stage, value in report.stages_s().items()},
        "peak_rss_mb": dict(report.peak_rss_mb),
        "skipped": dict(report.skipped),
        "settings": dict(report.settings),
    }
    return json.dumps(found)


def print_tables(report: PipelineReport, console: Console) -> None:
    console.print(_contenders(report))
    for name in report.results:
        console.print(f"{name}: {GUARANTEES[name]}.")
    console.print(_stages(report))
    memory = ", ".join(f"{name} {value:,.0f}" for name, value in report.peak_rss_mb.items())
    settings = ", ".join(f"{key} {value}" for key, value in report.settings.items())
    console.print(f"Peak RSS of ours in MB: {memory}.")
    count = len(report.results[OURS])
    console.print(f"Medians of {count} rounds; in brackets the lowest and the highest ratio of a round. {settings}")
    for name, command in report.skipped.items():
        console.print(f"{name} was skipped, it is not installed: {command}")


def _contenders(report: PipelineReport) -> Table:
    table = Table(title="penstock bench pipeline: count per key and minute")
    for number, column in enumerate(("contender", "events", "seconds", "events/s", "ours ÷ theirs", "goal")):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for name, rounds in report.results.items():
        facts = summary(rounds)
        values = report.round_ratios().get(name)
        ratio = spread_cell(values, is_missed=name in report.missed()) if values else ""
        cells = (f"{facts['events']:,}", f"{facts['seconds']:.2f}", f"{facts['events_per_s']:,}", ratio)
        table.add_row(name, *cells, goal_cell(name, GOALS))
    return table


def _stages(report: PipelineReport) -> Table:
    """Ingest and Spark run at the same time, so that their seconds are more than the clock's."""
    stages = report.stages_s()
    table = Table(title="where the time of a run goes, in seconds (ingest and Spark overlap)")
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    table.add_row(*(f"{value:.2f}" for value in stages.values()))
    return table
