"""`http-server`: requests are events, and what a pipeline makes of them is their answer."""

import asyncio
import logging
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, Outgoing, StreamGone
from penstock.connectors.http_server.clients import Clients
from penstock.connectors.http_server.protocol import protocol_factory
from penstock.connectors.sockets import (
    CONNECTIONS_MAX,
    HeaderValue,
    HostName,
    Port,
    ServerTls,
    address_of,
    claims_of,
    server_context,
    told_where,
)
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has made and we have not looked at yet."""


class HttpServerOptions(Options):
    """A connection is a stream, and the body of a request is its events; they are stored when all of it has come. Their
    metadata hold `method`, `path`, `query`, `content_type`, `headers` (without those that authorize) and `peer`.

    The reply is what leaves through `in` with the ids of these events, in one body; `status`, `content_type` and
    `headers` in its metadata are honoured. A request is answered 204 when nothing comes back, 400 with the reason when
    its events are letters (link `err` to `in`) or its bytes no records, 202 where nothing is linked to `in`, 404 and
    405 when it is not for this server, 408 and 413 when its body is too slow or too large, 503 with Retry-After when
    nothing is taken now, 504 when no reply comes in time. A reply whose client is gone is a dead letter.

    A request that comes while Spark is starting waits for its pipelines; if they are not ready within `timeout`, it is
    answered 503 with `Retry-After`, and nothing of it is stored.
    """

    host: HostName = "127.0.0.1"
    """The address to listen on; only this machine unless another one is given."""
    port: Port
    """0: any that is free; the log says which."""
    tls: ServerTls | None = None
    """Nothing is encrypted without it."""
    path: str = "*"
    """The path that is taken, as `/events`; with a `*` at its end all that begin so. Others are answered 404."""
    methods: tuple[Literal["POST", "PUT", "PATCH", "DELETE", "GET"], ...] = ("POST", "PUT")
    """Others are answered 405."""
    answer: Literal["epoch", "reply"] = "epoch"
    """When a request is answered: `epoch`, once every pipeline on the connector has completed the epoch that holds it,
    with all that came back, or 204 if that is nothing; `reply`, with the first that comes back: for replies that come
    through several pipelines, or under `ack: durable`."""
    timeout: SomeSeconds = 30.0
    """A request that is not answered by then is answered 504, and its connection closed. Its body must come within the
    same time. The pipelines' first epoch after a start of Spark does not count: a request waits for
    it to end."""
    admission: SomeSeconds = 1.0
    """How long a request waits when nothing is taken, at the quota or while the stream is paused, until 503."""
    retry_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 1
    """What a 503 tells the client."""
    content_type: HeaderValue = "application/octet-stream"
    """Of replies whose metadata say nothing else."""
    body_bytes_max: Annotated[Size, Field(le=64 << 20)] = 1 << 20
    """The largest body of a request, which is kept in memory until it has come; beyond it 413."""
    reply_bytes_max: Size = 16 << 20
    """The largest reply, which is kept in memory until it is whole; beyond it 500, and the rest is a dead letter."""
    head_bytes_max: Annotated[Size, Field(le=32 << 10)] = 16 << 10
    """The longest request line with all headers; beyond it 400. They go along with every event of the request."""
    stored_bytes_max: Size = 64 << 20
    """What one request may become: its events, each with the request's metadata; beyond it 413, and what is stored of
    it by then stays. Small events behind large headers are a multiple of what came."""
    idle: SomeSeconds = 75.0
    """A connection on which no request has come for so long is closed."""
    connections_max: Annotated[int, Field(ge=1, le=1_000_000)] = CONNECTIONS_MAX
    """Beyond it a new connection is closed at once, and counted."""
    dead_peer_after: SomeSeconds = 60.0
    """A client that has vanished from the network is given up after this long."""


class HttpServer(Connector[HttpServerOptions]):
    """A connection is a stream. A request's events are stored when all of it has come; a client that got no answer does
    not know whether, and may send it again.
    """

    about = About(
        "http-server",
        "Listens for HTTP requests: their bodies are events, and what pipelines make of them is the answer.",
        HttpServerOptions,
        Capabilities(
            source=Guarantee.AT_LEAST_ONCE,
            sink=Guarantee.AT_MOST_ONCE,
            is_linked=True,
            own_event_times=False,
            own_interceptors=True,
            on_stream_started="Opens the stream at once: a reply whose client is gone is a dead letter.",
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
        with told_where(options.host, options.port):
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
