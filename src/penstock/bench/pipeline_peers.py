"""Other stream processors doing the same count: each a program of its own, run by an interpreter that has it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from penstock.bench.contender import BenchmarkFailed
from penstock.bench.pipeline_events import Events
from penstock.bench.pipeline_flow import Counted

PROGRAMS = Path(__file__).parent / "contenders"

ENVIRONMENTS = Path(sys.prefix).parent / ".bench"
"""Where `script/bench --contenders` makes them: their requirements contradict ours."""

RUN_SECONDS_MAX = 600.0
"""More than any of them needs, on a machine that is busy with other things."""

TOLD_CHARACTERS_MAX = 2_000
"""Of what a program says when it fails."""


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
        told = _run(command)
        wanted = figures(self.events)
        if any(told[name] != value for name, value in wanted.items()):
            raise BenchmarkFailed(f"{self.name} has counted {told}, and not {wanted}")
        return Counted(self.events.count, float(told["seconds"]), {})


def _run(command: list[str]) -> Mapping[str, float]:
    """What it says on its last line. Flink starts more Pythons: the first one on its PATH must be its own."""
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
        words = ended.stderr[-TOLD_CHARACTERS_MAX:]
        raise BenchmarkFailed(f"{' '.join(command)} has failed:\n{words}", "Run that command by hand.") from None
    return found


@cache
def figures(events: Events) -> dict[str, int]:
    """Of the right counts: how many, their sum, and the sum of their squares, which wrong groups do not have."""
    counts = events.counts()
    return {"results": int((counts > 0).sum()), "counted": int(counts.sum()), "squares": int((counts**2).sum())}
