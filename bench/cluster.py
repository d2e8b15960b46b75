"""`script/bench cluster`: ingest into one shard and into two, and into two in one process (`bench/cluster_ingest.py`);
what a cluster asks of its bucket, and how fast it reassigns shards, from three workers to a thousand. The latter is
simulated, and is all there is with `--simulate`: see `bench/cluster_growth.py` for what is counted and what is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.console import Console
from rich.table import Table

from bench.cluster_growth import (
    READS_MAX,
    REQUEST_SECONDS,
    SHARDS_PER_WORKER,
    START_SECONDS,
    TAKE_OVER_SECONDS,
    WRITES_MAX,
    Growth,
    Registry,
    grow,
    measure_registry,
)
from bench.cluster_ingest import COMPARED, SHARDS, SIDE_BY_SIDE, STORES, ingest
from bench.cluster_threads import RUNS, compare
from bench.contender import Effort as LoadEffort
from bench.contender import Measurement, latency_ms, summary
from bench.harness import Report, base_directory, figures, progress, ratios, surroundings
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.cluster.records import READERS

LOSSES = (1, 10, 100)
STREAMS = 10_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    workers: tuple[int, ...]
    streams: int
    """In the registry that is measured."""
    load: LoadEffort
    threads: tuple[int, float] = (3, 0.5)
    """Rounds and seconds for the steps of ingest in two threads and in two processes."""


QUICK = Effort(
    (3, 100, 1000), 100_000, LoadEffort(2, warmup_s=1.0, measure_s=3.0, probe_s=0.5, read_s=0, total_s_max=180)
)
FULL = Effort(
    (3, 10, 30, 100, 300, 1000),
    1_000_000,
    LoadEffort(7, warmup_s=1.0, measure_s=5.0, probe_s=0.5, read_s=0, total_s_max=900),
    (7, 1.0),
)


def run(
    effort: Effort, directory: Path | None = None, console: Console | None = None, *, simulate: bool = False
) -> ClusterReport:
    """`simulate`: nothing else."""
    loads = 0 if simulate else effort.load.rounds * (len(SHARDS) * len(STORES) + len(SIDE_BY_SIDE))
    with ExitStack() as stack:
        note = stack.enter_context(progress(console, len(effort.workers) + 2 + loads))
        found: Mapping[str, list[Measurement]] = {}
        threads: Mapping[int, list[float]] = {}
        if not simulate:
            found = ingest(stack.enter_context(base_directory(directory)), effort.load, note)
            note("threads and processes")
            threads = compare(*effort.threads)
        sizes = []
        for workers in effort.workers:
            note(f"{workers} workers")
            sizes.append(grow(workers, LOSSES))
        note("the registry of streams")
        registry = measure_registry(effort.streams)
    return ClusterReport(sizes, registry, surroundings(directory or Path.cwd()), found, threads)


@dataclass
class ClusterReport(Report):
    sizes: list[Growth]
    registry: Registry
    settings: Mapping[str, object]
    ingest: Mapping[str, list[Measurement]] = field(default_factory=dict)
    """By the names of its contenders; empty if everything is simulated."""
    threads: Mapping[int, list[float]] = field(default_factory=dict)
    """Two threads ÷ two processes in each round, by how many messages a session receives at once."""

    benchmark = "cluster"
    goals: ClassVar[Mapping[str, float]] = {}  # type: ignore[misc]

    def round_ratios(self) -> dict[str, list[float]]:
        """Two shards ÷ one, by the store, and threads ÷ processes: messages per second, and core seconds per message,
        on which other work on the machine has little influence.
        """
        found = {}
        for name, (these, those) in COMPARED.items() if self.ingest else ():
            two, one = self.ingest[these], self.ingest[those]
            found[name] = ratios([each.events_per_s for each in two], [each.events_per_s for each in one])
            found[cores_of(name)] = ratios([*map(core_seconds, two)], [*map(core_seconds, one)])
        return found | {runs_of(run): values for run, values in self.threads.items()}

    def rounds(self) -> int:
        return max(map(len, self.ingest.values()), default=1)

    def details(self) -> dict[str, object]:
        return {
            "ingest": {
                name: summary(rounds) | {"core_s_per_million": round(median(map(core_seconds, rounds)), 2)}
                for name, rounds in self.ingest.items()
            },
            "sizes": [_facts(size) for size in self.sizes],
            "registry_bytes_per_stream": round(self.registry.bytes),
            "registry_restore_s": round(self.registry.restored_s * STREAMS, 1),
            "registry_look_s": round(self.registry.looked_at_s * STREAMS, 1),
            "first_bottleneck": first_bottleneck(self.sizes[-1]),
        }

    def tables(self) -> Iterable[Table]:
        if self.ingest:
            yield self._ingest_table()
        if self.threads:
            table = figures("ingest without sockets, messages/s", "", "two threads ÷ two processes")
            for run in RUNS:
                table.add_row(runs_of(run), self.ratio_cell(runs_of(run)))
            yield table
        names = [f"{size.workers:,} × {SHARDS_PER_WORKER}" for size in self.sizes]
        table = figures("script/bench cluster --simulate: workers × shards", "", *names)
        for label, cell in _ROWS.items():
            table.add_row(label, *(cell(size) for size in self.sizes))
        yield table

    def _ingest_table(self) -> Table:
        columns = ("events/s", "MB/s", "p50 ms", "p99 ms", "÷ above", "core s per million", "÷ above")
        table = figures("script/bench cluster: ingest", "", *columns)
        for name, rounds in self.ingest.items():
            facts, latency = summary(rounds), latency_ms(rounds)
            compared = next((ratio for ratio, (these, _) in COMPARED.items() if name == these), "")
            rates = (f"{facts[unit]:,}" for unit in ("events_per_s", "mb_per_s"))
            delays = (f"{latency[part]:.1f}" for part in ("p50", "p99"))
            cores = f"{median(map(core_seconds, rounds)):.2f}"
            table.add_row(name, *rates, *delays, self.ratio_cell(compared), cores, self.ratio_cell(cores_of(compared)))
        return table

    def print(self, console: Console) -> None:
        """What is simulated has no rounds: the same code gives the same figures."""
        if self.ingest:
            super().print(console)
            return
        for part in (*self.tables(), *self.notes()):
            console.print(part)

    def notes(self) -> Iterable[str]:
        registry = self.registry
        yield (
            f"The registry of streams has {registry.bytes:.0f} bytes of memory for each: "
            f"{registry.bytes * STREAMS / 1e9:.1f} GB for {STREAMS:,} streams, if they were all of one source. A new "
            f"owner of the registry needs {registry.restored_s * STREAMS:.0f} s to restore them, beside reading; a new "
            f"owner of a partition waits {registry.looked_at_s * STREAMS:.1f} s until all were looked at, while others "
            "are answered."
        )
        yield (
            f"S3 promises {WRITES_MAX:,} PUTs and {READS_MAX:,} GETs per second and prefix. Given, not measured here: "
            f"{REQUEST_SECONDS * 1000:.0f} ms for a request, {START_SECONDS} s for the start of a process, "
            f"{TAKE_OVER_SECONDS} s from the lease to the first acknowledgement."
        )
        yield first_bottleneck(self.sizes[-1])


def core_seconds(measured: Measurement) -> float:
    """Core seconds of the host and its shards' processes for a million messages."""
    return 1e6 * (measured.cpu.user + measured.cpu.system) / measured.events_per_s


