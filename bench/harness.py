"""What all benchmarks share: rounds that take turns, ratios with goals, and reports as tables or as JSON.

A benchmark is a module with `QUICK` and `FULL` (how much effort), and `run(effort, directory, console) -> Report`.
Figures are compared within one run only: every contender runs in every round, and a ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bench.processes import filesystem
from penstock.core.errors import PenstockError

MEGABYTE = 1_000_000
IN_MEMORY = {"tmpfs", "ramfs"}


class BenchmarkFailed(PenstockError):
    """A contender did not do what it must for its figures to mean anything."""

    hint = "Run it again: the figures of a failed run are worthless."


# Rounds


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)
M = TypeVar("M")


def interleave(
    contenders: Sequence[C],
    rounds: int,
    measure: Callable[[C], M],
    note: Callable[[str], None],
    deadline: float = inf,
) -> dict[str, list[M]]:
    """A B C, C B A, A B C ...: measurements by contender, in the order of the rounds.

    Every second round runs backwards, so that nobody always runs after the same contender and inherits what it left
    behind: warm memory, or a disk that has used up its burst. `note` is called before each measurement. A round that
    might not end before `deadline` (on the monotonic clock) is not started, unless it is the first: on a busy machine
    there are fewer rounds.
    """
    results: dict[str, list[M]] = {contender.name: [] for contender in contenders}
    longest_s = 0.0
    for number in range(rounds):
        began = time.monotonic()
        if number and began + longest_s > deadline:
            break
        for contender in contenders[:: -1 if number % 2 else 1]:
            note(f"round {number + 1} of {rounds}: {contender.name}")
            results[contender.name].append(measure(contender))
        longest_s = max(longest_s, time.monotonic() - began)
    return results


def interleave_warm(
    contenders: Sequence[C], rounds: int, measure: Callable[[C], M], note: Callable[[str], None], total_s_max: float
) -> dict[str, list[M]]:
    """The same with one more round at the start, which warms up Spark and does not count if there was a second."""
    found = interleave(contenders, rounds + 1, measure, note, time.monotonic() + total_s_max)
    return {name: measured[1:] or measured for name, measured in found.items()}


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A temporary directory. It is removed durably: the disk is done with the removal before the next contender
    starts.
    """
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        fd = os.open(parent, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


@contextmanager
def base_directory(given: Path | None) -> Iterator[Path]:
    """Where all contenders keep their data: below `given`, or below the current directory. Removed at the end, also
    after Ctrl-C, SIGTERM and SIGHUP.
    """
    parent = given if given is not None else Path.cwd()
    kind = filesystem(parent)
    if kind in IN_MEMORY:
        hint = "Choose a directory on a disk: --directory DIR"
        raise BenchmarkFailed(f"{parent} is in memory ({kind}), where fsync means nothing", hint)
    with _exit_on_signals(), workspace(parent) as directory:
        yield directory


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """So that `timeout` and a closed terminal clean up, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise SystemExit(128 + number)


def surroundings(directory: Path) -> dict[str, object]:
    """The machine: no figure means anything without it. The load is that of the last minute, ours included."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "filesystem": filesystem(directory),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


# Statistics


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours ÷ theirs, round by round: each compares what ran seconds apart. Their median is the result; their spread is
    how far it can be trusted.
    """
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def missed(ratios: Mapping[str, float], goals: Mapping[str, float], at_most: Collection[str] = ()) -> dict[str, float]:
    """The ratios that are short of their goals, or above them where the goal is an upper limit (`at_most`)."""
    return {
        name: ratios[name]
        for name, goal in goals.items()
        if name in ratios and (ratios[name] > goal if name in at_most else ratios[name] < goal)
    }


# Reports


class Report(ABC):
    """What a benchmark found. Subclasses hold the results of all rounds and say what the ratios are."""

    __slots__ = ()

    benchmark: str
    goals: Mapping[str, float]
    at_most: Collection[str] = ()
    """Names of the goals that are upper limits."""
    settings: Mapping[str, object]

    @abstractmethod
    def round_ratios(self) -> dict[str, list[float]]:
        """The ratios by name, one for each round."""

    @abstractmethod
    def rounds(self) -> int:
        """How many rounds were measured."""

    @abstractmethod
    def details(self) -> dict[str, object]:
        """What the JSON object contains besides the ratios and the settings."""

    @abstractmethod
    def tables(self) -> Iterable[Table]: ...

    def notes(self) -> Iterable[str]:
        """Lines below the tables."""
        return ()

    def ratios(self) -> dict[str, float]:
        """The medians of the rounds' ratios, which are compared with the goals."""
        return {name: median(values) for name, values in self.round_ratios().items()}

    def missed(self) -> dict[str, float]:
        """The goals that were not reached, with the ratios that missed them."""
        return missed(self.ratios(), self.goals, self.at_most)

    def to_json(self) -> str:
        """One object on one line."""
        found = {
            "benchmark": self.benchmark,
            "ratios": _rounded(self.ratios()),
            "ratio_rounds": {name: [round(v, 3) for v in values] for name, values in self.round_ratios().items()},
            "goals": dict(self.goals),
            "at_most": list(self.at_most),
            "missed": _rounded(self.missed()),
            **self.details(),
            "settings": dict(self.settings),
        }
        return json.dumps(found)

    def to_markdown(self) -> str:
        """The tables, for a page of the documentation."""
        return "\n".join([*map(markdown, self.tables()), *self.notes(), self._settings_line()])

    def print(self, console: Console) -> None:
        for table in self.tables():
            console.print(table)
        for note in self.notes():
            console.print(note)
        console.print(self._settings_line())

    def _settings_line(self) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return f"Medians of {self.rounds()} rounds; in brackets the lowest and highest of a round. {settings}"

    def ratio_cell(self, name: str) -> str:
        """The median and the spread of a ratio, red if its goal was missed; empty if there is no such ratio."""
        values = self.round_ratios().get(name)
        return spread_cell(values, is_missed=name in self.missed()) if values else ""

    def goal_cell(self, name: str) -> str:
        return goal_cell(name, self.goals, self.at_most)

    def ratio_table(self, title: str, meanings: Mapping[str, str] | None = None) -> Table:
        table = figures(title, "", "ratio", "goal")
        for name in self.round_ratios():
            label = f"{name}: {meanings[name]}" if meanings else name
            table.add_row(label, self.ratio_cell(name), self.goal_cell(name))
        return table


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def goal_cell(name: str, goals: Mapping[str, float], at_most: Collection[str] = ()) -> str:
    """Empty where there is no goal."""
    if name not in goals:
        return ""
    return f"{'≤' if name in at_most else '≥'} {goals[name]:g}"


def spread_cell(values: Collection[float], *, is_missed: bool) -> str:
    """The median, and the lowest and highest of the rounds."""
    colour = "red" if is_missed else "green"
    return f"[{colour}]{median(values):.2f}[/] ({min(values):.2f}–{max(values):.2f})"


def figures(title: str, *columns: str) -> Table:
    """A table whose first column has names, and the others numbers."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def markdown(table: Table) -> str:
    """With its title above it."""
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    header, *rows = ([Text.from_markup(cell).plain for cell in row] for row in zip(*columns, strict=True))
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"{table.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def memory_note(peak_rss_mb: Mapping[str, float]) -> str:
    memory = ", ".join(f"{name} {value:,.0f}" for name, value in peak_rss_mb.items())
    return f"Peak RSS in MB: {memory}."


def skipped_notes(skipped: Mapping[str, str]) -> list[str]:
    """`skipped`: how to install each contender that was not found."""
    return [f"{name} was skipped, it is not installed: {command}" for name, command in skipped.items()]


@contextmanager
def progress(console: Console | None, steps: int) -> Iterator[Callable[[str], None]]:
    """A bar that moves on with every note; nothing without a console."""
    if console is None:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=steps)
        started = False

        def note(text: str) -> None:
            nonlocal started
            bar.update(task, description=text, advance=int(started))
            started = True

        yield note
