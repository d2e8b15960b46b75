"""What the parts of the coordinator's service share."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from penstock.coordinator.flow import Flow
from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.ledger.keeper import Keeper, stopping
from penstock.coordinator.machine.apply import current
from penstock.coordinator.machine.state import Pipeline, State
from penstock.coordinator.news import News
from penstock.coordinator.reading.records import Records
from penstock.coordinator.reading.sources import Sources
from penstock.coordinator.reports import Reports
from penstock.coordinator.settings import CoordinatorSettings
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.store.store import SegmentStore


@dataclass(frozen=True, slots=True)
class Shared:
    """All of it belongs to the thread that owns the store."""

    store: SegmentStore
    keeper: Keeper
    records: Records
    sources: Sources
    watermarks: Watermarks
    heartbeats: Heartbeats
    reports: Reports
    news: News
    flow: Flow
    settings: CoordinatorSettings
    locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Of pipelines that somebody waits for, or works on."""

    @property
    def state(self) -> State:
        return self.keeper.state

    def lock(self, name: str) -> asyncio.Lock:
        """A pipeline's requests are handled one behind the other."""
        if self.news.is_over:
            raise stopping()
        lock = self.locks.get(name)
        if lock is None:
            lock = self.locks[name] = asyncio.Lock()
        return lock

    def living(self, name: str, generation: int) -> Pipeline:
        """The pipeline, if this is its newest generation, which has just given a sign of life. Raises Fenced."""
        pipeline = current(self.state, name, generation)
        self.heartbeats.beat(name)
        return pipeline
