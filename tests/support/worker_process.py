"""A real worker process that can be killed and started again, on the same data and the same ports."""

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.worker.ports_file import PortsFile
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX
from tests.support.worker_nursery import Forked, nursery


class WorkerProcess:
    """The ports are chosen once; `start`, `kill` (SIGKILL) and `stop` (SIGTERM) may alternate. `close` is the end."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.segment_port = free_port()
        self.http_port = 0
        self.connector_port = free_port()
        self.stdout: Path | None = None
        """What it writes there is appended to this file."""
        self._options = options
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.segment_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when the worker listens."""
        PortsFile(self.data).withdraw()  # a killed worker leaves its own behind
        self._process = self._command()
        deadline = time.monotonic() + SECONDS_MAX
        while not self.has_ports():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not start: exit status {self._process.poll()}")
            time.sleep(0.01)
        self.read_ports()

    def has_ports(self) -> bool:
        """Whether it listens."""
        return (self.data / "ports.json").exists()

    def read_ports(self) -> None:
        chosen = json.loads((self.data / "ports.json").read_text())
        self.http_port, self.connector_port = chosen["http"], chosen["connector"]

    def _command(self) -> subprocess.Popen[bytes] | Forked:
        return nursery().start(self._arguments(), stdout=self.stdout)

    def _arguments(self) -> list[str]:
        small = ["--chapter-size", "1MiB", "--reserve", "2MiB"]
        ports = ["--segment-port", str(self.segment_port), "--http-port", str(self.http_port)]
        ports += ["--connector-port", str(self.connector_port)]
        files = [] if "--file-root" in self._options else ["--allow-callbacks", "--file-root", "/"]
        return ["worker", "--data", str(self.data), *ports, *small, *files, *self._options]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS_MAX)
            self._process = None

    def close(self) -> None:
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
