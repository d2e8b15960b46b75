"""`http-server`: requests are events, and what a pipeline emits for them is the answer."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus as Status
from typing import Any, NamedTuple

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
from penstock.connectors.http_server.listener import ClientConnection, Connection, HttpListener, send_answer
from penstock.connectors.http_server.options import BodyOptions, HttpServerOptions
from penstock.connectors.http_server.protocol import Request
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import PenstockError
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)


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


class Event(NamedTuple):
    """What a request that has arrived completely is stored as."""

    request: Request
    stream: Stream
    body: bytes
    metadata: bytes


class RequestConnection(ClientConnection):
    """Each request waits for the pipelines' replies to its events. `soon` is called for one that is stored with those
    of other connections.
    """

    def __init__(
        self, peer: str, host: Host, options: HttpServerOptions, soon: "Callable[[RequestConnection], None]"
    ) -> None:
        # With `reply`, one pipeline may reply while another one is starting.
        super().__init__(peer, host, options, host.downstream, by_all=options.answer == "epoch")
        self._options = options
        self._soon = soon
        self._exchange: Exchange | None = None
        self._last = 0
        self.event: Event | None = None
        """Of the request that was taken; None: there is none, or its client is gone."""
        self._head: tuple[object, ...] = ()
        self._headers: Mapping[str, str] = {}
        self._encoded = b""
        """The metadata of a request with this head: clients repeat themselves."""

    # Requests that are stored together with others.

    def takes(self, request: Request) -> bool:
        """What is out of the ordinary, or has to wait, is not taken."""
        options, stream = self._options, self.intake.stream_now()
        if not self.is_idle.is_set():  # the task of the one before has not ended yet
            return False
        if stream is None or self.host.has_interceptors or (options.answer == "reply" and self.host.has_in):
            return False
        body = request.whole_body
        if not body or len(body) > options.body_bytes_max:
            return False
        try:
            authorize(request, options.auth)
            route(request, options.path, options.methods)
            self.event = Event(request, stream, body, self._metadata(request, stream))
        except (RefusedRequest, PenstockError):
            return False
        self.is_idle.clear()
        self._exchange = Exchange(self._last, self._headers, options.reply_bytes_max)
        self._soon(self)
        return True

    def _metadata(self, request: Request, stream: Stream) -> bytes:
        head = (request.method, request.path, request.query, request.raw_headers)
        if head != self._head:
            found = metadata_of(request)
            self._encoded = stream.encoded(found)
            self._head, self._headers = head, found["headers"]
        return self._encoded

    def serve_alone(self) -> None:
        """Its event could not be stored with others: like any other request."""
        assert self.event is not None
        request, self.event = self.event.request, None
        request.serve_alone()

    def stored(self, event_id: int) -> None:
        assert self._exchange is not None
        self._last = self._exchange.last = event_id

    def answer(self, *, is_late: bool) -> Answer:
        """The request that was taken is over."""
        assert self._exchange is not None
        answer = self.refused(self.timed_out()) if is_late else self._made(self._exchange)
        self._over()
        return answer

    def _over(self) -> None:
        self.event = None
        self.ended()
        self.is_idle.set()

    async def abandon(self) -> None:
        """Something has failed that should not."""
        if self.event is not None:
            request = self.event.request
            self._over()
            await request.abandon()

    def leave(self) -> None:
        super().leave()
        if self.event is not None:
            self.host.count("aborted_requests")
            self._over()

    # All requests.

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
        return self._made(exchange)

    def _made(self, exchange: Exchange) -> Answer:
        if exchange.last == exchange.after:
            return Answer(Status.NO_CONTENT)
        if not self.host.has_in:
            return Answer(Status.ACCEPTED)
        return exchange.answer(self.host.outgoing_chain, self._options.content_type)

    async def _exchanged(self, exchange: Exchange, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> None:
        """Returns when the whole reply has arrived."""
        self.intake.is_cut = True
        last = await store_body(stream, body, metadata, self.host, self._options, exchange.after)
        self._last = exchange.last = last
        self.intake.is_cut = False
        if exchange.last == exchange.after:
            return
        if self._options.answer == "reply" and self.host.has_in:
            await exchange.replied()
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
            source="tests/application/test_web_kills.py::test_no_request_webhook_or_telemetry_that_was_answered_is_lost",
            sink="tests/connectors/test_http_server.py::test_replies_that_no_client_waits_for_are_dead_letters",
        ),
    )

    def __init__(self, options: HttpServerOptions) -> None:
        super().__init__(options)
        self._streams: dict[int, RequestConnection] = {}
        self._ids: dict[Connection, int] = {}
        self._taken: list[RequestConnection] = []
        """Those with a request that arrived in this turn of the event loop."""

    @property
    def reached_at(self) -> str:
        path = self.options.path.removesuffix("*") or "/"
        return f"{self.options.methods[0]} to {self.scheme}://{self.addresses[0]}{path}" if self.addresses else ""

    def connection(self, peer: str, host: Host) -> RequestConnection:
        made = RequestConnection(peer, host, self.options, self._soon)
        made.intake.on_opened = partial(self._opened, made)
        return made

    # Requests of many connections, which are stored together.

    def _soon(self, connection: RequestConnection) -> None:
        self._taken.append(connection)
        if len(self._taken) == 1:
            self.begin(self._serve_together())

    async def _serve_together(self) -> None:
        taken, self._taken = self._taken, []
        served = [(one, one.event) for one in taken if one.event is not None]
        try:
            is_late = await self._store_together(served)
            for connection, event in served:
                if connection.event is event:
                    self._answer(connection.answer(is_late=is_late), event.request)
        except Exception:
            log.exception("requests failed")
            for connection, event in served:
                if connection.event is event:
                    await connection.abandon()

    async def _store_together(self, served: Sequence[tuple[RequestConnection, Event]]) -> bool:
        """Returns when they may be answered: True if that has taken too long."""
        assert self.host is not None
        together = self.host.store_together([(event.stream, event.body, event.metadata) for _, event in served])
        for (connection, _), event_id in zip(served, together.ids, strict=True):
            if event_id is None:
                connection.serve_alone()
            else:
                connection.stored(event_id)
        try:
            async with asyncio.timeout(self.options.timeout):
                await together.complete()
        except TimeoutError:
            return True
        return False

    def _answer(self, answer: Answer, request: Request) -> None:
        if request.can_answer_now:
            request.answer_now(answer.status, answer.headers, answer.body, closes=answer.closes)
        else:
            self.begin(send_answer(answer, request))

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
