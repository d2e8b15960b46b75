"""The whole system as real processes: a worker, a driver with its pipelines, a program that sends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.core.types import NO_EPOCH
from tests.spark.crashes.places import Place, Victim, Window, wire
from tests.spark.crashes.sender import SOURCE
from tests.spark.crashes.tripwire import Tripwire
from tests.support import http
from tests.support.worker_process import WorkerProcess

PIPELINES = ("copy", "tally", "windowed")
FILE = Path(__file__).with_name("pipelines.py")
WAIT_SECONDS_MAX = 180.0
POLL_SECONDS = 0.1
SIGN_SECONDS = 0.002
"""An epoch that has reached a point soon passes it."""

RATE = 15.0
"""Messages per second of each stream, while the test runs."""


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.worker = WorkerProcess(directory / "data", "--retention", "keep")
        self._enough = directory / "enough"
        self._sender: subprocess.Popen[bytes] | None = None
        self._sent = 0
        self.drivers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Scene":
        self.worker.start()
        self._proxy = Tripwire(lambda: self.worker.http_port)
        self.start_sender()
        self.start_driver()
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self.drivers)):
            self.kill_driver(number)
        if self._sender is not None:
            self._sender.kill()
            self._sender.communicate()
        self._proxy.stop()
        self.worker.close()

    # The parts.

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def start_sender(self) -> None:
        """A sender that has ended may be followed by another one, which continues where it stopped."""
        if self._sender is None:
            self._complete = {name: self.pipeline(name).get("complete", NO_EPOCH) for name in PIPELINES}
            self._enough.unlink(missing_ok=True)
            address = f"127.0.0.1:{self.worker.connector_port}"
            command = [sys.executable, "-m", "tests.spark.crashes.sender", address, str(RATE), str(self._sent)]
            self._sender = subprocess.Popen([*command, str(self._enough)], stdout=subprocess.PIPE)

    def start_driver(self) -> None:
        command = [
            sys.executable,
            "-m",
            "penstock",
            "run",
            str(FILE),
            "--worker",
            f"127.0.0.1:{self._proxy.port}",
        ]
        command += ["--checkpoint", str(self.checkpoint)]
        with (self.directory / "driver.log").open("ab") as log:
            self.drivers.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def kill_driver(self, number: int = -1) -> None:
        """With its JVM and its Python workers."""
        self.signal_driver(signal.SIGKILL, number)
        self.drivers[number].wait()

    def signal_driver(self, what: signal.Signals, number: int = -1) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.drivers[number].pid, what)

    def driver_log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-4000:]

    # Killing.

    def kill_at(self, place: Place, *, restart: bool = True) -> None:
        """Wait until an epoch reaches the point, kill the victim there, and restart it."""
        is_driver = place.victim is Victim.DRIVER
        self._act_at(place, self.kill_driver if is_driver else self.worker.kill)
        if restart:
            (self.start_driver if is_driver else self.worker.start)()

    def stop_driver_at(self, place: Place) -> None:
        """Wait until an epoch reaches the point, and suspend the driver there."""
        self._act_at(place, lambda: self.signal_driver(signal.SIGSTOP))

    def _act_at(self, place: Place, act: Callable[[], None]) -> None:
        reached = threading.Event()

        def pulled() -> None:
            act()
            reached.set()

        tripped = wire(place)
        if tripped is not None:
            self._proxy.arm(tripped._replace(tells=self._next_epoch(place)), pulled)
        else:
            self._wait_for_epoch(place)
            self.wait_until(self._sign(place), str(place), SIGN_SECONDS)
            pulled()
        if not reached.wait(WAIT_SECONDS_MAX):
            raise AssertionError(f"no epoch came to {place}:\n{self.driver_log()}")

    def _wait_for_epoch(self, place: Place) -> None:
        """A driver that was just started takes seconds to reach one: too long to poll for a sign all the time."""
        planned = self.pipeline(place.pipeline)["planned"]
        self.wait_until(lambda: self.pipeline(place.pipeline)["planned"] > planned, str(place))

    def _next_epoch(self, place: Place) -> bytes:
        """An answer that only repeats the start is not a new cut: wait for the epoch after the last planned one."""
        if place.window is not Window.BEFORE_OFFSET_LOG:
            return b""
        planned = self.pipeline(place.pipeline)["planned"]
        return b'"epoch":%d,' % (planned + 1)

    def _sign(self, place: Place) -> Callable[[], bool]:
        checkpoint = self.checkpoint / place.pipeline
        match place.window:
            case Window.AFTER_OFFSET_LOG:
                before = _last(checkpoint / "offsets")
                return lambda: _last(checkpoint / "offsets") > before
            case Window.AFTER_COMMIT_LOG:
                before = _last(checkpoint / "commits")
                return lambda: _last(checkpoint / "commits") > before
            case _:
                return lambda: bool(self.get(f"/segments?prefix=staging/{place.pipeline}/")["segments"])

    def wait_until(self, sign: Callable[[], bool], what: str, poll_seconds: float = POLL_SECONDS) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not sign():
            if time.monotonic() > deadline:
                raise AssertionError(f"no epoch came to {what}:\n{self.driver_log()}")
            time.sleep(poll_seconds)

    # Looking.

    def get(self, path: str) -> dict[str, list[dict[str, int]]]:
        found: dict[str, list[dict[str, int]]] = http.get(self.worker.http_port, path)
        return found

    def pipeline(self, name: str) -> dict[str, int]:
        known = [pipeline for pipeline in self.get("/pipelines")["pipelines"] if str(pipeline["name"]) == name]
        return known[0] if known else {"planned": NO_EPOCH}

    def wait_for_progress(self) -> None:
        """Wait until all pipelines have completed an epoch since the sender was started: then everything runs."""
        before = self._complete
        self.wait_until(lambda: all(self.pipeline(n).get("complete", NO_EPOCH) > before[n] for n in before), "its end")

    def end_sender(self) -> int:
        """Wait until everything is acknowledged. Returns the number of messages on each stream."""
        assert self._sender is not None
        self._enough.touch()
        try:
            said, _ = self._sender.communicate(timeout=2 * WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{SOURCE} is not acknowledged:\n{self.driver_log()}") from None
        assert self._sender.returncode == 0
        self._sender, self._sent = None, int(said)
        return self._sent


def _last(directory: Path) -> int:
    """The number of the last file in a checkpoint's log."""
    files = directory.iterdir() if directory.is_dir() else ()
    return max((int(file.name) for file in files if file.name.isdigit()), default=-1)
