"""The worker's HTTP side: probes (/live, /ready and /health), /status, /segments and /metrics, which only look; and the
routes of the application, of coordinator and delivery.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol, TypeVar

import uvicorn
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.access.principals import Principal, Role
from penstock.access.refusals import Refusals
from penstock.core.supervisor import OnDeath, Supervised, Supervisor
from penstock.protocol.api.codec import encode
from penstock.protocol.api.status import (
    Health,
    LoopStatus,
    Part,
    SegmentServerStatus,
    SessionStatus,
    SessionTotals,
    SourceStatus,
    SourceTotals,
    StoreStatus,
    WorkerStatus,
)
from penstock.protocol.stored.names import access_name
from penstock.store.reader import SegmentInfo
from penstock.worker import application_routes, backup_routes, pipeline_routes
from penstock.worker.backup_routes import BackedUp
from penstock.worker.http_access import HttpAccess
from penstock.worker.http_limits import Bodies, Decoding, HttpConnections
from penstock.worker.routes import Routed, get, principal_of
from penstock.worker.settings import WorkerSettings

T = TypeVar("T")

_PAGE = 1000

_STOP_SECONDS = 10
"""How long a stop waits for answers that are being sent."""


class Watched(Routed, BackedUp, Protocol):
    """What the HTTP side needs from a worker."""

    registry: CollectorRegistry
    refusals: Refusals

    def fatal_problems(self) -> list[str]:
        """Those that a restart would solve."""
        ...

    def ingest_problems(self) -> list[str]:
        """Why the worker accepts no events now."""
        ...

    def problems(self) -> list[str]:
        """All that somebody should look at."""
        ...

    def status(self) -> WorkerStatus: ...

    def segments(self, prefix: str, after: str, limit: int) -> list[SegmentInfo]: ...


def application(worker: Watched, settings: WorkerSettings) -> Starlette:
    async def status(request: Request) -> WorkerStatus:
        return visible(worker.status(), principal_of(request))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(worker.registry), media_type=CONTENT_TYPE_LATEST)

    async def segments(request: Request) -> dict[str, object]:
        """Those after `after`, in the order of names, that the principal may read: a page at a time. `more`: whether
        there may be others, after `after`.
        """
        principal, query = principal_of(request), request.query_params
        after, has_more, page = query.get("after", ""), True, list[SegmentInfo]()
        while has_more and not page:
            found = worker.segments(query.get("prefix", ""), after, _PAGE + 1)
            page = [one for one in found[:_PAGE] if principal.may(Role.READ, access_name(one.name))]
            has_more, after = len(found) > _PAGE, found[:_PAGE][-1].name if found else after
            await asyncio.sleep(0)  # others get their turn while pages of other principals are skipped
        # The last name that was looked at may be another principal's.
        return {"segments": [*map(_as_json, page)], "more": has_more, "after": page[-1].name if page else ""}

    async def disconnected(_: Request, __: Exception) -> Response:
        """Nobody reads this reply; without it, a traceback is logged for every client that goes away too early."""
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    app = Starlette(
        exception_handlers={ClientDisconnect: disconnected},
        routes=[
            get("/live", _probe(worker.fatal_problems)),
            get("/ready", _probe(worker.ingest_problems)),
            get("/health", _probe(worker.problems)),
            get("/status", status, is_filtered=True),
            get("/metrics", metrics),
            get("/segments", segments, is_filtered=True),
            *application_routes.routes(worker),
            *pipeline_routes.routes(worker),
            *backup_routes.routes(worker),
        ],
        middleware=[
            Middleware(
                HttpAccess,
                access=settings.access,
                refusals=worker.refusals,
                host=settings.http_host,
                allowed_hosts=settings.http_allowed_hosts,
            )
        ],
    )
    app.state.bodies = Bodies(settings.http.bodies_bytes_max)
    app.state.decoding = Decoding()
    return app


def _probe(problems: Callable[[], list[str]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        health = Health(ok=not (found := problems()), problems=found)
        return Response(encode(health) + b"\n", 200 if health.ok else 503, media_type="application/json")

    return answer


def _as_json(info: SegmentInfo) -> dict[str, object]:
    return asdict(info) | {"attributes": {key.hex(): value for key, value in info.attributes.items()}}


def visible(status: WorkerStatus, principal: Principal) -> WorkerStatus:
    """What the principal may read of it: a limited one sees its own sources and pipelines with their totals, and
    nothing about others or the machine.
    """
    if principal.may(Role.READ):
        return status

    def own(names: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in names.items() if principal.may(Role.READ, name)}

    rates, sources = status.rates, own(status.sources)
    sessions = [one for one in status.sessions if one.source and principal.may(Role.READ, one.source)]
    return replace(
        status,
        pid=0,
        data="",
        uptime_seconds=0.0,
        problems=[],
        blockages=[],
        store=_nothing(StoreStatus),
        loop=_nothing(LoopStatus),
        segment_server=_nothing(SegmentServerStatus),
        sources=sources,
        source_totals=_source_totals(sources.values()),
        damaged_sources=own(status.damaged_sources),
        sessions=sessions,
        session_totals=_session_totals(sessions),
        session_errors=[],
        application=None,
        connectors=[one for one in status.connectors if principal.may(Role.READ, one.name)],
        pipelines=[one for one in status.pipelines if principal.may(Role.READ, one.name)],
        starting=[one for one in status.starting if principal.may(Role.READ, one.name)],
        sinks=[one for one in status.sinks if principal.may(Role.READ, one.pipeline)],
        windows=[one for one in status.windows if principal.may(Role.READ, one.pipeline)],
        rates=replace(rates, sources=own(rates.sources), pipelines=own(rates.pipelines), sinks=own(rates.sinks)),
    )


P = TypeVar("P", bound=Part)


def _nothing(kind: type[P]) -> P:
    """A part of which all numbers are 0."""
    return kind(**dict.fromkeys(kind.__struct_fields__, 0))


def _source_totals(sources: Collection[SourceStatus]) -> SourceTotals:
    """What the sources themselves report."""
    return replace(
        _nothing(SourceTotals),
        count=len(sources),
        known_streams=sum(one.streams for one in sources),
        idle_streams=sum(one.idle_streams for one in sources),
        messages=sum(one.messages for one in sources),
        message_bytes=sum(one.message_bytes for one in sources),
        duplicates=sum(one.duplicates for one in sources),
    )


def _session_totals(sessions: Collection[SessionStatus]) -> SessionTotals:
    """What the sessions themselves report."""
    return replace(
        _nothing(SessionTotals),
        open=len(sessions),
        credits=sum(one.credits for one in sessions),
        in_flight_bytes=sum(one.in_flight_bytes for one in sessions),
        ack_lag_seconds=max((one.ack_lag_seconds for one in sessions), default=0.0),
    )


class _Server(uvicorn.Server):
    """uvicorn inside a loop that is not its own: the worker handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(self, worker: Watched, settings: WorkerSettings, supervisor: Supervisor) -> None:
        self.connections = HttpConnections(settings.http, settings.http_ssl)
        config = uvicorn.Config(
            application(worker, settings),
            host=settings.http_host,
            port=settings.http_port,
            http=self.connections.protocol,  # type: ignore[arg-type] # it is only called
            ws="none",
            log_config=None,  # as all the worker's
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_keep_alive=settings.http.idle_seconds,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        config.load()
        self._server = _Server(config)
        self._supervisor = supervisor
        self._task: Supervised | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when it is taken."""
        host, port = self._server.config.host, self._server.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it. asyncio sets it only if the socket was created with the protocol's number, and this
        # one was not; without it every answer waits 40 ms for the peer's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._task = self._supervisor.run("http", lambda: self._serve(listener), OnDeath.END)
        while not self._server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        chosen: int = listener.getsockname()[1]
        return chosen

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task.finished.wait()

    async def _serve(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])
        if not self._server.should_exit:
            raise RuntimeError("the HTTP server has ended by itself")
