"""The worker's HTTP side: probes (/live, /ready and /health), /status, /segments and /metrics, which only look; and the
routes of the application, of coordinator and delivery.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Protocol

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.access.principals import Role
from penstock.access.refusals import Refusals
from penstock.core.supervisor import OnDeath, Supervised, Supervisor
from penstock.protocol.api.codec import encode
from penstock.protocol.api.status import Health, WorkerStatus
from penstock.protocol.stored.names import access_name
from penstock.store.reader import SegmentInfo
from penstock.worker import application_routes, backup_routes, pipeline_routes
from penstock.worker.backup_routes import BackedUp
from penstock.worker.http_access import HttpAccess
from penstock.worker.http_limits import Bodies, Decoding, HttpConnections
from penstock.worker.routes import Routed, get, principal_of
from penstock.worker.settings import WorkerSettings
from penstock.worker.visibility import visible

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
            proxy_headers=False,  # a client must not choose the address that is logged for it
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
