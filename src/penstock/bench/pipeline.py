"""`penstock bench pipeline`: from a program that sends to results that are committed at a sink, beside other stream
processors that do the same count from memory to nowhere.

Ours run in one Spark session, each time under another name; the first run warms it up and is not counted.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.bench.batches import PROGRESS_KEPT
from penstock.bench.contenders.ingest import Ingest
from penstock.bench.events import EVENT_BYTES
from penstock.bench.measurement import MEGABYTE
from penstock.bench.pipeline_events import Events
from penstock.bench.pipeline_report import BYTEWAX_SMALL, FLINK_PYTHON, FLINK_SQL, OURS, PipelineReport
from penstock.bench.process import filesystem
from penstock.bench.report import progress
from penstock.bench.rounds import interleave
from penstock.bench.session import bench_session
from penstock.bench.spark_memory import peak_of_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.bench.flows import Stage
    from penstock.bench.generator import Worker
    from penstock.bench.pipeline_flow import Counted
    from penstock.bench.pipeline_peers import Package, Peer
    from penstock.bench.pipeline_sender import Sent
    from penstock.bench.process import Server

KEYS = 1_000
"""Bytewax is much slower with more of them, Spark is not."""

PER_MS = 10
"""Events in a millisecond of event time: a minute has 600,000."""

LARGE_BATCH, SMALL_BATCH = 100_000, 1_000
"""What Bytewax's source gives at once: what it is fastest with, and what its own files and Kafka give by default."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes. Each contender gets as many events as it needs some seconds for."""

    rounds: int
    events: int
    """Ours."""
    warm: int
    """Ours: sent before the clock starts, so that the query is up."""
    bytewax: int
    bytewax_small: int
    flink_sql: int
    flink_python: int
    total_s_max: float
    """All rounds together; what is left out then is rounds."""


QUICK = Effort(2, 3_000_000, 50_000, 500_000, 100_000, 5_000_000, 200_000, total_s_max=180)
FULL = Effort(5, 10_000_000, 50_000, 2_000_000, 300_000, 20_000_000, 500_000, total_s_max=1200)


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool = False
    directory: Path | None = None
    master: str = "local[*]"
    bytewax_python: Path | None = None
    flink_python: Path | None = None
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""

    @property
    def chosen(self) -> Effort:
        return self.effort or (QUICK if self.quick else FULL)


def run(options: Options, console: Console | None = None) -> PipelineReport:
    """Run the whole benchmark; progress goes to `console`, which should be standard error. Raises RequestError where
    PySpark or Java are missing; other processors that are missing are left out.
    """
    with bench_session(options.directory, options.master) as (spark, base):
        return measure(spark, options, base, console)


def measure(spark: SparkSession, options: Options, base: Path, console: Console | None = None) -> PipelineReport:
    """The same in a session that is there already."""
    from penstock.bench.flows import Stage

    effort = options.chosen
    spark.conf.set(*PROGRESS_KEPT)
    others, skipped = find_others(options)
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, 1 + effort.rounds * (1 + len(others))))
        server = stack.enter_context(Ingest(1, 1).start(base))
        program = stack.enter_context(sending_program())
        ours = Ours(Stage(spark, server.ports, base), program, effort)
        note("warming up")
        ours.count()
        deadline = time.monotonic() + effort.total_s_max
        contenders: list[Counting] = [ours, *others]
        found = interleave(contenders, effort.rounds, lambda contender: contender.count(), note, deadline)
        return PipelineReport(found, skipped, peaks(server), settings(effort, ours.stage))


class Counting(Protocol):
    """A contender: `count` once, and say how long it took. Raises BenchmarkFailed for a wrong count."""

    @property
    def name(self) -> str: ...

    def count(self) -> Counted: ...


@dataclass(slots=True)
class Ours:
    stage: Stage
    program: Worker[Sent]
    effort: Effort
    name: str = OURS
    number: int = field(default=0)

    def count(self) -> Counted:
        from penstock.bench.pipeline_flow import Trial

        self.number += 1
        events = Events(self.effort.events + self.effort.warm, KEYS, PER_MS)
        return Trial(self.stage, self.program, events, self.effort.warm, f"count-{self.number}").run()


@dataclass(frozen=True, slots=True)
class Other:
    peer: Peer
    python: Path

    @property
    def name(self) -> str:
        return self.peer.name

    def count(self) -> Counted:
        return self.peer.count(self.python)


def find_others(options: Options) -> tuple[list[Other], dict[str, str]]:
    """Those that can run, in the order of a round, and how to install the rest."""
    from penstock.bench.pipeline_peers import BYTEWAX, FLINK, find_python

    given: dict[Package, Path | None] = {BYTEWAX: options.bytewax_python, FLINK: options.flink_python}
    pythons = {package: find_python(package, path) for package, path in given.items()}
    found: list[Other] = []
    skipped: dict[str, str] = {}
    for peer in peers(options.chosen):
        python = pythons[peer.package]
        if python is None:
            skipped[peer.name] = peer.package.install
        else:
            found.append(Other(peer, python))
    return found, skipped


def peers(effort: Effort) -> list[Peer]:
    from penstock.bench.pipeline_peers import BYTEWAX, FLINK, Peer

    def events(count: int) -> Events:
        return Events(count, KEYS, PER_MS)

    return [
        Peer(BYTEWAX.name, BYTEWAX, "count_bytewax.py", events(effort.bytewax), (LARGE_BATCH,)),
        Peer(BYTEWAX_SMALL, BYTEWAX, "count_bytewax.py", events(effort.bytewax_small), (SMALL_BATCH,)),
        Peer(FLINK_SQL, FLINK, "count_flink_sql.py", events(effort.flink_sql)),
        Peer(FLINK_PYTHON, FLINK, "count_flink_python.py", events(effort.flink_python)),
    ]


@contextmanager
def sending_program() -> Iterator[Worker[Sent]]:
    from penstock.bench.generator import Worker

    program: Worker[Sent] = Worker()
    try:
        yield program
    finally:
        program.stop()


def peaks(server: Server) -> dict[str, float]:
    """Of memory, in MB."""
    spark = peak_of_spark()
    found = {"worker": server.peak_rss_bytes(), "largest_python_worker": spark.python, "jvm": spark.jvm}
    return {name: round(size / MEGABYTE, 1) for name, size in found.items()}


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    """What a figure means nothing without. Of the load: what ran in the last minute, ours included."""
    from importlib.metadata import version

    return {
        "event_bytes": EVENT_BYTES,
        "events": effort.events,
        "keys": KEYS,
        "events_per_minute": PER_MS * 60_000,
        "cores": stage.cores,
        "load": round(os.getloadavg()[0], 1),
        "filesystem": filesystem(stage.directory),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
    }
