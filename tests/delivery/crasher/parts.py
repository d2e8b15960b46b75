"""The processes: each is started, may be killed with SIGKILL, and is restarted."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LAST_WORDS_SIZE = 1500


class Part:
    """A process in its own group, so that a kill includes its children (Spark's JVM, its Python workers)."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.kills = 0
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", *self._command]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.kills += 1

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def last_words(self) -> str:
        said = self._log.read_text(errors="replace")[-LAST_WORDS_SIZE:] if self._log.exists() else ""
        status = "not started" if self._process is None else f"exit status {self._process.poll()}"
        return f"--- {self.name} ({status}, killed {self.kills} times) said last:\n{said}"
