"""`script/bench pipeline`: from a program that sends to results that are committed at a sink, beside other stream
processors that do the same count from memory to nowhere.

Ours run in one Spark session, each time under another name; the first run warms it up and is not counted. At the end, a
source of another shard is read beside one of the pipeline's own shard, as in `script/bench remote`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Protocol

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench import remote
from bench.events import EVENT_BYTES
from bench.flows import Stage, bench_session, open_stage
from bench.harness import (
    BenchmarkFailed,
    Report,
    figures,
    interleave,
    memory_note,
    progress,
    ratios,
    skipped_notes,
)
from bench.load import Worker
from bench.pipeline_flow import Counted, Events, Sent, Trial

OURS, BYTEWAX_SMALL, FLINK_SQL, FLINK_PYTHON = "penstock", "bytewax_small_batches", "flink_sql", "flink_python"

GOALS = {"bytewax": 4.0, "flink_sql": 1.0, **remote.RemoteReport.goals}

_IN_MEMORY = "from memory to nowhere, nothing is durable: a crash loses the counts"

GUARANTEES = {
    OURS: "from a program's socket to files, exactly once: durable before the ack, durable state, two-phase commit",
    "bytewax": f"{_IN_MEMORY}; batches of 100,000",
    BYTEWAX_SMALL: f"{_IN_MEMORY}; batches of 1,000, the default of its file and Kafka inputs",
    FLINK_SQL: f"{_IN_MEMORY}; no Python for an event",
    FLINK_PYTHON: f"{_IN_MEMORY}; Python for every event",
}
"""What each one does for its figure."""

KEYS = 1_000
"""Bytewax is much slower with more of them, Spark is not."""

PER_MS = 10
"""Events in a millisecond of event time: a minute has 600,000."""

LARGE_BATCH, SMALL_BATCH = 100_000, 1_000
"""Events that Bytewax's source returns at once: what it is fastest with, and the default of its files and Kafka."""

CORE_S_EVENTS = 10_000_000
"""Processor time is given for this many events, however many a run has."""

PROGRAMS = Path(__file__).parent / "contenders"

ENVIRONMENTS = Path(sys.prefix).parent / ".bench"
"""Where `script/bench --contenders` makes them: their requirements contradict ours."""

RUN_SECONDS_MAX = 600.0
"""More than any of them needs, on a machine that is busy with other things."""

STDERR_CHARACTERS_MAX = 2_000
"""How much of a failed program's standard error is shown."""


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
    other_shard: remote.Effort
    total_s_max: float
    """All rounds together: when the time is up, no further round is started."""


QUICK = Effort(2, 3_000_000, 50_000, 500_000, 100_000, 5_000_000, 200_000, remote.Effort(2, 200_000, 60), 180)
FULL = Effort(5, 10_000_000, 50_000, 2_000_000, 300_000, 20_000_000, 500_000, remote.QUICK, 1200)


def run(
    effort: Effort,
    directory: Path | None = None,
    console: Console | None = None,
    bytewax_python: Path | None = None,
    flink_python: Path | None = None,
) -> PipelineReport:
    """Other processors are left out where they are not installed."""
    others, skipped = find_others(effort, {BYTEWAX: bytewax_python, FLINK: flink_python})
    with bench_session(directory) as (spark, base):
        return measure(spark, effort, base, others, skipped, console)


def measure(
    spark: SparkSession,
    effort: Effort,
    base: Path,
    others: Sequence[Other],
    skipped: Mapping[str, str],
    console: Console | None = None,
) -> PipelineReport:
    """The same in an existing session."""
    with ExitStack() as stack:
        steps = 2 + effort.rounds * (1 + len(others)) + 2 * (1 + effort.other_shard.rounds)
        note = stack.enter_context(progress(console, steps))
        stage = stack.enter_context(open_stage(spark, base))
        program: Worker[Sent] = Worker()
        stack.callback(program.stop)
        ours = Ours(stage, program, effort)
        note("warming up")
        ours.count()
        deadline = time.monotonic() + effort.total_s_max
        contenders: list[Counting] = [ours, *others]
        found = interleave(contenders, effort.rounds, lambda contender: contender.count(), note, deadline)
        found_settings, peak_rss_mb = settings(effort, stage), stage.peak_rss_mb()
        (base / "remote").mkdir()
        beside = remote.compare(effort.other_shard, spark, base / "remote", note)
        return PipelineReport(found, skipped, peak_rss_mb, found_settings, beside)


