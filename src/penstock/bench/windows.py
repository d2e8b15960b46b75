"""`penstock bench windows`: counts per key and minute with lateness, by our operator beside Spark's own.

All flows read the same source in one Spark session, in rounds that alternate, as in `penstock bench spark`. What leaves
is counted by Spark as it goes by: whole windows, or the benchmark fails.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.batches import PROGRESS_KEPT, Run
from penstock.bench.contenders.ingest import Ingest
from penstock.bench.process import Server
from penstock.bench.report import progress
from penstock.bench.rounds import interleave
from penstock.bench.session import bench_session
from penstock.bench.windows_report import BUCKETS, KEYS, WindowsReport, builtin, ours, visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.bench.flows import Stage
    from penstock.bench.windows_flows import CountFlow

TRICKLE = "trickle"
SMALL_ROWS = 10
SMALL_SPARE = 50


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


def run(options: Options, console: Console | None = None) -> WindowsReport:
    """Run the whole benchmark. Raises RequestError where PySpark or Java are missing."""
    with bench_session(options.directory, options.master) as (spark, base):
        return measure(spark, options.chosen, base, console)


def measure(spark: SparkSession, effort: Effort, base: Path, console: Console | None = None) -> WindowsReport:
    """The same in a session that is there already."""
    from penstock.bench.flows import Stage, hold

    spark.conf.set(*PROGRESS_KEPT)
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, 1 + (2 * len(KEYS) + len(BUCKETS)) * (effort.rounds + 1)))
        note("putting messages in")
        server = stack.enter_context(Ingest(1, 1).start(base))
        send(server, effort)
        stage = Stage(spark, server.ports, base)
        hold(stage, [*KEYS, TRICKLE])
        flows = prepare(effort)
        deadline = time.monotonic() + effort.total_s_max
        trials = Trials(stage)
        found = interleave(flows, effort.rounds + 1, trials.measure, note, deadline)
        counted = {name: rounds[1:] or rounds for name, rounds in found.items()}
        sizes = {flow.name: dict(flow.found) for flow in flows if flow.found}
        return WindowsReport(counted, sizes, _settings(effort, stage))


def send(server: Server, effort: Effort) -> None:
    """As many as a query takes, and some more for what it begins before it is stopped."""
    from penstock.bench.messages import Messages

    port = server.ports["connector"]
    for name, keys in KEYS.items():
        count = (effort.batches + effort.skip + 1) * effort.batch_rows
        Messages(name, count, keys=keys, per_ms=effort.per_ms).send(port)
    small = (effort.small_batches + effort.small_skip + SMALL_SPARE) * SMALL_ROWS
    Messages(TRICKLE, small, streams=1, together=SMALL_ROWS).send(port)


def prepare(effort: Effort) -> list[CountFlow]:
    """The flows in the order of a round: those that are compared run one after the other."""
    from penstock.bench.windows_flows import WINDOW_MS, BuiltinFlow, FewRowsFlow, WindowFlow

    size = (effort.batch_rows, effort.batches, effort.skip)
    late, events = effort.lateness_ms, effort.per_ms * WINDOW_MS
    flows: list[CountFlow] = []
    for name in KEYS:
        flows.append(BuiltinFlow(builtin(name), *size, name, late, events))
        flows.append(WindowFlow(ours(name), *size, name, late, events))
    small = (SMALL_ROWS, effort.small_batches, effort.small_skip)
    flows += [FewRowsFlow(visits(count), *small, TRICKLE, late, 1, buckets=count) for count in BUCKETS]
    return flows


@dataclass(slots=True)
class Trials:
    """Runs flows, each time under another name."""

    stage: Stage
    number: int = 0

    def measure(self, flow: CountFlow) -> Run:
        self.number += 1
        return flow.run(self.stage, self.number)


def _settings(effort: Effort, stage: Stage) -> dict[str, object]:
    from importlib.metadata import version

    return {
        "batch_rows": effort.batch_rows,
        "events_per_window": effort.per_ms * 60_000,
        "lateness_s": effort.lateness_ms // 1000,
        "cores": stage.cores,
        "pyspark": version("pyspark"),
    }
