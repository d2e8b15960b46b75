"""The worker is killed around a replay: every dead letter is sent through once, and the client is informed."""

import threading
import time
from pathlib import Path
from random import Random

import pytest

from penstock.client.coordinator import CoordinatorClient, Replayed
from penstock.client.segments import SegmentClient
from tests.spark.dead_letters.putting import PIPELINE, Putting, letter, original
from tests.support.ports import free_port
from tests.support.worker_process import WorkerProcess

COUNT = 300


@pytest.mark.process
def test_a_worker_that_is_killed_around_replays_sends_every_dead_letter_through_once(tmp_path: Path) -> None:
    worker, random = WorkerProcess(tmp_path), Random(5)
    worker.http_port = free_port()
    with worker:
        address = f"127.0.0.1:{worker.http_port}"
        with CoordinatorClient(address, 60) as client, SegmentClient(worker.address, retry_seconds=60) as segments:
            putting = Putting(client, segments)
            for first in range(0, 5 * COUNT, COUNT):
                putting.letters(letter(number) for number in range(first, first + COUNT))
                assert replayed_under_kills(worker, address, random.choice((0.0, 0.002, 0.005, 0.02))) == COUNT
            found = [event.data for event in segments.events(f"pipeline/{PIPELINE}/replay.in")]
            assert found == [original(number) for number in range(5 * COUNT)]
            end = client.cut(PIPELINE, putting.generation, "in", putting.at, wait_ms=1000).offset
            assert end.segments[f"pipeline/{PIPELINE}/replay.in"] == segments.info("pipeline/orders/replay.in").length


def replayed_under_kills(worker: WorkerProcess, address: str, pause: float) -> int:
    """Replay all that is not replayed while the worker is killed; how many it says there were."""
    with CoordinatorClient(address, 60) as client:
        (about,) = client.dead_letters(PIPELINE, "err").ports
        found: list[Replayed] = []
        asking = threading.Thread(
            target=lambda: found.append(client.replay(PIPELINE, "err", about.replayed, about.end))
        )
        asking.start()
        time.sleep(pause)
        worker.kill()
        worker.start()
        asking.join()
    return found[0].count if found else -1
