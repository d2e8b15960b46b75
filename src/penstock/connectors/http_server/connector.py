"""`http-server`: requests are events, and what a pipeline emits for them is the answer."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus as Status
from typing import Any

import msgpack

from penstock.connectors.api import About, Capabilities, Host, Outgoing, ShownBy, Stream, StreamGone
from penstock.connectors.http_server.exchange import (
    Answer,
    Exchange,
    RefusedRequest,
    authorize,
    metadata_of,
    read_body,
    route,
    text_answer,
)
from penstock.connectors.http_server.intake import NotNow
from penstock.connectors.http_server.listener import ClientConnection, Connection, HttpListener
from penstock.connectors.http_server.options import BodyOptions, HttpServerOptions
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.types import Guarantee


async def store_body(
    stream: Stream, body: bytes, metadata: Mapping[str, Any], host: Host, options: BodyOptions, after: int
) -> int:
    """Store what interceptors make of the body, after the event `after`. Returns the id of the last event. Raises
    RefusedRequest for a request whose events are too large, because each carries the metadata, or whose body the
    interceptors refuse.
    """
    if not host.has_interceptors:
        return await stream.send(body, metadata=metadata)
    try:
        if not host.takes_messages:
            await _store_in_steps(stream, body, metadata, options.stored_bytes_max, after)
        else:
            await stream.send(body, metadata=metadata)
        return await stream.finish()
    except BadBytes as bad:
        raise RefusedRequest(text_answer(Status.BAD_REQUEST, str(bad), closes=True)) from None


async def _store_in_steps(stream: Stream, body: bytes, metadata: Mapping[str, Any], limit: int, after: int) -> None:
    each = len(msgpack.packb(metadata))
    step = max(1, limit // each)
    for start in range(0, len(body), step):
        last = await stream.send(body[start : start + step], metadata=metadata)
        if (last - after) * each + start > limit:
            text = f"its events, with its headers, have more than {limit} bytes (stored_bytes_max)"
            raise RefusedRequest(text_answer(Status.REQUEST_ENTITY_TOO_LARGE, text, closes=True))


class RequestConnection(ClientConnection):
    """Each request waits for the pipelines' replies to its events."""

    def __init__(self, peer: str, host: Host, options: HttpServerOptions) -> None:
        # With `reply`, one pipeline may reply while another one is starting.
        super().__init__(peer, host, options, host.downstream, by_all=options.answer == "epoch")
        self._options = options
        self._exchange: Exchange | None = None
        self._last = 0

    def deliver(self, outgoing: Outgoing) -> None:
        left = [*range(len(outgoing.values))] if self._exchange is None else self._exchange.take(outgoing)
        if left:
            whole = len(left) == len(outgoing.values)
            raise StreamGone("no request is waiting for this reply", places=None if whole else left)

    def ended(self) -> None:
        self._exchange = None

    async def respond(self, request: Request) -> Answer:
        authorize(request, self._options.auth)
        route(request, self._options.path, self._options.methods)
        stream = await self.stream()
        body = await read_body(request, self._options)
        if not stream.may_send:
            raise NotNow("temporarily not accepting requests")
        return await self._processed(stream, body, metadata_of(request))

    async def _processed(self, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> Answer:
        exchange = Exchange(self._last, metadata["headers"], self._options.reply_bytes_max)
        self._exchange = exchange
        async with self.intake.attended():
            await self._exchanged(exchange, stream, body, metadata)
        if exchange.last == exchange.after:
            return Answer(Status.NO_CONTENT)
        if not self.host.has_in:
            return Answer(Status.ACCEPTED)
        return exchange.answer(self.host.outgoing_chain(), self._options.content_type)

    async def _exchanged(self, exchange: Exchange, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> None:
        """Returns when the whole reply has arrived."""
        self.intake.is_cut = True
        last = await store_body(stream, body, metadata, self.host, self._options, exchange.after)
        self._last = exchange.last = last
        self.intake.is_cut = False
        if exchange.last == exchange.after:
            return
        if self._options.answer == "reply" and self.host.has_in:
            await exchange.replied.wait()
        else:
            await stream.complete(exchange.last)


class HttpServer(HttpListener[HttpServerOptions]):
    """A connection is a stream. A request's events are stored when all of it has arrived; a client without an answer
    does not know whether they are, and may send it again.
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
            sends_messages=True,
            every_worker=True,
            on_stream_started="Opens every stream. A reply whose client is gone is a dead letter.",
        ),
        example={"port": 8080, "path": "/events"},
        shown_by=ShownBy(
            source="tests/connectors/test_http_server.py::test_without_a_link_to_in_a_request_is_answered_202_when_it_is_durable",
            sink="tests/connectors/test_http_server.py::test_replies_that_no_client_waits_for_are_dead_letters",
        ),
    )

    def __init__(self, options: HttpServerOptions) -> None:
        super().__init__(options)
        self._streams: dict[int, RequestConnection] = {}
        self._ids: dict[Connection, int] = {}

    @property
    def reached_at(self) -> str:
        path = self.options.path.removesuffix("*") or "/"
        return f"{self.options.methods[0]} to {self.scheme}://{self.addresses[0]}{path}" if self.addresses else ""

    def connection(self, peer: str, host: Host) -> RequestConnection:
        made = RequestConnection(peer, host, self.options)
        made.intake.on_opened = partial(self._opened, made)
        return made

    def _opened(self, connection: RequestConnection, stream_id: int) -> None:
        self._streams[stream_id], self._ids[connection] = connection, stream_id

    def closed(self, connection: Connection) -> None:
        """A later reply is a dead letter."""
        if (stream_id := self._ids.pop(connection, None)) is not None:
            self._streams.pop(stream_id, None)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        stream = outgoing.stream
        if stream is None or stream.connector != host.name:
            raise StreamGone("it does not reply to any request of this server")
        connection = self._streams.get(stream.stream_id)
        if connection is None:
            raise StreamGone("the client is gone")
        connection.deliver(outgoing)
