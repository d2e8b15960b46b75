"""`penstock bench latency`: from a message that is due to be sent until a sink program has committed it, at two rates;
beside what must be paid at least: a batch of the smallest Python stream that Spark can run, and six fsyncs.

All run in one Spark session, in rounds that alternate; the first round warms up and is not counted.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.bench.batches import PROGRESS_KEPT
from penstock.bench.contenders.ingest import Ingest
from penstock.bench.events import EVENT_BYTES
from penstock.bench.latency_report import FSYNC, FSYNCS, RATES, SMALLEST, LatencyReport, flow_name
from penstock.bench.process import filesystem
from penstock.bench.report import progress
from penstock.bench.rounds import interleave
from penstock.bench.session import bench_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.bench.flows import Stage
    from penstock.bench.generator import Worker
    from penstock.bench.latency_flow import Timing
    from penstock.bench.latency_sender import Paced

SMALLEST_ROWS = 10
"""In a batch of the smallest stream, as in `penstock bench spark`."""

FSYNC_BYTES = 4096
"""What an fsync makes durable, about: the records of an epoch are small."""


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
    """All rounds together; what is left out then is rounds."""


QUICK = Effort(rounds=2, warm_s=2, measure_s=3, batches=25, skip=10, fsyncs=50, total_s_max=90)
FULL = Effort(rounds=5, warm_s=3, measure_s=10, batches=60, skip=10, fsyncs=200, total_s_max=600)


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool = False
    directory: Path | None = None
    master: str = "local[*]"
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""
    rates: tuple[int, ...] = RATES

    @property
    def chosen(self) -> Effort:
        return self.effort or (QUICK if self.quick else FULL)


def run(options: Options, console: Console | None = None) -> LatencyReport:
    """Run the whole benchmark; progress goes to `console`, which should be standard error. Raises RequestError where
    PySpark or Java are missing.
    """
    with bench_session(options.directory, options.master) as (spark, base):
        return measure(spark, options, base, console)


def measure(spark: SparkSession, options: Options, base: Path, console: Console | None = None) -> LatencyReport:
    """The same in a session that is there already."""
    from penstock.bench.flows import Stage
    from penstock.bench.generator import Worker
    from penstock.bench.smallest_stream import Smallest

    effort = options.chosen
    spark.conf.set(*PROGRESS_KEPT)
    spark.dataSource.register(Smallest)
    with ExitStack() as stack:
        server = stack.enter_context(Ingest(1, 1).start(base))
        program: Worker[Paced] = Worker()
        stack.callback(program.stop)
        stage = Stage(spark, server.ports, base)
        timed: list[Timed] = [SmallestBatch(stage, effort), Fsync(base, effort.fsyncs)]
        timed += [AtRate(stage, program, effort, rate) for rate in options.rates]
        note = stack.enter_context(progress(console, len(timed) * (effort.rounds + 1)))
        deadline = time.monotonic() + effort.total_s_max
        found = interleave(timed, effort.rounds + 1, lambda one: one.time(), note, deadline)
        counted = {name: rounds[1:] or rounds for name, rounds in found.items()}
        return LatencyReport(counted, options.rates, settings(effort, stage))


class Timed(Protocol):
    @property
    def name(self) -> str: ...

    def time(self) -> Timing: ...


@dataclass(slots=True)
class AtRate:
    """Our pipeline, under another name each time."""

    stage: Stage
    program: Worker[Paced]
    effort: Effort
    rate: int
    number: int = 0

    @property
    def name(self) -> str:
        return flow_name(self.rate)

    def time(self) -> Timing:
        from penstock.bench.latency_flow import Trial

        self.number += 1
        name = f"at-{self.rate}-{self.number}"
        return Trial(self.stage, self.program, name, self.rate, self.effort.warm_s, self.effort.measure_s).run()


@dataclass(slots=True)
class SmallestBatch:
    stage: Stage
    effort: Effort
    name: str = SMALLEST
    number: int = 0

    def time(self) -> Timing:
        from penstock.bench.flows import SmallestFlow
        from penstock.bench.latency_flow import Timing

        self.number += 1
        flow = SmallestFlow(self.name, SMALLEST_ROWS, self.effort.batches, self.effort.skip)
        run = flow.run(self.stage, self.number)
        return Timing.of([batch.milliseconds for batch in run.batches])


@dataclass(frozen=True, slots=True)
class Fsync:
    """Appends to a file, each made durable, on the disk that all others write to."""

    directory: Path
    count: int
    name: str = FSYNC

    def time(self) -> Timing:
        from penstock.bench.latency_flow import Timing

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


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    """What a figure means nothing without. Of the load: what ran in the last minute, ours included."""
    from importlib.metadata import version

    return {
        "event_bytes": EVENT_BYTES,
        "seconds": effort.measure_s,
        "fsyncs": FSYNCS,
        "cores": stage.cores,
        "load": round(os.getloadavg()[0], 1),
        "filesystem": filesystem(stage.directory),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
    }
