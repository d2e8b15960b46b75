"""`http-server`: requests are events, and what a pipeline makes of them is their answer."""

import asyncio
import logging
from dataclasses import replace

from penstock.connectors.api import About, Capabilities, Connector, Host, Outgoing, StreamGone
from penstock.connectors.http_server.connection import Clients
from penstock.connectors.http_server.options import HttpServerOptions
from penstock.connectors.http_server.protocol import protocol_factory
from penstock.connectors.sockets import (
    address_of,
    claims_of,
    listening_at,
    server_context,
)
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has made and we have not looked at yet."""


class HttpServer(Connector[HttpServerOptions]):
    """A connection is a stream. A request's events are stored when all of it has come; a client that got no answer does
    not know whether, and may send it again.
    """

    about = About(
        "http-server",
        "Listens for HTTP requests. Their bodies are events, and what pipelines emit for them is the reply.",
        HttpServerOptions,
        Capabilities(
            source=Guarantee.AT_LEAST_ONCE,
            sink=Guarantee.AT_MOST_ONCE,
            is_linked=True,
            own_event_times=False,
            own_interceptors=True,
            on_stream_started="Opens every stream. A reply whose client is gone is a dead letter.",
        ),
        example={"port": 8080, "path": "/events"},
    )

    @classmethod
    def capabilities(cls, options: HttpServerOptions) -> Capabilities:
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port))

    def __init__(self, options: HttpServerOptions) -> None:
        super().__init__(options)
        self.addresses: list[str] = []
        """Where it listens."""
        self._clients: Clients | None = None

    @property
    def reached_at(self) -> str:
        scheme, path = "http" if self.options.tls is None else "https", self.options.path.removesuffix("*")
        return f"{self.options.methods[0]} to {scheme}://{self.addresses[0]}{path or '/'}" if self.addresses else ""

    async def run(self, host: Host) -> None:
        options = self.options
        clients = self._clients = Clients(host, options)
        factory = protocol_factory(clients, options.head_bytes_max, options.idle, options.dead_peer_after)
        loop, context = asyncio.get_running_loop(), server_context(options.tls)
        with listening_at(options.host, options.port):
            server = await loop.create_server(factory, options.host, options.port, ssl=context, backlog=_BACKLOG)
        self.addresses = [address_of(sock.getsockname()) for sock in server.sockets]
        log.info("%s listens on %s", host.name, ", ".join(self.addresses))
        try:
            host.connected()
            await host.draining()
            server.close()
            await clients.drain()
        finally:
            server.close()
            await clients.abort()

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:  # noqa: ARG002
        if self._clients is None:
            raise StreamGone("the client is gone")
        self._clients.deliver(outgoing)
