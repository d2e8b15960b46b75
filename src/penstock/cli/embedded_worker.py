"""The worker of `penstock run`: a separate process, unless one already serves the data."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.access.file import create_private_directory
from penstock.backup.contents import JOURNAL
from penstock.cli.connect import local_worker, worker_to_change
from penstock.client.credentials import OWN_DATA, LocalWorker
from penstock.core.errors import Unavailable
from penstock.worker.ports_file import PORT_TAKEN, PortsFile

_START_SECONDS_MAX = 300.0
"""It recovers the end of its journal first. The first start of an installation also compiles its kernels: some 10 s of
CPU, which a busy machine may stretch to a minute and more.
"""

_STOP_SECONDS_MAX = 30.0
"""It makes durable and acknowledges what it has received. Killing it after that loses nothing acknowledged."""

_LAST_WORDS_CHARS = 2000
_DEFAULT_PORTS = {"connector": 7100, "segment": 7101, "http": 7102}
_FREE_PORTS = dict.fromkeys(_DEFAULT_PORTS, 0)
_OWN_WORKER = ("--allow-callbacks", "--file-root=/")
"""It belongs to our user and has our user's rights: it runs only what the user has just asked for."""
_PR_SET_PDEATHSIG = 1
_RELAY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FoundWorker:
    """`process` is None for a worker that was already running, which we must not stop."""

    http: str
    ports: dict[str, int]
    process: "subprocess.Popen[bytes] | None" = None

    def check(self) -> None:
        """Raises Unavailable if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise Unavailable(
                f"the worker has exited with code {self.process.returncode}", "See worker.log in its data directory."
            )


@contextmanager
def embedded_worker(data: Path, options: Sequence[str] = (), *, stdio: bool = False) -> Iterator[FoundWorker]:
    """The worker on this data; if there is none, one is started, and stopped at the end. `stdio`: a started worker gets
    our input and output; otherwise it gets neither. Raises Unavailable.
    """
    running = _running_on(data)
    if running is not None:
        yield FoundWorker(running.http, running.ports)
        return
    create_private_directory(data)
    PortsFile(data).withdraw()  # a killed worker leaves its file
    found = _started(data, options, _ports(), stdio=stdio)
    try:
        yield found
    finally:
        assert found.process is not None
        _stop(found.process)


def _started(data: Path, options: Sequence[str], ports: dict[str, int], *, stdio: bool) -> FoundWorker:
    process = _start(data, options, ports, stdio=stdio)
    try:
        started = _wait_for_ports(data, process)
        started.identify(data)
        return FoundWorker(started.http, started.ports, process)
    except BaseException as error:
        _stop(process)
        if ports is not _DEFAULT_PORTS or PORT_TAKEN not in str(error):
            raise
    return _started(data, options, _FREE_PORTS, stdio=stdio)  # another program has taken a port since we looked


def _running_on(data: Path) -> LocalWorker | None:
    try:
        return local_worker(data)
    except (OSError, Unavailable):
        return None


def _start(data: Path, options: Sequence[str], ports: dict[str, int], *, stdio: bool) -> "subprocess.Popen[bytes]":
    """In a process group of its own, so that Ctrl-C reaches only us; we stop the worker last."""
    given = [f"--{name}-port={port}" for name, port in ports.items()]
    log_file = data / "worker.log"
    command = [sys.executable, "-m", "penstock", "worker", "--data", str(data), *given, *_OWN_WORKER, *options]
    command += ["--log-file", str(log_file)]
    relayed = stdio and sys.stdin.isatty()
    with log_file.open("ab") as log:  # for what does not go through logging
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if relayed else None if stdio else subprocess.DEVNULL,
            stdout=None if stdio else log,
            stderr=log,
            process_group=0,
            preexec_fn=end_with_parent,  # noqa: PLW1509  no other thread runs yet
        )
    if relayed:
        threading.Thread(target=_relay, args=(process,), name="terminal to worker", daemon=True).start()
    return process


def _relay(process: "subprocess.Popen[bytes]") -> None:
    """Pass typed input on to the worker: only the foreground process group, ours, may read from a terminal."""
    assert process.stdin is not None
    with suppress(OSError, ValueError), process.stdin as typed:
        while data := os.read(sys.stdin.fileno(), _RELAY_BYTES):
            typed.write(data)
            typed.flush()


def _ports() -> dict[str, int]:
    """The default ports if all are free, so that sources find them."""
    for port in _DEFAULT_PORTS.values():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return _FREE_PORTS
    return _DEFAULT_PORTS


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have this process get the signal when the one that has started it ends, even if that is killed. Linux only;
    elsewhere the next run finds the running worker.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _wait_for_ports(data: Path, process: "subprocess.Popen[bytes]") -> LocalWorker:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(FileNotFoundError):
            return LocalWorker.read(data)
        time.sleep(0.02)
    log = data / "worker.log"
    words = log.read_text(errors="replace")[-_LAST_WORDS_CHARS:].strip()
    what = f"did not listen within {_START_SECONDS_MAX:.0f} s" if process.poll() is None else "did not start"
    raise Unavailable(f"the worker on {data} {what}:\n{words}", f"Its log is {log}.")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def worker_for_change(worker: str | None, data: Path | None, *, yes: bool) -> Iterator[str]:
    """The HTTP address of the worker that a command changes. If no worker serves the data, one is started for the
    duration of the command: Ctrl-C in `penstock run` also stops its worker. It removes nothing, because the usual
    worker may keep more than the default.
    """
    place = data or OWN_DATA
    if worker is None and (place / JOURNAL).is_dir() and not _is_served(place):
        Console(stderr=True, highlight=False).print(
            f"no worker runs on {place}: one is started for this command", markup=False, soft_wrap=True
        )
        with embedded_worker(place, ["--retention=keep"]) as found:
            yield found.http
    else:
        yield worker_to_change(worker, data, yes=yes)


def _is_served(data: Path) -> bool:
    try:
        local_worker(data)
    except Unavailable:
        return False
    return True
