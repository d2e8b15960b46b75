"""`script/bench spark`: our source and sink beside Spark's Parquet files and the smallest Python stream there is.

All flows run in one Spark session, in rounds that alternate; the first round warms up and is not counted, nor are the
first batches of a query. Times are those of Spark's own progress, so that starting a query is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.contenders.ingest import Messages
from bench.events import EVENT_BYTES
from bench.flows import (
    STAGES,
    WHOLE,
    Flow,
    Run,
    SinkFlow,
    SmallestFlow,
    SourceFlow,
    Stage,
    bench_session,
    open_stage,
    parquet_flow,
    retain,
    summary,
)
from bench.harness import Report, figures, interleave_warm, memory_note, progress, ratios
from bench.processes import Server

PARQUET, SOURCE, SINK, TENTH, SMALLEST, SMALL = "parquet", "source", "sink", "sink_tenth", "smallest", "small"
PARQUET_MESSAGE, SOURCE_MESSAGE = "parquet_message", "source_message"
"""The flows."""

MESSAGE_COLUMNS = ("stream", "message_id", "event_time", "key", "value")
"""What a program has sent; the others say where it is stored."""

LABELS = {
    PARQUET: "Parquet files → noop",
    SOURCE: "our source → noop",
    PARQUET_MESSAGE: "Parquet files, a message's columns → noop",
    SOURCE_MESSAGE: "our source, a message's columns → noop",
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
    "parquet": Ratio(SOURCE, PARQUET, _rate, "rows/s of our source ÷ of Parquet files, all columns"),
    "parquet_message": Ratio(SOURCE_MESSAGE, PARQUET_MESSAGE, _rate, "the same, both with the columns of a message"),
    "sink": Ratio(SINK, SOURCE, _rate, "rows/s with our sink ÷ without"),
    "growth": Ratio(SINK, TENTH, _time, "time of a batch ÷ of one with a tenth of the rows"),
    "small_batch": Ratio(SMALL, SMALLEST, _time, "time of a small batch ÷ of the smallest possible"),
}

GOALS = {"parquet": 0.9, "parquet_message": 1.0, "growth": 10.0, "small_batch": 1.5}
AT_MOST = ("growth", "small_batch")
"""Goals that are upper limits."""

LARGE, TRICKLE = "large", "trickle"
"""The sources: one that was sent as fast as it goes, one a few messages at a time."""

SMALL_ROWS = 10
SKIP = 1
"""Batches at the beginning of a query that do not count: its first one starts Python processes."""
SMALL_SPARE = 50
"""Small batches that a query may take before it is seen to have done enough, and is stopped."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes. `batches` of `batch_rows` rows make the figure of a round."""

    rounds: int
    batch_rows: int
    batches: int
    small_batches: int
    small_skip: int
    """Small batches at the beginning of a query that do not count: they take longer to settle."""
    total_s_max: float
    """All rounds together: when the time is up, no further round is started."""


QUICK = Effort(rounds=2, batch_rows=500_000, batches=2, small_batches=25, small_skip=10, total_s_max=120)
FULL = Effort(rounds=5, batch_rows=1_000_000, batches=5, small_batches=60, small_skip=10, total_s_max=900)


def run(effort: Effort, directory: Path | None = None, console: Console | None = None) -> SparkReport:
    with bench_session(directory) as (spark, base):
        return measure(spark, effort, base, console)


def measure(spark: SparkSession, effort: Effort, base: Path, console: Console | None = None) -> SparkReport:
    """The same in an existing session."""
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, 2 + len(LABELS) * (effort.rounds + 1)))
        note("sending messages")
        stage = stack.enter_context(open_stage(spark, base))
        send(stage.server, effort)
        note("writing Parquet files")
        flows = prepare(stage, effort)

        def once(flow: Flow) -> Run:
            run = flow.run(stage)
            stage.sample_memory()
            return run

        found = interleave_warm(flows, effort.rounds, once, note, effort.total_s_max)
        return SparkReport(found, stage.peak_rss_mb(), settings(effort, stage))


