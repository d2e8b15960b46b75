"""`script/bench latency`: from a message that is due to be sent until a sink program has committed it, at two rates;
from an HTTP request with a JSON event until it comes out by WebSocket; beside what must be paid at least: a batch of
the smallest Python stream that Spark can run, and six fsyncs.

All run in one Spark session, in rounds that alternate; the first round warms up and is not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.events import EVENT_BYTES
from bench.flows import SmallestFlow, Stage, bench_session, open_stage
from bench.harness import Report, figures, interleave_warm, progress, ratios
from bench.latency_flow import Paced, Timing, Trial
from bench.latency_web import WebTrial
from bench.load import Worker

RATES = (1_000, 50_000)
"""Messages in a second."""

WEB_RATE = 100
"""Requests in a second, each with one event: those of a busy web page's users."""

SMALLEST, FSYNC, WEB = "smallest", "fsync", "web"
LABELS = {
    SMALLEST: "a batch, smallest Python source → sink",
    FSYNC: "an fsync",
    WEB: f"JSON by HTTP → where → WebSocket, {WEB_RATE} requests/s",
}

FSYNCS = 6
"""That the floor allows an epoch, one after the other."""

EMPTY_BATCH = "empty_batch"
GOALS = {f"{EMPTY_BATCH}_1000": 1.8, f"{EMPTY_BATCH}_50000": 2.2}
AT_MOST = tuple(GOALS)

SMALLEST_ROWS = 10
"""In a batch of the smallest stream, as in `script/bench spark`."""

FSYNC_BYTES = 4096
"""What an fsync makes durable, about: the records of an epoch are small."""


