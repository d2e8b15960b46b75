"""Worker and driver are killed in every window of an epoch: every event takes effect once, and in order."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Semaphore

import pytest

from penstock.client.coordinator import CoordinatorClient
from penstock.client.segments import SegmentClient
from penstock.core.errors import Fenced
from tests.coordinator.driver import (
    PIPELINE,
    SOURCE,
    Checkpoint,
    Driver,
    DriverDied,
    dead_letters,
    is_bad,
    numbers,
    output,
)
from tests.support.ports import free_port
from tests.support.running_worker import RunningWorker
from tests.support.worker_process import WorkerProcess


def run(
    worker: str,
    segments: str,
    checkpoint: Checkpoint,
    random: Random,
    until: int,
    on_window: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Run drivers one after the other, each until it dies, until all is output. Returns the deaths in each window."""
    deaths: dict[str, int] = {}

    def die(window: str) -> None:
        on_window()
        if random.random() < 0.12:
            deaths[window] = deaths.get(window, 0) + 1
            raise DriverDied(window)

    with SegmentClient(segments, retry_seconds=60) as reader:
        end = reader.info(SOURCE).length
        while checkpoint.end is None or checkpoint.end.segments.get(SOURCE, 0) < end or len(output(reader)) < until:
            driver = Driver(worker, segments, checkpoint, die, random)
            try:
                while driver.batch() or checkpoint.end is None:
                    pass
            except DriverDied:
                pass
            finally:
                driver.close()
    return deaths


def fill(segments: str, count: int) -> None:
    with SegmentClient(segments) as client:
        for first in range(0, count, 10):
            with client.appender(SOURCE, create=True) as appender:
                for event in numbers(10, first):
                    appender.append(event)


def test_drivers_killed_anywhere_output_everything_once(worker: RunningWorker) -> None:
    fill(worker.address, 300)
    address = f"127.0.0.1:{worker.ports['http']}"
    deaths = run(address, worker.address, Checkpoint(), Random(7), 300)
    with SegmentClient(worker.address) as client:
        assert output(client) == numbers(300)
        assert dead_letters(client) == [*filter(is_bad, numbers(300))]
    assert len(deaths) >= 5, f"they died in too few windows: {deaths}"
    with CoordinatorClient(address) as coordinator:
        assert coordinator.pipelines()[0].generation == sum(deaths.values()) + 1


def test_an_old_driver_that_resumes_is_fenced(worker: RunningWorker) -> None:
    fill(worker.address, 10)
    address = f"127.0.0.1:{worker.ports['http']}"
    checkpoint = Checkpoint()
    old = Driver(address, worker.address, checkpoint, lambda _: None, Random(1))
    start = old._coordinator.initial(PIPELINE, old._run.generation, "in")
    end = old._coordinator.cut(PIPELINE, old._run.generation, "in", start).offset
    staged = old._stage(0, 0, start, end)
    new = Driver(address, worker.address, checkpoint, lambda _: None, Random(2))
    assert new.batch()
    with pytest.raises(Fenced):
        old._coordinator.merge(PIPELINE, 0, [staged], generation=old._run.generation)
    with pytest.raises(Fenced):
        old.batch()
    with SegmentClient(worker.address) as client:
        assert output(client) == numbers(10)
    old.close()
    new.close()


def test_offsets_lost_in_a_power_failure_are_planned_again_unchanged(worker: RunningWorker) -> None:
    fill(worker.address, 100)
    address = f"127.0.0.1:{worker.ports['http']}"
    checkpoint, random = Checkpoint(), Random(3)
    driver = Driver(address, worker.address, checkpoint, lambda _: None, random)
    for _ in range(3):
        driver.batch()
    lost = checkpoint.offsets.pop(2)
    checkpoint.committed = 1
    driver.close()
    fill(worker.address, 50)
    driver = Driver(address, worker.address, checkpoint, lambda _: None, random)
    driver.batch()
    driver.close()
    assert checkpoint.offsets[2] == lost
    with SegmentClient(worker.address) as client:
        put_out = output(client)
    assert put_out == numbers(100)[: len(put_out)]
    assert len(put_out) > 0


@pytest.mark.process
def test_a_worker_that_is_killed_repeatedly_loses_and_repeats_nothing(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path)
    worker.http_port = free_port()
    windows = Semaphore(0)  # one for each window that a driver has reached
    errors: list[BaseException] = []
    with worker:
        fill(worker.address, 250)
        address = f"127.0.0.1:{worker.http_port}"

        def drive() -> None:
            try:
                run(address, worker.address, Checkpoint(), Random(11), 250, windows.release)
            except BaseException as error:
                errors.append(error)

        driving = threading.Thread(target=drive)
        driving.start()
        for pause in (0.0, 0.001, 0.004, 0.01):
            for _ in range(5):
                assert windows.acquire(timeout=60), errors
            time.sleep(pause)
            worker.kill()
            worker.start()
        driving.join()
        assert not errors, errors
        with SegmentClient(worker.address) as client:
            assert output(client) == numbers(250)
            assert dead_letters(client) == [*filter(is_bad, numbers(250))]
