"""Real processes killed with SIGKILL while sources send without pause."""

import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.ingest.killed_programs import (
    HELD,
    INSTANCES,
    STREAMS,
    Pipeline,
    Program,
    Stored,
    acked_by,
    held_by,
    running,
    wait_for_acks,
)
from tests.support.worker_process import WorkerProcess

WORKER_KILLS = 20

pytestmark = pytest.mark.process


def test_after_random_kills_of_worker_and_sources_every_acked_message_is_stored_and_every_message_once_in_order(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with WorkerProcess(tmp_path / "data") as worker:
        programs = [Program(name, worker.connector_port, tmp_path, rng.randrange(2**32)) for name in INSTANCES]
        stored = Stored(worker.address)
        pipeline = Pipeline(HELD, stored)
        pipeline.start(worker.http_port)
        with running(programs), closing(pipeline):
            for _ in range(WORKER_KILLS):
                wait_for_acks(programs, acked_by(programs), pipeline)
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
                stored.check_completed(held_by(programs), pipeline.completed)
                pipeline.start(worker.http_port)
            (tmp_path / "stop").touch()
            assert [program.finish(pipeline.step) for program in programs] == [0, 0, 0]
        stored.look()
        acked = acked_by(programs)
        assert {s: stored.last[s] for s in acked} == acked, "the last acknowledgement of a stream is its last message"
        assert len(acked) == len(INSTANCES) * STREAMS
        print(f"{sum(acked.values())} messages")
        stored.check_completed(held_by(programs), pipeline.completed)
        again = Stored(worker.address)
        again.look(INSTANCES[:2])
        assert again.last == {s: stored.last[s] for program in programs[:2] for s in program.streams}
