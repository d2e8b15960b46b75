"""What all types that listen for HTTP requests have in common: connections, their streams, and the answers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import replace
from http import HTTPStatus as Status
from typing import Any, Protocol, TypeVar

from penstock.connectors.api import Capabilities, Connector, Downstream, Host, Outgoing, Stream, StreamGone
from penstock.connectors.http_server.exchange import Answer, RefusedRequest, text_answer
from penstock.connectors.http_server.intake import ClientGone, Intake, NotNow
from penstock.connectors.http_server.options import IntakeOptions, ListenerOptions
from penstock.connectors.http_server.protocol import Disconnected, HttpProtocol, Limits, Request, protocol_factory
from penstock.connectors.permissions import Permissions
from penstock.connectors.server_auth import UNAUTHORIZED
from penstock.connectors.sockets import address_of, check_exposure, claims_of, listening_at, server_context

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has accepted and we have not yet."""

_LOOK_SECONDS = 0.01
"""Between two polls: connections end on their own, when they like."""


class Connection(Protocol):
    """A client's connection, as its server knows it."""

    async def __call__(self, request: Request) -> None:
        """Answers it."""

    def takes(self, request: Request) -> bool:
        """Whether it answers this request, which has arrived completely, in a task with others. False: call it."""

    def begin(self) -> None:
        """The client has connected, and may be served."""

    def leave(self) -> None:
        """The client is gone."""

    async def end(self) -> None:
        """Returns when everything of it has ended."""


# A connection whose requests become events of its stream.


class ClientConnection(ABC):
    """A client's connection, which is a stream: its requests one after the other, each with its answer. Nothing of a
    request is stored before all of it has arrived: a client that disconnects before that leaves nothing.
    """

    def __init__(
        self, peer: str, host: Host, options: IntakeOptions, downstream: Downstream, *, by_all: bool = True
    ) -> None:
        self.host = host
        self.intake = Intake(peer, host, options, downstream, by_all=by_all)
        self._retry_after_seconds = options.retry_after_seconds
        self._seconds = options.timeout
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def begin(self) -> None:
        self.intake.begin()

    def leave(self) -> None:
        self.intake.leave()

    async def end(self) -> None:
        """The client is gone: its request ends, and the stream with it."""
        await self.is_idle.wait()
        await self.intake.end()

    def deliver(self, outgoing: Outgoing) -> None:
        """Raises StreamGone for replies that no request waits for any more."""
        raise StreamGone(f"it does not reply to any request: {outgoing.name}")

    def takes(self, request: Request) -> bool:  # noqa: ARG002  for subclasses
        return False

    async def __call__(self, request: Request) -> None:
        self.is_idle.clear()
        try:
            await send_answer(await self._answered(request), request)
        except (Disconnected, ClientGone):
            self.host.count("aborted_requests")
        finally:
            self.ended()
            self.is_idle.set()

    def ended(self) -> None:
        """The request is over, however it ended."""
        return

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self.respond(request)
        except RefusedRequest as refused:
            answer = refused.answer
        except NotNow as why:
            answer = self.refused_for_now(why)
        except TimeoutError:
            answer = self.timed_out()
        return self.refused(answer)

    def refused(self, answer: Answer) -> Answer:
        self.host.count(f"answers_{answer.status}")
        return self.worded(answer)

    def worded(self, refusal: Answer) -> Answer:
        """The refusal, as clients of the type expect it."""
        return refusal

    @abstractmethod
    async def respond(self, request: Request) -> Answer:
        """Raises RefusedRequest, NotNow, ClientGone, TimeoutError."""

    async def stream(self) -> Stream:
        """Raises NotNow, ClientGone."""
        return await self.intake.admitted()

    def refused_for_now(self, why: NotNow) -> Answer:
        after = ("retry-after", str(self._retry_after_seconds if why.seconds is None else why.seconds))
        return text_answer(self.status_for_now(why), str(why), after, closes=why.is_draining)

    def status_for_now(self, why: NotNow) -> Status:  # noqa: ARG002  for subclasses
        return Status.SERVICE_UNAVAILABLE

    def timed_out(self) -> Answer:
        """The connection is closed: a later reply must not be mistaken for that of another request."""
        text = f"no reply within {self._seconds:g} s{self.intake.waits_for}"
        stored = "what was sent is stored, and may still be processed"
        return text_answer(Status.GATEWAY_TIMEOUT, f"{text}; {stored}", closes=True)


