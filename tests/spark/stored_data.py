"""Events in segments that cannot be written over the segment port: stored by the worker's own thread."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.store.store import SegmentStore
from tests.support.running_worker import RunningWorker
from tests.support.waiting import SECONDS_MAX

T = TypeVar("T")

EVENTS_A_RECORD = 300


def store_events(worker: RunningWorker, segment: str, events: Sequence[bytes]) -> int:
    """Whole events, several per record. Returns where the segment ends, when that is durable."""

    def store(store: SegmentStore) -> int:
        if not store.exists(segment):
            store.create(segment)
        for start in range(0, len(events), EVENTS_A_RECORD):
            store.append(segment, [b"".join(events[start : start + EVENTS_A_RECORD])])
        return store.length(segment)

    return durable(worker, store)


def truncate(worker: RunningWorker, segment: str, offset: int) -> None:
    durable(worker, lambda store: store.truncate(segment, offset))


def durable(worker: RunningWorker, change: Callable[[SegmentStore], T]) -> T:
    result, position = in_store(worker, lambda store: (change(store), store.journal.end))
    deadline = time.monotonic() + SECONDS_MAX
    while in_store(worker, lambda store: store.journal.durable) < position:
        assert time.monotonic() < deadline, "it does not become durable"
    return result


def in_store(worker: RunningWorker, use: Callable[[SegmentStore], T]) -> T:
    async def call() -> T:
        return use(worker._worker._store)

    return asyncio.run_coroutine_threadsafe(call(), worker._loop).result(SECONDS_MAX)
