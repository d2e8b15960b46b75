"""What an executor has, and whether it reaches the worker. The text of this file is run there by the Python that its
tasks use, whatever is installed with it: so it imports nothing beyond Python itself, except to try the worker.

It reads one line of JSON, with the worker's address and the token, and prints one line.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "pandas")
MARK = "penstock-executor "
"""Begins the line that is printed: packages may print others when they are imported."""

CONNECT_SECONDS_MAX = 15.0
"""For each of the worker's ports, on a busy machine too. A firewall that drops packets never answers."""

PROCESSES_MAX = 100
"""Ports of a cluster that an executor tries: a minute at most, if a firewall drops everything."""

LISTED_SECONDS_MAX = 12.0
"""For so long a process may be listed that has ended: until its lease has expired, and perhaps the leader's before."""

_THREADS = 50
_LOOK_SECONDS = 1.0

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
    """As tasks do, also the processes of the worker's cluster. Returns why an HTTP port and a segment port cannot be
    used; "" for one that can be.
    """
    from penstock.client.coordinator import CoordinatorClient
    from penstock.client.credentials import accept_token, parse_workers
    from penstock.core.errors import PenstockError, RequestError

    try:
        named = parse_workers(worker)
        for address, _ in named if token else ():
            accept_token(address.host, token)
        scheme = "https://" if any(is_tls for _, is_tls in named) else ""
        with CoordinatorClient(worker, 0, timeout_seconds=CONNECT_SECONDS_MAX) as client:
            port = client.status().ports["segment"]
            if reason := _segment_problem(f"{client.address.host}:{port}"):
                return "", reason
            try:
                client.cluster()
            except RequestError:  # it is in none
                return "", ""
            failed = unreachable(lambda: _processes(client.cluster(), scheme), worker)
    except PenstockError as error:
        return str(error), "not tried"
    http = [reason for one, reason in failed.items() if one.port == "http"]
    segment = [reason for one, reason in failed.items() if one.port == "segment"]
    return _first(http), _first(segment)


class Process(NamedTuple):
    """A port of a process of the cluster. `address` has a scheme if it is an HTTP port."""

    port: str
    address: str


def _processes(found: Any, scheme: str) -> set[Process]:
    """The ports that tasks may use: of hosts, and of processes that serve shards."""
    hosts = [one.addresses for one in found.workers if one.wants is not None]
    owners = [one.addresses for one in found.workers if one.shards]
    ports = {Process("http", f"{scheme}{one['http']}") for one in (*hosts, *owners) if "http" in one}
    return ports | {Process("segment", one["segment"]) for one in owners if "segment" in one}


def unreachable(listed: Callable[[], Collection[Process]], worker: str) -> dict[Process, str]:
    """Those that cannot be used, and why. Of many, some are tried, chosen at random: each executor tries others."""
    asked = [*listed()]
    chosen = random.sample(asked, min(len(asked), PROCESSES_MAX))
    deadline = time.monotonic() + LISTED_SECONDS_MAX
    with ThreadPoolExecutor(_THREADS) as pool:
        while True:
            reasons = [*pool.map(lambda one: _problem(one, worker), chosen)]
            failed = {one: reason for one, reason in zip(chosen, reasons, strict=True) if reason}
            if not failed or time.monotonic() > deadline:
                return failed
            time.sleep(_LOOK_SECONDS)
            chosen = [*failed.keys() & {*listed()}]


def _problem(process: Process, worker: str) -> str:
    from penstock.client.coordinator import CoordinatorClient
    from penstock.client.credentials import accept_worker
    from penstock.core.errors import PenstockError

    if process.port == "segment":
        return _segment_problem(process.address)
    try:
        accept_worker(process.address, worker)
        with CoordinatorClient(process.address, 0, timeout_seconds=CONNECT_SECONDS_MAX) as client:
            client.status()
    except PenstockError as error:
        return str(error)
    return ""


def _segment_problem(address: str) -> str:
    from penstock.client.credentials import tls_context
    from penstock.client.segments.connections import BlockingConnection
    from penstock.core.address import Address
    from penstock.core.errors import PenstockError

    at = Address.parse(address)
    try:
        BlockingConnection(at, tls_context(at.host), CONNECT_SECONDS_MAX).close()
    except PenstockError as error:
        return str(error)
    return ""


def _first(reasons: list[str]) -> str:
    return f"{reasons[0]} (and {len(reasons) - 1} others)" if len(reasons) > 1 else "".join(reasons)


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
