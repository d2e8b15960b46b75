"""uvicorn's side of a connection: reports when it opens and closes, and enforces limits that uvicorn does not have."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import h11
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.connectors.sockets import address_of
from penstock.core.connection_limits import find_dead_peers

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)  # uvicorn would log a warning for each bad request: they are counted instead


class Application(Protocol):
    """The ASGI application for the requests of one connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Served(Protocol):
    """Notified of connections."""

    def connected(self, protocol: "HttpProtocol", peer: str) -> Application | None:
        """The application for a new connection; None: there are too many, and it is closed."""

    def disconnected(self, protocol: "HttpProtocol") -> None: ...

    def bad_request(self) -> None:
        """The input is not HTTP."""


class HttpProtocol(H11Protocol):
    """One request at a time: pipelined requests wait in the socket, and are answered in order."""

    def __init__(self, config: uvicorn.Config, state: ServerState, served: Served, dead_peer_seconds: float) -> None:
        super().__init__(config, state, {})
        self._head_bytes_max = config.h11_max_incomplete_event_size or 0
        self.logger = _LOG
        self.access_log = False
        self._served = served
        self._dead_peer_seconds = dead_peer_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._application: Application | None = None
        self.app = self._begin

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        find_dead_peers(transport, max(1, round(self._dead_peer_seconds)))
        self._application = self._served.connected(self, address_of(transport.get_extra_info("peername")))
        if self._application is None:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)
        if self._application is not None:
            self._served.disconnected(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        self._served.bad_request()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer was being sent
            self.transport.close()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's, if it has one that was verified."""
        found: Mapping[str, Any] | None = self.transport.get_extra_info("peercert")
        return found

    def abort(self) -> None:
        self.transport.abort()

    def _should_upgrade(self) -> bool:
        return False

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._end_wait()
        assert self._application is not None
        if _head_bytes(scope) > self._head_bytes_max:  # h11 checks only heads that arrive in pieces
            self._served.bad_request()
            refused = Response("the head is too long (head_bytes_max)\n", 400, {"connection": "close"})
            await refused(scope, receive, send)
            return
        await self._application(scope, receive, send)

    def _await_head(self) -> None:
        """Drops a client that starts no request, or never ends its head: uvicorn waits for the first byte only."""
        self._end_wait()
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _end_wait(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_factory(
    served: Served, head_bytes_max: int, idle_seconds: float, dead_peer_seconds: float
) -> Callable[[], HttpProtocol]:
    """For `loop.create_server`."""
    config = uvicorn.Config(
        _nothing,
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=head_bytes_max,
        timeout_keep_alive=cast("int", idle_seconds),
    )
    config.load()
    state = ServerState()
    return lambda: HttpProtocol(config, state, served, dead_peer_seconds)


def _head_bytes(scope: Scope) -> int:
    """The size of the request line and all headers, as received."""
    lines = (len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + sum(lines)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Every connection has its own application."""
