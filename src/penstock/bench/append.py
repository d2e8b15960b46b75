"""`penstock bench append`: how fast events become durable, beside the bare loop and two peers."""

import os
import platform
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.bench import events
from penstock.bench.contender import BenchmarkFailed, Contender
from penstock.bench.contenders.bare import Bare
from penstock.bench.contenders.nats import Nats
from penstock.bench.contenders.penstock import Penstock
from penstock.bench.contenders.redis import Redis
from penstock.bench.drive import Load
from penstock.bench.generator import Generators, ProbeJob, ReadJob
from penstock.bench.measurement import MEGABYTE, Cpu, Measurement
from penstock.bench.page_cache import recycled
from penstock.bench.process import Server, filesystem
from penstock.bench.report import Report, print_table, progress, to_json
from penstock.bench.rounds import base_directory, interleave, split_missing, workspace

__all__ = ["CONTENDERS", "Options", "Report", "print_table", "run", "to_json"]

CONTENDERS = ("bare", "penstock", "redis", "nats")
"""In the order of a round: the two whose ratio is closest run one after the other."""

GOALS = {"bare": 0.5, "redis": 5.0}
READ_REQUEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes. Many short rounds beat a few long ones: the median forgets more of them
    that were disturbed.
    """

    rounds: int
    warmup_s: float
    measure_s: float
    probe_s: float
    read_s: float
    total_s_max: float
    """All rounds together; what is left out then is rounds."""


QUICK = Effort(rounds=6, warmup_s=0.4, measure_s=0.5, probe_s=0.25, read_s=0.25, total_s_max=50)
FULL = Effort(rounds=20, warmup_s=0.4, measure_s=0.6, probe_s=0.5, read_s=0.5, total_s_max=300)


@dataclass(frozen=True, slots=True)
class Options:
    """`block_bytes` and `window` were chosen by what is fastest for the bare loop."""

    quick: bool = False
    directory: Path | None = None
    only: tuple[str, ...] = CONTENDERS
    connections: int = 8
    block_bytes: int = 128 << 10
    window: int = 4
    effort: Effort | None = None
    """Given by tests alone; otherwise QUICK or FULL."""


def contenders(options: Options) -> list[Contender]:
    everyone: list[Contender] = [
        Bare(options.block_bytes, options.window),
        Penstock(options.block_bytes, options.window, options.connections),
        Redis(options.connections),
        Nats(),
    ]
    return [contender for contender in everyone if contender.name in options.only]


def run(options: Options, console: Console | None = None) -> Report:
    """Run the whole benchmark; progress goes to `console`, which should be standard error."""
    effort = options.effort or (QUICK if options.quick else FULL)
    deadline = time.monotonic() + effort.total_s_max
    present, skipped = split_missing(contenders(options))
    with ExitStack() as stack:
        base = stack.enter_context(base_directory(options.directory))
        bench = AppendBench(
            options.connections,
            effort,
            base,
            stack.enter_context(Generators()),
        )
        note = stack.enter_context(progress(console, effort.rounds * len(present)))
        results = interleave(present, effort.rounds, bench.measure, note, deadline)
        return Report("append", results, skipped, GOALS, _settings(options, effort, base))


@dataclass(frozen=True, slots=True)
class AppendBench:
    """What stays the same from round to round."""

    connections: int
    effort: Effort
    base: Path
    generators: Generators

    def measure(self, contender: Contender) -> Measurement:
        """One contender's part of one round, with a fresh server."""
        with workspace(self.base) as directory, contender.start(directory) as server:
            return self._measure(contender, server)

    def _measure(self, contender: Contender, server: Server) -> Measurement:
        latencies_ms = self.generators.run(ProbeJob(contender.probe(server), self.effort.probe_s))
        load, cpu = self._load(contender, server)
        stored, acked = contender.stored(server), load.total + len(latencies_ms)
        if stored != acked:
            raise BenchmarkFailed(f"{contender.name} acknowledged {acked} events, has {stored}")
        return Measurement(
            events=load.events,
            seconds=load.seconds,
            event_bytes=events.EVENT_BYTES,
            latencies_ms=tuple(latencies_ms),
            read_mb_per_s=self._read(contender, server),
            peak_rss_bytes=server.peak_rss_bytes(),
            cpu=cpu,
        )

    def _load(self, contender: Contender, server: Server) -> tuple[Load, Cpu]:
        effort, target = self.effort, contender.load(server)
        with recycled(server.directory):
            began, before = time.monotonic(), server.cpu()
            load = self.generators.load(target, self.connections, contender.window, effort.warmup_s, effort.measure_s)
        return load, server.cpu().since(before, time.monotonic() - began)

    def _read(self, contender: Contender, server: Server) -> float | None:
        target = contender.reading(server)
        if target is None:
            return None
        job = ReadJob(target, READ_REQUEST_BYTES, self.effort.read_s)
        count, seconds = self.generators.run(job)
        return count / seconds / MEGABYTE


def _settings(options: Options, effort: Effort, base: Path) -> dict[str, object]:
    """What a figure means nothing without."""
    return {
        "event_bytes": events.EVENT_BYTES,
        "block_bytes": options.block_bytes,
        "connections": options.connections,
        "seconds": effort.measure_s,
        "cores": os.cpu_count(),
        "filesystem": filesystem(base),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
