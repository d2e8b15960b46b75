"""`http-server`: requests are events, and what a pipeline emits for them is the answer."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus as Status
from typing import Any

import msgpack
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.connectors.api import About, Capabilities, Connector, Host, Outgoing, Stream, StreamGone
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
from penstock.connectors.http_server.options import HttpServerOptions
from penstock.connectors.http_server.protocol import HttpProtocol, protocol_factory
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.server_auth import UNAUTHORIZED
from penstock.connectors.sockets import (
    address_of,
    check_exposure,
    claims_of,
    listening_at,
    server_context,
)
from penstock.connectors.streams import first_of
from penstock.core.errors import PenstockError
from penstock.core.types import Guarantee

# A client's connection, which is a stream: its requests one after the other, each with its answer.

_FIRST_EPOCH_SECONDS_MAX = 600.0
"""How long a request waits for a pipeline's first epoch since Spark started. That epoch compiles what later ones use
and starts Spark's Python processes: seconds, or minutes on a busy machine. A pipeline that fails meanwhile is noticed;
this limit is for one that is alive and stuck.
"""


class ClientConnection:
    """Nothing of a request is stored before all of it has arrived: a client that disconnects before that leaves
    nothing.
    """

    def __init__(
        self, peer: str, host: Host, options: HttpServerOptions, opened: "Callable[[int, ClientConnection], None]"
    ) -> None:
        self._peer = peer
        self._host = host
        self._options = options
        self._by_all = options.answer == "epoch"  # one pipeline may reply while another one is starting
        self._opened = opened
        self.stream_id: int | None = None
        self._opening: asyncio.Task[Stream] | None = None
        self._exchange: Exchange | None = None
        self._last = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._gone = asyncio.Event()
        self._is_cut = False
        """Whether a request was not stored completely."""

    def begin(self) -> None:
        """The client has connected."""
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(_retrieve)

    async def end(self) -> None:
        """The client is gone: its request ends, and the stream with it."""
        self._gone.set()
        await self._is_idle.wait()
        if self._opening is None:
            return
        try:
            stream = await self._opening
        except PenstockError:
            return
        if self._is_cut:
            await stream.cut_off("the request ended before all of it was stored")
        await stream.close()

    def deliver(self, outgoing: Outgoing) -> None:
        """Raises StreamGone for replies that no request waits for any more."""
        left = [*range(len(outgoing.values))] if self._exchange is None else self._exchange.take(outgoing)
        if left:
            whole = len(left) == len(outgoing.values)
            raise StreamGone("no request is waiting for this reply", places=None if whole else left)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application, for one request."""
        request = Request(scope, receive)
        self._is_idle.clear()
        try:
            answer = await self._answered(request)
            await _response(answer)(scope, receive, send)
        except ClientDisconnect:
            self._host.count("aborted_requests")
        finally:
            self._exchange = None
            self._is_idle.set()

    async def _answered(self, request: Request) -> Answer:
        try:
            authorize(request, self._options.auth)
            route(request, self._options)
            stream = await self._admitted()
            body = await read_body(request, self._options)
            if not stream.may_send:
                raise self._unavailable("temporarily not accepting requests")
            return await self._processed(stream, body, metadata_of(request))
        except RefusedRequest as refused:
            self._host.count(f"answers_{refused.answer.status}")
            return refused.answer

    async def _open(self) -> Stream:
        stream = await self._host.open_stream(self._peer, metadata={"peer": self._peer})
        self.stream_id = stream.ref.stream_id
        self._opened(self.stream_id, self)
        return stream

    async def _admitted(self) -> Stream:
        """Returns when the stream may send; if it may not, the client soon gets an error."""
        if self._host.is_draining:
            raise self._unavailable("shutting down: not accepting requests", closes=True)
        if not self._host.has_out:
            raise self._unavailable("no pipeline reads this connector")
        await self._pipelines_ready()
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self.begin()
        assert self._opening is not None
        try:
            async with asyncio.timeout(self._options.admission):
                stream = await asyncio.shield(self._opening)
                await stream.ready()
        except TimeoutError:
            raise self._unavailable("temporarily not accepting requests") from None
        except PenstockError as error:
            raise self._unavailable(str(error)) from None
        return stream

    async def _pipelines_ready(self) -> None:
        """While Spark is starting, the request waits, unread and not stored: a client that is refused in the end can
        send it again, and nothing is processed twice.
        """
        downstream, by_all = self._host.downstream, self._by_all
        if not downstream.is_waited_for(by_all=by_all):
            return
        self._host.count("early_requests")
        try:
            async with asyncio.timeout(self._options.timeout):
                first = await first_of(downstream.ready(by_all=by_all), self._gone.wait(), self._host.draining())
        except TimeoutError:
            if (why := downstream.not_ready()) is not None and downstream.is_waited_for(by_all=by_all):
                raise self._unavailable(f"{why.text}; nothing was stored", seconds=why.seconds) from None
            return
        if first == 1:
            raise ClientDisconnect
        if first == 2:
            raise self._unavailable("shutting down: not accepting requests", closes=True)

    def _unavailable(self, why: str, *, seconds: int | None = None, closes: bool = False) -> RefusedRequest:
        after = ("retry-after", str(self._options.retry_after_seconds if seconds is None else seconds))
        return RefusedRequest(text_answer(Status.SERVICE_UNAVAILABLE, why, after, closes=closes))

    async def _processed(self, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> Answer:
        exchange = Exchange(self._last, metadata["headers"], self._options.reply_bytes_max)
        self._exchange = exchange
        exchanged = self._exchanged(exchange, stream, body, metadata)
        try:
            first = await first_of(exchanged, self._gone.wait(), self._overdue())
        except BadBytes as bad:
            raise RefusedRequest(text_answer(Status.BAD_REQUEST, str(bad), closes=True)) from None
        if first == 1:
            raise ClientDisconnect
        if first == 2:
            raise RefusedRequest(self._timed_out())
        if exchange.last == exchange.after:
            return Answer(Status.NO_CONTENT)
        if not self._host.has_in:
            return Answer(Status.ACCEPTED)
        return exchange.answer(self._host.outgoing_chain(), self._options.content_type)

    async def _exchanged(self, exchange: Exchange, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> None:
        """Returns when the whole reply has arrived."""
        self._is_cut = True
        await self._store(exchange, stream, body, metadata)
        self._last = exchange.last = await stream.finish()
        self._is_cut = False
        if exchange.last == exchange.after:
            return
        if self._options.answer == "reply" and self._host.has_in:
            await exchange.replied.wait()
        else:
            await stream.complete(exchange.last)

    async def _store(self, exchange: Exchange, stream: Stream, body: bytes, metadata: Mapping[str, Any]) -> None:
        """Raises RefusedRequest for a request whose events are too large: each carries the metadata."""
        limit, each = self._options.stored_bytes_max, len(msgpack.packb(metadata))
        is_cut = self._host.has_interceptors and not self._host.takes_messages
        step = max(1, limit // each) if is_cut else max(1, len(body))
        for start in range(0, len(body), step):
            last = await stream.send(body[start : start + step], metadata=metadata)
            if (last - exchange.after) * each + start > limit:
                text = f"its events are more than {limit} bytes with its headers (stored_bytes_max)"
                raise RefusedRequest(text_answer(Status.REQUEST_ENTITY_TOO_LARGE, text, closes=True))

    async def _overdue(self) -> None:
        """Returns when the request has waited too long. The time of a pipeline's first epoch does not count."""
        downstream = self._host.downstream
        if downstream.is_on_first_epoch(by_all=self._by_all):
            self._host.count("first_epoch_requests")
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_EPOCH_SECONDS_MAX):
                    await downstream.warm(by_all=self._by_all)
        await asyncio.sleep(self._options.timeout)

    def _timed_out(self) -> Answer:
        """The connection is closed: a later reply must not be mistaken for that of another request."""
        why = self._host.downstream.not_ready()
        because = "" if why is None else f" ({why.text})"
        if why is None and self._host.downstream.is_on_first_epoch(by_all=self._by_all):
            because = " (the first epoch since Spark was started is not complete)"
        seconds = self._options.timeout
        text = f"no reply within {seconds:g} s{because}; what was sent is stored, and may still be processed"
        return text_answer(Status.GATEWAY_TIMEOUT, text, closes=True)


def _retrieve(opening: asyncio.Task[Stream]) -> None:
    """Marks an error as seen: the next request reports it, but there may be none."""
    if not opening.cancelled():
        opening.exception()


def _response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status, {"date": formatdate(usegmt=True)})
    for name, value in answer.headers:
        response.headers[name] = value
    if answer.closes:
        response.headers["connection"] = "close"
    return response


# All connections of one server, by their protocols and by their streams.


class Clients:
    def __init__(self, host: Host, options: HttpServerOptions) -> None:
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
        """Requests in progress get their answers: each is bounded by its timeout."""
        for protocol in [*self._connections]:
            protocol.shutdown()
        await self._ended()

    async def abort(self) -> None:
        for protocol in [*self._connections]:
            protocol.abort()
        await self._ended()

    async def _ended(self) -> None:
        """Returns when all connections are gone, and their streams are closed."""
        while self._connections or self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
            await asyncio.sleep(_LOOK_SECONDS)

    # Called by the protocol.

    def connected(self, protocol: HttpProtocol, peer: str) -> ClientConnection | None:
        if len(self._connections) >= self._options.connections_max or self._host.is_draining:
            self._host.count("refused_connections")
            return None
        auth = self._options.auth
        if auth is not None and not auth.accepts_certificate(protocol.certificate):
            self._host.count(UNAUTHORIZED)
            return None
        connection = ClientConnection(peer, self._host, self._options, self._streams.__setitem__)
        self._connections[protocol] = connection
        # Otherwise the stream opens with the first request: so both are in one epoch, and a client without credentials
        # gets no stream.
        if auth is None and self._host.downstream.not_ready() is None:
            connection.begin()
        return connection

    def disconnected(self, protocol: HttpProtocol) -> None:
        task = asyncio.create_task(self._end(self._connections.pop(protocol)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def bad_request(self) -> None:
        self._host.count("bad_requests")

    async def _end(self, connection: ClientConnection) -> None:
        """A later reply is a dead letter."""
        if connection.stream_id is not None:
            self._streams.pop(connection.stream_id, None)
        await connection.end()
        if connection.stream_id is not None:  # opened in the meantime
            self._streams.pop(connection.stream_id, None)


_LOOK_SECONDS = 0.01
"""Between two polls: connections end by themselves, in their own time."""


log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has accepted and we have not yet."""


class HttpServer(Connector[HttpServerOptions]):
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
    )

    @classmethod
    def check_permitted(cls, options: HttpServerOptions, permissions: Permissions) -> None:
        check_exposure(options, permissions)
        super().check_permitted(options, permissions)

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
        with listening_at(options.host, options.port):
            server = await loop.create_server(
                factory,
                options.host,
                options.port,
                ssl=context,
                backlog=_BACKLOG,
                reuse_port=host.shares_port or None,
            )
        self.addresses = [address_of(sock.getsockname()) for sock in server.sockets]
        log.info("%s listens on %s", host.name, self.mask.text(", ".join(self.addresses)))
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
