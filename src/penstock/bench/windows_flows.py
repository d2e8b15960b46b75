"""Counts per key and window on Spark: by our operator, and by Spark's own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.bench.batches import Run, run_query
from penstock.bench.contender import BenchmarkFailed
from penstock.bench.flows import SourceFlow, Stage
from penstock.bench.messages import BEGAN_MS
from penstock.client.coordinator import CoordinatorClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW = "1 minute"
WINDOW_MS = 60_000
OBSERVED = "windows"


@dataclass(frozen=True, slots=True)
class CountFlow(SourceFlow):
    """From the same load to the sink that does nothing; `lateness_ms` is how long windows are kept."""

    lateness_ms: int
    window_events: int
    """In a minute of event time."""
    found: dict[str, float] = field(default_factory=dict)
    """What the last run has told of its state."""

    def run(self, stage: Stage, number: int) -> Run:
        from pyspark.sql import functions as F  # noqa: N812

        name = f"{self.name}-{number}"
        with self.generation(stage, name, []) as generation:
            counted = self.counted(self.read(stage, generation))
            told = counted.observe(OBSERVED, F.count(F.lit(1)).alias("panes"), F.sum("n").alias("events"))
            events: list[int] = []
            run = run_query(
                told.writeStream.format("noop"),
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
            shown: list[dict[str, Any]] = coordinator.status().get("windows", [])
            coordinator.drop(name)
        for one in shown:
            if one["pipeline"] == name and one["keys"]:
                self.found["state_bytes_per_key"] = one["state_bytes"] / one["keys"]


def _observed(progress: Any) -> int:
    metrics = progress.get("observedMetrics", {}).get(OBSERVED)
    return int(metrics["events"] or 0) if metrics else 0


@dataclass(frozen=True, slots=True)
class WindowFlow(CountFlow):
    """`penstock.windows`, late events kept."""

    buckets: int | None = None

    def counted(self, rows: DataFrame) -> DataFrame:
        from penstock import windows
        from penstock.windows.buckets import BUCKETS

        return windows.aggregate(
            rows,
            windows.tumbling(WINDOW),
            keys="key",
            allowed_lateness=f"{self.lateness_ms} ms",
            buckets=self.buckets or BUCKETS,
            n=windows.count(),
        )


@dataclass(frozen=True, slots=True)
class BuiltinFlow(CountFlow):
    """Spark's own: what is late is dropped, and its watermark is that of the fastest stream less the lateness."""

    def counted(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        kept = rows.withWatermark("event_time", f"{self.lateness_ms} milliseconds")
        return kept.groupBy(F.window("event_time", WINDOW), "key").agg(F.count(F.lit(1)).alias("n"))


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
