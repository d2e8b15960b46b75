"""What `penstock bench latency` found: as tables for people, as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from penstock.bench.goals import goal_cell, missed, ratios_as_json, spread_cell
from penstock.bench.measurement import ratios
from penstock.bench.tables import closing, figures

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.bench.latency_flow import Timing

RATES = (1_000, 50_000)
"""Messages in a second."""

SMALLEST, FSYNC = "smallest", "fsync"
LABELS = {SMALLEST: "a batch, smallest Python source → sink", FSYNC: "an fsync"}

FSYNCS = 6
"""That the floor allows an epoch, one after the other."""

EMPTY_BATCH = "empty_batch"
GOALS = {EMPTY_BATCH: 2.5}
AT_MOST = (EMPTY_BATCH,)


def flow_name(rate: int) -> str:
    return f"at_{rate}"


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """`results` has the rounds of all that was timed, in the same order."""

    results: Mapping[str, Sequence[Timing]]
    rates: tuple[int, ...]
    settings: Mapping[str, object]

    def floors_ms(self) -> list[float]:
        """In each round, what an epoch costs at least: a smallest batch, and its fsyncs."""
        pairs = zip(self.results[SMALLEST], self.results[FSYNC], strict=True)
        return [batch.p50_ms + FSYNCS * fsync.p50_ms for batch, fsync in pairs]

    def round_ratios(self) -> dict[str, list[float]]:
        """p50 ÷ the floor in each round; `empty_batch` is that of the rate which has the highest."""
        floors = self.floors_ms()
        found = {
            f"{EMPTY_BATCH}_{rate}": ratios([timing.p50_ms for timing in self.results[flow_name(rate)]], floors)
            for rate in self.rates
        }
        return {EMPTY_BATCH: [max(values) for values in zip(*found.values(), strict=True)]} | found

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios: the goals' figures."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        return missed(self.ratios(), GOALS, AT_MOST)

    def parts_ms(self) -> dict[str, dict[str, float]]:
        """What latencies are made of, by rate: medians over the rounds."""
        found = {}
        for rate in self.rates:
            rounds = self.results[flow_name(rate)]
            found[flow_name(rate)] = {
                part: median(timing.parts_ms[part] for timing in rounds) for part in rounds[0].parts_ms
            }
        return found


def summary(rounds: Sequence[Timing]) -> dict[str, object]:
    return {
        "rounds": len(rounds),
        "samples": sum(timing.count for timing in rounds),
        "p50": round(median(timing.p50_ms for timing in rounds), 3),
        "p99": round(median(timing.p99_ms for timing in rounds), 3),
        "p50_rounds": [round(timing.p50_ms, 3) for timing in rounds],
    }


def to_json(report: LatencyReport) -> str:
    """One object on one line."""
    parts = {flow: {name: round(ms, 2) for name, ms in found.items()} for flow, found in report.parts_ms().items()}
    found = {
        "benchmark": "latency",
        **ratios_as_json(report.round_ratios(), GOALS, AT_MOST),
        "latency_ms": {name: summary(rounds) for name, rounds in report.results.items()},
        "floor_ms": round(median(report.floors_ms()), 3),
        "parts_ms": parts,
        "settings": dict(report.settings),
    }
    return json.dumps(found)


def print_tables(report: LatencyReport, console: Console) -> None:
    for table in (_timings(report), _ratios(report), _parts(report)):
        console.print(table)
    count = len(report.results[SMALLEST])
    floor = median(report.floors_ms())
    console.print(f"A batch of the smallest stream and {FSYNCS} fsyncs: {floor:.1f} ms.")
    console.print(closing(count, report.settings))


def _label(name: str) -> str:
    return LABELS.get(name) or f"send → commit at the sink, {int(name.removeprefix('at_')):,} messages/s"


def _timings(report: LatencyReport) -> Table:
    table = figures("penstock bench latency", "", "p50 ms", "p99 ms", "samples")
    for name, rounds in report.results.items():
        facts = summary(rounds)
        table.add_row(_label(name), f"{facts['p50']:,}", f"{facts['p99']:,}", f"{facts['samples']:,}")
    return table


def _ratios(report: LatencyReport) -> Table:
    table = figures(f"p50 ÷ (smallest batch + {FSYNCS} fsyncs)", "", "ratio", "goal")
    for name, values in report.round_ratios().items():
        cell = spread_cell(values, is_missed=name in report.missed())
        table.add_row(name, cell, goal_cell(name, GOALS, AT_MOST))
    return table


def _parts(report: LatencyReport) -> Table:
    """A message waits for the batch before its own; the merge is part of `addBatch`."""
    found = report.parts_ms()
    table = figures("what it is made of, in ms", "", *map(_label_short, found))
    for part in next(iter(found.values()), {}):
        table.add_row(part, *(f"{parts[part]:.1f}" for parts in found.values()))
    return table


def _label_short(name: str) -> str:
    return f"{int(name.removeprefix('at_')):,}/s"
