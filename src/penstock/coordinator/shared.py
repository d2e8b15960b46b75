"""What the parts of the coordinator's service share."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from penstock.coordinator.flow import Flow
from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.ledger import Keeper, stopping
from penstock.coordinator.machine.apply import current
from penstock.coordinator.machine.state import Pipeline, State
from penstock.coordinator.pravega_streams import PravegaStreams
from penstock.coordinator.records import Records, Sources
from penstock.coordinator.remote import RemoteSources
from penstock.coordinator.reports import Reports
from penstock.coordinator.settings import CoordinatorSettings
from penstock.coordinator.traces import Traces
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.store.store import SegmentStore


class News:
    """Wakes tasks that wait for something new, after each journal group that has become durable. `count` grows with
    every group: read it before looking, and wait with it afterwards, so that nothing is missed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.count += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def end(self) -> None:
        """Wake all waiting tasks, now and in the future."""
        self.is_over = True
        self.ring()

    async def wait(self, seen: int, seconds: float) -> None:
        """Return when there is something newer than `seen`, or after this time."""
        if self.count != seen or self.is_over:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting
        self._waiting.discard(waiting)


@dataclass(frozen=True, slots=True)
class Shared:
    """Belongs to the thread that owns the store."""

    store: SegmentStore
    keeper: Keeper
    records: Records
    sources: Sources
    watermarks: Watermarks
    heartbeats: Heartbeats
    reports: Reports
    news: News
    flow: Flow
    traces: Traces
    settings: CoordinatorSettings
    remote: RemoteSources
    streams: PravegaStreams
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """By pipeline, while a request holds or awaits it."""

    @property
    def state(self) -> State:
        return self.keeper.state

    def lock(self, name: str) -> asyncio.Lock:
        """Requests of one pipeline are handled one after the other."""
        if self.news.is_over:
            raise stopping()
        lock = self.locks.get(name)
        if lock is None:
            lock = self.locks[name] = asyncio.Lock()
        return lock

    def trace(self, record: Callable[[], None]) -> None:
        """Record a phase of an epoch that ends when the current state is durable."""
        if self.traces.is_on:
            self.keeper.after(record)

    def living(self, name: str, generation: int) -> Pipeline:
        """The pipeline, if this is its newest generation. Counts as a heartbeat. Raises Fenced."""
        pipeline = current(self.state, name, generation)
        self.heartbeats.alive(name)
        return pipeline
