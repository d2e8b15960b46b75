"""One worker process: opens the store, serves it, and stops in order."""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from msgspec import structs
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

import penstock
from penstock.access.file import WithConnectors
from penstock.access.refusals import Refusals
from penstock.application.runtime import Runtime
from penstock.bucket.objects import Bucket
from penstock.client.shards import HttpShardWire
from penstock.cluster.lease_state import LEASE_TIMING
from penstock.connectors.api import SegmentPort
from penstock.connectors.permissions import Permissions
from penstock.coordinator.flow import Flow
from penstock.coordinator.service import Coordinator
from penstock.coordinator.settings import Connectors
from penstock.coordinator.shards import ShardDirectory
from penstock.coordinator.traces import Traces
from penstock.core.address import Address
from penstock.core.errors import BucketFailed, Damaged, DiskFull, RequestError, StoreFailed, Unavailable, WorkerFailed
from penstock.core.supervisor import Supervised, Supervisor
from penstock.delivery.service import Delivery
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.declarations import Declarations
from penstock.ingest.partitions import OtherPartition, PartitionedSources
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.protocol.api.backup import FixedPosition
from penstock.protocol.api.cluster import ClusterStatus, Drain
from penstock.protocol.api.delivery import EpochStatus, SinkSpec, SinkStatus
from penstock.protocol.api.deployment import Deployed, Deployment
from penstock.protocol.api.history import SourceStreams, WorkerHistory
from penstock.protocol.api.pipelines import PipelineStatus, StartingPipeline
from penstock.protocol.api.status import ApplicationStatus, OperatorStatus, StoreStatus, WorkerStatus
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.names import CONNECTOR_PREFIX
from penstock.segment_server.server import SegmentServer
from penstock.store.compaction import Compactor
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import Files, RealFiles
from penstock.store.journal import Durability
from penstock.store.reader import SegmentInfo
from penstock.store.spares import OUT_OF_SPACE
from penstock.store.store import SegmentStore
from penstock.worker import flow, history, http, metrics
from penstock.worker.application_places import ApplicationPlaces, check_alone
from penstock.worker.backups import Backups
from penstock.worker.blockages import Facts, FullSource, blockages
from penstock.worker.bucket_shard import BucketShard
from penstock.worker.departure import Departure
from penstock.worker.directory import CONNECTOR, CONTROLLER, CONTROLLER_PLACE, HTTP, SEGMENT, Directory
from penstock.worker.flow import SAMPLE_SECONDS, Key, Rates, StartTimes
from penstock.worker.history import History
from penstock.worker.http import HttpServer
from penstock.worker.listeners import Listeners
from penstock.worker.loop_watch import LoopWatch
from penstock.worker.ports_file import PortsFile, reachable
from penstock.worker.redirects import HERE, RedirectPort, Route, route
from penstock.worker.settings import WorkerSettings
from penstock.worker.traces import TraceExporter, trace_exporter, trace_seed

if TYPE_CHECKING:
    from penstock.pravega.server import ControllerServer

log = logging.getLogger(__name__)

_COMPACTION_IDLE_SECONDS = 0.2
_DISK_SECONDS = 1.0
"""Between two checks whether the disk has room."""
_KEEP_FILES_SECONDS = 1.0
"""Between two looks whether a command has changed a file that belongs to the shard."""
_LATE_SESSION_SECONDS = 12.0
"""While the lease is late, a source may wait here for so long before it has to look for another worker. Longer than the
connection that makes a source believe that the worker is well: during an outage of the store, no source gives up on its
worker.
"""

_PORTS = (SEGMENT, CONNECTOR, HTTP)


