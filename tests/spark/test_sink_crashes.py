"""A worker that is killed while a task stages: the rows are stored once when it is back."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.segments import SegmentClient
from penstock.protocol.stored.bulk import decode
from penstock.spark.python_worker import Task
from penstock.spark.sink.writer import SinkOptions, stage
from tests.support.worker_process import WorkerProcess

ROWS = [b"%d " % n * (1 + n % 90) for n in range(40_000)]
BATCH = 500
KILL_EVERY = 10_000
"""Rows: some 2.7 MB, less than the window, so that much is in flight."""


@pytest.mark.process
def test_a_task_stages_every_row_once_while_the_worker_is_killed_repeatedly(tmp_path: Path) -> None:
    with WorkerProcess(tmp_path / "data") as worker:
        options = SinkOptions(pipeline="counts", worker=f"127.0.0.1:{worker.http_port}", generation=1)
        restarts: list[threading.Thread] = []

        def batches() -> Iterator[Any]:
            for start in range(0, len(ROWS), BATCH):
                if start % KILL_EVERY == 0:
                    for restart in restarts:
                        restart.join()
                    worker.kill()  # with whatever was in flight
                    restarts.append(threading.Thread(target=worker.start))
                    restarts[-1].start()
                yield pa.record_batch({"value": pa.array(ROWS[start : start + BATCH], pa.binary())})

        (port,) = stage(options, Task(0, 0, 0), batches()).ports
        assert len(restarts) == len(ROWS) // KILL_EVERY
        assert port.rows == len(ROWS)
        assert stored(worker.address, port.segment) == ROWS


def stored(address: str, segment: str) -> list[bytes]:
    data = bytearray()
    with SegmentClient(address) as client:
        length = client.info(segment).length
        while len(data) < length:
            data += client.read(segment, len(data), length - len(data)).data
    found = decode(data).values
    assert found is not None
    return found.rows()
