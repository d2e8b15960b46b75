"""Connects to a WebSocket server: values are sent to it, and what it sends comes in."""

from typing import Any, Self

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, ShownBy
from penstock.connectors.socket_clients import Client
from penstock.connectors.socket_peers import Peer
from penstock.connectors.sockets import (
    CLIENT_ON_STREAM_STARTED,
    ClientOptions,
    Headers,
    WsOptions,
    check_url,
    client_context,
    connection_arguments,
)
from penstock.connectors.url_forms import PREFIX, UrlForm, endpoint
from penstock.core.types import Guarantee


class WsClientOptions(ClientOptions, WsOptions):
    """Values count as delivered when the server has answered a ping that was sent after them; the rest is sent again
    over the next connection. Without interceptors each message is an event. What the server sends is a stream for each
    connection; if nothing is linked to `out`, it is read and dropped.
    """

    url: str
    """Such as `ws://127.0.0.1:8888/path`; `wss://` for TLS. A token belongs in a header."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """Sent when it connects, such as Authorization."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_url(self.url, "ws", "wss", has_tls=self.tls is not None)
        return self


class WsClient(Client[WsClientOptions]):
    about = About(
        name="ws-client",
        text="Connects to a WebSocket server, sends values to it, and receives what it sends.",
        options=WsClientOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            sends_messages=True,
            on_stream_started=CLIENT_ON_STREAM_STARTED,
        ),
        extra="ws",
        example={"url": "ws://127.0.0.1:8888/"},
        url=UrlForm(written="ws[s]://HOST[:PORT]/PATH", place=endpoint, fields=("url",), prefix=PREFIX),
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_sockets.py::TestWsClientPerStream",
            sink="tests/application/test_sink_kills.py::test_every_value_reaches_programs_functions_and_segments",
        ),
    )

    @classmethod
    def where(cls, options: WsClientOptions) -> str:
        return options.url.partition("?")[0]

    async def connect(self) -> Peer:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        from penstock.connectors.websocket import WsPeer

        options = self.options
        try:
            connection = await connect(
                options.url,
                additional_headers=options.headers,
                open_timeout=None,  # the caller has a time limit
                **self._tls(),
                **connection_arguments(options),
            )
        except WebSocketException as error:
            raise ConnectionRefusedError(str(error)) from error
        peer = WsPeer(connection, options)
        peer.keep_alive(options.dead_peer_after)
        return peer

    def _tls(self) -> dict[str, Any]:
        context = client_context(self.options.tls)
        if context is None:
            return {}
        name = self.options.tls.server_name if self.options.tls is not None else ""
        return {"ssl": context, **({"server_hostname": name} if name else {})}
