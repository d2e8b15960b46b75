"""The runtime of a worker's application: runs its connectors, changes them on `apply`, pauses and drains them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.application.binding import Binding, register
from penstock.application.deployments import (
    Application,
    ConnectorChanges,
    DeploymentFile,
    Phase,
    connector_changes,
    pipeline_changes,
)
from penstock.application.drain import Drain
from penstock.application.driver_check import DriverCheck
from penstock.application.instance import BuiltConnector, Instance, WorkerParts, build, build_all, report
from penstock.application.masking import masked
from penstock.application.partition_instances import PartitionInstances
from penstock.application.validation import check_deployment, check_ports
from penstock.connectors.api import Connector, Downstream, SegmentPort
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.sink_api import NonVotingSink
from penstock.coordinator.service import Coordinator
from penstock.core.errors import NoRoom, PenstockError, RequestError
from penstock.core.supervisor import Supervised
from penstock.delivery.breakers.signals import ApplicationGate, PipelineChains, Signals
from penstock.delivery.breakers.table import Breakers
from penstock.delivery.outbox.sink import OutboxSinks
from penstock.delivery.service import Delivery
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.known_streams import KnownStream, Standing
from penstock.ingest.out_ports.host import State
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.protocol.api.delivery import SinkSpec
from penstock.protocol.api.deployment import Deployment, End
from penstock.protocol.api.pipelines import PipelineStatus
from penstock.protocol.api.status import ApplicationStatus, ConnectorStatus
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore


def find_stream(
    sources: SourceCatalog, connector: str, stream: str | int | None, deployed: Container[str]
) -> int | None:
    """The id of a stream given by id or name; None for the whole connector. Raises RequestError if the connector or the
    stream does not exist, or if several open streams have the name.
    """
    try:
        streams: Mapping[int, KnownStream] = sources.existing(connector).streams
    except RequestError:
        if connector not in deployed:
            raise
        streams = {}
    if stream is None:
        return None
    if isinstance(stream, int):
        found = [stream] if stream in streams else []
    else:
        named = {stream_id: one for stream_id, one in streams.items() if one.name == stream}
        is_open = [stream_id for stream_id, one in named.items() if one.standing is not Standing.ENDED]
        found = is_open or [*named]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(f"#{one}" for one in found[:10])
        raise RequestError(
            f"{len(found)} streams of {connector!r} have the name {stream!r}", f"Use the id of one of them: {ids}."
        )
    raise RequestError(f"connector {connector!r} has no stream {stream!r}", "See its streams: penstock status")


log = logging.getLogger(__name__)

STOP_SECONDS = 10.0
"""The limit for storing what connectors have read when the worker stops; after that it is as after a crash."""

NO_ROOM_SECONDS = 1.0
"""The delay before `drained` is written again after the disk was full."""

_NOTHING = Deployment()

_APPLY_AGAIN = "Apply a valid one: penstock apply app.yaml"


class Runtime:
    """One change at a time. What was acknowledged is on disk, and is restored when the worker restarts.

    Create it before delivery, which asks it for connectors; then call `serve`, and `start` when the worker's ports are
    known. To stop: `stop_reading`, delivery's own stop, `stop`.
    """

    def __init__(
        self,
        folder: Path,
        store: SegmentStore,
        durability: Durability,
        programs: ProgramServer,
        segment_port: Callable[[], SegmentPort],
        permissions: Permissions = UNLIMITED,
        keep: Callable[[str, bytes], None] = lambda *_: None,
    ) -> None:
        """Raises Damaged if the saved deployment cannot be read. `keep`: see DeploymentFile."""
        self._file = DeploymentFile(folder, keep)
        self.application = self._file.load()
        clock = asyncio.get_running_loop().time
        self.breakers = Breakers()
        self._supervisor = programs.sources.supervisor
        self.signals = Signals(self.breakers, clock, programs.sources.knows, self._supervisor)
        self.sinks = OutboxSinks(store, durability, self.signals, clock, supervisor=self._supervisor)
        self._programs = programs
        self._permissions = permissions
        self._gate = ApplicationGate(self.signals)
        self.driver = DriverCheck(clock)
        self.is_elsewhere: Callable[[str], bool] = lambda _: False
        """Whether another shard has the source of this name, which is always the same one."""
        self._around = WorkerParts(
            programs.sources,
            self.signals,
            self.sinks,
            segment_port,
            self._downstream,
            lambda name: self.is_elsewhere(name),  # noqa: PLW0108  it is set later
        )
        self._instances: dict[str, Instance] = {}
        self._built: dict[str, BuiltConnector] = {}
        """Deployed connectors that do not run: delivery may need them."""
        self._failures: dict[str, str] = {}
        """Connectors that could not be built, and why."""
        self._failure = ""
        """Why nothing of the application runs, although it is deployed."""
        self._running = _NOTHING
        """The deployment that the instances belong to."""
        self._drain: Drain | None = None
        self._draining: Supervised | None = None
        self._changing = asyncio.Lock()
        self.partitions = PartitionInstances(self._around, permissions)
        self.changed: Callable[[], None] = lambda: None
        """Called whenever what is deployed, or its phase, has changed."""
        self.elsewhere: Callable[[], Sequence[str]] = lambda: ()
        """What instances of its connectors in other shards still have to do."""
        programs.sources.guard(self._gate)

    def serve(self, coordinator: Coordinator, delivery: Delivery) -> None:
        """Where pipelines and their sinks come from."""
        self._coordinator = coordinator
        self._delivery = delivery
        self._binding = Binding(delivery, lambda: coordinator.deliveries.state.pipelines, self.signals)
        self.signals.passed = PipelineChains(coordinator.deliveries).passed

    # Start and stop with the worker.

    async def start(self) -> None:
        """Restore the deployment. A connector that cannot be built does not stop the others, and a deployment that
        cannot run at all does not stop the worker.
        """
        async with self._changing:
            now = self.application
            if now.malformed is not None:
                self._fail_whole(f"the stored deployment is not valid: {now.malformed.reason}")
            for connector, stream_id in now.paused:
                self.breakers.pauses.pause(connector, stream_id)
            if now.phase is Phase.DRAINED:
                if not now.is_deployed:  # only programs were drained: there is nothing to apply again
                    self.application = replace(now, phase=Phase.RUNNING)
                    with suppress(NoRoom):  # then the next start does it again
                        await self._save(self.application)
                    self._gate.open()
                return
            built = {}
            for name, spec in now.deployment.connectors.items():
                try:
                    built[name] = build(spec, self._permissions)
                except PenstockError as error:
                    self._fail(name, error)
            try:
                await self._perform(connector_changes(_NOTHING, now.deployment), built, now.deployment)
            except Exception as error:
                log.exception("the application cannot be started")
                await self._close_all()
                self._fail_whole(f"it could not be started: {type(error).__name__}: {error}")
                self._gate.open()
                return
            if now.phase is Phase.DRAINING:
                self._start_drain()
            else:
                self._gate.open()

    async def stop_reading(self) -> None:
        """Stores what connectors have read, as far as possible."""
        self._stop_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                drains = (one.drain() for one in self._instances.values())
                await asyncio.gather(*drains, self.partitions.stop_reading(), return_exceptions=True)

    async def stop(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(one.leave() for one in self._instances.values()), return_exceptions=True)
        await self.partitions.stop()
        await self.signals.stop()
        self.sinks.stop()

    # For operators.

    async def apply(
        self,
        deployment: Deployment,
        name: str = "",
        expected_revision: int | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
    ) -> dict[str, Any]:
        """Returns the changes. Applying the same deployment again starts connectors that have failed, and, if it was
        drained, all of it. `claim` is called when nothing else can refuse the deployment, and may raise. Raises
        RequestError if anything in it is not valid, a connector cannot be built, or the driver cannot run a pipeline,
        and ConditionFailed as `Application.check_revision`; then nothing has changed.
        """
        check_deployment(deployment)
        async with self._changing:
            now = self.application
            now.check_revision(expected_revision, deployment)
            is_running = now.phase is Phase.RUNNING
            old = self._running if is_running else _NOTHING
            todo = connector_changes(old, deployment)
            given_up = self._given_up().keys()
            again = (self._failures.keys() | given_up) & deployment.connectors.keys()
            todo = replace(todo, stop=todo.stop | (again & given_up), start=todo.start | again)
            built = build_all((deployment.connectors[name] for name in todo.start), self._permissions)
            self._check_ports(deployment, built)
            pipelines = pipeline_changes(old, deployment)
            if is_running and now.deployment.pipelines and now.deployment != deployment:
                await self.driver.check(deployment)
            if claim is not None:
                await claim()
            is_same = now.is_deployed and is_running and now.deployment == deployment
            if not is_same or todo.start or self._failure:
                await self._save(now.with_deployment(deployment, name))
                if not is_running:
                    await self._end_drain()
                await self._perform_or_fail(todo, built, deployment)
                self._gate.open()
            return {"revision": self.application.revision, **todo.as_json(), **pipelines.as_json()}

    async def drain(self) -> dict[str, Any]:
        """Stops the sources. Returns immediately; the state shows when everything has left. Idempotent."""
        async with self._changing:
            if self._failure:
                raise RequestError(f"nothing runs: {self._failure}", _APPLY_AGAIN)
            if self.application.phase is Phase.RUNNING:
                await self._save(replace(self.application, phase=Phase.DRAINING))
                self._start_drain()
            return {"state": self.application.phase.value}

    async def pause(self, connector: str, stream: str | int | None) -> None:
        """Lasts until `resume`: no breaker, apply or restart ends it."""
        async with self._changing:
            stream_id = find_stream(self._programs.sources, connector, stream, self.application.deployment.connectors)
            await self._save(self.application.with_pause((connector, stream_id), is_paused=True))
            self.breakers.pauses.pause(connector, stream_id)

    async def resume(self, connector: str, stream: str | int | None) -> None:
        async with self._changing:
            is_known = not isinstance(stream, str) and (connector, stream) in self.application.paused
            known = self.application.deployment.connectors
            stream_id = stream if is_known else find_stream(self._programs.sources, connector, stream, known)
            assert not isinstance(stream_id, str)
            await self._save(self.application.with_pause((connector, stream_id), is_paused=False))
            self.breakers.pauses.resume(connector, stream_id)

    async def make_way(self, pipeline: str, sinks: Mapping[str, SinkSpec]) -> None:
        """Called before a driver binds these. See `Binding.make_way`."""
        await self._binding.make_way(pipeline, sinks, self.application.sinks.get(pipeline, frozenset()))

    async def forget(self, pipeline: str) -> None:
        """The pipeline was dropped."""
        async with self._changing:
            application = self.application.without_former(pipeline)
            if application.sinks != self.application.sinks:
                await self._save(application)

    async def _save(self, application: Application) -> None:
        await self._file.save(application)
        self.application = application
        self.changed()

    def has_source(self, name: str) -> bool:
        """Whether a connector of this name is deployed, and its source is in this shard."""
        return name in self.application.deployment.connectors and not self.is_elsewhere(name)

    # From one deployment to the next.

    def _check_ports(self, new: Deployment, built: Mapping[str, BuiltConnector]) -> None:
        """Raises RequestError."""
        found = {name: one.capabilities for name, one in built.items()}
        for name in new.connectors.keys() - built.keys():
            found[name] = self._instances[name].built.capabilities
        check_ports(new, found)

    async def _perform_or_fail(self, todo: ConnectorChanges, built: dict[str, BuiltConnector], new: Deployment) -> None:
        """After an unexpected error, nothing of the application runs. Raises RequestError."""
        self._failure = ""
        try:
            await self._perform(todo, built, new)
        except Exception as error:
            log.exception("the application cannot be changed")
            await self._close_all()
            self._fail_whole(f"it could not be started: {type(error).__name__}: {error}")
            raise RequestError(f"revision {self.application.revision}: {self._failure}", _APPLY_AGAIN) from error

    async def _perform(self, todo: ConnectorChanges, built: dict[str, BuiltConnector], new: Deployment) -> None:
        """Stops removed connectors first: what they have read is stored, and the ports that they listen on are free."""
        await self._close(todo.stop)
        for name in todo.stop - todo.start:
            self.signals.relink(name, ())
        started = [one for name in sorted(todo.start) if name in built and (one := self._make(built[name], new))]
        for name in todo.configure & self._instances.keys():
            self._instances[name].configure(new.connectors[name])
        for name in todo.start | todo.relink:
            self.signals.relink(name, new.downstream(name))
        for name in todo.relink & self._instances.keys():
            self._instances[name].relink(new)
        self._binding.serve(new, self._is_served)
        known = self._coordinator.deliveries.state.pipelines
        await register(self._coordinator.lifecycle, known, new, self._source, self.application.revision)
        await self._binding.rebind(new, self.application.sinks, self._votes)
        for instance in started:
            instance.start()
        self._running = new
        if self.application.is_deployed:
            self._programs.sources.system_streams.enable()

    def _make(self, built: BuiltConnector, deployment: Deployment) -> Instance | None:
        name = built.spec.name
        try:
            self._instances[name] = Instance(built, deployment, self._around)
        except PenstockError as error:
            self._fail(name, error)
            return None
        except Exception as error:  # a type of another package can raise anything
            log.exception("connector %s cannot be started", name)
            self._fail(name, PenstockError(f"it cannot be started: {type(error).__name__}"))
            return None
        self._failures.pop(name, None)
        return self._instances[name]

    def _fail(self, name: str, error: PenstockError) -> None:
        log.error("connector %s does not run: %s", name, error)
        self._failures[name] = f"{error} {error.hint}".strip()

    def _fail_whole(self, reason: str) -> None:
        self._failure = reason
        log.error("the application does not run: %s", reason)

    async def _close(self, names: Iterable[str]) -> None:
        gone = [self._instances.pop(name) for name in names if name in self._instances]
        for name in names:
            self._failures.pop(name, None)
        for outcome in await asyncio.gather(*(one.close() for one in gone), return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("a connector failed while it was being closed: %r", outcome)

    def _source(self, end: End) -> str:
        """The source that pipelines read: a connector may name a different one."""
        instance = self._instances.get(end.name) if (end.kind, end.port) == ("connector", "out") else None
        if instance is None:
            return end.source
        connector = instance.built.connector
        return connector.source_name(connector.options, end.name) or end.source

    def _downstream(self, connector: str) -> Downstream:
        return self._coordinator.readiness.of(connector)

    def _is_served(self, connector: str) -> bool:
        instance = self._instances.get(connector)
        return instance is not None and not instance.built.delivers

    def _votes(self, connector: str) -> bool | None:
        instance = self._instances.get(connector)
        return None if instance is None else instance.built.capabilities.votes

    # What delivery asks for: the connectors that pipelines' sinks name.

    def connector(self, name: str) -> Connector[Any] | None:
        """As deployed, also before the worker has started it and after a drain."""
        instance = self._instances.get(name)
        if instance is not None:
            return instance.built.connector
        spec = self.application.deployment.connectors.get(name)
        if spec is None:
            return None
        known = self._built.get(name)
        if known is None or known.spec != spec:
            try:
                known = self._built[name] = build(spec, self._permissions)
            except PenstockError:  # `_failures` has the reason
                return None
        return known.connector

    def make_outbox_sink(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> NonVotingSink:
        return self.sinks.make(pipeline, sink, connector, wake)

    def segment_port(self) -> SegmentPort:
        return self._around.segment_port()

    # Drain.

    def _start_drain(self) -> None:
        self._draining = self._supervisor.run("drain", self._drained)

    async def _drained(self) -> None:
        parts = (self._waited_pipelines, self._delivery.sinks, self.elsewhere)
        self._drain = Drain(self._instances, self._programs, self._gate, *parts)
        await self._drain.run()
        while self.application.phase is Phase.DRAINING:
            async with self._changing:
                await self._close_all()
                with suppress(NoRoom):
                    await self._save(replace(self.application, phase=Phase.DRAINED))
                    return
            await asyncio.sleep(NO_ROOM_SECONDS)

    def _waited_pipelines(self) -> list[PipelineStatus]:
        """Pipelines of the application, and others that run."""
        ours = self._running.pipelines
        return [
            one for one in self._coordinator.pipelines() if one.name in ours or one.state in ("STARTING", "RUNNING")
        ]

    def _stop_drain(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._drain = self._draining = None

    async def _end_drain(self) -> None:
        """Closes what a drain has left open."""
        self._stop_drain()
        await self._close_all()

    async def _close_all(self) -> None:
        """Afterwards nothing runs and nothing is linked."""
        await self._close([*self._instances])
        for name in self._running.connectors:
            self.signals.relink(name, ())
        self._failures.clear()
        self._drain = None
        self._running = _NOTHING

    # For the status.

    def report(self) -> dict[str, Any]:
        """For drivers: revision, deployment, a proposed deployment, and the state of a drain; secrets are masked. A
        pipeline that was reset has a new incarnation.
        """
        deployment, known = self.application.deployment, self._coordinator.deliveries.state.pipelines
        incarnations = {name: known[name].incarnation for name in deployment.pipelines if name in known}
        return {
            **msgspec.structs.asdict(self.summary()),
            "deployment": masked(deployment).as_json(),
            "proposed": self.driver.proposed(),
            "incarnations": incarnations,
            "buried": {name: len(one.buried) for name, one in known.items() if one.buried},
            "former": self.former(),
        }

    def summary(self) -> ApplicationStatus:
        now = self.application
        waits_for = self._drain.waits_for if self._drain is not None else []
        state = "failed" if self._failure else now.phase.value
        return ApplicationStatus(
            revision=now.revision, name=now.name, state=state, waits_for=waits_for, reason=self._failure
        )

    def connectors(self) -> list[ConnectorStatus]:
        """Of this application, and of others' partitions here."""
        running = sorted((self._instances | self.partitions.running).items())
        return [report(one, self.signals, self._programs.view) for _, one in running]

    def status(self) -> list[ConnectorStatus]:
        """Includes connectors that could not be built."""
        specs = self._running.connectors
        failed = [
            ConnectorStatus(name=name, id=name, instance="", type=specs[name].type, state="failed", reason=why)
            for name, why in self._failures.items()
            if name in specs
        ]
        failed += [
            ConnectorStatus(name=name, id=spec.id, instance="", type=spec.type, state="failed", reason=why)
            for name, (spec, why) in self.partitions.failures.items()
        ]
        return [*failed, *self.connectors()]

    def problems(self) -> list[str]:
        whole = [f"the application does not run: {self._failure} {_APPLY_AGAIN}"] if self._failure else []
        failed = [f"connector {name} does not run: {why}" for name, why in self._failures.items()]
        failed += [f"connector {name} does not run here: {why}" for name, (_, why) in self.partitions.failures.items()]
        failed += [
            f"connector {name} has used up its attempts: {why}. penstock apply starts it again"
            for name, why in self._given_up().items()
        ]
        return whole + sorted(failed)

    def _given_up(self) -> dict[str, str]:
        """Connectors that have used up their attempts, and why the last one failed."""
        statuses = {name: one.host.status() for name, one in (self._instances | self.partitions.running).items()}
        return {name: one.reason for name, one in statuses.items() if one.state == State.FAILED.value}

    def paused(self) -> list[str]:
        """What an operator has paused as a whole, whether it is a connector or a source of programs."""
        return sorted({name for name, stream in self.breakers.pauses.all() if stream is None})

    def former(self) -> list[str]:
        """Pipelines of earlier deployments that are still registered."""
        return self.application.former(self._coordinator.deliveries.state.pipelines)
