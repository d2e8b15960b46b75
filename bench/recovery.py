"""`script/bench recovery`: from the kill of a driver to the next epoch that its successor commits, phase by phase; of a
pipeline with windows and of one without, with the class archive and without (or by another version of Penstock);
beside a bare Spark session with one empty batch.

A worker runs all the time. In each round a driver is started, and killed once it has committed an epoch. CPU time is
that of the driver and everything that it has started: it depends less than the elapsed time on what else runs.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Protocol

from rich.console import Console
from rich.table import Table

from bench import bare_session, recovery_pipelines
from bench.contenders.ingest import Ingest
from bench.harness import (
    BenchmarkFailed,
    Report,
    base_directory,
    figures,
    interleave,
    progress,
    ratios,
    surroundings,
)
from bench.processes import Server, cpu_seconds_of_tree
from penstock.cli import class_archive
from penstock.client import Message, Source
from penstock.spark.run.class_archive import OFF, SWITCH, find_archive
from penstock.spark.run.java import check_installed, use_java

PIPELINES = ("plain", "windowed")

PHASES = {
    "Python": "starting Spark",
    "JVM": "Spark's JVM runs",
    "session": "Spark's session is ready",
    "plan": "is planned",
    "query start": "its query runs",
    "first epoch": "its first epoch since the start",
}
"""Each with what is in the line that the run logs at its end."""

BARE_PHASES = {"session": bare_session.STARTED, "first epoch": bare_session.COMMITTED}

BARE = "bare"
WITHOUT = "without archive"
BEFORE = "before"
GOAL = 0.5

SILENCE_SECONDS_MAX = 600.0
"""A driver without an epoch after so long hangs, however busy the machine is."""

LINES_SHOWN = 20
"""Of a driver that has failed."""

MESSAGES = 1_000
"""Before each start: something for its first epoch. They are one minute further each time, so windows close."""


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    total_s_max: float
    """All rounds together: when the time is up, no further round is started."""


QUICK = Effort(rounds=2, total_s_max=600)
FULL = Effort(rounds=7, total_s_max=3600)


def run(
    effort: Effort,
    directory: Path | None = None,
    console: Console | None = None,
    before_python: Path | None = None,
    pipelines: Sequence[str] = PIPELINES,
) -> RecoveryReport:
    """`before_python`: of an environment with another version of Penstock, to compare with."""
    check_installed()
    use_java()
    archive = find_archive()
    if archive is not None and archive.is_missing:
        subprocess.run([sys.executable, "-m", class_archive.__name__], check=False)
    if archive is None or not archive.is_usable:
        raise BenchmarkFailed("there is no class archive", f"Unset {SWITCH}, or see docs/operating.md.")
    with base_directory(directory) as base, Ingest(1, 1).start(base) as server:
        place = Place(server, base)
        starts = contenders(place, before_python, pipelines)
        with progress(console, len(pipelines) + len(starts) * effort.rounds) as note:
            for name in pipelines:
                note(f"first start: {name}")
                Recovery(name, place, name).measure()  # there is no checkpoint to recover from yet
            deadline = time.monotonic() + effort.total_s_max
            found = interleave(starts, effort.rounds, lambda one: one.measure(), note, deadline)
    return RecoveryReport(found, surroundings(Path.cwd()) | {"pyspark": version("pyspark")})


def contenders(place: Place, before_python: Path | None, pipelines: Sequence[str] = PIPELINES) -> list[Start]:
    starts: list[Start] = [BareStart(place.directory)]
    for name in pipelines:
        starts.append(Recovery(name, place, name))
        if before_python is None:
            starts.append(Recovery(f"{name} {WITHOUT}", place, name, environment={SWITCH: OFF}))
        else:
            starts.append(Recovery(f"{name} {BEFORE}", place, name, python=before_python))
    return starts


# What is measured: processes that log when each phase has ended.


@dataclass(frozen=True, slots=True)
class Spent:
    """On one phase."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    phases: Mapping[str, Spent]
    stages_ms: Mapping[str, int]
    """Of the first epoch, as Spark reports them; `state load` is the sum over all tasks."""

    @property
    def total(self) -> Spent:
        spent = self.phases.values()
        return Spent(sum(one.cpu_s for one in spent), sum(one.wall_s for one in spent))


