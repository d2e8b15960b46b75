"""A host: the process that starts and stops shard processes as the cluster assigns shards to this machine, and that
sends programs to the process they need.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import uuid4

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

import penstock
from penstock.access.file import WithCluster
from penstock.access.refusals import Refusals
from penstock.bucket.counted_bucket import CountedBucket
from penstock.bucket.probe import probe
from penstock.bucket.stores import open_bucket
from penstock.cluster import assignment
from penstock.cluster.lease import REQUEST_SECONDS_MAX
from penstock.cluster.lease_state import LEASE_TIMING, OwnerSeen
from penstock.cluster.records import WorkerRecord, worker_id
from penstock.cluster.secret import Secret, cluster_secret
from penstock.core.address import this_machine
from penstock.core.durable_files import write_private
from penstock.core.errors import BucketFailed, PenstockError, RequestError, Unavailable
from penstock.core.supervisor import OnDeath, Supervisor
from penstock.core.tls_handshakes import with_tls
from penstock.protocol.api.cluster import ClusterStatus, Drain, Member, MoveShard
from penstock.store.files import RealFiles
from penstock.worker import metrics
from penstock.worker.bucket_shard import check_no_journal, patiently
from penstock.worker.certificates import requires_certificate
from penstock.worker.cluster import Cluster
from penstock.worker.cluster_access import ClusterAccess
from penstock.worker.controller_splices import ControllerPort
from penstock.worker.directory import CONNECTOR, CONTROLLER, HTTP, SEGMENT, Directory
from penstock.worker.host_routes import host_application
from penstock.worker.http import HttpServer
from penstock.worker.listeners import Listeners, allowed_hosts
from penstock.worker.membership import Membership
from penstock.worker.ports_file import PortsFile
from penstock.worker.redirects import RedirectPort, Route, route
from penstock.worker.segment_splices import SegmentPort
from penstock.worker.settings import STORE_FILE, BucketOptions, WorkerSettings
from penstock.worker.shard_processes import Action, ShardProcesses, StartOptions, plan

log = logging.getLogger(__name__)

T = TypeVar("T")

_BACKLOG = 1024
_MOVING_SECONDS = 0.3
"""Between two looks whether the other host's process waits for a shard that is to move."""
_ROUND_FAILED_SECONDS = 0.5
_ACCESS_ROUNDS = 5
"""Every so many rounds, a host looks whether another one has changed the access list."""


