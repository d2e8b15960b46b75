"""A program of one link of the chain, in a process that a test can stop (SIGSTOP) and kill.

    python -m tests.support.staged_program sink STATE        a sink that votes yes
    python -m tests.support.staged_program source PORT NAME  sends one event, and then nothing
    python -m tests.support.staged_program driver HTTP NAME SOURCE [asks]  heartbeats; it also asks for epochs

Each prints a line when it is ready: the sink its address, the driver its generation.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class StagedProgram:
    """`said` is the line that it printed when it was ready."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.support.staged_program", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()
        assert self.said, f"{arguments} did not start"

    def stop(self) -> None:
        """It exists, and does nothing any more. Its kernel still acknowledges what it is sent."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def staged_program(*arguments: str) -> Iterator[StagedProgram]:
    program = StagedProgram(*arguments)
    try:
        yield program
    finally:
        program.kill()


def _sink(state: str) -> None:
    from penstock.client.sink import DataFile, Sink

    Sink("127.0.0.1:0", DataFile(Path(state) / "out"), state=Path(state) / "state").run(_ready)


def _source(port: str, name: str) -> None:
    from tests.support.open_stream import open_stream

    with open_stream(int(port), name, "north") as stream:
        stream.send(1, 5000)
        _ready("sent")
        signal.pause()


def _driver(http: str, name: str, source: str, asks: str = "") -> None:
    from penstock.client.coordinator import CoordinatorClient
    from penstock.spark.run.generation import start_generation

    generation = start_generation(name, http, {"in": [source]}, ["out"])
    with CoordinatorClient(http) as coordinator:
        at = coordinator.initial(name, generation.number, "in")
        coordinator.cut(name, generation.number, "in", at)
        _ready(str(generation.number))
        while True:
            time.sleep(0.2)  # as Spark, which asks again and again
            if asks:
                coordinator.cut(name, generation.number, "in", at)


def _ready(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"sink": _sink, "source": _source, "driver": _driver}
    roles[sys.argv[1]](*sys.argv[2:])
