"""Listens for TCP connections: each is a stream, and a reply goes to the connection of its event."""

import asyncio
import logging
from dataclasses import replace

from penstock.connectors.api import About, Capabilities, Connector, Host, Outgoing, StreamRef
from penstock.connectors.socket_peers import Peers
from penstock.connectors.sockets import (
    SERVER_ON_STREAM_STARTED,
    Connection,
    ServerOptions,
    address_of,
    claims_of,
    server_context,
    told_where,
)
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has made and we have not looked at yet."""


class TcpServerOptions(ServerOptions):
    """Use interceptors, such as `split` and `join`: without them an event is whatever one read returns. A peer that
    half-closes its connection still gets its replies. When a connection breaks, what was received is kept, and half a
    record becomes a dead letter; what the peer has not acknowledged is lost. If nothing is linked to `out`, what peers
    send is read and dropped.
    """


class TcpServer(Connector[TcpServerOptions]):
    about = About(
        name="tcp-server",
        text="Listens for TCP connections. Each is a stream; a reply goes to the connection of its event.",
        options=TcpServerOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_MOST_ONCE,
            is_linked=True,
            own_event_times=False,
            on_stream_started=SERVER_ON_STREAM_STARTED,
        ),
        example={"host": "127.0.0.1", "port": 9000},
    )

    @classmethod
    def capabilities(cls, options: TcpServerOptions) -> Capabilities:
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port))

    def __init__(self, options: TcpServerOptions) -> None:
        super().__init__(options)
        self._peers = Peers(options)
        self.addresses: list[str] = []
        """Where it listens."""

    @property
    def reached_at(self) -> str:
        return f"tcp {self.addresses[0]}" if self.addresses else ""

    async def run(self, host: Host) -> None:
        options = self.options
        with told_where(options.host, options.port):
            server = await asyncio.get_running_loop().create_server(
                lambda: Connection(lambda made: self._accept(made, host), options.dead_peer_after),
                options.host,
                options.port,
                ssl=server_context(options.tls),
                backlog=_BACKLOG,
            )
        self.addresses = [address_of(sock.getsockname()) for sock in server.sockets]
        log.info("%s listens on %s", host.name, ", ".join(self.addresses))
        try:
            host.connected()
            await host.draining()
            server.close()
            self._peers.stop_reading()
            await self._peers.all_gone()
        finally:
            server.close()
            await self._peers.abort()

    def _accept(self, connection: Connection, host: Host) -> None:
        if self._peers.is_full or host.is_draining:
            host.count("refused_connections")
            connection.abort()
            return
        self._peers.begin(connection, host)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:  # noqa: ARG002
        self._peers.replied(stream)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        await self._peers.deliver(outgoing, host)
