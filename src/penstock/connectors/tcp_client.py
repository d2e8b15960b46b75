"""Connects to a TCP server: what leaves goes to it, what it says comes in."""

import asyncio
from typing import Annotated

from pydantic import Field

from penstock.connectors.api import About, Capabilities
from penstock.connectors.socket_clients import Client
from penstock.connectors.sockets import CLIENT_ON_STREAM_STARTED, ClientOptions, Connection, HostName, client_context
from penstock.core.types import Guarantee


class TcpClientOptions(ClientOptions):
    """What has left is what the server's machine has acknowledged; the rest is sent again over the next connection.
    What the server says is a stream for each connection, or is read and dropped where nothing is linked to `out`.
    """

    host: HostName = "127.0.0.1"
    """The server's name or address."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """The server's port."""


class TcpClient(Client[TcpClientOptions]):
    """What has left is what the server's machine has acknowledged; the rest is sent again over the next connection."""

    about = About(
        name="tcp-client",
        text="Connects to a TCP server: what leaves goes to it, and what it says comes in.",
        options=TcpClientOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            on_stream_started=CLIENT_ON_STREAM_STARTED,
        ),
        example={"host": "127.0.0.1", "port": 9000, "connections": "per-stream"},
    )

    @classmethod
    def where(cls, options: TcpClientOptions) -> str:
        return f"{options.host}:{options.port}"

    async def connect(self) -> Connection:
        options, tls = self.options, client_context(self.options.tls)
        name = None if options.tls is None else options.tls.server_name or options.host
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(dead_peer_seconds=options.dead_peer_after),
            options.host,
            options.port,
            ssl=tls,
            server_hostname=name,
        )
        return connection