def settings(effort: Effort, stage: Stage) -> dict[str, object]:
    return {
        "event_bytes": EVENT_BYTES,
        "events": effort.events,
        "keys": KEYS,
        "events_per_minute": PER_MS * 60_000,
        "remote_events": effort.other_shard.events,
        **stage.settings(),
    }


class Counting(Protocol):
    """A contender. `count` raises BenchmarkFailed for a wrong count."""

    @property
    def name(self) -> str: ...

    def count(self) -> Counted: ...


@dataclass(frozen=True, slots=True)
class Ours:
    stage: Stage
    program: Worker[Sent]
    effort: Effort
    name: str = OURS

    def count(self) -> Counted:
        events = Events(self.effort.events + self.effort.warm, KEYS, PER_MS)
        return Trial(self.stage, self.program, events, self.effort.warm, self.stage.unique("count")).run()


# Other stream processors: each a program of its own, run by an interpreter that has it.


@dataclass(frozen=True, slots=True)
class Package:
    """What an interpreter must have."""

    name: str
    module: str
    requirement: str

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def install(self) -> str:
        make = f"python3 -m venv {self.environment}"
        return f"script/bench --contenders, or: {make} && {self.environment}/bin/pip install {self.requirement}"


BYTEWAX = Package("bytewax", "bytewax", "bytewax==0.21.1")
FLINK = Package("flink", "pyflink", "apache-flink==2.1.0")
"""The versions are those that `script/bench` installs."""


def find_python(package: Package, given: Path | None) -> Path | None:
    """The interpreter that is given, this one, or that of the environment beside ours: the first that has it. Raises
    BenchmarkFailed if the one that is given has not.
    """
    if given is not None:
        if not _imports(given, package.module):
            raise BenchmarkFailed(f"{given} cannot import {package.module}", package.install)
        return given
    if find_spec(package.module) is not None:
        return Path(sys.executable)
    python = package.environment / "bin" / "python"
    return python if python.exists() and _imports(python, package.module) else None


def _imports(python: Path, module: str) -> bool:
    try:
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Peer:
    """`events` are as many as it needs some seconds for; a rate is a rate."""

    name: str
    package: Package
    program: str
    events: Events
    arguments: tuple[int, ...] = ()

    def count(self, python: Path) -> Counted:
        """Raises BenchmarkFailed if it counts something else than we do."""
        numbers = (self.events.count, self.events.keys, self.events.per_ms, *self.arguments)
        command = [str(python), str(PROGRAMS / self.program), *map(str, numbers)]
        found = _run(command)
        wanted = expected(self.events)
        if any(found[name] != value for name, value in wanted.items()):
            raise BenchmarkFailed(f"{self.name} has counted {found}, and not {wanted}")
        return Counted(self.events.count, float(found["seconds"]), {})


def _run(command: list[str]) -> Mapping[str, float]:
    """What it prints on its last line. Flink starts more Pythons: the first one on its PATH must be its own."""
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = os.environ | {"PATH": path}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"{' '.join(command)} did not end in {RUN_SECONDS_MAX:.0f} s") from None
    try:
        found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        errors = ended.stderr[-STDERR_CHARACTERS_MAX:]
        raise BenchmarkFailed(f"{' '.join(command)} has failed:\n{errors}", "Run that command by hand.") from None
    return found


@cache
def expected(events: Events) -> dict[str, int]:
    """Of the right counts: how many, their sum, and the sum of their squares, which wrong groups do not have."""
    counts = events.counts()
    return {"results": int((counts > 0).sum()), "counted": int(counts.sum()), "squares": int((counts**2).sum())}


@dataclass(frozen=True, slots=True)
class Other:
    peer: Peer
    python: Path

    @property
    def name(self) -> str:
        return self.peer.name

    def count(self) -> Counted:
        return self.peer.count(self.python)


def find_others(
    effort: Effort, given: Mapping[Package, Path | None] | None = None
) -> tuple[list[Other], dict[str, str]]:
    """Those that can run, in the order of a round, and how to install the rest."""
    pythons = {package: find_python(package, (given or {}).get(package)) for package in (BYTEWAX, FLINK)}
    found: list[Other] = []
    skipped: dict[str, str] = {}
    for peer in peers(effort):
        python = pythons[peer.package]
        if python is None:
            skipped[peer.name] = peer.package.install
        else:
            found.append(Other(peer, python))
    return found, skipped


