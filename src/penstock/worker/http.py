"""The worker's HTTP side: probes (/live, /ready and /health), the read-only /status, /segments and /metrics, and the
routes of the application, the coordinator and delivery.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.access.file import AccessControl
from penstock.access.principals import Principal, Role
from penstock.access.refusals import Port, RefusalPace, Refusals
from penstock.core.address import Address, is_loopback
from penstock.core.connection_limits import address_of
from penstock.core.errors import Forbidden, RequestError, Unauthenticated, Unavailable
from penstock.core.supervisor import OnDeath, Supervised, Supervisor
from penstock.protocol.api.codec import encode
from penstock.protocol.api.history import SegmentPage, WorkerHistory
from penstock.protocol.api.status import Health, WorkerStatus
from penstock.protocol.stored.names import access_name
from penstock.store.reader import SegmentInfo
from penstock.worker import application_routes, backup_routes, cluster_routes, pipeline_routes, shard_routes
from penstock.worker.api_route import ApiRoute, Query
from penstock.worker.backup_routes import BackedUp
from penstock.worker.cluster_routes import Clustered
from penstock.worker.directory import Directory
from penstock.worker.http_limits import CERTIFICATE_NAMES, IS_REFUSED, Bodies, Decoding, HttpConnections
from penstock.worker.http_redirects import HttpRedirects
from penstock.worker.routes import PRINCIPAL, REFUSAL, Routed, failure, get, principal_of
from penstock.worker.settings import WorkerSettings
from penstock.worker.visibility import shown_principal, visible, visible_history

# Who may use the HTTP port.
#
# A request's Host header must name this worker: otherwise a web page could reach it under a name of its own (DNS
# rebinding). Requests of web pages, which have an Origin, are refused: the API is for programs. Then the client's token
# or certificate identifies it. What it may do is checked by each route.

OPEN_ON_LOOPBACK = frozenset({"/live", "/ready", "/health", "/metrics"})
"""Open without a token if only this machine reaches the HTTP port: for probes and monitoring."""

_PROBE = Principal("probe", Role.READ)


class HttpAccess:
    """In front of all routes: adds the principal to the scope, or refuses the request."""

    def __init__(
        self, app: ASGIApp, access: AccessControl, refusals: Refusals, host: str, allowed_hosts: frozenset[str]
    ) -> None:
        self._app = app
        self._access = access
        self._refusals = refusals
        self._hosts = frozenset(map(_normal, {host, *allowed_hosts}))
        self._pace = RefusalPace()
        self._open = OPEN_ON_LOOPBACK if is_loopback(host) else frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[PRINCIPAL] = self._principal(scope)
        except (Unauthenticated, Forbidden) as error:
            scope[IS_REFUSED] = True
            await asyncio.sleep(self._pace.delay(asyncio.get_running_loop().time()))
            await failure(error, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
        if (refusal := scope.get(REFUSAL)) is not None:
            self._refusals.add(Port.HTTP, address_of(scope["client"]), refusal)

    def _principal(self, scope: Scope) -> Principal:
        headers = Headers(scope=scope)
        self._check_host(headers.get("host", ""), scope["server"])
        if "origin" in headers:
            raise Forbidden("requests from web pages are refused", "Send the request without an Origin header.")
        if scope["path"] in self._open:
            return _PROBE
        return self._access.principal(_bearer_token(headers), scope.get(CERTIFICATE_NAMES, ()))

    def _check_host(self, header: str, server: tuple[str, int | None] | None) -> None:
        """The address that the client has connected to is accepted like a name of ours: it cannot be rebound."""
        host = _host(header)
        if is_loopback(host) or host in self._hosts or (server is not None and host == _normal(server[0])):
            return
        raise Forbidden(
            f"the Host header is {header!r:.100}, which is not a name of this worker",
            "Start the worker with --http-allow-host NAME if it is reached under this name.",
        )


def _host(header: str) -> str:
    """Empty for what is not a host."""
    try:
        return _normal(Address.parse(header).host)
    except RequestError:
        return ""


def _normal(host: str) -> str:
    return host.lower().rstrip(".")


def _bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


# The server.

_PAGE = 1000

_STOP_SECONDS = 10
"""How long a stop waits for answers that are being sent."""


class Watched(Routed, BackedUp, Clustered, Protocol):
    """What the HTTP side needs from a worker."""

    registry: CollectorRegistry
    refusals: Refusals

    @property
    def directory(self) -> Directory | None:
        """Of the cluster; None: this worker has everything."""
        ...

    def fatal_problems(self) -> list[str]:
        """Problems that a restart would solve."""
        ...

    def ingest_problems(self) -> list[str]:
        """Why the worker accepts no events now."""
        ...

    def problems(self) -> list[str]:
        """Everything that needs attention."""
        ...

    def status(self) -> WorkerStatus: ...

    def history(self, series: Collection[str]) -> WorkerHistory: ...

    def segments(self, prefix: str, after: str, limit: int) -> list[SegmentInfo]: ...


def api_routes(worker: Watched) -> list[ApiRoute]:
    """All routes of a worker."""

    async def status(request: Request) -> WorkerStatus:
        """Show everything that the worker knows about itself, its sources, pipelines and sinks."""
        return visible(worker.status(), principal_of(request))

    async def history(request: Request) -> WorkerHistory:
        """Show how fast everything has flowed in the last hour, and the last epochs of each pipeline."""
        wanted = request.query_params.getlist("series")
        return visible_history(worker.history(wanted), principal_of(request))

    async def metrics(_: Request) -> Response:
        """Show the metrics, in Prometheus's text format."""
        return Response(generate_latest(worker.registry), media_type=CONTENT_TYPE_LATEST)

    async def segments(request: Request) -> SegmentPage:
        """List segments, a page at a time, in the order of their names. `more`: whether there may be others after
        `after`.
        """
        principal, query = principal_of(request), request.query_params
        after, has_more, page = query.get("after", ""), True, list[SegmentInfo]()
        while has_more and not page:
            found = worker.segments(query.get("prefix", ""), after, _PAGE + 1)
            page = [one for one in found[:_PAGE] if principal.may(Role.READ, access_name(one.name))]
            has_more, after = len(found) > _PAGE, found[:_PAGE][-1].name if found else after
            await asyncio.sleep(0)  # let other requests run while segments of other principals are skipped
        # The last name examined may be another principal's.
        return SegmentPage(segments=[*map(_as_json, page)], more=has_more, after=page[-1].name if page else "")

    return [
        get("/live", probe(worker.fatal_problems), reply_type=Health, text=_LIVE),
        get("/ready", probe(worker.ingest_problems), reply_type=Health, text=_READY),
        get("/health", probe(worker.problems), reply_type=Health, text=_HEALTH),
        get("/status", status, is_filtered=True),
        get("/history", history, is_filtered=True, query=[_SERIES]),
        get("/principal", shown_principal, is_filtered=True),
        get("/metrics", metrics, reply_type=str, media=CONTENT_TYPE_LATEST),
        get("/segments", segments, is_filtered=True, query=_SEGMENTS),
        *application_routes.routes(worker),
        *pipeline_routes.routes(worker),
        *backup_routes.routes(worker),
        *cluster_routes.routes(worker),
        *shard_routes.routes(worker),
    ]


