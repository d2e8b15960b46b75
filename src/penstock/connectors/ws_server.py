"""Listens for WebSocket connections: each is a stream, and a reply goes to the connection that its event came from."""

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from penstock.connectors.api import About, Capabilities, Connector, Host, Outgoing, StreamRef
from penstock.connectors.socket_peers import Peers
from penstock.connectors.sockets import (
    SERVER_ON_STREAM_STARTED,
    ServerOptions,
    WsOptions,
    address_of,
    claims_of,
    connection_arguments,
    server_context,
    told_where,
)
from penstock.core.types import Guarantee

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

log = logging.getLogger(__name__)

_handshakes = logging.getLogger(f"{__name__}.handshakes")
_handshakes.setLevel(logging.CRITICAL)  # a peer that speaks something else is no news: it gets no connection


_PATH_CHARS_MAX = 1024
"""With its query: it goes along with every event of the connection."""


class WsServerOptions(ServerOptions, WsOptions):
    """Without interceptors each message is an event. With interceptors they get its bytes, and a batch of `join` is
    sent as one message. The path that a peer requests is in the metadata of its events. A peer that is not read,
    because of a breaker or a quota, gets no answers to its own pings while it has more to send: give it a longer
    timeout. An empty message is not an event. If nothing is linked to `out`, what peers send is read and dropped.
    """

    origins: list[str] | None = None
    """Web pages that may connect, such as `https://example.org`. By default all may, and programs that are not
    browsers."""


class WsServer(Connector[WsServerOptions]):
    about = About(
        name="ws-server",
        text="Listens for WebSocket connections. Each is a stream; a reply goes to the connection of its event.",
        options=WsServerOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_MOST_ONCE,
            is_linked=True,
            own_event_times=False,
            on_stream_started=SERVER_ON_STREAM_STARTED,
        ),
        extra="ws",
        example={"host": "127.0.0.1", "port": 8888},
    )

    @classmethod
    def capabilities(cls, options: WsServerOptions) -> Capabilities:
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port))

    def __init__(self, options: WsServerOptions) -> None:
        super().__init__(options)
        self._peers = Peers(options)
        self.addresses: list[str] = []
        """Where it listens."""

    @property
    def reached_at(self) -> str:
        scheme = "ws" if self.options.tls is None else "wss"
        return f"{scheme}://{self.addresses[0]}/" if self.addresses else ""

    async def run(self, host: Host) -> None:
        with told_where(self.options.host, self.options.port):
            server = await self._listening(host)
        self.addresses = [address_of(sock.getsockname()) for sock in server.sockets]
        log.info("%s listens on %s", host.name, ", ".join(self.addresses))
        try:
            host.connected()
            await host.draining()
            server.close(close_connections=False)
            self._peers.stop_reading()
            await self._peers.all_gone()
        finally:
            server.close(close_connections=False)
            await self._peers.abort()

    async def _listening(self, host: Host) -> "Server":
        from websockets.asyncio.server import serve
        from websockets.typing import Origin

        options = self.options

        async def serve_one(connection: "ServerConnection") -> None:
            await self._serve(connection, host)

        def refuse(connection: "ServerConnection", request: "Request") -> "Response | None":
            if len(request.path) > _PATH_CHARS_MAX:
                host.count("refused_connections")
                return connection.respond(HTTPStatus.REQUEST_URI_TOO_LONG, f"At most {_PATH_CHARS_MAX} characters.\n")
            if not (self._peers.is_full or host.is_draining):
                return None
            host.count("refused_connections")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "No more connections now.\n")

        return await serve(
            serve_one,
            options.host,
            options.port,
            ssl=server_context(options.tls),
            origins=None if options.origins is None else [Origin(origin) for origin in options.origins],
            process_request=refuse,
            logger=_handshakes,
            **connection_arguments(options),
        )

    async def _serve(self, connection: "ServerConnection", host: Host) -> None:
        from penstock.connectors.websocket import WsPeer

        path = connection.request.path if connection.request is not None else "/"
        peer = WsPeer(connection, self.options, {"path": path})
        peer.keep_alive(self.options.dead_peer_after)
        await asyncio.wait([self._peers.begin(peer, host)])

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:  # noqa: ARG002
        self._peers.replied(stream)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        await self._peers.deliver(outgoing, host)