async def send_answer(answer: Answer, request: Request) -> None:
    await request.answer(answer.status, answer.headers, answer.body, closes=answer.closes)


# All connections of one server.

C = TypeVar("C", bound=Connection)
L = TypeVar("L", bound=ListenerOptions)


class HttpListener(Connector[L], ABC):
    """A connector that listens for HTTP. A subclass makes what serves each connection."""

    @classmethod
    def check_permitted(cls, options: L, permissions: Permissions) -> None:
        check_exposure(options, permissions)
        super().check_permitted(options, permissions)

    @classmethod
    def capabilities(cls, options: L) -> Capabilities:
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port))

    def __init__(self, options: L) -> None:
        super().__init__(options)
        self.addresses: list[str] = []
        """Where it listens."""
        self._connections: dict[HttpProtocol, Connection] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.host: Host | None = None

    @abstractmethod
    def connection(self, peer: str, host: Host) -> Connection:
        """For a new connection."""

    def closed(self, connection: Connection) -> None:  # noqa: ARG002  for subclasses
        """A connection is gone; what belongs to it ends by itself."""
        return

    def begins_at_once(self, host: Host) -> bool:
        """Whether a client is served as soon as it connects. Otherwise it is with its first request: so that a client
        without credentials gets no stream, and that the stream and the request are in one epoch.
        """
        return self.options.auth is None and host.downstream.not_ready() is None

    def refuses(self, host: Host) -> bool:
        """Whether new connections are refused now."""
        return host.is_draining

    @property
    def scheme(self) -> str:
        return "http" if self.options.tls is None else "https"

    async def run(self, host: Host) -> None:
        options, self.host = self.options, host
        factory = protocol_factory(self, Limits(options.head_bytes_max, options.idle, options.dead_peer_after))
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
            await self.serve(host)
            server.close()
            await self._drain()
        finally:
            server.close()
            await self._abort()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task that ends with the connections at the latest."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve(self, host: Host) -> None:
        """Returns when no more connections are accepted."""
        host.connected()
        await host.draining()

    async def _drain(self) -> None:
        """Requests in progress get their answers: each is bounded by its timeout."""
        for protocol in [*self._connections]:
            protocol.shutdown()
        await self._ended()

    async def _abort(self) -> None:
        for protocol in [*self._connections]:
            protocol.abort()
        await self._ended()
        for task in [*self._tasks]:
            task.cancel()

    async def _ended(self) -> None:
        """Returns when all connections are gone, and their streams are closed."""
        while self._connections or self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
            await asyncio.sleep(_LOOK_SECONDS)

    # Called by the protocol.

    def connected(self, protocol: HttpProtocol, peer: str) -> Connection | None:
        assert self.host is not None
        if len(self._connections) >= self.options.connections_max or self.refuses(self.host):
            self.host.count("refused_connections")
            return None
        auth = self.options.auth
        if auth is not None and not auth.accepts_certificate(protocol.certificate):
            self.host.count(UNAUTHORIZED)
            return None
        connection = self._connections[protocol] = self.connection(peer, self.host)
        if self.begins_at_once(self.host):
            connection.begin()
        return connection

    def disconnected(self, protocol: HttpProtocol) -> None:
        connection = self._connections.pop(protocol)
        connection.leave()
        task = asyncio.create_task(self._end(connection))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def bad_request(self) -> None:
        assert self.host is not None
        self.host.count("bad_requests")

    async def _end(self, connection: Connection) -> None:
        self.closed(connection)
        await connection.end()
        self.closed(connection)  # its stream may have been opened in the meantime
