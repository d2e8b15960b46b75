"""What a benchmark found: as a table for people, as one JSON object for programs."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.bench.goals import goal_cell, missed, spread_cell
from penstock.bench.measurement import MEGABYTE, Measurement, percentile, ratios

READ = "read"


@dataclass(frozen=True, slots=True)
class Report:
    """`results` has every contender's rounds, in the same order for all."""

    benchmark: str
    results: Mapping[str, list[Measurement]]
    skipped: Mapping[str, str]
    """The command that installs each peer that is not here."""
    goals: Mapping[str, float]
    settings: Mapping[str, object]
    ours: str = "penstock"
    """The contender that all others are compared with."""
    harder: Collection[str] = ()
    """Those that are ours with more to do: their ratio is of ours, the other way round."""
    where: Mapping[str, float] = field(default_factory=dict)
    """Where the time goes: nanoseconds for each event, by what they are spent on."""

    def round_ratios(self) -> dict[str, list[float]]:
        """Ours ÷ theirs in each round, by name; `read` is against the bare loop. Empty if ours did not run."""
        if not self.results.get(self.ours):
            return {}
        found = {name: self._ratios(name) for name in self.results if name != self.ours}
        reads = ratios(self._reads(self.ours), self._reads("bare")) if "bare" in found else []
        return found | ({READ: reads} if reads else {})

    def _ratios(self, name: str) -> list[float]:
        ours, theirs = ([r.events_per_s for r in self.results[n]] for n in (self.ours, name))
        return ratios(theirs, ours) if name in self.harder else ratios(ours, theirs)

    def _reads(self, name: str) -> list[float]:
        return [r.read_mb_per_s for r in self.results[name] if r.read_mb_per_s is not None]

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios: the goals' figures."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        """The goals that were not reached, with the figures that fell short."""
        return missed(self.ratios(), self.goals)


def summary(rounds: list[Measurement]) -> dict[str, object]:
    """One contender's medians over the rounds; the peak is over all of them."""
    reads = [r.read_mb_per_s for r in rounds if r.read_mb_per_s is not None]
    return {
        "rounds": len(rounds),
        "events_per_s": round(median(r.events_per_s for r in rounds)),
        "mb_per_s": round(median(r.mb_per_s for r in rounds), 1),
        "mb_per_s_rounds": [round(r.mb_per_s, 1) for r in rounds],
        "read_mb_per_s": round(median(reads), 1) if reads else None,
        "peak_rss_mb": round(max(r.peak_rss_bytes for r in rounds) / MEGABYTE, 1),
        "cores_user": round(median(r.cpu.user for r in rounds), 2),
        "cores_system": round(median(r.cpu.system for r in rounds), 2),
    }


def latency_ms(rounds: list[Measurement]) -> dict[str, float]:
    """Over the samples of all rounds together."""
    samples = [sample for r in rounds for sample in r.latencies_ms]
    if not samples:
        return {}
    return {"p50": round(percentile(samples, 50), 3), "p99": round(percentile(samples, 99), 3)}


def to_json(report: Report) -> str:
    """One object on one line."""
    found = {
        "benchmark": report.benchmark,
        "ratios": {name: round(value, 3) for name, value in report.ratios().items()},
        "ratio_rounds": {name: [round(v, 3) for v in values] for name, values in report.round_ratios().items()},
        "goals": dict(report.goals),
        "missed": {name: round(value, 3) for name, value in report.missed().items()},
        "contenders": {name: summary(rounds) for name, rounds in report.results.items()},
        "latency_ms": {name: latency_ms(rounds) for name, rounds in report.results.items()},
        "skipped": dict(report.skipped),
        "settings": dict(report.settings),
    }
    if report.where:
        found["ns_per_event"] = {name: round(value, 1) for name, value in report.where.items()}
    return json.dumps(found)


COLUMNS = (
    "contender",
    "MB/s",
    "events/s",
    "ours ÷ theirs",
    "goal",
    "p50 ms",
    "p99 ms",
    "read MB/s",
    "peak RSS MB",
    "cores user+system",
)


def print_table(report: Report, console: Console) -> None:
    table = Table(title=f"penstock bench {report.benchmark}")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for name in report.results:
        table.add_row(*_cells(report, name))
    console.print(table)
    settings = ", ".join(f"{key} {value}" for key, value in report.settings.items())
    read = report.ratios().get(READ)
    if read is not None:
        console.print(f"Reading: {read:.2f} of the bare loop.")
    count = max(map(len, report.results.values()), default=0)
    console.print(f"Medians of {count} rounds; in brackets the lowest and the highest ratio of a round. {settings}")
    if report.harder:
        console.print(f"The other way round: {', '.join(report.harder)} ÷ ours.")
    if report.where:
        parts = ", ".join(f"{name} {value:.0f}" for name, value in report.where.items())
        console.print(f"Where the time goes, in nanoseconds for each event: {parts}.")
    for name, command in report.skipped.items():
        console.print(f"{name} was skipped, it is not installed: {command}")


def _cells(report: Report, name: str) -> list[str]:
    rounds = report.results[name]
    facts, latency = summary(rounds), latency_ms(rounds)
    read = facts["read_mb_per_s"]
    return [
        name,
        f"{facts['mb_per_s']:,}",
        f"{facts['events_per_s']:,}",
        _ratio_cell(report, name),
        goal_cell(name, report.goals),
        f"{latency['p50']:.2f}" if latency else "",
        f"{latency['p99']:.2f}" if latency else "",
        f"{read:,}" if read is not None else "",
        f"{facts['peak_rss_mb']:,}",
        f"{facts['cores_user']} + {facts['cores_system']}",
    ]


def _ratio_cell(report: Report, name: str) -> str:
    values = report.round_ratios().get(name)
    return spread_cell(values, is_missed=name in report.missed()) if values else ""


@contextmanager
def progress(console: Console | None, steps: int) -> Iterator[Callable[[str], None]]:
    """A bar that moves on with every note; nothing without a console."""
    if console is None:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=steps)
        started = False

        def note(text: str) -> None:
            nonlocal started
            bar.update(task, description=text, advance=int(started))
            started = True

        yield note
