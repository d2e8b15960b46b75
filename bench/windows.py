"""`script/bench windows`: counts per key and minute with lateness, by our operator beside Spark's own.

All flows read the same source in one Spark session, in rounds that alternate, as in `script/bench spark`. Spark counts
what the windows emit: whole windows, or the benchmark fails.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions
from rich.console import Console
from rich.table import Table

from bench.contenders.ingest import BEGAN_MS, Messages
from bench.flows import STAGES, WHOLE, Run, SourceFlow, Stage, bench_session, open_stage, retain, run_query, summary
from bench.harness import BenchmarkFailed, Report, figures, interleave_warm, progress, ratios
from bench.processes import Server
from penstock import session, windows
from penstock.client.coordinator import CoordinatorClient
from penstock.windows.buckets import BUCKETS as DEFAULT_BUCKETS

WINDOW = "1 minute"
WINDOW_MS = 60_000
OBSERVED = "windows"

TRICKLE = "trickle"
SMALL_ROWS = 10
SMALL_SPARE = 50

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
class Effort:
    """`batches` of `batch_rows` rows make the figure of a round, after `skip` that fill the state."""

    rounds: int
    batch_rows: int
    batches: int
    skip: int
    per_ms: int
    """Messages to a millisecond of event time."""
    lateness_ms: int
    small_batches: int
    small_skip: int
    total_s_max: float


QUICK = Effort(
    rounds=2,
    batch_rows=600_000,
    batches=2,
    skip=2,
    per_ms=5,
    lateness_ms=60_000,
    small_batches=15,
    small_skip=5,
    total_s_max=400,
)
FULL = Effort(
    rounds=3,
    batch_rows=2_000_000,
    batches=3,
    skip=2,
    per_ms=10,
    lateness_ms=120_000,
    small_batches=40,
    small_skip=10,
    total_s_max=1200,
)


def run(effort: Effort, directory: Path | None = None, console: Console | None = None) -> WindowsReport:
    with bench_session(directory) as (spark, base):
        return measure(spark, effort, base, console)


def measure(spark: SparkSession, effort: Effort, base: Path, console: Console | None = None) -> WindowsReport:
    """The same in an existing session."""
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, 1 + (2 * len(KEYS) + len(BUCKETS)) * (effort.rounds + 1)))
        note("sending messages")
        stage = stack.enter_context(open_stage(spark, base))
        send(stage.server, effort)
        retain(stage, [*KEYS, TRICKLE])
        flows = prepare(effort)
        found = interleave_warm(flows, effort.rounds, lambda flow: flow.run(stage), note, effort.total_s_max)
        state = {flow.name: dict(flow.found) for flow in flows if flow.found}
        return WindowsReport(found, state, settings(effort, stage))


def send(server: Server, effort: Effort) -> None:
    """As many as a query reads, and some more for what it begins before it is stopped."""
    port = server.ports["connector"]
    for name, keys in KEYS.items():
        count = (effort.batches + effort.skip + 1) * effort.batch_rows
        Messages(name, count, keys=keys, per_ms=effort.per_ms).send(port)
    small = (effort.small_batches + effort.small_skip + SMALL_SPARE) * SMALL_ROWS
    Messages(TRICKLE, small, streams=1, together=SMALL_ROWS).send(port)


def prepare(effort: Effort) -> list[CountFlow]:
    """The flows in the order of a round: those that are compared run one after the other."""
    size = (effort.batch_rows, effort.batches, effort.skip)
    late, events = effort.lateness_ms, effort.per_ms * WINDOW_MS
    flows: list[CountFlow] = []
    for name in KEYS:
        flows.append(BuiltinFlow(builtin(name), *size, name, late, events))
        flows.append(WindowFlow(ours(name), *size, name, late, events))
    small = (SMALL_ROWS, effort.small_batches, effort.small_skip)
    flows += [FewRowsFlow(visits(count), *small, TRICKLE, late, 1, buckets=count) for count in BUCKETS]
    return flows


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    return {
        "batch_rows": effort.batch_rows,
        "events_per_window": effort.per_ms * WINDOW_MS,
        "lateness_s": effort.lateness_ms // 1000,
        **stage.settings(),
    }


@dataclass(frozen=True, slots=True)
class CountFlow(SourceFlow):
    """From the same load to the sink that does nothing; `lateness_ms` is how long windows are kept."""

    lateness_ms: int
    window_events: int
    """In a minute of event time."""
    found: dict[str, float] = field(default_factory=dict)
    """What the worker reported of the last run's state."""

    def run(self, stage: Stage) -> Run:
        name = stage.unique(self.name)
        with self.generation(stage, name, []) as generation:
            with session(stage.spark, pipeline=generation):
                counted = self.counted(self.read(stage, generation))
            observed = counted.observe(
                OBSERVED, functions.count(functions.lit(1)).alias("panes"), functions.sum("n").alias("events")
            )
            events: list[int] = []
            run = run_query(
                observed.writeStream.format("noop"),
                stage.checkpoint(name),
                self.batches,
                self.skip,
                lambda progress: events.append(_observed(progress)),
            )
        self._look(stage, name)
        self._check_counts(sum(events))
        return self.check(run)

    @abstractmethod
    def counted(self, rows: DataFrame) -> DataFrame:
        """A row for each key and window that has ended, with its count in `n`."""

    def _check_counts(self, events: int) -> None:
        """What has left must be whole windows: each of them holds as many events, but the first, which the events begin
        within. Raises BenchmarkFailed.
        """
        missing = BEGAN_MS % WINDOW_MS * self.window_events // WINDOW_MS
        if events <= 0 or (events + missing) % self.window_events:
            raise BenchmarkFailed(f"{self.name} counted {events:,} events, in windows of {self.window_events:,}")

    def _look(self, stage: Stage, name: str) -> None:
        with CoordinatorClient(stage.worker) as coordinator:
            shown = coordinator.status().windows
            coordinator.drop(name)
        for one in shown:
            if one.pipeline == name and one.keys:
                self.found["state_bytes_per_key"] = one.state_bytes / one.keys