class Host:
    """`run` serves until `stop` is called."""

    def __init__(
        self,
        settings: WorkerSettings,
        options: BucketOptions,
        wants: int,
        arguments: list[str],
        log_file: Path | None = None,
    ) -> None:
        """`arguments`: of the command, which its shard processes are started with."""
        self._access = WithCluster(settings.access)
        self.settings = replace(settings, access=self._access, http_allowed_hosts=allowed_hosts(settings))
        self._options = options
        self._wants = wants
        self._arguments = arguments
        self._log_file = log_file
        self.refusals = Refusals()
        self.registry = CollectorRegistry()
        self.id = uuid4().hex
        self._started_at = time.monotonic()
        self._stopping = asyncio.Event()
        self._stop_waiting = Event()
        self._changed = asyncio.Event()
        self._supervisor = Supervisor(self.stop)
        self._problem = "the worker is starting"
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="membership")
        """Of its rounds, and of its processes. What programs ask for may keep all other threads waiting, for the store
        or for a process that sleeps, until this host is taken for dead.
        """

    def stop(self) -> None:
        self._stopping.set()
        self._stop_waiting.set()
        self._changed.set()

    async def run(self, ready: Callable[[dict[str, int]], None], on_waiting: Callable[[OwnerSeen], None]) -> None:
        """Raises OSError if a port is taken, what the store raises at the start, and RequestError for a data directory
        that has a journal of its own.
        """
        check_no_journal(self.settings.data)
        directory = RealFiles(self.settings.data)
        directory.lock()
        listeners = Listeners(self.settings)
        ports = PortsFile(self.settings.data)
        try:
            await self._join(listeners, on_waiting)
            if not self._stopping.is_set():
                await self._serve(listeners, ports, ready)
        finally:
            ports.withdraw()
            listeners.close()
            directory.close()
            self._threads.shutdown(wait=False)

    async def _join(self, listeners: Listeners, on_waiting: Callable[[OwnerSeen], None]) -> None:
        self.bucket = CountedBucket(open_bucket(self._options.url, timeout=REQUEST_SECONDS_MAX))
        self.worker = worker_id(socket.gethostname())
        self.addresses = listeners.addresses()
        self.ports = {**listeners.ports}
        record = WorkerRecord(
            worker=self.worker,
            revision=0,
            addresses=self.addresses,
            shards=(),
            wants=self._wants,
            machine=this_machine(),
        )
        self.membership = Membership(self.bucket, record)
        self._cluster = Cluster(self.bucket, self.worker)
        self._directory = Directory(self.bucket, is_tls=self.settings.http_ssl is not None)
        self._directory.declared = self.settings.programs.partitions
        self._shared_access = ClusterAccess(self.bucket, self.settings.data)
        secret = await asyncio.to_thread(patiently, self._first_requests, on_waiting, self._stop_waiting)
        if secret is not None and not self._stopping.is_set():
            self._access.secret = self._directory.secret = secret.token
            write_private(self.settings.data / STORE_FILE, f"{self.bucket.url}\n".encode())
            start = StartOptions(
                self._arguments,
                self.settings.data,
                self.worker,
                self._cache(),
                self._log_file,
                segment=self.addresses[SEGMENT] if self._serves_segments else "",
                has_controller=self.settings.controller is not None,
            )
            self.processes = ShardProcesses(start, self._changed.set)

    def _first_requests(self) -> Secret:
        probe(self.bucket)
        secret = cluster_secret(self.bucket)
        self._shared_access.begin()
        return secret

    def _cache(self) -> Path | None:
        """That of the processes; None: in their own directories."""
        return None if self._options.cache == self.settings.data / "cache" else self._options.cache

    async def _serve(self, listeners: Listeners, ports: PortsFile, ready: Callable[[dict[str, int]], None]) -> None:
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(metrics.build(penstock.__version__))
        http = HttpServer(host_application(self, self.settings), self.settings, self._supervisor)
        await http.start(listeners.take(HTTP))
        listener, segments = await self._listen(listeners), await self._listen_for_segments(listeners)
        controllers = await self._listen_for_controllers()
        rounds = self._supervisor.run("membership", self._take_part, OnDeath.RESTART)
        applying = self._supervisor.run("shard processes", self._apply_again_and_again, OnDeath.RESTART)
        ports.publish(PortsFile.content(self.settings, self.ports, self.id))
        ready(self.ports)
        await self._stopping.wait()
        await rounds.stop()
        await applying.stop()
        await self.processes.stop_all()
        with suppress(BucketFailed):
            await asyncio.to_thread(self.membership.leave)
        listener.close()
        for one in filter(None, (segments, controllers)):
            one.close()
        self._connectors.close()
        await http.stop()
        await self._supervisor.stop()

    async def _listen(self, listeners: Listeners) -> asyncio.Server:
        settings = self.settings.programs
        self._connectors = RedirectPort(settings, self.settings.redirect, self._route, access=self._access)
        factory = with_tls(self._connectors.connection, settings.ssl, settings.handshake_seconds)
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, sock=listeners.take(CONNECTOR), backlog=_BACKLOG)

    async def _listen_for_segments(self, listeners: Listeners) -> asyncio.Server | None:
        settings = self.settings.segment
        if not self._serves_segments:
            log.warning(
                "with --tls-client-ca a host does not pass on connections to its segment port: clients of segments use "
                "the addresses of the shards in penstock cluster status --json"
            )
            return None
        port, loop = SegmentPort(settings, self._directory), asyncio.get_running_loop()
        factory = with_tls(port.connection, settings.ssl, settings.handshake_seconds)
        return await loop.create_server(factory, sock=listeners.take(SEGMENT), backlog=_BACKLOG)

    @property
    def _serves_segments(self) -> bool:
        """Not where clients must have certificates: the process would see ours instead of theirs."""
        context = self.settings.segment.ssl
        return context is None or not requires_certificate(context)

    async def _listen_for_controllers(self) -> asyncio.Server | None:
        settings = self.settings.controller
        if settings is None:
            return None
        port, loop = ControllerPort(settings, self._directory), asyncio.get_running_loop()
        server = await loop.create_server(port.connection, settings.host, settings.port, backlog=_BACKLOG)
        self.ports[CONTROLLER] = server.sockets[0].getsockname()[1]
        return server

    async def _route(self, source: str) -> Route:
        return await route(self._directory, source, is_placed=self.settings.programs.auto_create)

    # Its part in the cluster.

    async def _take_part(self) -> None:
        count = 0
        while True:
            began = time.monotonic()
            try:
                await self._own_thread(self.membership.round)
                if count % _ACCESS_ROUNDS == 0 or self._shared_access.has_changed_here():
                    await self._own_thread(self._shared_access.look)
                if count == 0:
                    await self._directory.check_declared()
                    for problem in (await self._own_thread(self._cluster.status)).problems:
                        log.warning("%s", problem)
                self._problem = ""
                count += 1
            except PenstockError as error:
                self._problem = f"the object store does not answer: {error}"
                log.warning("this host could not renew its record: %s", error)
            self._changed.set()
            pause = LEASE_TIMING.renew if not self._problem else _ROUND_FAILED_SECONDS
            await asyncio.sleep(max(pause - (time.monotonic() - began), 0.1))

    async def _own_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _apply_again_and_again(self) -> None:
        while True:
            is_moving = await self._apply()
            with suppress(TimeoutError):
                async with asyncio.timeout(_MOVING_SECONDS if is_moving else LEASE_TIMING.renew):
                    await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(0.05)  # several changes at once are one

    async def _apply(self) -> bool:
        """Do what the assignment says. Returns whether something has to be looked at again soon."""
        self.processes.kill_silent()
        for one in self.processes.take_ended():
            if one.report.worker:
                with suppress(BucketFailed):
                    await self._own_thread(partial(self.membership.forget, one.report.worker))
        assigned = self.membership.assigned_to(self.worker)
        actions = plan(assigned, self.processes.reports())
        for shard, action in actions.items():
            match action:
                case Action.START:
                    await self.processes.start(shard)
                case Action.STOP:
                    self.processes.stop(shard)
                case Action.LEAVE:
                    await self._leave(shard)
        return bool(actions)

    async def _leave(self, shard: int) -> None:
        try:
            to = await self._own_thread(partial(self.membership.waiting, shard, self.membership.host_of(shard)))
        except BucketFailed:
            return
        if to:
            log.info("shard %d moves to %s", shard, to)
            self.processes.leave(shard, to)

    # What HTTP shows, and what it asks for.

    @property
    def directory(self) -> Directory:
        return self._directory

    def fatal_problems(self) -> list[str]:
        return []

    def ingest_problems(self) -> list[str]:
        return ["the worker is stopping"] if self._stopping.is_set() else self.problems()

    def problems(self) -> list[str]:
        found = [self._problem] if self._problem else []
        for shard, count in self.processes.failing().items():
            found.append(f"the process of shard {shard} has ended {count} times in a row: see the log")
        return [*found, *self._supervisor.problems()]

    async def cluster(self) -> ClusterStatus:
        return await asyncio.to_thread(self._cluster.status)

    async def drain(self, request: Drain) -> None:
        """Of this host. Raises RequestError."""
        if request.to:
            raise RequestError(
                "a drained worker's shards go wherever there is room", "To choose: penstock cluster move SHARD WORKER."
            )
        status = await self.cluster()
        others = [one for one in status.workers if one.wants is not None and one.worker != self.worker]
        if not any(not one.is_drained for one in others):
            raise RequestError(
                f"there is no other worker to which the shards of {self.worker} can move",
                "Start one with the same --store first: penstock worker --store URL.",
            )
        await asyncio.to_thread(self.membership.drain)

    async def move(self, request: MoveShard) -> None:
        """By the leader. Raises RequestError."""
        await asyncio.to_thread(
            self.membership.change,
            lambda record, leader, hosts: assignment.moved(record, leader, hosts, request.shard, request.to),
        )
        self._changed.set()

    async def rebalance(self) -> None:
        await asyncio.to_thread(self.membership.change, assignment.rebalanced)
        self._changed.set()

    async def leader_address(self) -> str:
        """The HTTP address of the leader; "" if it is this host. Raises Unavailable if there is none."""
        if self.membership.is_leader:
            return ""
        status = await self.cluster()
        return _address_of(status, status.leader)

    async def address_of(self, worker: str) -> str:
        """The HTTP address of this worker; "" if it is this host. Raises RequestError if it is unknown."""
        if worker == self.worker:
            return ""
        status = await self.cluster()
        if all(one.worker != worker for one in status.workers):
            raise RequestError(f"worker {worker!r} is not in this cluster", "See penstock cluster status.")
        return _address_of(status, worker)

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def uptime_seconds(self) -> float:
        return round(time.monotonic() - self._started_at, 1)


def _address_of(status: ClusterStatus, worker: str) -> str:
    found: Member | None = next((one for one in status.workers if one.worker == worker), None)
    if found is None or HTTP not in found.addresses:
        raise Unavailable("the cluster has no leader now", "Try again in some seconds; see penstock cluster status.")
    return found.addresses[HTTP]