class Start(Protocol):
    @property
    def name(self) -> str: ...

    def measure(self) -> Measured: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A worker, and a directory for checkpoints."""

    server: Server
    directory: Path
    _turns: Counter[str] = field(default_factory=Counter)

    @property
    def worker(self) -> str:
        return f"127.0.0.1:{self.server.ports['http']}"

    def send(self, pipeline: str) -> threading.Thread:
        """In the background: what is sent is acknowledged when the pipeline has committed it."""
        self._turns[pipeline] += 1
        turn = self._turns[pipeline]

        def messages(after: int | None) -> Iterator[Message]:
            for number in range((after or 0) + 1, turn * MESSAGES + 1):
                time_ms = turn * 60_000 + number % MESSAGES
                yield Message(number, b"what happened", time_ms, b"key %d" % (number % 100))

        source = Source(f"127.0.0.1:{self.server.ports['connector']}", source=f"events_of_{pipeline}")
        source.stream("one", messages)
        thread = threading.Thread(target=source.run, name=f"events of {pipeline}", daemon=True)
        thread.start()
        return thread


@dataclass(frozen=True, slots=True)
class Recovery:
    """`penstock run` of one pipeline, from its start after a kill of its predecessor to its first epoch."""

    name: str
    place: Place
    pipeline: str
    environment: Mapping[str, str] = field(default_factory=dict)
    python: Path = Path(sys.executable)

    def measure(self) -> Measured:
        command: list[str | Path] = [self.python, "-m", "penstock", "run", recovery_pipelines.__file__]
        command += ["--pipeline", self.pipeline, "--worker", self.place.worker]
        command += ["--checkpoint", self.place.directory / "checkpoints"]
        with _started(command, self.environment) as process:
            sending = self.place.send(self.pipeline)
            measured = _phases(process, PHASES)
            sending.join(SILENCE_SECONDS_MAX)
        return measured


@dataclass(frozen=True, slots=True)
class BareStart:
    directory: Path
    name: str = BARE

    def measure(self) -> Measured:
        folder = self.directory / "bare"
        shutil.rmtree(folder, ignore_errors=True)
        with _started([sys.executable, "-m", bare_session.__name__, folder], {}) as process:
            return _phases(process, BARE_PHASES)


@contextmanager
def _started(command: Sequence[str | Path], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end, as by a crash. Its JVM ends by itself then; the next start does not wait for that."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _phases(process: subprocess.Popen[str], ends: Mapping[str, str]) -> Measured:
    """Raises BenchmarkFailed if it ends before the last phase does, or hangs: then it is killed."""
    marks = [(0.0, time.monotonic())]
    waiting, lines = list(ends.items()), deque[str](maxlen=LINES_SHOWN)
    with _killed_after(process, SILENCE_SECONDS_MAX):
        for line in process.stdout or ():
            lines.append(line)
            if waiting[0][1] in line:
                marks.append((cpu_seconds_of_tree(process.pid), time.monotonic()))
                waiting.pop(0)
            if not waiting:
                spent = [Spent(cpu - cpu_before, now - before) for (cpu_before, before), (cpu, now) in pairwise(marks)]
                return Measured(dict(zip(ends, spent, strict=True)), stages_ms(line))
    raise BenchmarkFailed(f"it ended before {waiting[0][0]} was over:\n{''.join(lines)}")


@contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def stages_ms(line: str) -> dict[str, int]:
    """What the run logs about the first epoch: "… is committed: addBatch 12 ms, state load 3 ms"."""
    stages = line.partition("is committed: ")[2]
    return {name: int(number) for name, number in re.findall(r"(\w[\w ]*?) (\d+) ms", stages)}


# What was found.

CPU: Callable[[Spent], float] = operator.attrgetter("cpu_s")
WALL: Callable[[Spent], float] = operator.attrgetter("wall_s")


class RecoveryReport(Report):
    benchmark = "recovery"
    goals: Mapping[str, float] = {f"{name} ÷ {name} {BEFORE}": GOAL for name in PIPELINES}
    at_most = tuple(goals)

    def __init__(self, results: Mapping[str, Sequence[Measured]], settings: Mapping[str, object]) -> None:
        self.results = results
        self.settings = settings

    def rounds(self) -> int:
        return len(self.results[BARE])

    def round_ratios(self) -> dict[str, list[float]]:
        """Of CPU seconds, in total."""
        pairs = [(name, other) for name in PIPELINES for other in (BARE, f"{name} {WITHOUT}", f"{name} {BEFORE}")]
        return {
            f"{ours} ÷ {theirs}": ratios(self._cpu_s(ours), self._cpu_s(theirs))
            for ours, theirs in pairs
            if ours in self.results and theirs in self.results
        }

    def _cpu_s(self, name: str) -> list[float]:
        return [one.total.cpu_s for one in self.results[name]]

    def details(self) -> dict[str, object]:
        return {
            "cpu_s": {name: self._medians(name, CPU) for name in self.results},
            "wall_s": {name: self._medians(name, WALL) for name in self.results},
            "first_epoch_ms": {name: self._stages_ms(name) for name in self.results if name != BARE},
            "rounds": self.rounds(),
        }

    def _medians(self, name: str, of: Callable[[Spent], float]) -> dict[str, float]:
        rounds = [{**one.phases, "total": one.total} for one in self.results[name]]
        return {phase: round(median(of(one[phase]) for one in rounds), 2) for phase in rounds[0]}

    def _stages_ms(self, name: str) -> dict[str, float]:
        rounds = [one.stages_ms for one in self.results[name]]
        return {stage: median(one.get(stage, 0) for one in rounds) for stage in rounds[0]}

    def tables(self) -> Iterable[Table]:
        yield self._table("CPU seconds", CPU)
        yield self._table("elapsed seconds", WALL)
        yield self.ratio_table("CPU seconds in total")

    def _table(self, title: str, of: Callable[[Spent], float]) -> Table:
        table = figures(f"From the start to the first epoch: {title}", "", *PHASES, "total")
        for name in self.results:
            found = self._medians(name, of)
            table.add_row(name, *(f"{found[one]:.2f}" if one in found else "" for one in (*PHASES, "total")))
        return table

    def notes(self) -> Iterable[str]:
        for name in self.results:
            if stages := self._stages_ms(name):
                yield f"First epoch of {name}: {', '.join(f'{key} {value:.0f} ms' for key, value in stages.items())}."