def peers(effort: Effort) -> list[Peer]:
    def events(count: int) -> Events:
        return Events(count, KEYS, PER_MS)

    return [
        Peer(BYTEWAX.name, BYTEWAX, "count_bytewax.py", events(effort.bytewax), (LARGE_BATCH,)),
        Peer(BYTEWAX_SMALL, BYTEWAX, "count_bytewax.py", events(effort.bytewax_small), (SMALL_BATCH,)),
        Peer(FLINK_SQL, FLINK, "count_flink_sql.py", events(effort.flink_sql)),
        Peer(FLINK_PYTHON, FLINK, "count_flink_python.py", events(effort.flink_python)),
    ]


@dataclass(frozen=True, slots=True)
class PipelineReport(Report):
    """`results` has every contender's rounds, in the same order for all."""

    results: Mapping[str, Sequence[Counted]]
    skipped: Mapping[str, str]
    """How to install each peer that was not found."""
    peak_rss_mb: Mapping[str, float]
    """Of our processes."""
    settings: Mapping[str, object]
    other_shard: Mapping[str, Sequence[remote.Spent]]
    """A source of another shard beside one of the pipeline's own."""
    benchmark = "pipeline"
    goals = GOALS
    at_most = remote.RemoteReport.at_most

    def round_ratios(self) -> dict[str, list[float]]:
        """Our events/s ÷ theirs in each round, by name; and what a remote source takes ÷ what a local one does."""
        rates = {name: [counted.events_per_s for counted in rounds] for name, rounds in self.results.items()}
        found = {name: ratios(rates[OURS], theirs) for name, theirs in rates.items() if name != OURS}
        return found | self._beside().round_ratios()

    def _beside(self) -> remote.RemoteReport:
        return remote.RemoteReport(self.other_shard, self.settings)

    def rounds(self) -> int:
        return len(self.results[OURS])

    def stages_s(self) -> dict[str, float]:
        """Where the time of one of our runs goes: medians over the rounds."""
        rounds = self.results[OURS]
        return {stage: median(counted.stages_s[stage] for counted in rounds) for stage in rounds[0].stages_s}

    def core_s(self) -> dict[str, float]:
        """Our processor time for 10 million events, by process: medians over the rounds."""
        rounds = self.results[OURS]
        return {
            process: median(counted.core_s[process] * CORE_S_EVENTS / counted.events for counted in rounds)
            for process in rounds[0].core_s
        }

    def details(self) -> dict[str, object]:
        return {
            "contenders": {name: summary(rounds) for name, rounds in self.results.items()},
            "guarantees": {name: GUARANTEES[name] for name in self.results},
            "stages_s": {stage: round(value, 3) for stage, value in self.stages_s().items()},
            "core_s_per_10m_events": {process: round(value, 2) for process, value in self.core_s().items()},
            "peak_rss_mb": dict(self.peak_rss_mb),
            "skipped": dict(self.skipped),
            "remote": self._beside().details(),
        }

    def tables(self) -> Iterable[Table]:
        return self._contenders(), self._stages(), self._cores(), *self._beside().tables()

    def notes(self) -> Iterable[str]:
        guarantees = [f"{name}: {GUARANTEES[name]}." for name in self.results]
        return [*guarantees, memory_note(self.peak_rss_mb), *skipped_notes(self.skipped)]

    def _contenders(self) -> Table:
        columns = ("contender", "events", "seconds", "events/s", "ours ÷ theirs", "goal")
        table = figures("script/bench pipeline: count per key and minute", *columns)
        for name, rounds in self.results.items():
            facts = summary(rounds)
            cells = (f"{facts['events']:,}", f"{facts['seconds']:.2f}", f"{facts['events_per_s']:,}")
            table.add_row(name, *cells, self.ratio_cell(name), self.goal_cell(name))
        return table

    def _stages(self) -> Table:
        """Ingest and Spark run at the same time, so that their seconds add up to more than the clock's."""
        stages = self.stages_s()
        table = figures("where the time of a run goes, in seconds (ingest and Spark overlap)", *stages)
        table.add_row(*(f"{value:.2f}" for value in stages.values()))
        return table

    def _cores(self) -> Table:
        used = self.core_s()
        table = figures("our core seconds for 10 million events, by process", "all", *used)
        table.add_row(*(f"{value:.2f}" for value in (sum(used.values()), *used.values())))
        return table


def summary(rounds: Sequence[Counted]) -> dict[str, object]:
    return {
        "rounds": len(rounds),
        "events": rounds[0].events,
        "seconds": round(median(counted.seconds for counted in rounds), 3),
        "events_per_s": round(median(counted.events_per_s for counted in rounds)),
        "events_per_s_rounds": [round(counted.events_per_s) for counted in rounds],
    }
