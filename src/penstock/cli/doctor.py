"""`penstock doctor`: whether this machine has what Penstock needs, and what to do where it does not."""

import json
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Annotated, Literal

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from penstock import __version__
from penstock.cli.connect import WorkerOption, local_worker, worker_status
from penstock.cli.embedded_worker import DEFAULT_PORTS
from penstock.client.credentials import DEFAULT_WORKER, OWN_DATA, LocalWorker, default_worker, ports_file
from penstock.core.counts import show_count
from penstock.core.errors import PenstockError
from penstock.core.platforms import limitations, sync_data
from penstock.core.sizes import show_size

Level = Literal["ok", "note", "warning", "error"]

_PACKAGE = "penstock-streams"
_SPARK = "pyspark"
_FREE_MIN = 1 << 30
"""Below this much free disk a worker soon refuses appends: chapters have 64 MiB each, and compaction needs room."""
_MEMORY_MIN = 2 << 30
"""Spark's driver alone takes 1 GiB."""
_FILES_MIN = 4096
"""A worker opens a file for each segment that is used, and a socket for each connection."""
_SKEW_SECONDS_MAX = 2.0
_EARLIEST = 1_767_225_600
"""2026: a clock before it was never set."""
_NOT_NEEDED = {"bench", "dev", "java", "notebook"}
"""Extras that no command suggests to install."""

