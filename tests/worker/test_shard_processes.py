"""The processes of a host."""

import asyncio
import os
import signal
from pathlib import Path

from penstock.worker.shard_processes import ShardProcesses, StartOptions
from tests.support.waiting import eventually


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
