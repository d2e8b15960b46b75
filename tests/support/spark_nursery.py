"""Forks the processes that `spark_python` asks for."""

import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support import spark_python
from tests.support.worker_nursery import ROOT, received, settle

_NEEDED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "penstock.spark.source.stream",
    "penstock.windows.stages",
)
"""None of these starts a thread that a forked process would miss."""


@contextmanager
def spark_nursery() -> Iterator[AbstractContextManager[None]]:
    """While its context is entered, sessions are built that use it."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "calls")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            command = [sys.executable, "-m", "tests.support.spark_nursery", str(listener.fileno())]
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        try:
            yield _used(address)
        finally:
            process.communicate()  # it ends when its input does


@contextmanager
def _used(address: str) -> Iterator[None]:
    """The JVM that is started meanwhile inherits the variables."""
    from penstock.spark.run import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(spark_python.NURSERY, address)
        patch.setenv(spark_python.PYTHON, str(session._PYTHON))
        patch.setattr(session, "_PYTHON", Path(spark_python.__file__))
        yield


def serve(listener: socket.socket) -> None:
    """Until standard input ends."""
    for name in _NEEDED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a forked process would copy the pages of all these modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they have ended
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        call, _ = listener.accept()
        with call:
            request, files = received(call)
            pid = os.fork()
            if pid == 0:
                listener.close()
                _become(request, files)
            call.send(str(pid).encode())
        for file in files:
            os.close(file)


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    settle(request, files)
    paths = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    # As the shell script does that `penstock run` gives to Spark: without PySpark's zip.
    sys.path[:0] = [request["cwd"], *(path for path in paths if path and not path.endswith(".zip"))]
    module, *arguments = request["arguments"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
