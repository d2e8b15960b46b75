"""Listens for TCP connections: each is a stream, and a reply goes to the connection of its event."""

import asyncio
from functools import partial

from penstock.connectors.api import About, Host, ShownBy
from penstock.connectors.server_auth import LINE_BYTES_MAX, LINE_SECONDS_MAX, UNAUTHORIZED, ServerAuth
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

    With `auth.bearer` or `auth.basic`, the first line that a peer sends is `Bearer TOKEN` or `Basic …`, as in the
    header of an HTTP request. It is not an event, and must come within 10 s. A peer with other credentials is
    disconnected.
    """


class TcpServer(PeerServer[TcpServerOptions]):
    about = About(
        name="tcp-server",
        text="Listens for TCP connections. Each is a stream; a reply goes to the connection of its event.",
        options=TcpServerOptions,
        capabilities=PEER_CAPABILITIES,
        example={"host": "127.0.0.1", "port": 9000},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_sockets.py::TestTcpServer",
            sink="tests/connectors/conformance/test_sockets.py::TestTcpServer",
        ),
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
            reuse_port=host.shares_port or None,
        )
        return Listening(server.sockets, server.close)

    def _accept(self, connection: Connection, host: Host) -> None:
        if self.peers.is_full or host.is_draining:
            host.count("refused_connections")
            connection.abort()
            return
        auth = self.options.auth
        if auth is None:
            self.peers.begin(connection, host)
        elif auth.accepts_certificate(connection.certificate):
            self.peers.begin(connection, host, partial(_has_credentials, connection, auth))
        else:
            host.count(UNAUTHORIZED)
            connection.abort()


async def _has_credentials(connection: Connection, auth: ServerAuth) -> bool:
    """In the first line."""
    if not auth.needs_credentials:
        return True
    try:
        async with asyncio.timeout(LINE_SECONDS_MAX):
            line = await connection.read_line(LINE_BYTES_MAX)
    except TimeoutError:
        return False
    return line is not None and auth.accepts(line.decode("latin-1"))
