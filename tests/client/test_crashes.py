"""Real processes, killed with SIGKILL while events are appended without pause."""

import asyncio
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client.segments import AsyncSegmentClient, SegmentClient
from tests.client import appending_process
from tests.worker_process import WorkerProcess

KILLS = 20

pytestmark = pytest.mark.process


def event(number: int) -> bytes:
    return b"event %d" % number


class Log:
    """What an appending thread has done."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.taken = 0
        self.acknowledged = 0
        self.error: BaseException | None = None


def append_blocking(address: str, log: Log) -> None:
    with (
        SegmentClient(address, retry_seconds=30) as client,
        client.appender("s", create=True, block_bytes=1000, window_bytes=30_000) as appender,
    ):
        while not log.stop.is_set():
            log.taken = appender.append(event(log.taken + 1))
            log.acknowledged = appender.acknowledged or 0
        appender.flush()
        log.acknowledged = appender.acknowledged or 0


def append_async(address: str, log: Log) -> None:
    async def append() -> None:
        async with (
            AsyncSegmentClient(address, retry_seconds=30) as client,
            await client.appender("s", create=True, block_bytes=1000, window_bytes=30_000) as appender,
        ):
            while not log.stop.is_set():
                log.taken = await appender.append(event(log.taken + 1))
                log.acknowledged = appender.acknowledged or 0
                if log.taken % 100 == 0:
                    await asyncio.sleep(0)
            await appender.flush()
            log.acknowledged = appender.acknowledged or 0

    asyncio.run(append())


def in_thread(append: Callable[[str, Log], None], address: str) -> tuple[threading.Thread, Log]:
    log = Log()

    def run() -> None:
        try:
            append(address, log)
        except BaseException as error:
            log.error = error

    thread = threading.Thread(target=run, name="appending")
    thread.start()
    return thread, log


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("append", [append_blocking, append_async])
def test_a_worker_killed_20_times_keeps_every_acknowledged_event_once_and_in_order(
    tmp_path: Path, append: Callable[[str, Log], None]
) -> None:
    pauses = random.Random(1)
    with WorkerProcess(tmp_path / "data") as worker:
        thread, log = in_thread(append, worker.address)
        held = Held()
        try:
            for _ in range(KILLS):
                before = log.acknowledged
                wait_until(lambda: log.acknowledged > before or log.error is not None)  # noqa: B023
                time.sleep(pauses.uniform(0.05, 0.4))
                worker.kill()
                acknowledged = log.acknowledged
                worker.start()
                held.check(worker.address, at_least=acknowledged)
        finally:
            log.stop.set()
            thread.join(60)
        assert log.error is None
        assert log.acknowledged == log.taken
        held.check(worker.address, at_least=log.taken)
        assert held.count == log.taken
        Held().check(worker.address, at_least=log.taken)


class Held:
    """What a segment was seen to hold: the events 1, 2, 3, …, each once."""

    def __init__(self) -> None:
        self.count = 0
        self._end = 0

    def check(self, address: str, *, at_least: int) -> None:
        """Look at what was added since the last time."""
        with SegmentClient(address) as client:
            for found in client.events("s", self._end):
                self.count += 1
                self._end = found.end
                assert found.data == event(self.count)
        assert self.count >= at_least


def test_a_writer_killed_and_started_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    count = 100_000
    pauses = random.Random(2)
    with WorkerProcess(tmp_path / "data") as worker, SegmentClient(worker.address) as client:
        client.create("s")
        acknowledged = 0
        for attempt in range(100):
            program = [
                sys.executable,
                appending_process.__file__,
                worker.address,
                "s",
                str(uuid.UUID(int=5)),
                str(count),
            ]
            with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                if attempt < 8:
                    process.stdout.readline()
                    time.sleep(pauses.uniform(0, 0.05))
                    process.kill()
                lines = process.stdout.read().split()
            acknowledged = max([acknowledged, *(int(line) for line in lines if line.isdigit())])
            if "done" in lines:
                break
        held = Held()
        held.check(worker.address, at_least=acknowledged)
        assert held.count == count
        assert attempt == 8
