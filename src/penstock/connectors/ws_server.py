"""Listens for WebSocket connections: each is a stream, and a reply goes to the connection that its event came from."""

import asyncio
import logging
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Host, ShownBy
from penstock.connectors.server_auth import CHALLENGE, UNAUTHORIZED
from penstock.connectors.socket_peers import PEER_CAPABILITIES, Listening, PeerServer
from penstock.connectors.sockets import (
    ServerOptions,
    WsOptions,
    connection_arguments,
    server_context,
)

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

_handshakes = logging.getLogger(f"{__name__}.handshakes")
_handshakes.setLevel(logging.CRITICAL)  # a peer that speaks another protocol is simply refused


_PATH_CHARS_MAX = 1024
"""The longest path, with its query: it is stored with every event of the connection."""


class WsServerOptions(ServerOptions, WsOptions):
    """Without interceptors each message is an event. With interceptors they get its bytes, and a batch of `join` is
    sent as one message. The path that a peer requests is in the metadata of its events. A peer that is not read,
    because of a breaker or a quota, gets no answers to its own pings while it has more to send: give it a longer
    timeout. An empty message is not an event. If nothing is linked to `out`, what peers send is read and dropped.
    """

    origins: tuple[str, ...] = ()
    """Web pages that may connect, such as `https://example.org`. By default none may: a browser would connect for any
    page that its user visits. Programs that are not browsers send no `Origin` header, and always may."""


class WsServer(PeerServer[WsServerOptions]):
    about = About(
        name="ws-server",
        text="Listens for WebSocket connections. Each is a stream; a reply goes to the connection of its event.",
        options=WsServerOptions,
        capabilities=replace(PEER_CAPABILITIES, sends_messages=True),
        extra="ws",
        example={"host": "127.0.0.1", "port": 8888},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_sockets.py::TestWsServer",
            sink="tests/connectors/conformance/test_sockets.py::TestWsServer",
        ),
    )

    @property
    def reached_at(self) -> str:
        scheme = "ws" if self.options.tls is None else "wss"
        return f"{scheme}://{self.addresses[0]}/" if self.addresses else ""

    async def listen(self, host: Host) -> Listening:
        from websockets.asyncio.server import serve
        from websockets.typing import Origin

        options = self.options

        async def serve_one(connection: "ServerConnection") -> None:
            await self._serve(connection, host)

        def unauthorized(connection: "ServerConnection", request: "Request") -> "Response | None":
            auth = options.auth
            if auth is None:
                return None
            if not auth.accepts_certificate(connection.transport.get_extra_info("peercert")):
                return connection.respond(HTTPStatus.FORBIDDEN, "This certificate is not accepted.\n")
            if auth.accepts(", ".join(request.headers.get_all("Authorization"))):
                return None
            response = connection.respond(HTTPStatus.UNAUTHORIZED, "Send credentials.\n")
            response.headers[CHALLENGE] = auth.challenge
            return response

        def refuse(connection: "ServerConnection", request: "Request") -> "Response | None":
            if (refusal := unauthorized(connection, request)) is not None:
                host.count(UNAUTHORIZED)
                return refusal
            if len(request.path) > _PATH_CHARS_MAX:
                host.count("refused_connections")
                return connection.respond(HTTPStatus.REQUEST_URI_TOO_LONG, f"At most {_PATH_CHARS_MAX} characters.\n")
            if not (self.peers.is_full or host.is_draining):
                return None
            host.count("refused_connections")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "No more connections now.\n")

        server = await serve(
            serve_one,
            options.host,
            options.port,
            ssl=server_context(options.tls),
            origins=[None, *(Origin(origin) for origin in options.origins)],
            process_request=refuse,
            logger=_handshakes,
            reuse_port=host.shares_port or None,
            **connection_arguments(options),
        )
        return Listening([*server.sockets], partial(server.close, close_connections=False))

    async def _serve(self, connection: "ServerConnection", host: Host) -> None:
        from penstock.connectors.websocket import WsPeer

        path = connection.request.path if connection.request is not None else "/"
        peer = WsPeer(connection, self.options, {"path": path})
        peer.keep_alive(self.options.dead_peer_after)
        await asyncio.wait([self.peers.begin(peer, host)])
