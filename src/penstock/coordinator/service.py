"""The coordinator's service in the worker's event loop: its parts, their background tasks, and its effects."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from penstock.bucket.objects import Bucket
from penstock.coordinator.burials import Burials
from penstock.coordinator.cuts import Cuts
from penstock.coordinator.dead_letters import DeadLetters
from penstock.coordinator.deliveries import Deliveries
from penstock.coordinator.flow import SPACING_SECONDS, Flow
from penstock.coordinator.heartbeats import Heartbeats, StartTimes
from penstock.coordinator.ledger import Keeper
from penstock.coordinator.lifecycle import Lifecycle
from penstock.coordinator.machine.commands import Effect, Release, Retain, Sweep, Truncate
from penstock.coordinator.machine.epochs import truncatable
from penstock.coordinator.merger import Merger, Sweeper
from penstock.coordinator.mirrored_checkpoints import MirroredCheckpoints
from penstock.coordinator.open_windows import ClockDemand, OpenWindows, WindowReports
from penstock.coordinator.pravega_streams import PravegaStreams
from penstock.coordinator.readers import Readers
from penstock.coordinator.readiness import Readiness
from penstock.coordinator.records import Records, Sources, normalised
from penstock.coordinator.remote import RemoteSources
from penstock.coordinator.reports import Reports
from penstock.coordinator.retention import RetentionTask
from penstock.coordinator.settings import NO_CONNECTORS, Connectors, CoordinatorSettings
from penstock.coordinator.shards import ShardDirectory, ShardWire
from penstock.coordinator.shared import News, Shared
from penstock.coordinator.sharing import Sharing
from penstock.coordinator.side_outputs import SideOutputs
from penstock.coordinator.traces import Traces
from penstock.coordinator.views import LocalView
from penstock.coordinator.watermark.output_log import OutputLog
from penstock.coordinator.watermark.watermarks import Watermarks
from penstock.core.supervisor import Supervised, Supervisor
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.stored.names import Form, Source, check_pipeline_name
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore


class Completion(Protocol):
    """The acknowledgements of one connector. Offsets are those of its segments; one that is not named is at 0."""

    def hold(self, start: Mapping[str, int]) -> None:
        """Pipelines read the connector: from now on acknowledge only what they have completed, up to these offsets."""
        ...

    def advance(self, ends: Mapping[str, int]) -> None:
        """All pipelines have completed the segments up to these offsets."""
        ...

    def let_go(self) -> None:
        """No pipeline reads the connector any more: acknowledge everything that is durable."""
        ...


Completions = Callable[[str], Completion]
"""The Completion of a connector, by name; also before the connector exists."""


class Releases:
    """Passes what is released on to the connectors' acknowledgements."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions
        self._awaiting: set[str] = set()

    def perform(self, release: Release) -> None:
        source = Source.parse(release.source)
        if source.form is not Form.CONNECTOR:
            return
        completion = self._completions(source.name)
        if release.segments is None:
            self._awaiting.discard(source.name)
            completion.let_go()
        elif source.name in self._awaiting:
            completion.advance(release.segments)
        else:
            self._awaiting.add(source.name)
            completion.hold(release.segments)


log = logging.getLogger(__name__)


