"""Workers that come back at once: a process imports all that a worker needs, and every worker is a fork of it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

_PROGRAM = """
import os, sys
from penstock.cli import main
import penstock.worker.worker
for _ in iter(sys.stdin.readline, ""):
    pid = os.fork()
    if pid == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        main()
        sys.exit()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """For one worker after the other, each with these arguments: the next one when the last one has ended."""

    def __init__(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-c", _PROGRAM, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def start(self) -> "Forked":
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return Forked(int(self._line()), self)

    def status(self, seconds: float | None) -> int | None:
        """With which the worker has ended; None if it has not, in that time."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        return int(self._line()) if readable else None

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"exit status {self._process.wait()}"
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Forked:
    """A worker's process, with what is needed of a Popen."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self._nursery = nursery
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.status(0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            self._status = self._nursery.status(timeout)
        assert self._status is not None, f"{self.pid} has not ended"
        return self._status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, what: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, what)
