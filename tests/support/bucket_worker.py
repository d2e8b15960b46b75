"""A worker whose journal is in a bucket, on one machine after the other: each start is in another, empty directory."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.waiting import SECONDS_MAX, until
from tests.support.worker_nursery import Forked, nursery
from tests.support.worker_process import WorkerProcess


class BucketWorker(WorkerProcess):
    """The directory of a machine is removed when the next one starts. Workers with other addresses are other objects.

    Its output is in `said`.
    """

    def __init__(self, folder: Path, url: str, *options: str) -> None:
        shard = () if any(one.startswith("--shard") for one in options) else ("--shard", "0")
        super().__init__(folder / "machine-0", "--store", url, *shard, *options)
        self.seconds_max = SECONDS_MAX
        """How long a start may take."""
        self.environment: dict[str, str] = {}
        """Variables that it has beside ours."""
        self._folder = folder
        self._machines = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "worker.log"

    @classmethod
    @contextmanager
    def waiting(cls, folder: Path, url: str, *options: str) -> Iterator[Self]:
        """One that is not expected to listen soon."""
        worker = cls(folder, url, *options)
        worker.begin()
        try:
            yield worker
        finally:
            worker.close()

    def start(self, *options: str) -> None:
        """Returns when it listens. `options`: for this start."""
        self.begin(*options)
        until(lambda: self.has_ports() or not self.is_running, lambda: self.said, self.seconds_max)
        assert self.is_running, f"the worker has ended: {self.said}"
        self.read_ports()

    def begin(self, *options: str) -> None:
        """Returns at once."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._machines += 1
        self.data = self._folder / f"machine-{self._machines}"
        with self._log.open("ab") as log:
            arguments = [*self._arguments(), *options]
            self._process = nursery().start(arguments, log.fileno(), environment=self.environment)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert isinstance(self._process, Forked)
        return self._process.pid

    def pause(self) -> None:
        """SIGSTOP: it does not know that time passes."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> int:
        """Wait for an end that comes by itself; returns its exit status."""
        assert self._process is not None
        status = self._process.wait(SECONDS_MAX)
        self._process = None
        return status

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.data, ignore_errors=True)
