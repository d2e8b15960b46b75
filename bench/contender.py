"""The contenders of `append` and `ingest`: servers that store events, how each is measured, and the report."""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.console import Console
from rich.table import Table

from bench import events
from bench.harness import (
    MEGABYTE,
    BenchmarkFailed,
    Report,
    base_directory,
    figures,
    interleave,
    percentile,
    progress,
    ratios,
    skipped_notes,
    surroundings,
    workspace,
)
from bench.load import Generators, Load, ProbeJob, ReadJob, ReadTarget, Target
from bench.processes import Cpu, Server, recycled

READ_REQUEST_BYTES = 1 << 20
READ = "read"


class Contender(ABC):
    """One program under comparison. Its server is a process of its own, fresh in every round."""

    name: ClassVar[str]
    install: ClassVar[str] = ""
    """The command that installs it where it is missing."""

    window: int = 1
    """Batches in flight per connection: as many as the contender is fastest with."""

    def installed(self) -> bool:
        return True

    @abstractmethod
    def start(self, directory: Path) -> Server:
        """Start its server with all data below `directory`; it serves when this returns."""

    @abstractmethod
    def load(self, server: Server) -> Target:
        """Connections that append batches."""

    @abstractmethod
    def probe(self, server: Server) -> Target:
        """Connections that append one event at a time."""

    @abstractmethod
    def stored(self, server: Server) -> int:
        """How many events the server reports to have stored."""

    def reading(self, server: Server) -> ReadTarget | None:  # noqa: ARG002
        """How to read back what `load` wrote through its first connection; None if not compared."""
        return None


def split_missing(contenders: Sequence[Contender]) -> tuple[list[Contender], dict[str, str]]:
    """Those that can run, and the command that installs each of the others."""
    present = [contender for contender in contenders if contender.installed()]
    missing = {c.name: c.install for c in contenders if not c.installed()}
    return present, missing


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it takes. Many short rounds beat a few long ones: the median ignores more of the disturbed ones."""

    rounds: int
    warmup_s: float
    measure_s: float
    probe_s: float
    read_s: float
    """0: nothing is read back."""
    total_s_max: float
    """All rounds together: when the time is up, no further round is started."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one contender did in one round. `events` are acknowledged ones, all inside `seconds`."""

    events: int
    seconds: float
    event_bytes: int
    latencies_ms: tuple[float, ...] = ()
    read_mb_per_s: float | None = None
    peak_rss_bytes: int = 0
    cpu: Cpu = field(default_factory=Cpu)
    """Cores busy under load."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Payload alone: the same figure for the same events, whatever a protocol puts around them."""
        return self.events_per_s * self.event_bytes / MEGABYTE


