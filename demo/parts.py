"""The demo's processes: each is started, may be killed with SIGKILL, and is then started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from demo.events import DISORDER_MS

START_SECONDS_MAX = 120


def free_port() -> int:
    """For a program that must come back at the same address after it was killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Part:
    """A process in a group of its own, so that a kill takes its children along (Spark's JVM, its Python workers)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.kills = 0
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._popen(log)

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", *self._command], stdout=log, stderr=log, start_new_session=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.kills += 1

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C would."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        try:
            self._process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """The end of what it printed, for when it has failed."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""


class WorkerPart(Part):
    """The worker. Its ports are chosen at the first start, and the same ever after."""

    def __init__(self, data: Path, log: Path) -> None:
        super().__init__("worker", (), log)
        self._data = data
        self.ports = {"connector": 0, "segment": 0, "http": 0}

    def start(self) -> None:
        file = self._data / "ports.json"
        file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in self.ports.items()]
        disorder = f"--max-disorder={DISORDER_MS}ms"
        sizes = ["--chapter-size=8MiB", "--reserve=16MiB"]
        self._command = [
            "penstock",
            "worker",
            "--data",
            str(self._data),
            "--retention",
            "keep",
            disorder,
            *sizes,
            *ports,
        ]
        super().start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not file.exists():
            if not self.is_running or time.monotonic() > deadline:
                raise SystemExit(f"the worker did not start:\n{self.last_words()}")
            time.sleep(0.02)
        self.ports = json.loads(file.read_text())
        os.environ["PENSTOCK_TOKEN_FILE"] = str(self._data / "token")  # of the other parts, too

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.ports[port]}"
