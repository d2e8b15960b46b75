"""The worker's HTTP side: /health, /status, /segments and /metrics, which only look; and the routes of the
application, of coordinator and delivery.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Protocol

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.protocol.api.status import WorkerStatus
from penstock.store.reader import SegmentInfo
from penstock.worker import application_routes, pipeline_routes
from penstock.worker.http_protocol import HttpProtocol
from penstock.worker.routes import Routed, reply

_PAGE = 1000

_IDLE_SECONDS = 75
"""A connection that is idle for so long is closed: drivers keep theirs open between two batches."""
_STOP_SECONDS = 10
"""How long a stop waits for answers that are being sent."""


class Watched(Routed, Protocol):
    """What the HTTP side needs from a worker."""

    registry: CollectorRegistry

    def problems(self) -> list[str]: ...

    def status(self) -> WorkerStatus: ...

    def segments(self, prefix: str, after: str, limit: int) -> list[SegmentInfo]: ...


def application(worker: Watched) -> Starlette:
    async def health(_: Request) -> Response:
        problems = worker.problems()
        text = "\n".join(problems) or "ok"
        return PlainTextResponse(f"{text}\n", status_code=503 if problems else 200)

    async def status(_: Request) -> Response:
        return reply(worker.status())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(worker.registry), media_type=CONTENT_TYPE_LATEST)

    async def segments(request: Request) -> Response:
        """Those after `after` in the order of names, a page at a time; `more`: whether there are others."""
        after = request.query_params.get("after", "")
        found = worker.segments(request.query_params.get("prefix", ""), after, _PAGE + 1)
        page = [_as_json(s) for s in found[:_PAGE]]
        return reply({"segments": page, "more": len(found) > _PAGE})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/segments", segments),
            *application_routes.routes(worker),
            *pipeline_routes.routes(worker),
        ]
    )


def _as_json(info: SegmentInfo) -> dict[str, object]:
    return asdict(info) | {"attributes": {key.hex(): value for key, value in info.attributes.items()}}


class _Server(uvicorn.Server):
    """uvicorn inside a loop that is not its own: the worker handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(self, worker: Watched, host: str, port: int) -> None:
        config = uvicorn.Config(
            application(worker),
            host=host,
            port=port,
            http=HttpProtocol,
            log_config=None,  # as all the worker's
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError when it is taken."""
        listener = socket.create_server((self._server.config.host, self._server.config.port))
        # Connections inherit it. asyncio sets it only if the socket was created with the protocol's number, and this
        # one was not; without it every answer waits 40 ms for the peer's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:  # noqa: ASYNC110  uvicorn has no event for it
            await asyncio.sleep(0.005)
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
