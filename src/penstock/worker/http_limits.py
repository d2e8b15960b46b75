"""The limits of the HTTP port: time for a head and for a body, connections, and memory and decoding of bodies."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, TypeVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.access.principals import certificate_names
from penstock.core.connection_limits import ConnectionLimits, address_of
from penstock.core.errors import LimitExceeded, Unavailable
from penstock.core.sizes import MIB
from penstock.core.tls_handshakes import HandshakeLimits, TlsHandshakes

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

# One HTTP connection: uvicorn's protocol, with the names in the client's certificate.

CERTIFICATE_NAMES = "penstock.certificate_names"
"""The key of these names in a request's scope."""

IS_REFUSED = "penstock.is_refused"
"""The key of a flag in a request's scope: its peer is unauthenticated, and waits for the refusal."""


class HttpProtocol(H11Protocol):
    """Every request's scope has the names in the certificate with which the client has proved its identity (mutual
    TLS); none without one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _with_names(self.app, certificate_names(transport.get_extra_info("peercert")))

    def send_400_response(self, msg: str) -> None:
        """Replaces the application's reply, if one was still to come. h11 raises for a second reply, and for text in a
        reply to HEAD: then the connection is closed without a reply.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()


def _with_names(app: "ASGI3Application", names: tuple[str, ...]) -> "ASGI3Application":
    async def named(scope: "Scope", receive: "ASGIReceiveCallable", send: "ASGISendCallable") -> None:
        scope[CERTIFICATE_NAMES] = names  # type: ignore[literal-required]
        await app(scope, receive, send)

    return named


