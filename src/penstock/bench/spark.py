"""`penstock bench spark`: our source and sink beside Spark's Parquet files and the smallest Python stream there is.

All flows run in one Spark session, in rounds that alternate; the first round warms up and is not counted, nor are the
first batches of a query. Times are those of Spark's own progress, so that starting a query is not among them.
"""

from __future__ import annotations

import platform
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.batches import PROGRESS_KEPT, Run
from penstock.bench.contenders.ingest import Ingest
from penstock.bench.events import EVENT_BYTES
from penstock.bench.measurement import MEGABYTE
from penstock.bench.process import Server, filesystem
from penstock.bench.report import progress
from penstock.bench.rounds import interleave
from penstock.bench.session import bench_session
from penstock.bench.spark_memory import Peak, peak_of_spark
from penstock.bench.spark_report import PARQUET, SINK, SMALL, SMALLEST, SOURCE, TENTH, SparkReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.bench.flows import Flow, Stage

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
    """All rounds together; what is left out then is rounds."""


QUICK = Effort(rounds=2, batch_rows=500_000, batches=2, small_batches=25, small_skip=10, total_s_max=90)
FULL = Effort(rounds=5, batch_rows=1_000_000, batches=5, small_batches=60, small_skip=10, total_s_max=900)


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool = False
    directory: Path | None = None
    master: str = "local[*]"
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""

    @property
    def chosen(self) -> Effort:
        return self.effort or (QUICK if self.quick else FULL)


def run(options: Options, console: Console | None = None) -> SparkReport:
    """Run the whole benchmark; progress goes to `console`, which should be standard error. Raises RequestError where
    PySpark or Java are missing.
    """
    with bench_session(options.directory, options.master) as (spark, base):
        return measure(spark, options.chosen, base, console)


def measure(spark: SparkSession, effort: Effort, base: Path, console: Console | None = None) -> SparkReport:
    """The same in a session that is there already."""
    from penstock.bench.flows import Stage

    spark.conf.set(*PROGRESS_KEPT)
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, 2 + 6 * (effort.rounds + 1)))
        note("putting messages in")
        server = stack.enter_context(Ingest(1, 1).start(base))
        send(server, effort)
        note("writing Parquet files")
        trials = Trials(server, Stage(spark, server.ports, base))
        flows = prepare(trials.stage, effort)
        deadline = time.monotonic() + effort.total_s_max
        found = interleave(flows, effort.rounds + 1, trials.measure, note, deadline)
        counted = {name: rounds[1:] or rounds for name, rounds in found.items()}
        return SparkReport(counted, trials.peak_rss_mb(), settings(effort, trials.stage))


def send(server: Server, effort: Effort) -> None:
    """As many as the longest query takes, and some more for what it begins before it is stopped."""
    from penstock.bench.messages import Messages

    Messages(LARGE, (effort.batches + SKIP) * effort.batch_rows).send(server.ports["connector"])
    small = (effort.small_batches + effort.small_skip + SMALL_SPARE) * SMALL_ROWS
    Messages(TRICKLE, small, streams=1, together=SMALL_ROWS).send(server.ports["connector"])


def prepare(stage: Stage, effort: Effort) -> list[Flow]:
    """The flows in the order of a round: those that are compared run one after the other."""
    from penstock.bench.flows import SinkFlow, SmallestFlow, SourceFlow, hold, parquet_flow
    from penstock.bench.smallest_stream import Smallest

    stage.spark.dataSource.register(Smallest)
    hold(stage, [LARGE, TRICKLE])
    rows, batches = effort.batch_rows, effort.batches
    small, skip = effort.small_batches, effort.small_skip
    source = SourceFlow(SOURCE, rows, batches, SKIP, LARGE)
    return [
        parquet_flow(stage, PARQUET, source),
        source,
        SinkFlow(SINK, rows, batches, SKIP, LARGE),
        SinkFlow(TENTH, rows // 10, 2 * batches, SKIP, LARGE),
        SmallestFlow(SMALLEST, SMALL_ROWS, small, skip),
        SinkFlow(SMALL, SMALL_ROWS, small, skip, TRICKLE),
    ]


@dataclass(slots=True)
class Trials:
    """Runs flows, each time under another name, and looks at the memory afterwards."""

    server: Server
    stage: Stage
    number: int = 0
    peak: Peak = field(default_factory=Peak)

    def measure(self, flow: Flow) -> Run:
        self.number += 1
        run = flow.run(self.stage, self.number)
        self.peak = self.peak.merged(peak_of_spark())
        return run

    def peak_rss_mb(self) -> dict[str, float]:
        found = {
            "worker": self.server.peak_rss_bytes(),
            "largest_python_worker": self.peak.python,
            "jvm": self.peak.jvm,
        }
        return {name: round(size / MEGABYTE, 1) for name, size in found.items()}


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    """What a figure means nothing without."""
    from importlib.metadata import version

    return {
        "event_bytes": EVENT_BYTES,
        "batch_rows": effort.batch_rows,
        "small_batch_rows": SMALL_ROWS,
        "cores": stage.cores,
        "filesystem": filesystem(stage.directory),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
    }
