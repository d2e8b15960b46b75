"""What an executor has, and whether it reaches the worker. The text of this file is run there by the Python that its
tasks use, whatever is installed with it: so it imports nothing beyond Python itself, except to try the worker.

It reads one line of JSON, with the worker's address and the token, and prints one line.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "pandas")
MARK = "penstock-executor "
"""Begins the line that is printed: packages may print others when they are imported."""

CONNECT_SECONDS_MAX = 15.0
"""For each of the worker's ports, on a busy machine too. A firewall that drops packets never answers."""

_VERSION_FILES = {"penstock": "__init__.py", "pyspark": "version.py"}
"""Which of several installed versions is imported, these files say; Spark has PySpark also as a zip."""


def versions() -> dict[str, str]:
    """Of Python and the packages; "" for one that is not there. Nothing of them is imported."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def version_of(package: str) -> str:
    """As `versions` has it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return ""
    if package in _VERSION_FILES:
        loader: Any = found.loader
        data = loader.get_data(str(Path(found.origin).with_name(_VERSION_FILES[package])))
        number = re.search(rb"""^__version__[^=]*= *['"]([^'"]+)""", data, re.MULTILINE)
        return number[1].decode() if number else ""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def identity() -> tuple[str, str]:
    """The executor's host and number, from the command line of its JVM, which has started this process."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        return words[words.index("--hostname") + 1], words[words.index("--executor-id") + 1]
    except (OSError, ValueError, IndexError):
        return socket.gethostname(), str(os.getppid())


def reach(worker: str, token: str) -> tuple[str, str]:
    """As tasks do. Returns why the HTTP port and the segment port cannot be used; "" for one that can be."""
    from penstock.client.coordinator import CoordinatorClient
    from penstock.client.credentials import accept_token, parse_worker, tls_context
    from penstock.client.segments.connections import BlockingConnection
    from penstock.core.address import Address
    from penstock.core.errors import PenstockError

    try:
        host = parse_worker(worker)[0].host
        if token:
            accept_token(host, token)
        with CoordinatorClient(worker, 0, timeout_seconds=CONNECT_SECONDS_MAX) as client:
            port = client.status().ports["segment"]
    except PenstockError as error:
        return str(error), "not tried"
    try:
        BlockingConnection(Address(host, port), tls_context(host), CONNECT_SECONDS_MAX).close()
    except PenstockError as error:
        return "", str(error)
    return "", ""


def answer(asked: dict[str, str]) -> dict[str, Any]:
    host, executor = identity()
    has = versions()
    found = {"host": host, "executor": executor, "time": time.time(), "versions": has}
    found["lacks"] = "" if which(asked["python"]) else asked["python"]
    if asked["worker"] and has["penstock"] == asked["penstock"]:
        try:
            found["http"], found["segment"] = reach(asked["worker"], asked["token"])
        except ImportError as error:
            found["http"], found["segment"] = f"Penstock cannot be imported: {error}", "not tried"
    return found


def main() -> None:
    home = os.environ.get("SPARK_HOME")
    if home:  # as Spark does for the processes of tasks
        sys.path += map(str, Path(home, "python", "lib").glob("*.zip"))
    asked = json.loads(sys.stdin.readline())
    print(MARK + json.dumps(answer(asked)))  # noqa: T201  what it is for


if __name__ == "__main__":
    main()
