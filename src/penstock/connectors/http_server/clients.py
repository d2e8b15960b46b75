"""All connections of one server, by their protocols and by their streams."""

import asyncio
from typing import TYPE_CHECKING

from penstock.connectors.api import Host, Outgoing, StreamGone
from penstock.connectors.http_server.connection import ClientConnection
from penstock.connectors.http_server.protocol import HttpProtocol

if TYPE_CHECKING:
    from penstock.connectors.http_server.connector import HttpServerOptions


class Clients:
    def __init__(self, host: Host, options: "HttpServerOptions") -> None:
        self._host = host
        self._options = options
        self._connections: dict[HttpProtocol, ClientConnection] = {}
        self._streams: dict[int, ClientConnection] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def deliver(self, outgoing: Outgoing) -> None:
        """Raises StreamGone."""
        stream = outgoing.stream
        if stream is None or stream.connector != self._host.name:
            raise StreamGone("it answers no request of this server")
        connection = self._streams.get(stream.stream_id)
        if connection is None:
            raise StreamGone("the client is gone")
        connection.deliver(outgoing)

    async def drain(self) -> None:
        """Requests that are under way get their answers: each is bounded by its timeout."""
        for protocol in [*self._connections]:
            protocol.shutdown()
        await self._ended()

    async def abort(self) -> None:
        for protocol in [*self._connections]:
            protocol.abort()
        await self._ended()

    async def _ended(self) -> None:
        """Return when all are gone, and their streams closed."""
        while self._connections or self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
            await asyncio.sleep(_LOOK_SECONDS)

    # What the protocol tells.

    def connected(self, protocol: HttpProtocol, peer: str) -> ClientConnection | None:
        if len(self._connections) >= self._options.connections_max or self._host.is_draining:
            self._host.count("refused_connections")
            return None
        connection = ClientConnection(peer, self._host, self._options, self._streams.__setitem__)
        self._connections[protocol] = connection
        if self._host.downstream.not_ready() is None:  # else with its first request, so that both are in one epoch
            connection.begin()
        return connection

    def disconnected(self, protocol: HttpProtocol) -> None:
        task = asyncio.create_task(self._end(self._connections.pop(protocol)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def bad_request(self) -> None:
        self._host.count("bad_requests")

    async def _end(self, connection: ClientConnection) -> None:
        """A reply that comes from now on is a dead letter."""
        if connection.stream_id is not None:
            self._streams.pop(connection.stream_id, None)
        await connection.end()
        if connection.stream_id is not None:  # opened meanwhile
            self._streams.pop(connection.stream_id, None)


_LOOK_SECONDS = 0.01
"""Connections end by themselves, in their own time."""
