"""Listens for TCP connections: each is a stream, and a reply goes to the connection of its event."""

import asyncio

from penstock.connectors.api import About, Host
from penstock.connectors.socket_peers import PEER_CAPABILITIES, Listening, PeerServer
from penstock.connectors.sockets import (
    Connection,
    ServerOptions,
    server_context,
)

_BACKLOG = 1024
"""Connections that the kernel has accepted and we have not yet."""


class TcpServerOptions(ServerOptions):
    """Use interceptors, such as `split` and `join`: without them an event is whatever one read returns. A peer that
    half-closes its connection still gets its replies. When a connection breaks, what was received is kept, and half a
    record becomes a dead letter; what the peer has not acknowledged is lost. If nothing is linked to `out`, what peers
    send is read and dropped.
    """


class TcpServer(PeerServer[TcpServerOptions]):
    about = About(
        name="tcp-server",
        text="Listens for TCP connections. Each is a stream; a reply goes to the connection of its event.",
        options=TcpServerOptions,
        capabilities=PEER_CAPABILITIES,
        example={"host": "127.0.0.1", "port": 9000},
    )

    @property
    def reached_at(self) -> str:
        return f"tcp {self.addresses[0]}" if self.addresses else ""

    async def listen(self, host: Host) -> Listening:
        options = self.options
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(lambda connection: self._accept(connection, host), options.dead_peer_after),
            options.host,
            options.port,
            ssl=server_context(options.tls),
            backlog=_BACKLOG,
        )
        return Listening(server.sockets, server.close)

    def _accept(self, connection: Connection, host: Host) -> None:
        if self.peers.is_full or host.is_draining:
            host.count("refused_connections")
            connection.abort()
            return
        self.peers.begin(connection, host)
