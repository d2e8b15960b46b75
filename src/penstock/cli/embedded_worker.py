"""The worker of `penstock run`: a separate process, unless one already serves the data."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

from penstock.access.file import create_private_directory
from penstock.backup.contents import JOURNAL
from penstock.cli.connect import local_worker, worker_to_change
from penstock.cli.waiting import waiting
from penstock.client.credentials import OWN_DATA, LocalWorker
from penstock.core.errors import Unavailable
from penstock.worker.ports_file import PORT_TAKEN, WAITING, PortsFile

_START_SECONDS_MAX = 300.0
"""It recovers the end of its journal first. The first start of an installation also compiles its kernels: some 10 s of
CPU, which a busy machine may stretch to a minute and more.
"""

_STOP_SECONDS_MAX = 30.0
"""It makes durable and acknowledges what it has received. Killing it after that loses nothing acknowledged."""

_LOOK_SECONDS = 0.02
_WAITING_LOOK_SECONDS = 0.2
"""Between two looks whether it listens: it may be a standby for weeks."""

_LAST_WORDS_CHARS = 2000
DEFAULT_PORTS = {"connector": 7100, "segment": 7101, "http": 7102}
_FREE_PORTS = dict.fromkeys(DEFAULT_PORTS, 0)
_OWN_WORKER = ("--allow-callbacks", "--allow-exec", "--file-root=/")
"""It belongs to our user and has our user's rights: it runs only what the user has just asked for."""
_PR_SET_PDEATHSIG = 1
_RELAY_BYTES = 64 << 10
_STORE_VARIABLE = "PENSTOCK_STORE"
"""Not passed on: the worker is started with the options that it is to have, and no others."""


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
def embedded_worker(
    data: Path,
    options: Sequence[str] = (),
    *,
    stdio: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[FoundWorker]:
    """The worker on this data; if there is none, one is started, and stopped at the end. `stdio`: a started worker gets
    our input and output; otherwise it gets neither. `report`: is called with what it waits for, if it has to wait for
    another worker or for the object store. Raises Unavailable.
    """
    running = _running_on(data)
    if running is not None:
        yield FoundWorker(running.http, running.ports)
        return
    create_private_directory(data)
    ports = _ports(data)
    PortsFile(data).withdraw()  # a killed worker leaves its file
    start = _Start(data, options, report, stdio=stdio)
    found = start.worker(ports)
    try:
        yield found
    finally:
        assert found.process is not None
        _stop(found.process)


@dataclass(frozen=True, slots=True)
class _Start:
    """A start of the worker, which may take two tries."""

    data: Path
    options: Sequence[str]
    report: Callable[[str], None]
    stdio: bool = False

    @property
    def log_file(self) -> Path:
        return self.data / "worker.log"

    def worker(self, ports: dict[str, int]) -> FoundWorker:
        with self.log_file.open("ab") as log, self.log_file.open("rb") as words:
            words.seek(0, os.SEEK_END)
            process = self._process(ports, log)
            try:
                started = self._wait_for_ports(process, words)
                started.identify(self.data)
                return FoundWorker(started.http, started.ports, process)
            except BaseException as error:
                _stop(process)
                if ports is _FREE_PORTS or PORT_TAKEN not in str(error):
                    raise
        return self.worker(_FREE_PORTS)  # another program has taken a port since we looked

    def _process(self, ports: dict[str, int], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """In a process group of its own, so that Ctrl-C reaches only us; we stop the worker last."""
        given = [f"--{name}-port={port}" for name, port in ports.items()]
        command = [sys.executable, "-m", "penstock", "worker", "--data", str(self.data), *given, *_OWN_WORKER]
        command += [*self.options, "--log-file", str(self.log_file)]
        relayed = self.stdio and sys.stdin.isatty()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if relayed else None if self.stdio else subprocess.DEVNULL,
            stdout=None if self.stdio else log,
            stderr=log,  # for what does not go through logging
            env={name: value for name, value in os.environ.items() if name != _STORE_VARIABLE},
            process_group=0,
            preexec_fn=end_with_parent,  # noqa: PLW1509  no other thread runs yet
        )
        if relayed:
            threading.Thread(target=_relay, args=(process,), name="terminal to worker", daemon=True).start()
        return process

    def _wait_for_ports(self, process: "subprocess.Popen[bytes]", words: IO[bytes]) -> LocalWorker:
        """As long as it waits for others, so do we."""
        deadline, pause = time.monotonic() + _START_SECONDS_MAX, _LOOK_SECONDS
        text = f"starting the worker on {self.data} (the first start compiles its kernels)"
        with waiting(text, auto_refresh=False) as waits_for:  # a thread might hold a lock when another process starts
            while time.monotonic() < deadline and process.poll() is None:
                with suppress(FileNotFoundError):
                    return LocalWorker.read(self.data)
                if (line := _waiting_line(words)) is not None:
                    text = f"the worker on {self.data} is {line}"
                    self.report(text)
                    deadline, pause = float("inf"), _WAITING_LOOK_SECONDS
                waits_for(text)
                time.sleep(pause)
        last = self.log_file.read_text(errors="replace")[-_LAST_WORDS_CHARS:].strip()
        what = f"did not listen within {_START_SECONDS_MAX:.0f} s" if process.poll() is None else "did not start"
        raise Unavailable(f"the worker on {self.data} {what}:\n{last}", f"Its log is {self.log_file}.")


def _waiting_line(words: IO[bytes]) -> str | None:
    """The next line that says what the worker waits for, if it is complete."""
    while (line := words.readline()).endswith(b"\n"):
        _, found, what = line.decode(errors="replace").rstrip().partition(WAITING)
        if found:
            return f"waiting {what}"
    words.seek(-len(line), os.SEEK_CUR)
    return None


def _running_on(data: Path) -> LocalWorker | None:
    try:
        return local_worker(data)
    except (OSError, Unavailable):
        return None


def _relay(process: "subprocess.Popen[bytes]") -> None:
    """Pass typed input on to the worker: only the foreground process group, ours, may read from a terminal."""
    assert process.stdin is not None
    with suppress(OSError, ValueError), process.stdin as typed:
        while data := os.read(sys.stdin.fileno(), _RELAY_BYTES):
            typed.write(data)
            typed.flush()


def _ports(data: Path) -> dict[str, int]:
    """Those of a worker on the data that was killed: its programs try them again. Otherwise the default ports, so that
    programs find them; any if one of these is taken.
    """
    return next((ports for ports in (_left(data), DEFAULT_PORTS) if ports and _are_free(ports)), _FREE_PORTS)


def _left(data: Path) -> dict[str, int]:
    try:
        found = json.loads((data / "ports.json").read_bytes())
        return {name: int(found[name]) for name in DEFAULT_PORTS}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _are_free(ports: Mapping[str, int]) -> bool:
    for port in ports.values():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError):
                return False
    return True


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have this process get the signal when the one that has started it ends, even if that is killed. Linux only;
    elsewhere the next run finds the running worker.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


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