class Coordinator:
    """Replies are sent, and effects happen, only when what they depend on is durable.

    Create it when everything in the store is durable, and `start` it before sources connect: from then on a connector
    acknowledges only what its pipelines have completed. Raises Damaged if the ledger cannot be read.
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
        supervisor: Supervisor | None = None,
        traces: Traces | None = None,
        bucket: Bucket | None = None,
        shard: int = 0,
        directory: ShardDirectory | None = None,
        wire: ShardWire | None = None,
    ) -> None:
        """`bucket`: where drivers mirror the checkpoints that are on their own machines; None: they do not. `shard`:
        this shard's number. `directory` and `wire`: of the cluster, if the worker serves a shard of one.
        """
        clock = asyncio.get_running_loop().time
        records, news, outputs = Records(store), News(), OutputLog(store)
        self.streams = streams = PravegaStreams(store)
        sources = Sources(store, records, streams)
        heartbeats = Heartbeats(settings.heartbeat_lapse_seconds, clock, starts)
        keeper = Keeper(store, durability, self._perform)
        self._supervisor = supervisor or Supervisor()
        local = LocalView(records, sources, connectors, outputs)
        self.remote = RemoteSources(local, keeper, self._supervisor, news.ring, directory, wire)
        views = self.remote.view
        watermarks = self.remote.watermarks = Watermarks(store, settings, clock, outputs, views, streams.watermark)
        self.flow = Flow(clock)
        reports = Reports(records, self.remote.view, heartbeats, watermarks, connectors, settings, self.flow)
        self._releases = Releases(completions)
        self._sweeper = Sweeper(store, settings.orphan_seconds, clock)
        self._retention = RetentionTask(store, settings, clock, now_us)
        self._traces = traces or Traces(time.time_ns)
        self._shared = Shared(
            store,
            keeper,
            records,
            sources,
            watermarks,
            heartbeats,
            reports,
            news,
            self.flow,
            self._traces,
            settings,
            self.remote,
            streams,
        )
        self._tasks: list[Supervised] = []
        durability.after_each_group(news.ring)
        durability.after_each_group(lambda: self.flow.settle(self._shared.state))
        if self._traces.is_on:
            durability.after_each_group(self._finish_traces)
        self.sides = SideOutputs(self._shared, self._sweeper.sweep)
        self.mirrored = MirroredCheckpoints(self._shared, bucket, shard)
        self.lifecycle = Lifecycle(self._shared, address, self.sides, self.mirrored)
        self.cuts = Cuts(self._shared, self.sides, connectors.store_gathered)
        self.merger = Merger(self._shared, self._sweeper, self.sides)
        self.readers = Readers(self._shared)
        self.deliveries = Deliveries(self._shared)
        self.dead_letters = DeadLetters(self._shared)
        self.burials = Burials(self._shared)
        self.windows = WindowReports(self._shared)
        self.readiness = Readiness(lambda: self._shared.state, heartbeats)
        self.clock_demand = ClockDemand(self._shared, self.cuts.queries, self.windows)
        self.sharing = Sharing(self._shared, self.readers, local, connectors, directory)
        self.clock_demand.others = self.sharing.demands
        self.remote.clock_wanted = self.clock_demand.wanted
        self._open_windows = OpenWindows(
            self._shared, self.windows, self.clock_demand, self.remote.connectors(connectors), now_us
        )

    def pause_retention_while(self, is_paused: Callable[[], bool]) -> None:
        """While this returns True, retention removes nothing; afterwards it catches up."""
        self._retention.is_paused = is_paused

    def allow_epochs(self, count: int) -> None:
        """Plan only so many more epochs, of all pipelines together."""
        self.cuts.epochs_left = count
        self._shared.news.ring()

    async def start(self) -> None:
        """Recover the tables of streams, restrict acknowledgements, and delete what a crash has left."""
        shared = self._shared
        for name, pipeline in shared.state.pipelines.items():
            if pipeline.sources & shared.remote.shards.keys():
                continue  # when its followers have the heads that it needs
            await shared.watermarks.recover_or_lose(shared.state, name)
        self._traces.recover(shared.state)
        for source, segments in shared.state.released.items():
            if source not in shared.remote.shards:
                self._releases.perform(Release(source, segments))
        retention = shared.settings.retention
        # First: what may be removed depends on it.
        shared.keeper.commit(Retain(retention.mode, retention.amount))
        self._retention.allow(Truncate(truncatable(shared.state)))
        self._sweeper.sweep_orphans(shared.state)
        self.deliveries.sweep()
        self.dead_letters.sweep()
        self._tasks = [
            self._supervisor.every("retention", shared.settings.retention_seconds, self._retain),
            self._supervisor.every("sweep of staged segments", shared.settings.sweep_seconds, self._sweep),
            self._supervisor.every("lag of pipelines", SPACING_SECONDS, self._sample),
        ]
        await self.remote.start()
        if self.mirrored.store is not None:
            sweep = self.mirrored.sweep_again_and_again
            self._tasks.append(self._supervisor.run("sweep of mirrored checkpoints", sweep))

    async def stop(self) -> None:
        """Waiting requests get Unavailable."""
        self._shared.news.end()
        await self.remote.stop()
        self._shared.keeper.stop()
        for task in self._tasks:
            await task.stop()

    def _finish_traces(self) -> None:
        """After each durable group. The state may be ahead of what is durable."""
        for epoch, reason in self._traces.completed(self._shared.state):
            self._shared.keeper.after(partial(self._traces.finish, epoch, reason))

    def _retain(self) -> None:
        self._retention.tick(self._shared.keeper)

    def _sweep(self) -> None:
        self._sweeper.sweep_orphans(self._shared.state)

    def _sample(self) -> None:
        self.flow.sample(self._shared.state, self._read_ends)

    def _read_ends(self) -> dict[str, int]:
        """Segment → its durable end, for all segments that pipelines read."""
        shared = self._shared
        found: dict[str, int] = {}
        for name, pipeline in shared.state.pipelines.items():
            view = shared.remote.view(name)
            found |= {segment: view.records.stored_end(segment) for segment in view.all_segments(pipeline.sources)}
        return found

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Release() if effect.source in self.remote.shards:
                self.remote.changed(effect.source)
            case Release():
                self._releases.perform(effect)
            case Truncate():
                self._retention.allow(effect)
                self.remote.changed_segments(effect.segments)
            case Sweep():
                self._sweeper.sweep(effect.prefix)
            case _:
                raise AssertionError(f"{effect} is part of the journal record itself")

    def announce(self, pipelines: Mapping[str, Sequence[str]]) -> None:
        """A driver is starting Spark for these pipelines, each with its sources. It repeats this until they start."""
        checked = {check_pipeline_name(name): normalised(sources) for name, sources in pipelines.items()}
        self._shared.heartbeats.announce(checked)

    # What /pipelines, /status and /metrics show.

    def pipelines(self) -> list[PipelineStatus]:
        return [self._open_windows.shown(one) for one in self._shared.reports.pipelines(self._shared.state)]

    def slowest(self, connector: str) -> list[str]:
        """The pipelines that a connector's data is retained for: those that are farthest behind."""
        return self._shared.reports.slowest(self._shared.state, connector)

    def read_times(self, source: str) -> tuple[Mapping[int, int], int]:
        """The highest event time of each active stream of a source, and the highest of all; NO_TIME: none."""
        return self._shared.reports.read_times(source)