def cores_of(store: str) -> str:
    """The name of a ratio."""
    return f"{store}, core seconds per message"


def runs_of(run: int) -> str:
    """The name of a ratio."""
    return f"threads, {run} message{'s' if run > 1 else ''} at once"


def first_bottleneck(size: Growth) -> str:
    """What fails first as workers are added, by the rates of the largest size, which grow with the workers."""
    per_worker = size.rounds["leader"].seconds / size.workers
    for_leader = int(LEASE_TIMING.expired / per_worker)
    for_puts = int(WRITES_MAX / (size.per_second("PUT") / size.workers))
    one_record = size.workers * REQUEST_SECONDS / READERS
    slow = (
        f"the leader's look at all records: from {for_leader:,} workers on it takes longer than a lease, and losses are"
    )
    slow += " noticed late"
    puts = f"PUTs for leases: {WRITES_MAX:,} a second are reached at {for_puts:,} workers"
    for_gets = int(READS_MAX / (size.per_second("GET") / size.workers))
    gets = f"GETs, mostly for the ends of logs: {READS_MAX:,} a second are reached at {for_gets:,} workers"
    first, *others = (text for _, text in sorted([(for_leader, slow), (for_puts, puts), (for_gets, gets)]))
    return (
        f"The first bottleneck is {first}. The next: {'; '.join(others)}. One record for each worker, which is the "
        f"lease of all its processes, would move the leader's look and the PUTs: "
        f"{size.workers / LEASE_TIMING.renew:,.0f} PUTs a second and a look of {one_record:.1f} s with "
        f"{size.workers:,} workers."
    )


def _reassigned(lost: int) -> Callable[[Growth], str]:
    return lambda size: f"{size.reassigned[lost]:,.0f}" if lost in size.reassigned else ""


_ROWS: dict[str, Callable[[Growth], str]] = {
    "shards": lambda size: f"{size.shards:,}",
    "PUT per second": lambda size: f"{size.per_second('PUT'):,.0f}",
    "GET per second": lambda size: f"{size.per_second('GET'):,.0f}",
    "LIST per second": lambda size: f"{size.per_second('LIST'):,.1f}",
    "requests of a look by the leader": lambda size: f"{size.rounds['leader'].requests['GET']:,}",
    "seconds of it": lambda size: f"{size.rounds['leader'].seconds:,.1f}",
    "MB per second that are read": lambda size: f"{_read_per_second(size) / 1e6:,.2f}",
    "assignment, bytes": lambda size: f"{size.assignment_bytes:,}",
    "MB read by all after it has changed": lambda size: f"{size.assignment_bytes_per_change / 1e6:,.2f}",
    "map, MB": lambda size: f"{size.map_bytes / 1e6:,.2f}",
    "requests of a take-over": lambda size: f"{sum(size.take_over.requests.values()):,}",
    **{f"seconds to reassign, {lost or 'the leader'} lost": _reassigned(lost) for lost in (*LOSSES, 0)},
}


def _read_per_second(size: Growth) -> float:
    counts = {"leader": 1, "host": size.workers - 1, "owner": size.shards}
    rounds = size.rounds.items()
    return sum(counts[role] * each.bytes["GET"] / max(LEASE_TIMING.renew, each.seconds) for role, each in rounds)


def _facts(size: Growth) -> dict[str, object]:
    return {
        "workers": size.workers,
        "shards": size.shards,
        **{f"{kind.lower()}_per_s": round(size.per_second(kind), 1) for kind in ("PUT", "GET", "LIST")},
        "leader_look_s": round(size.rounds["leader"].seconds, 2),
        "assignment_bytes": size.assignment_bytes,
        "map_bytes": size.map_bytes,
        "reassign_s": {str(lost): round(seconds, 1) for lost, seconds in size.reassigned.items()},
    }