_STYLES: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "dim"),
    "warning": ("!", "yellow"),
    "error": ("✗", "bold red"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    text: str
    hint: str = ""


Check = Callable[[], Iterator[Finding]]


def register(commands: typer.Typer) -> None:
    commands.command("doctor")(doctor)


def doctor(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The data directory that a worker uses, or will use.")
    ] = OWN_DATA,
    worker: WorkerOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Check Java, Spark, disk, ports, clock, versions and access, and say what to do.

    It changes nothing, and exits with 1 if something will not work.
    """
    checks: list[tuple[str, Check]] = [
        ("versions", python),
        ("Java", java),
        ("Spark", spark),
        ("extras", extras),
        ("disk", lambda: disk(data)),
        ("limits", limits),
        ("clock", lambda: clock(data)),
        ("ports", lambda: ports(data)),
        ("worker", lambda: access(worker, data)),
    ]
    found = [finding for about, check in checks for finding in _findings(about, check)]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
    else:
        _print(found)
    if any(one.level == "error" for one in found):
        raise typer.Exit(1)


def _findings(about: str, check: Check) -> Iterator[Finding]:
    """One check that the system does not permit does not hide what the others find."""
    try:
        yield from check()
    except OSError as error:
        hint = "Run penstock doctor as the user that runs the worker."
        yield Finding("error", about, f"{error.filename or 'this machine'}: {error.strerror or error}", hint)


def _print(found: list[Finding]) -> None:
    console = Console(highlight=False)
    width = max(len(one.about) for one in found)
    for one in found:
        sign, style = _STYLES[one.level]
        console.print(Text.assemble((f"{sign} ", style), f"{one.about:{width}}  ", one.text), soft_wrap=True)
        if one.hint:
            console.print(Text(f"  {'':{width}}  {one.hint}", "dim"), soft_wrap=True)
    errors = sum(one.level == "error" for one in found)
    warnings = sum(one.level == "warning" for one in found)
    console.print()
    if errors or warnings:
        console.print(f"{show_count(errors, 'problem')}, {show_count(warnings, 'warning')}")
    else:
        console.print("Everything is in order.")


# The machine.


def python() -> Iterator[Finding]:
    text = f"Penstock {__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform == "linux":
        yield Finding("ok", "versions", text)
    else:
        hint = "The tests run on Linux: see docs/operating.md for what differs elsewhere."
        yield Finding("warning", "versions", text, hint)
    for text in limitations():
        yield Finding("warning", "", text)


def java() -> Iterator[Finding]:
    from penstock.spark.run.java import find_java

    try:
        found = find_java()
    except PenstockError as error:
        if _is_installed(_SPARK):
            yield Finding("error", "Java", str(error), error.hint)
        else:
            yield Finding("note", "Java", f"{error}; nothing else needs it")
    else:
        yield Finding("ok", "Java", f"{found.version}" + (f", in {found.home}" if found.home else ", on PATH"))


def spark() -> Iterator[Finding]:
    """The packages of the extra `spark`, in the versions that it asks for. Programs that send and receive work without
    it.
    """
    install = f"pip install '{_PACKAGE}[spark]'"
    if not _is_installed(_SPARK):
        hint = f"Sending and receiving events does not need it. To run pipelines here: {install}"
        yield Finding("note", "Spark", f"{_SPARK} is not installed", hint)
        return
    problems, shown = [], []
    for need in _needs("spark"):
        try:
            have = version(need.name)
        except PackageNotFoundError:
            problems.append(f"{need.name} is not installed")
            continue
        shown.append(f"{need.name} {have}")
        if not need.specifier.contains(have, prereleases=True):
            problems.append(f"{need.name} {have} is installed, but {need.specifier} is needed")
    if problems:
        yield Finding("error", "Spark", "; ".join(problems), f"Install what pipelines need: {install}")
    else:
        yield Finding("ok", "Spark", ", ".join(shown))


def extras() -> Iterator[Finding]:
    names = sorted({*distribution(_PACKAGE).metadata.get_all("Provides-Extra", [])} - _NOT_NEEDED - {"spark"})
    missing = [name for name in names if not all(_is_installed(need.name) for need in _needs(name))]
    present = [name for name in names if name not in missing]
    yield Finding("ok", "extras", ", ".join(present) or "none")
    if missing:
        hint = f"A connector, codec or option that needs one names it: pip install '{_PACKAGE}[NAME]'"
        yield Finding("note", "", f"not installed: {', '.join(missing)}", hint)


def _needs(extra: str) -> list[Requirement]:
    """The packages of an extra, also those of other extras that it includes."""
    found: list[Requirement] = []
    for one in map(Requirement, requires(_PACKAGE) or ()):
        if one.marker is None or not one.marker.evaluate({"extra": extra}) or one.marker.evaluate({"extra": ""}):
            continue
        if one.name == _PACKAGE:
            found += [need for inner in one.extras for need in _needs(inner)]
        else:
            found.append(one)
    return found


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def disk(data: Path) -> Iterator[Finding]:
    place = _existing(data)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"penstock")
            sync_data(file.fileno())
    except OSError as error:
        hint = "Pass a directory that this user may write to: --data DIR"
        yield Finding("error", "disk", f"{place} cannot be written: {error.strerror or error}", hint)
        return
    free = shutil.disk_usage(place).free
    text = f"{show_size(free)} free for {data}"
    if free < _FREE_MIN:
        hint = "Make room, or set --retention: a worker on a full disk refuses appends, but loses nothing."
        yield Finding("warning", "disk", text, hint)
    else:
        yield Finding("ok", "disk", text)


def _existing(path: Path) -> Path:
    """The directory itself, or the closest one above it that exists."""
    path = path.resolve()
    return next(one for one in (path, *path.parents) if one.is_dir())


def limits() -> Iterator[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shown = "unlimited" if files == resource.RLIM_INFINITY else f"{files:,}"
    if files != resource.RLIM_INFINITY and files < _FILES_MIN:
        yield Finding("warning", "limits", f"{shown} open files", f"Raise it: ulimit -n {_FILES_MIN}, or more.")
    else:
        yield Finding("ok", "limits", f"{shown} open files")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = os.cpu_count() or 1
    text = f"{show_size(memory)} of memory, {cores} core{'' if cores == 1 else 's'}"
    if memory < _MEMORY_MIN:
        yield Finding("warning", "", text, "Spark needs about 2 GiB: run the pipelines on another machine.")
    else:
        yield Finding("ok", "", text)


def clock(data: Path) -> Iterator[Finding]:
    """Event times and leases depend on it."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    hint = "Set it, and keep it synchronised with NTP: arrival times, windows and leases depend on it."
    if now < _EARLIEST:
        yield Finding("error", "clock", f"it is set to {shown}", hint)
        return
    try:
        with tempfile.NamedTemporaryFile(dir=_existing(data)) as file:
            skew = Path(file.name).stat().st_mtime - now
    except OSError:  # the check of the disk reports it
        skew = 0.0
    if abs(skew) > _SKEW_SECONDS_MAX:
        yield Finding("warning", "clock", f"{shown}; the disk's clock differs by {skew:.1f} s", hint)
    else:
        yield Finding("ok", "clock", shown)


# The worker.


def ports(data: Path) -> Iterator[Finding]:
    """Those that a worker takes by default, unless it runs already."""
    try:
        own = {*LocalWorker.read(data).ports.values()}
    except (FileNotFoundError, PenstockError):
        own = set()
    taken = [f"{port} ({name})" for name, port in DEFAULT_PORTS.items() if port not in own and _is_taken(port)]
    if taken:
        hint = "A worker here may use them: see below. Set others with --connector-port, --segment-port, --http-port."
        yield Finding("note", "ports", f"in use: {', '.join(taken)}", hint)
    else:
        yield Finding("ok", "ports", ", ".join(f"{port} ({name})" for name, port in DEFAULT_PORTS.items()))


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def access(worker: str | None, data: Path) -> Iterator[Finding]:
    """Whether a worker answers, accepts the token, has this version, and reports no problem."""
    is_on_data = worker is None and ports_file(data).exists()
    try:
        address = local_worker(data).http if is_on_data else worker or default_worker()
        status = worker_status(address)
    except PenstockError as error:
        if worker is not None or is_on_data:
            yield Finding("error", "worker", str(error), error.hint)
        else:
            yield Finding(
                "note", "worker", f"none is running for {data} or at {DEFAULT_WORKER}", "penstock run starts one."
            )
        return
    yield Finding("ok", "worker", f"{address} answers, and accepts this user's token")
    if status.version != __version__:
        text = f"it runs version {status.version}, but this is {__version__}"
        yield Finding("warning", "", text, "Install the same version on both sides: pip install -U penstock-streams")
    for problem in status.problems:
        yield Finding("error", "", problem, "Run penstock status for details.")
    for blockage in status.blockages:
        if blockage.is_blocking:
            yield Finding("warning", "", blockage.text, blockage.hint or "Run penstock status for details.")
