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
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

KILLS = 20

pytestmark = pytest.mark.process


def event(number: int) -> bytes:
    return b"event %d" % number


class Log:
    """What an appending thread has done."""

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self.stop = threading.Event()
        self.taken = 0
        self.acknowledged = 0
        self.error: BaseException | None = None


def append_blocking(address: str, log: Log) -> None:
    with (
        SegmentClient(address, retry_seconds=60) as client,
        client.appender(log.segment, create=True, block_bytes=1000, window_bytes=30_000) as appender,
    ):
        while not log.stop.is_set():
            log.taken = appender.append(event(log.taken + 1))
            log.acknowledged = appender.acknowledged or 0
        appender.flush()
        log.acknowledged = appender.acknowledged or 0


def append_async(address: str, log: Log) -> None:
    async def append() -> None:
        async with (
            AsyncSegmentClient(address, retry_seconds=60) as client,
            await client.appender(log.segment, create=True, block_bytes=1000, window_bytes=30_000) as appender,
        ):
            while not log.stop.is_set():
                log.taken = await appender.append(event(log.taken + 1))
                log.acknowledged = appender.acknowledged or 0
                if log.taken % 100 == 0:
                    await asyncio.sleep(0)
            await appender.flush()
            log.acknowledged = appender.acknowledged or 0

    asyncio.run(append())


def in_thread(append: Callable[[str, Log], None], address: str, log: Log) -> threading.Thread:
    def run() -> None:
        try:
            append(address, log)
        except BaseException as error:
            log.error = error

    thread = threading.Thread(target=run, name="appending")
    thread.start()
    return thread


def test_a_worker_killed_20_times_keeps_every_acknowledged_event_once_and_in_order(tmp_path: Path) -> None:
    """With clients of both kinds, each on a segment of its own."""
    pauses = random.Random(1)
    with WorkerProcess(tmp_path / "data") as worker:
        appending = [Appending(append, worker.address) for append in (append_blocking, append_async)]
        try:
            for _ in range(KILLS):
                for one in appending:
                    one.go_on()
                time.sleep(pauses.uniform(0, 0.1))
                worker.kill()
                acknowledged = [one.log.acknowledged for one in appending]
                worker.start()
                for one, at_least in zip(appending, acknowledged, strict=True):
                    one.held.check(worker.address, at_least=at_least)
        finally:
            for one in appending:
                one.end()
        for one in appending:
            one.check(worker.address)


class Appending:
    """A thread that appends, and what the worker was seen to hold of it."""

    def __init__(self, append: Callable[[str, Log], None], address: str) -> None:
        self.log = Log(append.__name__)
        self.held = Held(append.__name__)
        self._thread = in_thread(append, address, self.log)

    def go_on(self) -> None:
        """Until more is acknowledged than now."""
        before = self.log.acknowledged
        until(lambda: self.log.acknowledged > before or self.log.error is not None)

    def end(self) -> None:
        self.log.stop.set()
        self._thread.join(60)

    def check(self, address: str) -> None:
        assert self.log.error is None
        assert self.log.acknowledged == self.log.taken
        self.held.check(address, at_least=self.log.taken)
        assert self.held.count == self.log.taken
        Held(self.log.segment).check(address, at_least=self.log.taken)


class Held:
    """What a segment was seen to hold: the events 1, 2, 3, …, each once."""

    def __init__(self, segment: str = "s") -> None:
        self.segment = segment
        self.count = 0
        self._end = 0

    def check(self, address: str, *, at_least: int) -> None:
        """Look at what was added since the last time."""
        with SegmentClient(address) as client:
            for found in client.events(self.segment, self._end):
                self.count += 1
                self._end = found.end
                assert found.data == event(self.count)
        assert self.count >= at_least


def test_a_writer_killed_and_started_again_continues_where_it_stopped(tmp_path: Path) -> None:
    pauses = random.Random(2)
    with WorkerProcess(tmp_path / "data") as worker, SegmentClient(worker.address) as client:
        client.create("s")
        acknowledged = 0
        for _ in range(8):
            with appending(worker.address, count=10**9) as process:
                assert process.stdout is not None
                acknowledged = int(process.stdout.readline())
                time.sleep(pauses.uniform(0, 0.05))
                process.kill()
                acknowledged = max([acknowledged, *map(int, process.stdout.read().split("\n")[:-1])])
            held = Held()
            held.check(worker.address, at_least=acknowledged)
        count = held.count + 10_000
        with appending(worker.address, count) as process:
            assert process.stdout is not None
            assert process.stdout.read().endswith("done\n")
        held = Held()
        held.check(worker.address, at_least=count)
        assert held.count == count


def appending(address: str, count: int) -> "subprocess.Popen[str]":
    """A process that appends until there are so many events; its writer is always the same."""
    program = [sys.executable, appending_process.__file__, address, "s", str(uuid.UUID(int=5)), str(count)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