# The limits.


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    head_seconds: float = 10.0
    """From the connection, or the first byte of a request, to the end of its head. A TLS handshake has the same limit.
    """

    body_seconds: float = 60.0
    """From the head to the end of the body: a whole merge in a minute is a megabyte a second."""

    idle_seconds: int = 75
    """Between two requests: drivers keep their connection open between two batches."""

    connections_max: int = 500
    """Each takes a file descriptor, and memory for at most a head and a piece of a body."""

    address_connections_max: int | None = None
    """How many of them may come from one address; None: four fifths. A whole application may run on one machine, and
    another machine must still get in.
    """

    bodies_bytes_max: int = 128 * MIB
    """Bodies that are being received, together: two of the largest merges, or many small requests. One principal may
    have half of it, so that its unfinished bodies do not lock out the others."""

    unwanted_bytes_max: int = 2 * MIB
    """Bytes of a request body read after the reply was sent, because many clients look for the reply only after sending
    everything. Beyond this the connection is closed."""

    @property
    def address_max(self) -> int:
        return self.address_connections_max or max(self.connections_max * 4 // 5, 1)


class HttpConnections:
    """All connections of the port; creates the protocol of each for uvicorn."""

    def __init__(self, limits: HttpLimits, context: SSLContext | None = None) -> None:
        """With TLS if there is a context; uvicorn itself is to have none."""
        self.limits = limits
        self.open = ConnectionLimits(limits.connections_max, limits.address_max)
        self.refused = 0
        handshakes = None if context is None else TlsHandshakes(context, HandshakeLimits(seconds=limits.head_seconds))

        def protocol(**given: Any) -> asyncio.Protocol:
            """What uvicorn calls for each connection."""
            created = partial(_LimitedProtocol, self, **given)
            return created() if handshakes is None else handshakes.protocol(created)

        self.protocol = protocol


class _LimitedProtocol(HttpProtocol):
    """One connection: the peer has limited time for whatever it has to send next, which h11 knows."""

    def __init__(self, shared: HttpConnections, **given: Any) -> None:
        super().__init__(**given)
        self.shared = shared
        self._timer: asyncio.TimerHandle | None = None
        self._owed: object = None
        self._opened_at = 0.0
        self._idle_since: float | None = None
        self._unwanted_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self._opened_at = self.loop.time()
        if not self.shared.open.admit(self, address_of(transport.get_extra_info("peername"))):
            self.shared.refused += 1
            transport.abort()
            return
        self._await(h11.IDLE, self.shared.limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._unwanted_bytes = self._unwanted_bytes + len(data) if self._has_replied_early() else 0
        if self._unwanted_bytes > self.shared.limits.unwanted_bytes_max:
            self.transport.abort()
            return
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.shared.open.leave(self)
        super().connection_lost(exc)

    def _has_replied_early(self) -> bool:
        """The reply is sent, and the body still arrives."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete

    def _look(self) -> None:
        """Set the time limit for what the peer is sending now, unless it runs already."""
        limits, state = self.shared.limits, self.conn.their_state
        # A peer is busy while it waits for us. One that owes us the rest of a request can lose its place.
        owes_us = state in (h11.IDLE, h11.SEND_BODY)
        self._idle_since = (self._idle_since or self.loop.time()) if owes_us else None
        if state is h11.IDLE and (self.conn.trailing_data[0] or self.cycle is None):
            self._await(state, limits.head_seconds)
        elif state is h11.SEND_BODY:
            self._await(state, limits.body_seconds)
        else:
            self._cancel()

    def _await(self, state: object, seconds: float) -> None:
        if self._timer is None or self._owed is not state:
            self._cancel()
            self._owed, self._timer = state, self.loop.call_later(seconds, self._too_slow)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self.transport.abort()

    # As core.connection_limits.Guest.

    @property
    def idle_since(self) -> float | None:
        """An unauthenticated peer that waits for its refusal can lose its place, too."""
        scope = cast("HTTPScope | None", self.scope)  # None before the first request
        return self._opened_at if scope is not None and IS_REFUSED in scope else self._idle_since

    @property
    def is_authenticated(self) -> bool:
        return False  # every request proves it again, so whoever is closed between two of them loses nothing

    def evict(self) -> None:
        self.transport.abort()


class Bodies:
    """The memory of all bodies that are being received, or decoded."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._owner_bytes_max = bytes_max // 2
        self._owners: Counter[str] = Counter()
        self.bytes = 0

    @contextmanager
    def one(self, bytes_max: int, owner: str) -> Iterator["Body"]:
        """A body of at most so many bytes, sent by this principal."""
        body = Body(self, bytes_max, owner)
        try:
            yield body
        finally:
            self._remove(body)

    def check(self, size: int, owner: str) -> None:
        """Raises Unavailable if there is no room for so many bytes more: clients try again."""
        if self.bytes + size > self._bytes_max or self._owners[owner] + size > self._owner_bytes_max:
            raise Unavailable("too many large requests are being received at once", "Try again in a moment.")

    def add(self, size: int, owner: str) -> None:
        """Raises Unavailable."""
        self.check(size, owner)
        self.bytes += size
        self._owners[owner] += size

    def _remove(self, body: "Body") -> None:
        self.bytes -= body.size
        self._owners[body.owner] -= body.size
        if not self._owners[body.owner]:
            del self._owners[body.owner]


class Body:
    def __init__(self, all_bodies: Bodies, bytes_max: int, owner: str) -> None:
        self._all = all_bodies
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self.owner = owner
        self.size = 0

    def announce(self, size: int) -> None:
        """The announced size of the body: one that would be refused in the end is refused at once. Nothing is reserved,
        because an announcement costs nothing. Raises LimitExceeded, Unavailable.
        """
        self._check_length(size)
        self._all.check(size, self.owner)

    def add(self, part: bytes) -> None:
        """Raises LimitExceeded, Unavailable."""
        self._check_length(self.size + len(part))
        self._all.add(len(part), self.owner)
        self.size += len(part)
        self._parts.append(part)

    def _check_length(self, size: int) -> None:
        if size > self._bytes_max:
            raise LimitExceeded(f"the body is longer than {self._bytes_max} bytes", "Send less in one request.")

    def joined(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


DECODING_REST = 7.0
"""After decoding a body, a principal waits this many times the CPU time it took."""


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0
    used_seconds: float = 0.0


class Decoding:
    """Large bodies are decoded in threads, so that the event loop can run. But Python runs one thread at a time: so
    each principal has one body decoded at a time, and for at most an eighth of the time.
    """

    def __init__(self) -> None:
        self._turns: defaultdict[str, _Turn] = defaultdict(_Turn)

    async def run(self, owner: str, decode: Callable[[], T]) -> T:
        turn, loop = self._turns[owner], asyncio.get_running_loop()
        async with turn.lock:
            await asyncio.sleep(turn.free_at - loop.time())
            try:
                return await asyncio.to_thread(_timed, decode, turn)
            finally:
                turn.free_at = loop.time() + DECODING_REST * turn.used_seconds


def _timed(decode: Callable[[], T], turn: _Turn) -> T:
    start = time.thread_time()
    try:
        return decode()
    finally:
        turn.used_seconds = time.thread_time() - start
