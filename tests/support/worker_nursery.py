"""Workers that start at once. A process imports all that a worker needs, and every worker is a fork of it: imports are
most of a start, more than a second of CPU time.
"""

import atexit
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]

REQUEST_BYTES_MAX = 200_000
"""Arguments and the environment, in one packet: below the least that a socket's buffer takes."""

PAUSE_SECONDS = 0.01
"""Between two looks at whether a worker has ended."""

STDERR = 2


class Nursery:
    """The process that is forked. One is enough for all workers of this process."""

    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.worker_nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()

    def start(
        self,
        arguments: Sequence[str],
        stderr: int = STDERR,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdout: Path | None = None,
    ) -> "Forked":
        """`penstock` with these arguments, in the environment of this moment, with these variables as well. Its
        standard output is appended to the file.
        """
        variables = {**os.environ, **(environment or {})}
        asked = {"arguments": arguments, "cwd": str(cwd or Path.cwd()), "environment": variables}
        asked["stdout"] = str(stdout or os.devnull)
        return Forked(self._ask(asked, stderr), self)

    def status(self, pid: int) -> int | None:
        """The exit status of a worker; None while it runs."""
        status: int | None = self._ask({"ended": pid}, STDERR)
        return status

    def _ask(self, request: dict[str, Any], file: int) -> Any:
        with self._lock:
            socket.send_fds(self._calls, [json.dumps(request).encode()], [file])
            reply = self._calls.recv(REQUEST_BYTES_MAX)
        assert reply, f"the nursery has ended: {self._process.wait()}"
        return json.loads(reply)

    def close(self) -> None:
        self._calls.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A worker's process, with what is needed of a Popen."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self._nursery = nursery
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.status(self.pid)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            assert deadline is None or time.monotonic() < deadline, f"{self.pid} has not ended"
            time.sleep(PAUSE_SECONDS)
        return status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, what: signal.Signals) -> None:
        if self.poll() is None:  # and the id stays its own until the next look
            os.kill(self.pid, what)


@functools.cache
def nursery() -> Nursery:
    """The one of this process, started when it is first needed."""
    made = Nursery()
    atexit.register(made.close)
    return made


def serve(calls: socket.socket) -> None:
    """Until the other end is closed."""
    import penstock.worker.worker  # noqa: F401

    gc.freeze()  # a collection in a worker would copy the pages of all these modules
    while True:
        request, files = received(calls)
        if not request:
            return
        answer = _status(request["ended"]) if "ended" in request else _fork(request, calls, *files)
        for file in files:
            os.close(file)
        calls.send(json.dumps(answer).encode())


def received(call: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request and the files that came with it; nothing at the end."""
    text, files, *_ = socket.recv_fds(call, REQUEST_BYTES_MAX, 3)
    return json.loads(text or "{}"), files


def settle(request: dict[str, Any], files: Sequence[int]) -> None:
    """Take over directory, environment and standard files from whoever has asked for this process."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for target, source in enumerate(files):
        os.dup2(source, target)


def _status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(request: dict[str, Any], calls: socket.socket, stderr: int) -> int:
    pid = os.fork()
    if pid == 0:
        calls.close()
        _become(request, stderr)
    return pid


def _become(request: dict[str, Any], stderr: int) -> NoReturn:
    from penstock.cli import main

    nowhere = os.open(os.devnull, os.O_RDWR)
    stdout = os.open(request["stdout"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    settle(request, (nowhere, stdout, stderr))
    sys.argv = ["penstock", *request["arguments"]]
    main()
    sys.exit()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