def flow_name(rate: int) -> str:
    return f"at_{rate}"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes."""

    rounds: int
    warm_s: float
    measure_s: float
    batches: int
    """Of the smallest stream."""
    skip: int
    """Batches before them, which take longer."""
    fsyncs: int
    total_s_max: float
    """All rounds together: when the time is up, no further round is started."""


QUICK = Effort(rounds=2, warm_s=2, measure_s=3, batches=25, skip=10, fsyncs=50, total_s_max=90)
FULL = Effort(rounds=5, warm_s=3, measure_s=10, batches=60, skip=10, fsyncs=200, total_s_max=600)


def run(effort: Effort, directory: Path | None = None, console: Console | None = None) -> LatencyReport:
    with bench_session(directory) as (spark, base):
        return measure(spark, effort, base, console)


def measure(
    spark: SparkSession,
    effort: Effort,
    base: Path,
    console: Console | None = None,
    rates: tuple[int, ...] = RATES,
) -> LatencyReport:
    """The same in an existing session."""
    with ExitStack() as stack:
        stage = stack.enter_context(open_stage(spark, base))
        program: Worker[Paced] = Worker()
        stack.callback(program.stop)
        browsers: Worker[list[float]] = Worker()
        stack.callback(browsers.stop)
        timed: list[Timed] = [SmallestBatch(stage, effort), Fsync(base, effort.fsyncs)]
        timed += [AtRate(stage, program, effort, rate) for rate in rates]
        timed.append(ByWeb(stage, browsers, effort))
        note = stack.enter_context(progress(console, len(timed) * (effort.rounds + 1)))
        found = interleave_warm(timed, effort.rounds, lambda one: one.time(), note, effort.total_s_max)
        return LatencyReport(found, rates, settings(effort, stage))


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    return {"event_bytes": EVENT_BYTES, "seconds": effort.measure_s, "fsyncs": FSYNCS, **stage.settings()}


class Timed(Protocol):
    @property
    def name(self) -> str: ...

    def time(self) -> Timing: ...


@dataclass(frozen=True, slots=True)
class AtRate:
    """Our pipeline, under another name each time."""

    stage: Stage
    program: Worker[Paced]
    effort: Effort
    rate: int

    @property
    def name(self) -> str:
        return flow_name(self.rate)

    def time(self) -> Timing:
        name = self.stage.unique(f"at-{self.rate}")
        return Trial(self.stage, self.program, name, self.rate, self.effort.warm_s, self.effort.measure_s).run()


@dataclass(frozen=True, slots=True)
class ByWeb:
    """An application, under another name each time."""

    stage: Stage
    program: Worker[list[float]]
    effort: Effort
    name: str = WEB

    def time(self) -> Timing:
        name, effort = self.stage.unique(self.name), self.effort
        return WebTrial(self.stage, self.program, name, WEB_RATE, effort.warm_s, effort.measure_s).run()


@dataclass(frozen=True, slots=True)
class SmallestBatch:
    stage: Stage
    effort: Effort
    name: str = SMALLEST

    def time(self) -> Timing:
        flow = SmallestFlow(self.name, SMALLEST_ROWS, self.effort.batches, self.effort.skip)
        return Timing.of([batch.milliseconds for batch in flow.run(self.stage).batches])


@dataclass(frozen=True, slots=True)
class Fsync:
    """Appends to a file, each made durable, on the disk that all others write to."""

    directory: Path
    count: int
    name: str = FSYNC

    def time(self) -> Timing:
        path = self.directory / "fsyncs"
        with path.open("wb", buffering=0) as file:
            samples = [_append(file.fileno()) for _ in range(self.count)]
        path.unlink()
        return Timing.of(samples)


def _append(fd: int) -> float:
    began = time.perf_counter()
    os.write(fd, bytes(FSYNC_BYTES))
    os.fsync(fd)
    return (time.perf_counter() - began) * 1000


@dataclass(frozen=True, slots=True)
class LatencyReport(Report):
    """`results` has the rounds of all that was timed, in the same order."""

    results: Mapping[str, Sequence[Timing]]
    rates: tuple[int, ...]
    settings: Mapping[str, object]
    benchmark = "latency"
    goals = GOALS
    at_most = AT_MOST

    def floors_ms(self) -> list[float]:
        """In each round, what an epoch costs at least: a smallest batch, and its fsyncs."""
        pairs = zip(self.results[SMALLEST], self.results[FSYNC], strict=True)
        return [batch.p50_ms + FSYNCS * fsync.p50_ms for batch, fsync in pairs]

    def round_ratios(self) -> dict[str, list[float]]:
        """p50 ÷ the floor in each round; `empty_batch` is that of the rate which has the highest."""
        found = {f"{EMPTY_BATCH}_{rate}": self._above_floor(flow_name(rate)) for rate in self.rates}
        highest = {EMPTY_BATCH: [max(values) for values in zip(*found.values(), strict=True)]}
        return highest | found | {WEB: self._above_floor(WEB)}

    def _above_floor(self, name: str) -> list[float]:
        return ratios([timing.p50_ms for timing in self.results[name]], self.floors_ms())

    def rounds(self) -> int:
        return len(self.results[SMALLEST])

    def parts_ms(self) -> dict[str, dict[str, float]]:
        """What latencies are made of, by rate: medians over the rounds."""
        found = {}
        for rate in self.rates:
            rounds = self.results[flow_name(rate)]
            found[flow_name(rate)] = {
                part: median(timing.parts_ms[part] for timing in rounds) for part in rounds[0].parts_ms
            }
        return found

    def details(self) -> dict[str, object]:
        return {
            "latency_ms": {name: summary(rounds) for name, rounds in self.results.items()},
            "floor_ms": round(median(self.floors_ms()), 3),
            "parts_ms": {
                flow: {name: round(ms, 2) for name, ms in parts.items()} for flow, parts in self.parts_ms().items()
            },
        }

    def tables(self) -> Iterable[Table]:
        title = f"p50 ÷ (smallest batch + {FSYNCS} fsyncs)"
        return self._timings(), self.ratio_table(title), self._parts()

    def notes(self) -> Iterable[str]:
        floor = median(self.floors_ms())
        return [f"A batch of the smallest stream and {FSYNCS} fsyncs: {floor:.1f} ms."]

    def _timings(self) -> Table:
        table = figures("script/bench latency", "", "p50 ms", "p99 ms", "samples")
        for name, rounds in self.results.items():
            facts = summary(rounds)
            label = LABELS.get(name) or f"send → commit at the sink, {_rate(name)} messages/s"
            table.add_row(label, f"{facts['p50']:,}", f"{facts['p99']:,}", f"{facts['samples']:,}")
        return table

    def _parts(self) -> Table:
        """A message waits for the batch before its own; the merge is part of `addBatch`."""
        found = self.parts_ms()
        table = figures("what it is made of, in ms", "", *(f"{_rate(name)}/s" for name in found))
        for part in next(iter(found.values()), {}):
            table.add_row(part, *(f"{parts[part]:.1f}" for parts in found.values()))
        return table


def _rate(name: str) -> str:
    return f"{int(name.removeprefix('at_')):,}"


def summary(rounds: Sequence[Timing]) -> dict[str, object]:
    return {
        "rounds": len(rounds),
        "samples": sum(timing.count for timing in rounds),
        "p50": round(median(timing.p50_ms for timing in rounds), 3),
        "p99": round(median(timing.p99_ms for timing in rounds), 3),
        "p50_rounds": [round(timing.p50_ms, 3) for timing in rounds],
    }
