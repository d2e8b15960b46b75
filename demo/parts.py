"""The demo's processes: each is started, may be killed with SIGKILL, and is then started again."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from demo.events import DISORDER_MS
from demo.process_tree import kill_tree, wait_until_gone

START_SECONDS_MAX = 120


class Part:
    """A process in a group of its own. A kill takes all along that it has started: Spark's JVM, its Python workers, and
    the processes of a worker's shards, which have sessions of their own.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.kills = self.processes_killed = 0
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
        """At once, as when their machine is lost. They are gone when it returns."""
        if self._process is not None and self.is_running:
            killed = kill_tree(self._process.pid)
            self._process.wait()
            wait_until_gone(killed)
            self.processes_killed += len(killed)
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
    """The worker. Its ports are chosen at the first start, and the same ever after. With a `store`, its journal is
    there, and every start is on another machine: in a directory of its own.
    """

    def __init__(self, directory: Path, log: Path, store: str | None) -> None:
        super().__init__("worker", (), log)
        self._directory = directory
        self._store = store
        self.ports = {"connector": 0, "segment": 0, "http": 0}

    def start(self) -> None:
        data = self._directory / (f"machine-{self.kills}" if self._store else "data")
        file = data / "ports.json"
        file.unlink(missing_ok=True)
        options = ["--retention=keep", f"--max-disorder={DISORDER_MS}ms", "--chapter-size=8MiB", "--reserve=16MiB"]
        options += [f"--{name}-port={port}" for name, port in self.ports.items()]
        if self._store:
            options += [f"--store={self._store}", f"--token-file={self._token_of_all()}"]
        self._command = ["penstock", "worker", "--data", str(data), *options]
        super().start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not file.exists():
            if not self.is_running or time.monotonic() > deadline:
                raise SystemExit(f"the worker did not start:\n{self.last_words()}")
            time.sleep(0.02)
        found = json.loads(file.read_text())
        self.ports = {name: found[name] for name in self.ports}
        token = self._token_of_all() if self._store else data / "token"
        os.environ["PENSTOCK_TOKEN_FILE"] = str(token)  # of the other parts, too

    def _token_of_all(self) -> Path:
        """By default each data directory has its own, which other parts would not know after a move."""
        file = self._directory / "token"
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_urlsafe(32))
        return file

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.ports[port]}"


class DriverPart(Part):
    """Spark's driver. Where the worker's journal is in a bucket, so are the checkpoints, and each start has an empty
    directory.
    """

    def __init__(self, command: Sequence[str], checkpoints: Path, log: Path, *, moves: bool) -> None:
        super().__init__("driver", (), log)
        self._base = command
        self._checkpoints = checkpoints
        self._moves = moves

    def start(self) -> None:
        place = f"{self._checkpoints}-{self.kills}" if self._moves else str(self._checkpoints)
        self._command = [*self._base, "--checkpoint", place]
        super().start()