_LIVE = "Report whether the worker works at all: 503 if a restart would help."
_READY = "Report whether the worker accepts events: 503 if it does not now."
_HEALTH = "Report whether everything is well: 503, with the problems, if anything needs attention."

_SERIES = Query("series", "only this one, such as `source/orders/events`, and others if it is repeated")
_SEGMENTS = (
    Query("prefix", "only segments whose names start with it"),
    Query("after", "the name after which the page starts: `after` of the page before"),
)


def application(worker: Watched, settings: WorkerSettings) -> Starlette:
    async def disconnected(_: Request, __: Exception) -> Response:
        """Nothing reads this reply; without it, a traceback is logged for every client that goes away too early."""
        return Response(status_code=HTTPStatus.BAD_REQUEST)

    app = Starlette(
        exception_handlers={ClientDisconnect: disconnected},
        routes=api_routes(worker),
        middleware=[
            access_middleware(settings, worker.refusals),
            *_redirects(worker.directory),
        ],
    )
    prepare(app, settings)
    return app


def access_middleware(settings: WorkerSettings, refusals: Refusals) -> Middleware:
    return Middleware(
        HttpAccess,
        access=settings.access,
        refusals=refusals,
        host=settings.http_host,
        allowed_hosts=settings.http_allowed_hosts,
    )


def _redirects(directory: Directory | None) -> list[Middleware]:
    return [] if directory is None else [Middleware(HttpRedirects, directory=directory)]


def prepare(app: Starlette, settings: WorkerSettings) -> None:
    app.state.bodies = Bodies(settings.http.bodies_bytes_max)
    app.state.decoding = Decoding()


class Waiting(Clustered, Protocol):
    """What the HTTP side needs from a standby."""

    refusals: Refusals

    @property
    def directory(self) -> Directory | None: ...

    def owner_problem(self) -> Unavailable:
        """Why it does nothing, and which worker does."""
        ...


def standby_application(standby: Waiting, settings: WorkerSettings) -> Starlette:
    """Everything that needs the shard is refused, with the owner's address."""

    async def refuse(request: Request) -> Response:
        return failure(standby.owner_problem(), request.scope)

    app = Starlette(
        routes=[
            get("/live", probe(list)),
            get("/ready", probe(lambda: [str(standby.owner_problem())])),
            get("/health", probe(list)),
            *cluster_routes.routes(standby),
            Route("/{path:path}", refuse, methods=["GET", "POST", "PUT", "DELETE"]),
        ],
        middleware=[access_middleware(settings, standby.refusals), *_redirects(standby.directory)],
    )
    prepare(app, settings)
    return app


def probe(problems: Callable[[], list[str]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        health = Health(ok=not (found := problems()), problems=found)
        return Response(encode(health) + b"\n", 200 if health.ok else 503, media_type="application/json")

    return answer


def _as_json(info: SegmentInfo) -> dict[str, object]:
    return asdict(info) | {"attributes": {key.hex(): value for key, value in info.attributes.items()}}


class _Server(uvicorn.Server):
    """uvicorn inside a loop that is not its own: the worker handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(self, app: Starlette, settings: WorkerSettings, supervisor: Supervisor) -> None:
        self.connections = HttpConnections(settings.http, settings.http_ssl)
        config = uvicorn.Config(
            app,
            host=settings.http_host,
            port=settings.http_port,
            http=self.connections.protocol,  # type: ignore[arg-type] # it is only called
            ws="none",
            log_config=None,  # like all logs of the worker
            log_level="warning",
            lifespan="off",
            access_log=False,
            proxy_headers=False,  # a client must not choose the address that is logged for it
            timeout_keep_alive=settings.http.idle_seconds,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        config.load()
        self._server = _Server(config)
        self._supervisor = supervisor
        self._task: Supervised | None = None

    async def start(self, listener: socket.socket | None = None) -> int:
        """Listen, on this socket if there is one; returns the port. Raises OSError when it is taken."""
        host, port = self._server.config.host, self._server.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = listener or socket.create_server((host, port), family=family)
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
        with listener:  # uvicorn closes it only when it is asked to stop
            await self._server.serve(sockets=[listener])
        if not self._server.should_exit:
            raise RuntimeError("the HTTP server has ended unexpectedly")
