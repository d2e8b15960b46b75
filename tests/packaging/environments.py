"""Clean environments without a network: each has only what some requirements need, taken from the tests' own one."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

OURS = canonicalize_name("penstock-streams")

SECONDS_MAX = 250
"""For one command, on a machine that does other things too."""


class Environment:
    """A virtual environment with the distributions that `requirements` lead to, by their metadata; of Penstock only
    what it requires: it must be installed there.
    """

    def __init__(self, folder: Path, *requirements: str) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self._site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        self.link(*requirements)

    def link(self, *requirements: str) -> None:
        for found in _closure(map(Requirement, requirements)):
            self._link(found)

    def _link(self, found: Distribution) -> None:
        """Its files in site-packages; commands of it are not needed."""
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            source, target = Path(str(found.locate_file(top))), self._site / top
            if source.exists() and not target.exists():
                target.symlink_to(source)

    def pip(self, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """The tests' own pip, working in this environment. Nothing is downloaded."""
        python = str(self.folder / "bin" / "python")
        return _run([sys.executable, "-m", "pip", "--python", python, *arguments], cwd, {"PIP_NO_INDEX": "1"})

    def run(self, command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return _run([str(self.folder / "bin" / command), *arguments], cwd)


def _run(command: list[str], cwd: Path = ROOT, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Without what would let another Penstock, or other packages, be found."""
    inherited = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST_", "PIP_", "PENSTOCK"))
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=inherited | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | (more or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done


def build_sdist(folder: Path) -> Path:
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(folder: Path, sdist: Path) -> Path:
    """From the sdist, as an installer that finds no wheel does: what the wheel needs must be in it."""
    _run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sdist)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _closure(requirements: Iterator[Requirement]) -> Iterator[Distribution]:
    """All that is required, directly or not, but for Penstock itself."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [*requirements]
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        found = _distribution(wanted.name)
        if found is not None:
            waiting += _required(found, wanted.extras)
            if key[0] != OURS:
                yield found


def _required(found: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, found.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _distribution(name: str) -> Distribution | None:
    """None for what is not installed: then the command that needs it fails."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
