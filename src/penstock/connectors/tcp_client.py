"""Connects to a TCP server: values are sent to it, and what it sends comes in."""

import asyncio
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Host, Outgoing, ShownBy
from penstock.connectors.row_formats import encode
from penstock.connectors.socket_clients import Client
from penstock.connectors.sockets import CLIENT_ON_STREAM_STARTED, ClientOptions, Connection, HostName, client_context
from penstock.connectors.url_forms import UrlForm, address
from penstock.core.types import Guarantee


class TcpClientOptions(ClientOptions):
    """Values count as delivered when the server's machine has acknowledged them; the rest is sent again over the next
    connection. What the server sends is a stream for each connection; if nothing is linked to `out`, it is read and
    dropped.
    """

    host: HostName = "127.0.0.1"
    """The server's name or address."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """The server's port."""
    format: Literal["raw", "lines", "json"] = "raw"
    """How events are sent. `raw`: the values as the interceptors return them. `lines`: a newline after each value.
    `json`: one object per line, with `id`, `event_time_us`, `key` and `value`."""


class TcpClient(Client[TcpClientOptions]):
    about = About(
        name="tcp-client",
        text="Connects to a TCP server, sends values to it, and receives what it sends.",
        options=TcpClientOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            on_stream_started=CLIENT_ON_STREAM_STARTED,
        ),
        example={"host": "127.0.0.1", "port": 9000, "connections": "per-stream"},
        url=UrlForm(written="tcp://HOST:PORT", place=address, fields=("host", "port"), implied={"format": "lines"}),
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_sockets.py::TestTcpClientPerStream",
            sink="tests/application/test_kills_and_files.py::test_nothing_is_lost_and_what_promises_so_has_each_line_once",
        ),
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

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        data = encode(outgoing, self.options.format)
        await super().deliver(replace(outgoing, values=[data], ids=[outgoing.ids[-1]]), host)