class Worker:
    """`run` serves until `stop` is called or the store fails. The journal's directory is DATA/journal."""

    def __init__(
        self,
        settings: WorkerSettings,
        files: Files | None = None,
        bucket: Bucket | None = None,
        shard: BucketShard | None = None,
        listeners: Listeners | None = None,
        directory: ShardDirectory | None = None,
    ) -> None:
        """`files`: where the journal is, instead of DATA/journal. `bucket`: where drivers mirror their checkpoints.
        `shard` stands for both; the worker closes it. `listeners`: ports that are open already, and stay open.
        `directory`: of the cluster of which the worker serves a shard.
        """
        self._directory = directory if shard is None else shard.member.directory
        self.settings = settings
        self._files = files if shard is None else shard.files
        self._bucket = bucket if shard is None else shard.bucket
        self._shard = shard
        self._listeners = listeners
        self.departure: Departure | None = None
        """The shard moves to another worker."""
        self._is_leaving = False
        self.supervisor = Supervisor(self.stop)
        self._loop_watch = LoopWatch()
        self.registry = CollectorRegistry()
        self.refusals = Refusals()
        self.id = uuid4().hex
        """Identifies this process: a client that has the ports from a file can detect another worker on them."""
        self._started_at = time.monotonic()
        self._own_access = WithConnectors(settings.access)
        self._ports_file = PortsFile(settings.data)
        self._are_ports_published = False
        self._controller: ControllerServer | None = None
        self._controller_damage: Damaged | None = None
        self._disk_problem = ""
        self._stopping = asyncio.Event()
        self._failed = False
        self._is_ready = False
        self._publishing: Supervised | None = None

    async def run(self, ready: Callable[[dict[str, int]], None] = lambda _: None) -> None:
        """Calls `ready` with the ports once everything listens. Raises StoreFailed when the disk fails,
        WorkerFailed when a task has died that the worker cannot run without.
        """
        try:
            self._open()
        except BaseException:
            if self._shard is not None:
                self._shard.close()
            raise
        self.supervisor.run("compaction", self._compact)
        try:
            await self._serve(ready)
        finally:
            await self.supervisor.stop()
            self._loop_watch.stop()
            self._close()
            self._ports_file.withdraw()
        if self._failed:
            self._journal.check()
        if self.supervisor.fatal:
            raise WorkerFailed(self.supervisor.fatal)

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def has_left(self) -> bool:
        """Whether `run` has returned because the shard has moved to another worker."""
        return self._is_leaving

    def _close(self) -> None:
        if self._shard is not None:
            self._shard.stop_waiting_soon()
        self._committer.stop()
        self._journal.close()
        if self._is_leaving and self.departure is not None:
            self.departure.release()
        elif self._shard is not None:
            self._shard.close()

    def _open(self) -> None:
        start = time.perf_counter()
        settings = self.settings.store
        self._journal = FileJournal(self._files or RealFiles(self.settings.data / "journal"), settings)
        self._store = SegmentStore(self._journal, settings)
        self.backups = Backups(self._journal, time.monotonic)
        self._compactor = Compactor(self._store, self.backups.chapters)
        # In a bucket the proof would be a PUT of its own, and each object has a checksum of its own.
        self._committer = Committer(self._journal, settings.idle_proof_seconds if self._shard is None else None)
        self._committer.start()
        if self._shard is not None:
            self._shard.on_lost = self._journal.fail
        gc.freeze()  # the table of segments lives as long as the worker: garbage collections need not walk over it
        self.recovery_seconds = time.perf_counter() - start

    async def _serve(self, ready: Callable[[dict[str, int]], None]) -> None:
        self._durability = durability = Durability(self._journal, asyncio.get_running_loop(), self._on_failure)
        shared = (self._own_access, self.supervisor, self.refusals)
        self._server = SegmentServer(self._store, durability, self.settings.segment, *shared)
        programs = replace(self.settings.programs, stamps_arrivals=self._directory is not None)
        self._sources = SourceCatalog(self._store, durability, programs, self.supervisor)
        if self.directory is not None:
            self._server.redirect(self.directory.segment_elsewhere, self.directory.claim_segment)
        self._sources.removes_completed = self.settings.coordinator.retention.mode == "complete"
        self._programs = ProgramServer(self._sources, self.settings.access, self.refusals)
        self._source_view = self._programs.view
        await self._start_coordinator(durability)
        self._register_metrics()
        self._rates = Rates(self._counts, time.monotonic)
        sampling = self.supervisor.every("rates", SAMPLE_SECONDS, self._rates.sample)
        self._history = History(self._measured, time.time)
        recording = self.supervisor.every("history", history.SAMPLE_SECONDS, self._history.sample)
        server = HttpServer(http.application(self, self.settings), self.settings, self.supervisor)
        self._loop_watch.start()  # until the ports are open, a stall delays no one
        own = {name: None if self._listeners is None else self._listeners.take(name) for name in _PORTS}
        self.ports = {SEGMENT: await self._server.start(own[SEGMENT])}
        self.ports |= {
            CONNECTOR: await self._programs.start(own[CONNECTOR], self._front),
            HTTP: await server.start(own[HTTP]),
        }
        await self._start_controller(durability)
        await self._start_application()
        keeping = self._serve_shard()
        if self._partitions is not None:
            self._partitions.start()
        if self._places is not None:
            self._publishing = self.supervisor.run("settings of sources", self._places.run)
        self._watch_disk()
        watching = self.supervisor.every("free disk", _DISK_SECONDS, self._watch_disk)
        self._is_ready = True
        ready(self.ports)
        await self._stopping.wait()
        self._is_leaving = self.departure is not None and self.departure.is_leaving
        await sampling.stop()
        await recording.stop()
        await watching.stop()
        if keeping is not None:
            await keeping.stop()
        await self._stop_coordinator()
        if self._controller is not None:
            await self._controller.stop()
        if not self._is_leaving:
            await self._programs.stop()
        await self._server.stop()
        await server.stop()
        if self._trace_exporter is not None:
            await self._trace_exporter.stop()
        if self._is_leaving and self.departure is not None:
            await self.departure.send_sources_away()  # last, so that they wait as shortly as possible

    async def _start_application(self) -> None:
        if self._places is not None:
            await self._places.find()
        if self._runtime is not None:
            await self._runtime.start()

    async def _start_controller(self, durability: Durability) -> None:
        """For clients of Pravega. If its ledger cannot be read, the rest of the worker still runs."""
        settings = self.settings.controller
        if settings is None or not await self._has_place_of_controller():
            return
        from penstock.pravega.server import ControllerServer  # here: gRPC is not installed everywhere

        access, supervisor = self._own_access, self.supervisor
        controller = ControllerServer(self._store, durability, settings, access, self.refusals, supervisor)
        try:
            self.ports[CONTROLLER] = await controller.start(self.ports[SEGMENT], self._server.changed)
            self._controller = controller
            if self._coordinator is not None:
                self._coordinator.streams.controller = controller.pipelines
        except Damaged as error:
            log.error("Pravega's clients are refused: %s", error)
            self._controller_damage = error

    async def _has_place_of_controller(self) -> bool:
        """In a cluster, one shard has it."""
        directory = self.directory
        return directory is None or directory.is_own(await directory.place(CONTROLLER_PLACE))

    def _serve_shard(self) -> Supervised | None:
        """Other workers learn where this one listens."""
        shard = self._shard
        if shard is None:
            return None
        loop = asyncio.get_running_loop()
        shard.on_late = lambda: loop.call_soon_threadsafe(self._programs.end_sessions)
        shard.serve(self._addresses())
        self.supervisor.run("sources of a late lease", lambda: self._send_sources_away(shard))
        return self.supervisor.run("files beside the journal", lambda: self._keep_files(shard))

    def _addresses(self) -> dict[str, str]:
        hosts = {SEGMENT: self.settings.segment.host, CONNECTOR: self.settings.programs.host}
        hosts |= {HTTP: self.settings.http_host, CONTROLLER: self.settings.segment.host}
        own = {name: str(Address(reachable(hosts[name]), port)) for name, port in self.ports.items()}
        if self._listeners is None:
            return own
        listening = self._listeners.addresses()
        host = Address.parse(listening[SEGMENT]).host  # the controller has no listener of its own
        controller = {CONTROLLER: str(Address(host, self.ports[CONTROLLER]))} if CONTROLLER in own else {}
        return listening | controller

    # The cluster.

    @property
    def directory(self) -> Directory | None:
        """None for a worker without a bucket, which has everything."""
        return None if self._shard is None else self._shard.member.directory

    def _front(self, serve: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Of the connector port: a source of another shard is sent to the worker that owns it."""
        if self.directory is None or self._listeners is None:
            return serve
        settings = self.settings
        return RedirectPort(settings.programs, settings.redirect, self._route, serve, settings.access).connection

    async def _route(self, source: str) -> Route:
        """What is stored here belongs here; and whoever names something that is not a source is refused here."""
        assert self.directory is not None
        if source in self._sources.join_as:
            return HERE
        found: Route = HERE
        if self._sources.get(source) is None:
            found = await route(self.directory, source, is_placed=self.settings.programs.auto_create)
        if found is HERE:
            with suppress(RequestError):  # whoever names something else is refused by the session
                await self._serve_partition(source)
        return found

    async def _serve_partition(self, source: str) -> None:
        """No stream of a source with several partitions is opened without its registry, and none of a source without
        its settings. Raises Unavailable, and Damaged as `coordinator` does.
        """
        assert self.directory is not None
        if len(await self.directory.placed_partitions(source)) > 1:
            self.coordinator()
            assert self._partitions is not None
            await self._partitions.serve(source)
        elif self._partitions is not None:
            await self._partitions.know(source)

    def partitions(self) -> PartitionedSources:
        if self._partitions is None:
            self.coordinator()
            raise RequestError("this worker is not in a cluster")
        return self._partitions

    async def other_partitions(self, source: str) -> Sequence[OtherPartition]:
        return [] if self._partitions is None else await self._partitions.others(source)

    async def cluster(self) -> ClusterStatus:
        """Raises RequestError for a worker without a bucket, and what the store raises."""
        if self._shard is None:
            raise RequestError("this worker has its journal on a disk: it is not in a cluster")
        status = await asyncio.to_thread(self._shard.member.cluster.status)
        return status if self.departure is None else structs.replace(status, move=self.departure.status())

    async def drain(self, request: Drain) -> None:
        """Begin to move the shard to another worker. Raises RequestError if there is none."""
        shard = self._shard
        if shard is None or self._listeners is None:
            raise RequestError("this worker has its journal on a disk: it has no standby")
        if request.worker != shard.member.worker:
            raise RequestError(f"worker {request.worker!r} does not own the shard", "See penstock cluster status.")
        if self.departure is not None and not self.departure.move.is_over:
            raise RequestError(f"the shard is already moving to {self.departure.move.target}")
        departure = self.departure = Departure(shard, self._programs)  # before anybody else can ask
        try:
            candidates = await asyncio.to_thread(shard.member.cluster.candidates, request.to)
        except BaseException:
            self.departure = None
            raise
        departure.begin([one.worker for one in candidates], self.stop)

    async def _keep_files(self, shard: BucketShard) -> None:
        while True:
            with suppress(BucketFailed):  # the status has it; the next round tries again
                await asyncio.to_thread(shard.put_changed)
            await asyncio.sleep(_KEEP_FILES_SECONDS)

    async def _send_sources_away(self, shard: BucketShard) -> None:
        """Sources that come back while the lease is late are let in, for it may be renewed soon. If another worker has
        taken over, and only this one is cut off from the store, they would wait here for nothing.
        """
        while True:
            await asyncio.sleep(LEASE_TIMING.expired if shard.may_act() else _LATE_SESSION_SECONDS)
            if not shard.may_act():
                self._programs.end_sessions()

    async def _stop_coordinator(self) -> None:
        """Connectors stop reading, then pending output is sent, then their connections are closed."""
        if self._publishing is not None:
            await self._publishing.stop()
        if self._partitions is not None:
            await self._partitions.stop()
        if self._runtime is not None:
            await self._runtime.stop_reading()
        if self._coordinator is not None:
            await self._delivery.stop()
        if self._runtime is not None:
            await self._runtime.stop()
        if self._coordinator is not None:
            await self._coordinator.stop()

    async def _start_coordinator(self, durability: Durability) -> None:
        """Before sources are let in. If its ledger cannot be read, the rest of the worker still runs."""
        self._coordinator: Coordinator | None = None
        self._runtime: Runtime | None = None
        self._partitions: PartitionedSources | None = None
        self._places: ApplicationPlaces | None = None
        self._ledger_damage: Damaged | None = None
        self._application_damage: Damaged | None = None
        settings, completions = self.settings.coordinator, self._sources.completion
        self._start_traces()
        try:
            view, address = self._source_view, self._segment_address
            connectors = Connectors(
                view.disorder_us,
                view.stream_name,
                view.open_streams,
                view.has_finished,
                view.times,
                self._programs.sessions.store_gathered,
            )
            wire = None if self._directory is None else HttpShardWire(self._directory)
            coordinator = Coordinator(
                self._store,
                durability,
                settings,
                completions,
                address,
                connectors=connectors,
                starts=StartTimes(self.settings.data),
                supervisor=self.supervisor,
                traces=self._traces,
                bucket=self._bucket,
                shard=0 if self._shard is None else self._shard.number,
                directory=self._directory,
                wire=wire,
            )
        except Damaged as error:
            log.error("pipelines are refused: %s", error)
            self._ledger_damage = error
            self._hold_sources()
            return
        coordinator.pause_retention_while(self.backups.is_any_kept)
        await coordinator.start()
        self._coordinator = coordinator
        if self.directory is not None and wire is not None:
            self._partitions = PartitionedSources(self._sources, self.directory, wire, coordinator.remote.term)
        self._server.guard_staging(coordinator.merger.check_staging)
        self._sources.clock_marks.demand = coordinator.clock_demand.by_source
        self._start_delivery(coordinator, durability)
        if wire is not None:
            self._start_places(wire, coordinator.remote.term)

    def _start_places(self, wire: HttpShardWire, term: int) -> None:
        """Of a shard of a cluster: what its connectors have in others, and those of others here."""
        if self._runtime is not None and self._partitions is not None and self.directory is not None:
            runtime = self._runtime
            self._partitions.listen = runtime.partitions.listen
            self._partitions.is_configured_here = runtime.has_source
            self._places = ApplicationPlaces(self.directory, wire, self.permissions, self._runtime, term)

    def _start_traces(self) -> None:
        self._trace_exporter: TraceExporter | None = trace_exporter(os.environ)
        if self._trace_exporter is None:
            self._traces = Traces(time.time_ns)
        else:
            self._traces = Traces(time.time_ns, self._trace_exporter.export, trace_seed(self.settings.data))

    def _start_delivery(self, coordinator: Coordinator, durability: Durability) -> None:
        """If the application cannot be read, the rest of the worker still runs; the application's own sinks wait."""
        try:
            parts = (self._store, durability, self._programs, self._own_segments, self.permissions)
            keep = (lambda *_: None) if self._shard is None else self._shard.put
            self._runtime = Runtime(self.settings.data, *parts, keep)
        except Damaged as error:
            log.error("applications are refused: %s", error)
            self._application_damage = error
        may_act = (lambda: True) if self._shard is None else self._shard.may_act
        self._delivery = Delivery(coordinator.deliveries, self._runtime, self.permissions, self.supervisor, may_act)
        if self._runtime is not None:
            self._runtime.serve(coordinator, self._delivery)
        self._delivery.start()

    def _hold_sources(self) -> None:
        """It is unknown what pipelines have completed: nothing is acknowledged, and everything is retained."""
        for info in self._store.segments(CONNECTOR_PREFIX):
            name, _, _ = info.name.removeprefix(CONNECTOR_PREFIX).partition("/")
            self._sources.completion(name).hold({})

    def _segment_address(self) -> tuple[int, bool]:
        return self.ports["segment"], self.settings.segment.ssl is not None

    def _own_segments(self) -> SegmentPort:
        address = Address(reachable(self.settings.segment.host), self.ports["segment"])
        return SegmentPort(str(address), self._own_access.token)

    def coordinator(self) -> Coordinator:
        if self._coordinator is None:
            assert self._ledger_damage is not None
            raise Damaged(f"pipelines are refused: {self._ledger_damage}", self._ledger_damage.hint)
        return self._coordinator

    def delivery(self) -> Delivery:
        """Raises Damaged as `coordinator` does."""
        self.coordinator()
        return self._delivery

    async def fix_backup(self, backup: str) -> FixedPosition:
        """Raises Damaged as `coordinator` does."""
        pipelines = self.coordinator().deliveries.state.pipelines
        return await self.backups.fix(backup, self._durability, pipelines)

    async def bind(self, pipeline: str, sinks: Mapping[str, SinkSpec]) -> None:
        """First unbinds sinks of the application that move to another port, once they have received everything."""
        delivery = self.delivery()
        if self._runtime is not None:
            await self._runtime.make_way(pipeline, sinks)
        await delivery.bind(pipeline, sinks)

    async def drop(self, pipeline: str, *, outputs: bool) -> None:
        """The application forgets it, too."""
        await self.coordinator().lifecycle.drop(pipeline, outputs=outputs)
        if self._runtime is not None:
            await self._runtime.forget(pipeline)

    @property
    def permissions(self) -> Permissions:
        return self.settings.permissions

    async def apply(self, deployment: Deployment, name: str, expected_revision: int | None = None) -> Any:
        """As the runtime does. Raises RequestError for what is in another shard, and as `runtime` does."""
        runtime = self.runtime()
        if self._places is not None:
            return await self._places.apply(deployment, name, expected_revision)
        check_alone(deployment)
        return await runtime.apply(deployment, name, expected_revision)

    def application(self) -> Any:
        """For drivers and people: see Deployed. Raises Damaged as `coordinator` does."""
        if self._application_damage is None:
            return self.runtime().report()
        return Deployed(revision=0, state="failed", deployment=Deployment(), reason=str(self._application_damage))

    def runtime(self) -> Runtime:
        """Raises Damaged as `coordinator` does, or because what was deployed cannot be read."""
        self.coordinator()
        if self._runtime is None:
            assert self._application_damage is not None
            raise self._application_damage
        return self._runtime

    def stream_names(self, source: str, ids: Sequence[int]) -> list[str]:
        return self._source_view.stream_names(source, ids)

    def source_streams(self, source: str, limit: int) -> SourceStreams:
        times, newest = ({}, NO_TIME) if self._coordinator is None else self._coordinator.read_times(source)
        return self._source_view.streams(source, times, newest, limit)

    @property
    def sources(self) -> SourceCatalog:
        return self._sources

    def declarations(self) -> Declarations:
        return Declarations(self._sources)

    def _on_failure(self) -> None:
        self._failed = True
        self.stop()

    def _watch_disk(self) -> None:
        """Log when the disk becomes full and when it has room again; then do what had to wait for it."""
        if not self._are_ports_published:
            self._publish_ports()
        if self.fatal_problems():  # the worker stops, and says why
            return
        problem = self._room_problem()
        if problem:
            self.backups.give_up()
        if problem and not self._disk_problem:
            log.error("sources and new epochs wait; reads, delivery and truncation continue: %s", problem)
        elif self._disk_problem and not problem:
            log.warning("the disk has room again: sources and epochs continue")
        self._disk_problem = problem

    def _publish_ports(self) -> None:
        """Programs wait for this file. Commands on this machine find in it how to reach the HTTP port."""
        try:
            self._ports_file.publish(PortsFile.content(self.settings, self.ports, self.id))
            self._are_ports_published = True
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise

    async def _compact(self) -> None:
        while True:
            try:
                has_compacted = self._compactor.step()
            except Unavailable as error:  # bytes to be moved are in the bucket, which cannot be reached
                log.debug("compaction waits: %s", error)
                has_compacted = False
            has_encoded = self._store.encode_ahead()
            if self._journal.has_dropped:
                await asyncio.to_thread(self._journal.remove_dropped)
            await asyncio.sleep(0 if has_compacted or has_encoded else _COMPACTION_IDLE_SECONDS)

    def _counts(self) -> dict[Key, int]:
        return flow.counts(self._source_view, self._flow)

    def _measured(self) -> dict[str, float]:
        return flow.measured(self._rates, self._flow, self._pipelines(), self._windows(), time.time())

    @property
    def _flow(self) -> Flow | None:
        return None if self._coordinator is None else self._coordinator.flow

    # What probes, /status, /segments and /metrics show.

    def fatal_problems(self) -> list[str]:
        try:
            self._journal.check()
        except StoreFailed as error:
            return [str(error)]
        return []

    def ingest_problems(self) -> list[str]:
        if self._stopping.is_set():
            return ["the worker is stopping"]
        return ["the worker is starting"] if not self._is_ready else [*self._disk_problems()]

    def problems(self) -> list[str]:
        problems = [*self.supervisor.problems(), *self._disk_problems(), *self._store.damage]
        if self._ledger_damage is not None:
            problems.append(f"pipelines are refused: {self._ledger_damage}")
        if self._controller_damage is not None:
            problems.append(f"Pravega's clients are refused: {self._controller_damage}")
        if self._application_damage is not None:
            problems.append(f"applications are refused: {self._application_damage}")
        if self._runtime is not None:
            problems += self._runtime.problems()
        if self._coordinator is not None:
            problems += self._coordinator.remote.problems
        if self._partitions is not None:
            problems += self._partitions.problems
        if self._places is not None:
            problems += self._places.problems
        if self._shard is not None and not self._shard.member.options.host:  # otherwise its host reports them
            problems += self._shard.member.directory.problems
        return problems

    def _disk_problems(self) -> Iterator[str]:
        waited, limit = self._journal.oldest_unsynced_seconds, self.settings.store.unsynced_seconds_max
        if self._bucket_problem:
            yield f"nothing is acknowledged, because of the object store: {self._bucket_problem}"
        elif waited > limit:
            where = "disk" if self._shard is None else "object store"
            yield (
                f"the oldest unsynced write has waited {waited:.0f} s for the {where} (limit {limit:.0f} s): nothing "
                "is acknowledged until it completes"
            )
        if problem := self._room_problem():
            yield problem
        if "http" in self.ports and not self._are_ports_published:
            yield f"ports.json cannot be written on the full disk: name the worker with --worker {self._http_address}"

    @property
    def _bucket_problem(self) -> str:
        return "" if self._shard is None else self._shard.problem

    def _room_problem(self) -> str:
        """Why appends are refused; "" if they are not."""
        try:
            self._journal.check_room(draining=False)
        except DiskFull as error:
            return f"{error}. {error.hint}"
        except StoreFailed as error:
            return str(error)
        return ""

    @property
    def _http_address(self) -> Address:
        return Address(reachable(self.settings.http_host), self.ports["http"])

    def segments(self, prefix: str, after: str, limit: int) -> list[SegmentInfo]:
        return self._store.segments(prefix, after, limit)

    def status(self) -> WorkerStatus:
        sources, sessions, facts = self._source_view, self._programs.sessions, self._facts()
        return WorkerStatus(
            version=penstock.__version__,
            id=self.id,
            pid=os.getpid(),
            data=str(self.settings.data.resolve()),
            uptime_seconds=round(time.monotonic() - self._started_at, 1),
            ports=self.ports,
            tls=self.settings.segment.ssl is not None,
            problems=self.problems(),
            blockages=blockages(facts),
            store=self._store_status(),
            loop=self._loop_watch.status(),
            segment_server=self._server.status(),
            sources=facts.sources,
            source_totals=sources.totals(),
            source_defaults=sources.defaults(),
            damaged_sources=sources.damaged(),
            sessions=[session.status() for session in sessions],
            session_totals=self._programs.session_totals(),
            session_errors=[*sessions.errors],
            application=facts.application,
            connectors=facts.connectors,
            pipelines=facts.pipelines,
            starting=self._starting(),
            sinks=facts.sinks,
            windows=self._windows(),
            rates=flow.rates_status(self._rates, self._flow),
        )

    def history(self, series: Collection[str]) -> WorkerHistory:
        return self._history.reply(self._flow, series)

    def _application_status(self) -> ApplicationStatus | None:
        if self._application_damage is not None:
            reason = str(self._application_damage)
            return ApplicationStatus(revision=0, name="", state="failed", waits_for=[], reason=reason)
        return None if self._runtime is None else self._runtime.summary()

    def _pipelines(self) -> list[PipelineStatus]:
        return [] if self._coordinator is None else self._coordinator.pipelines()

    def _starting(self) -> list[StartingPipeline]:
        return [] if self._coordinator is None else self._coordinator.readiness.starting()

    def _sinks(self) -> list[SinkStatus]:
        return [] if self._coordinator is None else self._delivery.sinks()

    def _epochs(self, pipeline: str) -> Sequence[EpochStatus]:
        return self.delivery().epochs(pipeline)

    def _windows(self) -> list[OperatorStatus]:
        return [] if self._coordinator is None else self._coordinator.windows.operators()

    def _facts(self) -> Facts:
        in_flight, runtime = self._sources.in_flight, self._runtime
        return Facts(
            pipelines=self._pipelines(),
            sinks=self._sinks(),
            sources=self._source_view.status(),
            full_sources=self._full_sources(),
            connectors=[] if runtime is None else runtime.status(),
            application=self._application_status(),
            paused=[] if runtime is None else runtime.paused(),
            former=[] if runtime is None or self._coordinator is None else runtime.former(),
            is_disk_full=bool(self._room_problem()),
            slow_disk=in_flight.text if in_flight.is_short else "",
            is_on_bucket=self._shard is not None,
            bucket_problem=self._bucket_problem,
        )

    def _full_sources(self) -> dict[str, FullSource]:
        if self._coordinator is None:
            return {}
        slowest = self._coordinator.slowest
        return {name: FullSource(size, slowest(name)) for name, size in self._source_view.full_sources().items()}

    def _store_status(self) -> StoreStatus:
        journal = self._journal
        return StoreStatus(
            segments=len(self._store.table),
            chapters=len(journal.chapters),
            live_bytes=sum(self._store.table.live.values()),
            journal_end=journal.end,
            journal_durable=journal.durable,
            journal_queued_bytes=journal.end - journal.durable,
            recovery_seconds=round(self.recovery_seconds, 3),
            compaction_moved_bytes=self._compactor.moved_bytes,
            chapters_dropped=self._compactor.dropped_chapters,
            oldest_unsynced_seconds=round(journal.oldest_unsynced_seconds, 3),
            disk_free_bytes=journal.free_bytes(),
            disk_full=bool(self._room_problem()),
            damaged=len(self._store.damage),
            bucket=None if self._shard is None else self._shard.status(),
        )

    def _register_metrics(self) -> None:
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(metrics.build(penstock.__version__))
        self.registry.register(metrics.certificates(self.settings.certificate))
        self.registry.register(metrics.store(self._store_status))
        for collector in metrics.bucket(lambda: None if self._shard is None else self._shard.status()):
            self.registry.register(collector)
        self._journal.observe_write = metrics.journal_writes(self.registry).observe
        if self._trace_exporter is not None:
            self.registry.register(metrics.traces(self._trace_exporter.status))
        self.registry.register(metrics.loop(self._loop_watch.status))
        self.registry.register(metrics.refusals(self.refusals.counts))
        self.registry.register(metrics.tasks(self.supervisor.states))
        self.registry.register(metrics.sources(self._source_view.totals))
        self.registry.register(metrics.each_source(self._source_view.status))
        self.registry.register(metrics.sessions(self._programs.session_totals))
        self.registry.register(metrics.segment_server(self._server.status))
        self.registry.register(metrics.pipelines(self._pipelines))
        self.registry.register(metrics.watermark_blockers(self._pipelines))
        self.registry.register(metrics.windows(self._windows))
        self.registry.register(metrics.sinks(self._sinks, self._epochs))
        self.registry.register(metrics.undelivered_epochs(self._sinks, self._epochs))
        self.registry.register(flow.FlowMetrics(self._source_view, self._flow))
        if self._runtime is not None:
            self.registry.register(metrics.connectors(self._runtime.connectors))
            self.registry.register(metrics.own_counts(self._runtime.connectors))