def _observed(progress: Any) -> int:
    metrics = progress.get("observedMetrics", {}).get(OBSERVED)
    return int(metrics["events"] or 0) if metrics else 0


@dataclass(frozen=True, slots=True)
class WindowFlow(CountFlow):
    """`penstock.windows`, late events kept."""

    buckets: int | None = None

    def counted(self, rows: DataFrame) -> DataFrame:
        return windows.aggregate(
            rows,
            windows.tumbling(WINDOW),
            keys="key",
            allowed_lateness=f"{self.lateness_ms} ms",
            buckets=self.buckets or DEFAULT_BUCKETS,
            n=windows.count(),
        )


@dataclass(frozen=True, slots=True)
class BuiltinFlow(CountFlow):
    """Spark's own: what is late is dropped, and its watermark is that of the fastest stream less the lateness."""

    def counted(self, rows: DataFrame) -> DataFrame:
        kept = rows.withWatermark("event_time", f"{self.lateness_ms} milliseconds")
        return kept.groupBy(functions.window("event_time", WINDOW), "key").agg(
            functions.count(functions.lit(1)).alias("n")
        )


@dataclass(frozen=True, slots=True)
class FewRowsFlow(WindowFlow):
    """Epochs of a few rows that end no window: what visiting the buckets costs."""

    def check(self, run: Run) -> Run:
        """Spark counts a control row for each bucket as well."""
        wanted = self.batches * (self.batch_rows + (self.buckets or 0))
        if run.rows != wanted:
            raise BenchmarkFailed(f"{self.name} took {run.rows:,} rows, and not {wanted:,}")
        return run

    def _check_counts(self, events: int) -> None:
        if events:
            raise BenchmarkFailed(f"{self.name} counted {events:,} events, and no window has ended")


@dataclass(frozen=True, slots=True)
class WindowsReport(Report):
    """`results` has every flow's rounds, in the same order for all; `state` what the worker reported of their state."""

    results: Mapping[str, Sequence[Run]]
    state: Mapping[str, Mapping[str, float]]
    settings: Mapping[str, object]
    benchmark = "windows"
    goals = GOALS
    at_most = AT_MOST

    def round_ratios(self) -> dict[str, list[float]]:
        found = {
            f"builtin_{keys}": ratios(*([run.rows_per_s for run in self.results[f(keys)]] for f in (ours, builtin)))
            for keys in KEYS
        }
        most, least = ([run.batch_ms for run in self.results[visits(n)]] for n in (BUCKETS[-1], BUCKETS[0]))
        return found | {"visits": ratios(most, least)}

    def rounds(self) -> int:
        return max(map(len, self.results.values()), default=0)

    def details(self) -> dict[str, object]:
        return {
            "flows": {name: summary(rounds) for name, rounds in self.results.items()},
            "state": {name: {key: round(value, 1) for key, value in one.items()} for name, one in self.state.items()},
            "stages_ms": {
                name: {stage: median(run.stage_ms(stage) for run in rounds) for stage in (*STAGES, WHOLE)}
                for name, rounds in self.results.items()
            },
        }

    def tables(self) -> Iterable[Table]:
        columns = ("flow", "rows in a batch", "ms for a batch", "rows/s", "state bytes per key and window")
        table = figures("script/bench windows", *columns)
        for name, rounds in self.results.items():
            facts = summary(rounds)
            size = self.state.get(name, {}).get("state_bytes_per_key")
            cells = (f"{facts['batch_rows']:,}", f"{facts['batch_ms']:,}", f"{facts['rows_per_s']:,}")
            table.add_row(name, *cells, "" if size is None else f"{size:.1f}")
        return table, self.ratio_table("ratios", MEANINGS)
