"""The processes of a host."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from penstock.worker.shard_processes import UNREADY_SILENT_SECONDS_MAX, ShardProcesses, StartOptions
from tests.support.waiting import eventually

LOOK_SECONDS = 2.0


class Sleeping(StartOptions):
    def command(self, shard: int) -> list[str]:
        return ["sleep", "60"]


async def test_a_process_that_had_to_be_killed_is_started_again(tmp_path: Path) -> None:
    changed = asyncio.Event()
    processes = ShardProcesses(Sleeping([], tmp_path, "host"), changed.set, stop_seconds_max=0.1)
    await processes.start(3)
    first = processes.running()[3]
    os.kill(first.pid, signal.SIGSTOP)  # so that it does not stop when it is asked to
    processes.stop(3)
    await eventually(lambda: first.has_ended)
    assert changed.is_set()
    assert processes.take_ended() == [first]
    await processes.start(3)
    second = processes.running()[3]
    assert second.pid != first.pid
    await processes.stop_all()
    assert second.has_ended


async def test_a_process_that_hangs_before_it_serves_is_replaced_later_each_time(tmp_path: Path) -> None:
    """Twice as late: it may have been about to end a long recovery."""
    processes = ShardProcesses(Sleeping([], tmp_path, "host"), asyncio.Event().set)
    killed_after = []
    for _ in range(3):
        while 3 not in processes.running():  # after a pause
            await processes.start(3)
            await asyncio.sleep(0.01)
        one = processes.running()[3]
        os.kill(one.pid, signal.SIGSTOP)
        began = now = asyncio.get_running_loop().time()
        while not one.is_killed:
            now += LOOK_SECONDS
            processes.kill_silent(now)
        killed_after.append(now - began)
        await eventually(processes.take_ended)
    for number, seconds in enumerate(killed_after):
        assert seconds == pytest.approx(UNREADY_SILENT_SECONDS_MAX * 2**number, abs=2 * LOOK_SECONDS)
    await processes.stop_all()
