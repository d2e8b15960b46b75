"""The fork server: a process that has imported what Spark's Python processes need, and forks them.

Before its first epoch a query starts eight Python processes, one after the other, each for another module of PySpark's.
Each would import PySpark, Arrow and pandas: 3 s of CPU time together, while everything else waits. The server imports
them once, while the JVM starts, and the processes share the memory.

Spark starts `fork_client` instead, which has the server fork the process, and ends with it. If there is no server, the
client becomes that process itself.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from penstock.spark.run.python_daemon import NEEDED_BY_TASKS

ADDRESS = "PENSTOCK_FORK_SERVER"
"""The environment variable with the path of its socket."""

_NEEDED = (
    *NEEDED_BY_TASKS,
    "penstock.spark.datasource",
    "penstock.spark.source.stream",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
"""None of these starts a thread that a forked process would miss."""

_REQUEST_SECONDS_MAX = 5.0
"""A client sends its request at once, all of it."""

_NUMBER_BYTES = 4
_STANDARD_FILES = 3

# In the process that starts a JVM.


@contextmanager
def fork_server(folder: Path, log: IO[bytes] | None = None) -> Iterator[None]:
    """Forks the Python processes of the JVMs that are started in this context. It ends with this process at the latest.
    `folder` must not be accessible to other users: whoever connects to a socket in it can run code.
    """
    path = folder / "fork-server"
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", __name__, path], stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment()
    )
    os.environ[ADDRESS] = str(path)
    try:
        yield
    finally:
        os.environ.pop(ADDRESS, None)
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    """These have an effect only before Python starts, or before NumPy is imported. Spark sets them for its processes,
    to the same values.
    """
    return {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | os.environ


# In the server.


@dataclass(frozen=True, slots=True)
class Request:
    """A process to fork: `python -m MODULE …` in the directory, with the environment and the standard files."""

    command: list[str]
    environment: dict[str, str]
    directory: str
    files: list[int]

    @classmethod
    def received(cls, connection: socket.socket) -> Self:
        """Raises OSError, EOFError or ValueError if a client does not send all of it."""
        length, files, _, _ = socket.recv_fds(connection, _NUMBER_BYTES, _STANDARD_FILES)
        with connection.makefile("rb") as stream:
            body = stream.read(int.from_bytes(length))
        command, environment, directory = marshal.loads(body)  # noqa: S302  from a process of this user
        return cls(command, environment, directory, files)


def serve(path: str) -> Request:
    """Returns in each process that it forks. Ends when stdin does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()  # a client that comes too early waits
        for name in _NEEDED:
            importlib.import_module(name)
        gc.freeze()  # a collection in a forked process would copy the pages of all these modules
        while True:
            ready, _, _ = select.select([sys.stdin, listener], [], [])
            if sys.stdin in ready:
                sys.exit()
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_REQUEST_SECONDS_MAX)
                if (request := _forked(connection)) is not None:
                    return request


def _forked(connection: socket.socket) -> Request | None:
    """None in the server. The new process keeps the connection: when it ends, the client finds it closed."""
    try:
        request = Request.received(connection)
    except (OSError, EOFError, ValueError):
        return None
    pid = os.fork()
    if pid == 0:
        connection.detach()
        return request
    for file in request.files:
        os.close(file)
    try:
        connection.sendall(pid.to_bytes(_NUMBER_BYTES))
    except OSError:
        os.kill(pid, signal.SIGKILL)  # its client has gone
    return None


def run(request: Request, library: Sequence[str]) -> None:
    """As a new Python does. `library`: where it finds packages after those of PYTHONPATH."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:] = [request.directory, *_python_path(), *library]
    module, *sys.argv[1:] = request.command
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run: Spark's other processes ignore it, too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing asks how they have ended
    library = [entry for entry in sys.path[1:] if entry not in _python_path()]
    run(serve(sys.argv[1]), library)


if __name__ == "__main__":
    main()