def send(server: Server, effort: Effort) -> None:
    """As many as the longest query reads, and some more for what it begins before it is stopped."""
    Messages(LARGE, (effort.batches + SKIP) * effort.batch_rows).send(server.ports["connector"])
    small = (effort.small_batches + effort.small_skip + SMALL_SPARE) * SMALL_ROWS
    Messages(TRICKLE, small, streams=1, together=SMALL_ROWS).send(server.ports["connector"])


def prepare(stage: Stage, effort: Effort) -> list[Flow]:
    """The flows in the order of a round: those that are compared run one after the other."""
    retain(stage, [LARGE, TRICKLE])
    rows, batches = effort.batch_rows, effort.batches
    small, skip = effort.small_batches, effort.small_skip
    source = SourceFlow(SOURCE, rows, batches, SKIP, LARGE)
    parquet = parquet_flow(stage, PARQUET, source)
    return [
        parquet,
        source,
        replace(parquet, name=PARQUET_MESSAGE, columns=MESSAGE_COLUMNS),
        replace(source, name=SOURCE_MESSAGE, columns=MESSAGE_COLUMNS),
        SinkFlow(SINK, rows, batches, SKIP, LARGE),
        SinkFlow(TENTH, rows // 10, 2 * batches, SKIP, LARGE),
        SmallestFlow(SMALLEST, SMALL_ROWS, small, skip),
        SinkFlow(SMALL, SMALL_ROWS, small, skip, TRICKLE),
    ]


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    sizes = {"event_bytes": EVENT_BYTES, "batch_rows": effort.batch_rows, "small_batch_rows": SMALL_ROWS}
    return sizes | stage.settings()


@dataclass(frozen=True, slots=True)
class SparkReport(Report):
    """`results` has every flow's rounds, in the same order for all."""

    results: Mapping[str, Sequence[Run]]
    peak_rss_mb: Mapping[str, float]
    settings: Mapping[str, object]
    benchmark = "spark"
    goals = GOALS
    at_most = AT_MOST

    def round_ratios(self) -> dict[str, list[float]]:
        return {
            name: ratios(*([ratio.figure(run) for run in self.results[flow]] for flow in (ratio.upper, ratio.lower)))
            for name, ratio in RATIOS.items()
            if ratio.upper in self.results and ratio.lower in self.results
        }

    def rounds(self) -> int:
        return max(map(len, self.results.values()), default=0)

    def stages_ms(self) -> dict[str, dict[str, float]]:
        """Where the time of a small batch goes, ours and the smallest: medians over the rounds."""
        return {
            flow: {stage: median(run.stage_ms(stage) for run in self.results[flow]) for stage in (*STAGES, WHOLE)}
            for flow in (SMALL, SMALLEST)
            if flow in self.results
        }

    def details(self) -> dict[str, object]:
        return {
            "flows": {name: summary(rounds) for name, rounds in self.results.items()},
            "stages_ms": self.stages_ms(),
            "peak_rss_mb": dict(self.peak_rss_mb),
        }

    def tables(self) -> Iterable[Table]:
        meanings = {name: ratio.meaning for name, ratio in RATIOS.items()}
        return self._flows(), self.ratio_table("ratios", meanings), self._stages()

    def notes(self) -> Iterable[str]:
        return [memory_note(self.peak_rss_mb)]

    def _flows(self) -> Table:
        table = figures("script/bench spark", "flow", "rows in a batch", "ms for a batch", "rows/s")
        for name, rounds in self.results.items():
            facts = summary(rounds)
            cells = (f"{facts['batch_rows']:,}", f"{facts['batch_ms']:,}", f"{facts['rows_per_s']:,}")
            table.add_row(LABELS[name], *cells)
        return table

    def _stages(self) -> Table:
        table = figures("where the time of a small batch goes, in ms", "flow", *STAGES, "in all")
        for flow, stages in self.stages_ms().items():
            table.add_row(LABELS[flow], *(f"{value:g}" for value in stages.values()))
        return table
