"""The coordinator at work, in the worker's loop: its parts put together, and what goes on besides its answers."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from penstock.coordinator.cuts import Cuts
from penstock.coordinator.dead_letters import Letters
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.flow import SPACING_SECONDS, Flow
from penstock.coordinator.heartbeats import Heartbeats, StartTimes
from penstock.coordinator.ledger import Keeper
from penstock.coordinator.lifecycle import Lifecycle
from penstock.coordinator.machine.commands import Effect, Release, Retain, Sweep, Truncate
from penstock.coordinator.machine.epochs import truncatable
from penstock.coordinator.merger import Merger, Sweeper
from penstock.coordinator.open_windows import ClockDemand, OpenWindows
from penstock.coordinator.readers import Readers
from penstock.coordinator.readiness import Readiness
from penstock.coordinator.records import Records, Sources, normalised
from penstock.coordinator.reports import Reports
from penstock.coordinator.retention import Retaining
from penstock.coordinator.settings import NO_CONNECTORS, Connectors, CoordinatorSettings
from penstock.coordinator.shared import News, Shared
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.coordinator.window_reports import WindowReports
from penstock.core.errors import PenstockError, StoreFailed
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.stored.names import Form, Source, check_pipeline_name
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

# What the coordinator needs of whoever acknowledges messages to sources, and how it is told.


class Completion(Protocol):
    """The acknowledgements of one connector. Offsets are those of its segments; one that is not named is at 0."""

    def hold(self, start: Mapping[str, int]) -> None:
        """Pipelines read the connector: acknowledge no more than what they have completed, which is this."""
        ...

    def advance(self, ends: Mapping[str, int]) -> None:
        """All of them have completed this."""
        ...

    def let_go(self) -> None:
        """No pipeline reads it any more."""
        ...


Completions = Callable[[str], Completion]
"""A connector's, by its name; also before there is such a connector."""


class Releases:
    """Tells each connector when it is held, how far it is released, and when it is held no more."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._held: set[str] = set()

    def perform(self, release: Release) -> None:
        source = Source.parse(release.source)
        if source.form is not Form.CONNECTOR:
            return
        completion = self._completions(source.name)
        if release.segments is None:
            self._held.discard(source.name)
            completion.let_go()
        elif source.name in self._held:
            completion.advance(release.segments)
        else:
            self._held.add(source.name)
            completion.hold(release.segments)


log = logging.getLogger(__name__)


class Coordinator:
    """Answers come when what they say is durable, and so do effects: what is released, what is removed.

    Make it when everything in the store is durable, and `start` it before sources are let in: a connector that
    pipelines read acknowledges from then on what they have completed. Raises Damaged when the ledger cannot be read.
    """

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        settings: CoordinatorSettings,
        completions: Completions,
        address: Callable[[], tuple[int, bool]],
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        connectors: Connectors = NO_CONNECTORS,
        starts: StartTimes | None = None,
    ) -> None:
        clock = asyncio.get_running_loop().time
        records, news = Records(store), News()
        sources = Sources(store, records)
        heartbeats = Heartbeats(settings.heartbeat_lapse_seconds, clock, starts)
        watermarks = Watermarks(store, records, settings, clock, connectors)
        reports = Reports(records, sources, heartbeats, watermarks, connectors, settings)
        keeper = Keeper(store, durability, self._perform)
        self._releases = Releases(completions)
        self._sweeper = Sweeper(store, settings.orphan_seconds, clock)
        self._retaining = Retaining(store, settings, clock, now_us)
        self.flow = Flow(clock)
        self._shared = Shared(
            store, keeper, records, sources, watermarks, heartbeats, reports, news, self.flow, settings
        )
        self._tasks: list[asyncio.Task[None]] = []
        durability.after_each_group(news.ring)
        durability.after_each_group(lambda: self.flow.settle(self._shared.state))
        self.lifecycle = Lifecycle(self._shared, address)
        self.cuts = Cuts(self._shared)
        self.merger = Merger(self._shared, self._sweeper)
        self.readers = Readers(self._shared)
        self.deliveries = Deliveries(self._shared)
        self.letters = Letters(self._shared)
        self.windows = WindowReports(self._shared)
        self.readiness = Readiness(lambda: self._shared.state, heartbeats)
        self.clock_demand = ClockDemand(self._shared, self.cuts.queries, self.windows)
        self._open_windows = OpenWindows(self._shared, self.windows, self.clock_demand, connectors, now_us)

    async def start(self) -> None:
        """Bring the tables of streams back, hold what is held, and remove what a crash has left."""
        shared = self._shared
        for name in shared.state.pipelines:
            try:
                await shared.watermarks.recover(shared.state, name)
            except PenstockError as error:  # its watermark knows of fewer streams; nothing else depends on it
                log.error("the table of streams of pipeline %r is lost: %s", name, error)
        for source, segments in shared.state.released.items():
            self._releases.perform(Release(source, segments))
        self._retaining.allow(Truncate(truncatable(shared.state)))
        retention = shared.settings.retention
        shared.keeper.commit(Retain(retention.mode, retention.amount))
        self._sweeper.sweep_orphans(shared.state)
        self.deliveries.sweep()
        self.letters.sweep()
        self._tasks = [
            asyncio.create_task(self._every(shared.settings.retention_seconds, self._retain)),
            asyncio.create_task(self._every(shared.settings.sweep_seconds, self._sweep)),
            asyncio.create_task(self._every(SPACING_SECONDS, self._sample)),
        ]

    async def stop(self) -> None:
        """Whoever waits is told so."""
        self._shared.news.end()
        self._shared.keeper.stop()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                work()
            except StoreFailed:
                return
            except PenstockError as error:
                log.error("coordinator: %s", error)

    def _retain(self) -> None:
        self._retaining.tick(self._shared.keeper)

    def _sweep(self) -> None:
        self._sweeper.sweep_orphans(self._shared.state)

    def _sample(self) -> None:
        self.flow.sample(self._shared.state, self._read_ends)

    def _read_ends(self) -> dict[str, int]:
        """Of all segments that pipelines read."""
        shared = self._shared
        read = frozenset(source for pipeline in shared.state.pipelines.values() for source in pipeline.sources)
        return {segment: shared.records.end(segment) for segment in shared.sources.all_segments(read)}

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Release():
                self._releases.perform(effect)
            case Truncate():
                self._retaining.allow(effect)
            case Sweep():
                self._sweeper.sweep(effect.prefix)
            case _:
                raise AssertionError(f"{effect} stands in the record itself")

    def announce(self, pipelines: Mapping[str, Sequence[str]]) -> None:
        """A driver is starting Spark for these, which will read these sources. It repeats this until they start."""
        for name, sources in pipelines.items():
            self._shared.heartbeats.announce(check_pipeline_name(name), normalised(sources))

    # What /pipelines, /status and /metrics show.

    def pipelines(self) -> list[PipelineStatus]:
        return [self._open_windows.shown(one) for one in self._shared.reports.pipelines(self._shared.state)]

    def holds(self, full_sources: dict[str, int]) -> list[str]:
        """Who holds the chain. `full_sources`: connectors at their quota, and the bytes they hold."""
        shared = self._shared
        sentences = [*shared.reports.holds(shared.state)]
        for name, size in full_sources.items():
            slowest = ", ".join(shared.reports.slowest(shared.state, name)) or "nobody reads it"
            sentences.append(f"source {name} is at its quota with {size} bytes, and gets no credits: {slowest}")
        return sentences
