"""A worker process on a bucket: a standby until the shard is its own, its owner, and a standby again when the shard has
moved away.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from msgspec import structs

from penstock.access.file import WithCluster
from penstock.access.refusals import Refusals
from penstock.cluster.lease_state import LEASE_TIMING, OwnerSeen
from penstock.core.address import Address
from penstock.core.errors import PenstockError, RequestError, Unavailable
from penstock.core.supervisor import Supervisor
from penstock.core.tls_handshakes import with_tls
from penstock.protocol.api.cluster import ClusterStatus, Drain
from penstock.worker.bucket_shard import BucketMember, BucketShard
from penstock.worker.departure import Departure
from penstock.worker.directory import CONNECTOR, HTTP, Directory
from penstock.worker.host_link import HostLink, ShardReport
from penstock.worker.http import HttpServer, standby_application
from penstock.worker.listeners import Listeners, allowed_hosts
from penstock.worker.ports_file import PortsFile
from penstock.worker.redirects import HERE, RedirectPort, Route, connector_address, route
from penstock.worker.settings import BucketOptions, WorkerSettings
from penstock.worker.worker import Worker

log = logging.getLogger(__name__)

_BACKLOG = 1024


class Standby:
    """The ports of a worker that waits for the shard: sources are sent to the owner, and HTTP shows the cluster."""

    def __init__(self, settings: WorkerSettings, listeners: Listeners, member: BucketMember) -> None:
        self.refusals = Refusals()
        self.departure: Departure | None = None
        """Of the shard that this worker has owned before."""
        self._settings = settings
        self._listeners = listeners
        self._member = member
        self._seen = OwnerSeen("", {}, 0.0, 0.0)
        self._file = PortsFile(settings.data, "standby")
        self._port = RedirectPort(settings.programs, settings.redirect, self._owner_of, access=settings.access)
        self._listener: asyncio.Server | None = None
        self._supervisor = Supervisor()
        self._http: HttpServer | None = None

    async def _owner_of(self, source: str) -> Route:
        found = await route(self._member.directory, source, is_placed=self._settings.programs.auto_create)
        return self._own_owner() if found is HERE else found

    def _own_owner(self) -> Address | None:
        """Of the shard that this process waits for. None while there is no owner that can be expected to answer: it has
        not renewed its lease in time, the shard is about to move here, or it had this worker's address, so it is dead,
        and this worker was started in its place.
        """
        seen, where = self._seen, self._seen.addresses.get(CONNECTOR, "")
        is_here = seen.owner == self._member.worker or where == self._member.addresses[CONNECTOR]
        if is_here or seen.is_next or seen.quiet_seconds >= LEASE_TIMING.late:
            return None
        return connector_address(where)

    async def start(self) -> None:
        ports = {name: int(address.rpartition(":")[2]) for name, address in self._member.addresses.items()}
        with suppress(OSError):  # without it, commands need --worker
            self._file.publish(PortsFile.content(self._settings, ports, self._member.worker))
        app = standby_application(self, self._settings)
        self._http = HttpServer(app, self._settings, self._supervisor)
        await self._http.start(self._listeners.take(HTTP))

    async def see(self, seen: OwnerSeen) -> None:
        """While the shard is about to move here, or no worker is known to own it, sources wait for an answer."""
        self._seen = seen
        if self._own_owner() is None:
            self._hold()
        elif self._listener is None:
            settings = self._settings.programs
            factory = with_tls(self._port.connection, settings.ssl, settings.handshake_seconds)
            listener = self._listeners.take(CONNECTOR)
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(factory, sock=listener, backlog=_BACKLOG)

    def acquired(self) -> None:
        """The shard is ours: sources wait until it is served."""
        self._seen = OwnerSeen("", {}, 0.0, 0.0)
        self._hold()

    def _hold(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._port.close_unanswered()

    async def stop(self) -> None:
        """Sources that are spliced to another worker stay connected."""
        self._hold()
        self._file.withdraw()
        if self._http is not None:
            await self._http.stop()
        await self._supervisor.stop()

    # What HTTP shows.

    @property
    def directory(self) -> Directory:
        return self._member.directory

    def owner_problem(self) -> Unavailable:
        owner, where = self._seen.owner, self._seen.addresses.get(HTTP, "")
        if not where:
            return Unavailable("this worker is a standby: it does not own the shard", "See penstock cluster status.")
        return Unavailable(f"this worker is a standby of {owner}", f"Use that worker: --worker {where}.")

    async def cluster(self) -> ClusterStatus:
        status = await asyncio.to_thread(self._member.cluster.status)
        return status if self.departure is None else structs.replace(status, move=self.departure.status())

    async def drain(self, request: Drain) -> None:
        raise RequestError(
            f"worker {self._member.worker} is a standby, and owns no shard that could move from {request.worker}",
            "Name the owner: penstock cluster status shows it.",
        )


class Member:
    """`run` serves until `stop` is called or the store fails."""

    def __init__(
        self,
        settings: WorkerSettings,
        options: BucketOptions,
        on_waiting: Callable[[OwnerSeen], None],
        link: HostLink | None = None,
    ) -> None:
        """`link`: to the host that has started this process."""
        self._link = link
        self._access = WithCluster(settings.access)
        self._settings = replace(settings, access=self._access, http_allowed_hosts=allowed_hosts(settings))
        self._options = options
        self._on_waiting = on_waiting
        self._member: BucketMember | None = None
        self._worker: Worker | None = None
        self._is_stopping = False
        self._departure: Departure | None = None
        self._departing: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._is_stopping = True
        if self._worker is not None:
            self._worker.stop()
        if self._member is not None:
            self._member.stop()

    async def run(self, ready: Callable[[Worker, dict[str, int]], None]) -> bool:
        """Calls `ready` whenever everything is served. Returns whether it has ever owned the shard. Raises what a
        Worker raises, and what the store raises.
        """
        listeners = Listeners(self._settings)
        is_tls = self._settings.http_ssl is not None
        member = self._member = BucketMember(
            self._options, self._settings.data, listeners.addresses(), is_tls=is_tls, on_secret=self._know_secret
        )
        member.directory.declared = self._settings.programs.partitions
        linked = (
            None if self._link is None else asyncio.create_task(self._link.run(self._report, self._leave, self.stop))
        )
        has_owned = False
        try:
            while not self._is_stopping and (shard := await self._stand_by(member, listeners)) is not None:
                has_owned = True
                if not await self._own(shard, listeners, ready):
                    break
                member.is_drained = True
        finally:
            await self._end_departure()
            if linked is not None:
                linked.cancel()
                with suppress(asyncio.CancelledError):
                    await linked
            member.close()
            listeners.close()
        return has_owned

    def _know_secret(self, secret: str) -> None:
        self._access.secret = secret

    # What the host learns, and what it asks for.

    def _report(self) -> ShardReport:
        worker, member = self._worker, self._member
        if member is None:
            return ShardReport()
        departure = self._departure if worker is None else worker.departure
        move = None if departure is None else departure.status()
        return ShardReport(
            worker=member.worker,
            addresses=member.addresses,
            state="waiting" if worker is None else "serving" if worker.is_ready else "starting",
            is_leaving=move is not None and not move.is_over,
            failure="" if move is None else move.failure,
            sessions=0 if move is None else move.sessions,
        )

    async def _leave(self, to: str) -> None:
        worker, member = self._worker, self._member
        if worker is None or member is None:
            return
        try:
            await worker.drain(Drain(worker=member.worker, to=to))
        except PenstockError as error:
            log.warning("the shard does not move to %s: %s", to, error)

    async def _own(
        self, shard: BucketShard, listeners: Listeners, ready: Callable[[Worker, dict[str, int]], None]
    ) -> bool:
        """Returns whether the shard has moved to another worker."""
        worker = self._worker = Worker(self._settings, shard=shard, listeners=listeners)
        if self._is_stopping:
            worker.stop()
        try:
            await worker.run(lambda ports: ready(worker, ports))
        finally:
            self._worker = None
            gc.unfreeze()  # the store of this term is not needed any more
        departure = worker.departure
        if departure is None or not worker.has_left:
            return False
        listeners.reserve_segment()
        self._departure, self._departing = departure, asyncio.create_task(departure.watch())
        return True

    async def _stand_by(self, member: BucketMember, listeners: Listeners) -> BucketShard | None:
        """Wait for the shard. None if the worker is to stop."""
        loop, seen = asyncio.get_running_loop(), asyncio.Queue[OwnerSeen | None]()
        standby = Standby(self._settings, listeners, member)
        standby.departure = self._departure

        def waits(waiting: OwnerSeen) -> None:
            if waiting.owner != member.worker:  # not while it has just given the shard up
                self._on_waiting(waiting)
            loop.call_soon_threadsafe(seen.put_nowait, waiting)

        def acquired() -> None:
            loop.call_soon_threadsafe(seen.put_nowait, None)

        following = asyncio.create_task(self._follow(standby, seen))
        try:
            shard = await asyncio.to_thread(member.acquire, waits, acquired)
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            await standby.stop()
        if shard is not None:
            await self._end_departure()
        return shard

    async def _follow(self, standby: Standby, seen: "asyncio.Queue[OwnerSeen | None]") -> None:
        """Serve as a standby from the first time that there is something to wait for."""
        is_started = False
        while True:
            waiting = await seen.get()
            if waiting is None:
                standby.acquired()
                continue
            if waiting.problem:
                continue
            if not is_started:
                is_started = True
                await standby.start()
            if self._departure is not None:
                self._departure.seen(waiting.owner)
            await standby.see(waiting)

    async def _end_departure(self) -> None:
        if self._departure is not None:
            self._departure.end()
            self._departure = None
        if self._departing is not None:
            self._departing.cancel()
            with suppress(asyncio.CancelledError):
                await self._departing
            self._departing = None
