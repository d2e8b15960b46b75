"""Real processes killed with SIGKILL while sources send without pause."""

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.segments import SegmentClient
from tests.gateway.source_program import Acked, payload, stream_ids
from tests.gateway.stored_events import parse_data
from tests.worker_process import WorkerProcess

WORKER_KILLS = 20
STREAMS = 10
INSTANCES = ("first", "second", "truncated")
FINISH_SECONDS = 30

pytestmark = pytest.mark.process


class Program:
    """A source in a process of its own, which can be killed and started again."""

    def __init__(self, instance: str, port: int, directory: Path, seed: int) -> None:
        self.instance = instance
        self.acked = Acked(log := directory / f"{instance}.log")
        self.stop_file = directory / "stop"
        self.streams = stream_ids(instance, STREAMS)
        self._arguments = [str(port), instance, str(log), str(STREAMS), str(self.stop_file), str(seed)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "tests.gateway.source_program", *self._arguments])

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "the program found that something was lost"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def finish(self) -> int:
        assert self._process is not None
        code = self._process.wait(FINISH_SECONDS)
        self._process = None
        return code


class Stored:
    """What was seen in the segments: for each stream the messages 1, 2, 3, …, each once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.last: defaultdict[int, int] = defaultdict(int)
        self.ends: dict[str, int] = {}

    def look(self, instances: tuple[str, ...] = INSTANCES) -> None:
        """At what was added since the last time."""
        with SegmentClient(self._address) as client:
            for segment in (f"connector/{instance}/{route}" for instance in instances for route in (0, 1)):
                for event in client.events(segment, self.ends.get(segment, 0)):
                    self.ends[segment] = event.end
                    if event.data:
                        self._next(bytes(event.data))

    def _next(self, data: bytes) -> None:
        event = parse_data(data)
        assert event.event_id == self.last[event.stream_id] + 1, f"stream {event.stream_id}"
        assert event.payload == payload(event.stream_id, event.event_id)
        assert event.event_time == event.event_id * 1000
        self.last[event.stream_id] = event.event_id

    def check_holds(self, acked: dict[int, int]) -> None:
        for stream_id, last_id in acked.items():
            assert self.last[stream_id] >= last_id, f"stream {stream_id}: acknowledged, and not there"

    def truncate(self, instance: str) -> None:
        """Give up what was seen."""
        with SegmentClient(self._address) as client:
            for route in (0, 1):
                segment = f"connector/{instance}/{route}"
                client.truncate(segment, self.ends.get(segment, 0))


@contextmanager
def running(programs: list[Program]) -> Iterator[None]:
    try:
        for program in programs:
            program.start()
        yield
    finally:
        for program in programs:
            program.kill()


def acked_by(programs: list[Program]) -> dict[int, int]:
    return {stream_id: last_id for program in programs for stream_id, last_id in program.acked.read().items()}


def wait_for_acks(programs: list[Program], before: dict[int, int]) -> None:
    """Until every program has been sent something new."""
    deadline = time.monotonic() + 20
    for program in programs:
        while all(before.get(s, 0) >= last_id for s, last_id in program.acked.read().items()):
            program.check()
            assert time.monotonic() < deadline, f"{program.instance} is not acknowledged any more"
            time.sleep(0.005)


def test_a_worker_and_sources_killed_at_random_leave_every_message_once_and_in_order_and_all_that_was_acked(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with WorkerProcess(tmp_path / "data") as worker:
        programs = [Program(name, worker.connector_port, tmp_path, rng.randrange(2**32)) for name in INSTANCES]
        stored = Stored(worker.address)
        with running(programs):
            for _ in range(WORKER_KILLS):
                wait_for_acks(programs, acked_by(programs))
                time.sleep(rng.uniform(0, 0.3))
                victim = rng.choice(programs)
                if kill_program := rng.random() < 0.5:
                    victim.kill()
                worker.kill()
                acked = acked_by(programs)
                worker.start()
                if kill_program:
                    victim.start()
                stored.look()
                stored.check_holds(acked)
                if rng.random() < 0.5:
                    stored.truncate("truncated")
            (tmp_path / "stop").touch()
            assert [program.finish() for program in programs] == [0, 0, 0]
        stored.look()
        acked = acked_by(programs)
        assert {s: stored.last[s] for s in acked} == acked, "the last acknowledgement of a stream is its last message"
        assert len(acked) == len(INSTANCES) * STREAMS
        print(f"{sum(acked.values())} messages")
        again = Stored(worker.address)
        again.look(INSTANCES[:2])
        assert again.last == {s: stored.last[s] for program in programs[:2] for s in program.streams}