@dataclass(frozen=True, slots=True)
class Trials:
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
        if not load.events:
            raise BenchmarkFailed(f"{contender.name} acknowledged nothing for {load.seconds:.1f} s: the disk stalls")
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
        effort = self.effort
        self.generators.connect(contender.load(server), self.connections)
        with recycled(server.directory):
            began, before = time.monotonic(), server.cpu()
            load = self.generators.load(contender.window, effort.warmup_s, effort.measure_s)
        return load, server.cpu().since(before, time.monotonic() - began)

    def _read(self, contender: Contender, server: Server) -> float | None:
        target = contender.reading(server) if self.effort.read_s else None
        if target is None:
            return None
        job = ReadJob(target, READ_REQUEST_BYTES, self.effort.read_s)
        count, seconds = self.generators.run(job)
        return count / seconds / MEGABYTE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all rounds of a benchmark measured, before they are compared."""

    results: Mapping[str, list[Measurement]]
    skipped: Mapping[str, str]
    settings: Mapping[str, object]


def measure_all(
    contenders: Sequence[Contender],
    connections: int,
    effort: Effort,
    directory: Path | None,
    console: Console | None,
) -> Outcome:
    """All rounds. Progress goes to `console`, which should be standard error."""
    deadline = time.monotonic() + effort.total_s_max
    present, skipped = split_missing(contenders)
    with ExitStack() as stack:
        base = stack.enter_context(base_directory(directory))
        trials = Trials(connections, effort, base, stack.enter_context(Generators()))
        note = stack.enter_context(progress(console, effort.rounds * len(present)))
        results = interleave(present, effort.rounds, trials.measure, note, deadline)
        settings = {"event_bytes": events.EVENT_BYTES, "connections": connections, "seconds": effort.measure_s}
        return Outcome(results, skipped, settings | surroundings(base))


@dataclass(frozen=True, slots=True)
class LoadReport(Report):
    """`results` has every contender's rounds, in the same order for all."""

    benchmark: str
    results: Mapping[str, list[Measurement]]
    skipped: Mapping[str, str]
    """The command that installs each peer that was not found."""
    goals: Mapping[str, float]
    settings: Mapping[str, object]
    ours: str = "penstock"
    """The contender that all others are compared with."""
    harder: Collection[str] = ()
    """Contenders that are ours with more to do: the ratio is theirs ÷ ours."""
    ns_per_event: Mapping[str, float] = field(default_factory=dict)
    """Where the time goes: nanoseconds for each event."""

    def round_ratios(self) -> dict[str, list[float]]:
        """Ours ÷ theirs in each round, by name; `read` is against the bare loop. Empty if ours did not run."""
        if not self.results.get(self.ours):
            return {}
        found = {name: self._ratios(name) for name in self.results if name != self.ours}
        reads = ratios(self._reads(self.ours), self._reads("bare")) if "bare" in found else []
        return found | ({READ: reads} if reads else {})

    def _ratios(self, name: str) -> list[float]:
        ours, theirs = ([r.events_per_s for r in self.results[n]] for n in (self.ours, name))
        return ratios(theirs, ours) if name in self.harder else ratios(ours, theirs)

    def _reads(self, name: str) -> list[float]:
        return [r.read_mb_per_s for r in self.results[name] if r.read_mb_per_s is not None]

    def rounds(self) -> int:
        return max(map(len, self.results.values()), default=0)

    def details(self) -> dict[str, object]:
        found: dict[str, object] = {
            "contenders": {name: summary(rounds) for name, rounds in self.results.items()},
            "latency_ms": {name: latency_ms(rounds) for name, rounds in self.results.items()},
            "skipped": dict(self.skipped),
        }
        if self.ns_per_event:
            found["ns_per_event"] = {name: round(value, 1) for name, value in self.ns_per_event.items()}
        return found

    def tables(self) -> Iterable[Table]:
        table = figures(f"script/bench {self.benchmark}", *COLUMNS)
        for name in self.results:
            table.add_row(*self._cells(name))
        return [table]

    def _cells(self, name: str) -> list[str]:
        rounds = self.results[name]
        facts, latency = summary(rounds), latency_ms(rounds)
        read = facts["read_mb_per_s"]
        return [
            name,
            f"{facts['mb_per_s']:,}",
            f"{facts['events_per_s']:,}",
            self.ratio_cell(name),
            self.goal_cell(name),
            f"{latency['p50']:.2f}" if latency else "",
            f"{latency['p99']:.2f}" if latency else "",
            f"{read:,}" if read is not None else "",
            f"{facts['peak_rss_mb']:,}",
            f"{facts['cores_user']} + {facts['cores_system']}",
        ]

    def notes(self) -> Iterable[str]:
        if (read := self.ratios().get(READ)) is not None:
            yield f"Reading: {read:.2f} of the bare loop."
        if self.harder:
            yield f"The other way round: {', '.join(self.harder)} ÷ ours."
        if self.ns_per_event:
            parts = ", ".join(f"{name} {value:.0f}" for name, value in self.ns_per_event.items())
            yield f"Where the time goes, in nanoseconds for each event: {parts}."
        yield from skipped_notes(self.skipped)


COLUMNS = (
    "contender",
    "MB/s",
    "events/s",
    "ours ÷ theirs",
    "goal",
    "p50 ms",
    "p99 ms",
    "read MB/s",
    "peak RSS MB",
    "cores user+system",
)


def summary(rounds: list[Measurement]) -> dict[str, object]:
    """One contender's medians over the rounds; the peak is over all of them."""
    reads = [r.read_mb_per_s for r in rounds if r.read_mb_per_s is not None]
    return {
        "rounds": len(rounds),
        "events_per_s": round(median(r.events_per_s for r in rounds)),
        "mb_per_s": round(median(r.mb_per_s for r in rounds), 1),
        "mb_per_s_rounds": [round(r.mb_per_s, 1) for r in rounds],
        "read_mb_per_s": round(median(reads), 1) if reads else None,
        "peak_rss_mb": round(max(r.peak_rss_bytes for r in rounds) / MEGABYTE, 1),
        "cores_user": round(median(r.cpu.user for r in rounds), 2),
        "cores_system": round(median(r.cpu.system for r in rounds), 2),
    }


def latency_ms(rounds: list[Measurement]) -> dict[str, float]:
    """Over the samples of all rounds together."""
    samples = [sample for r in rounds for sample in r.latencies_ms]
    if not samples:
        return {}
    return {"p50": round(percentile(samples, 50), 3), "p99": round(percentile(samples, 99), 3)}
