"""The steps of ingest that need no socket, for two shards: in two threads of one process, and in two processes. With no
program that sends, two cores are enough to see what Python's interpreter lock costs.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from bench import events
from bench.contenders.ingest import Batch, spread
from penstock.protocol.connector.bulk import StreamTable, encode_acks, rewrite, scan
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import encode_head
from penstock.store.record import checksum

RUNS = (1, 10, 1000)
"""Messages that a session receives at once: from a program that waits for each acknowledgement, and under load."""
SHARDS = 2
STREAMS = 10


def compare(rounds: int, seconds: float) -> dict[int, list[float]]:
    """Messages/s in threads ÷ messages/s in processes in each round, by the size of a run."""
    found: dict[int, list[float]] = {run: [] for run in RUNS}
    with ThreadPoolExecutor(SHARDS) as threads, ProcessPoolExecutor(SHARDS, get_context("spawn")) as processes:
        for pool in (threads, processes):
            _rate(pool, RUNS[0], 0.2)  # everything is imported and compiled
        for number in range(rounds):
            for run in RUNS:
                pools = (threads, processes) if number % 2 else (processes, threads)
                rates = {pool: _rate(pool, run, seconds) for pool in pools}
                found[run].append(rates[threads] / rates[processes])
    return found


def _rate(pool: Executor, run: int, seconds: float) -> float:
    """Messages/s of all shards together."""
    return sum(pool.map(_ingest, [run] * SHARDS, [time.time() + 0.1] * SHARDS, [seconds] * SHARDS))


def _ingest(run: int, begin: float, seconds: float) -> float:
    """Messages/s of one shard. They begin at the same time."""
    stream_ids = [spread(number) for number in range(STREAMS)]
    batch = Batch([stream_ids[number % STREAMS] for number in range(run)], events.payloads(run))
    table = StreamTable(seed=threading.get_ident())
    for stream_id in stream_ids:
        table.open(stream_id)
    time.sleep(max(begin - time.time(), 0.0))
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        columns = scan(batch.data)
        admission = table.admit(columns, EventTimeUnit.MS)
        for stored in rewrite(columns, admission):
            checksum([stored.data])
            encode_head(stored.streams, (), stored.count)
        encode_acks(1, admission.streams.stream_ids, admission.streams.last_ids)
        count += run
    return count / (time.perf_counter() - began)
