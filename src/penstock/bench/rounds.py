"""Rounds: every contender in turn, again and again, so that noise hits all of them alike."""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

from penstock.bench.contender import BenchmarkFailed, Contender
from penstock.bench.process import filesystem

IN_MEMORY = {"tmpfs", "ramfs"}


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

    Every second round runs backwards, so that nobody always comes after the same one and inherits
    what it left behind: warm memory, or a disk that has used up its burst. `note` is told before
    each measurement. A round that might not end before `deadline` (on the monotonic clock) is not
    begun, unless it is the first: on a busy machine there are fewer rounds.
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


def split_missing(contenders: Sequence[Contender]) -> tuple[list[Contender], dict[str, str]]:
    """Those that can run, and the command that installs each of the others."""
    present = [contender for contender in contenders if contender.installed()]
    missing = {c.name: c.install for c in contenders if not c.installed()}
    return present, missing


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A directory for one contender in one round. It is gone afterwards, durably: the disk is
    done with the removal before the next contender starts.
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
    """Where all contenders keep their data: below `given`, or below the current directory. Removed
    at the end, also after Ctrl-C or when the benchmark is told to terminate.
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
    """Have `timeout` and a closed terminal clean up, too."""
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
