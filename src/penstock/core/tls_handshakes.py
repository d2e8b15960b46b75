"""TLS on a port: how many handshakes may be unfinished, in total and from one address, and for how long.

A connection that does not finish its handshake costs a file and memory before any protocol knows about it. So a port
listens without TLS; each connection is first admitted here, then its handshake is made, and only then its protocol
exists.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

from penstock.core.connection_limits import ConnectionLimits, address_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeLimits:
    total_max: int = 200
    """A handshake takes some milliseconds on a local network, so this is thousands of new connections a second."""
    address_max: int = 160
    """Unfinished handshakes from one address: well below the total, so that other addresses still get in."""
    seconds: float = 10.0


class TlsHandshakes:
    """The unfinished handshakes of one port. A new connection replaces the oldest one, preferably of its
    own address.
    """

    def __init__(self, context: ssl.SSLContext, limits: HandshakeLimits) -> None:
        self.context = context
        self.limits = limits
        self.unfinished = ConnectionLimits(limits.total_max, limits.address_max)
        self.tasks: set[asyncio.Task[None]] = set()

    def protocol(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.Protocol:
        """A protocol for `create_server`. The connection's own protocol, from `factory`, begins after the handshake."""
        return _Handshake(self, factory)


def with_tls(
    factory: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None, seconds: float
) -> Callable[[], asyncio.BaseProtocol]:
    """The protocol factory of a port: with TLS if there is a context, otherwise without."""
    if context is None:
        return factory
    handshakes = TlsHandshakes(context, HandshakeLimits(seconds=seconds))
    return lambda: handshakes.protocol(factory)


def close_once(transport: asyncio.Transport) -> None:
    """Close it, unless that has been done. With TLS, asyncio would take a second `close` as the end of the connection:
    `abort` would then do nothing, and a peer that does not answer would keep the socket open.
    """
    if not transport.is_closing():
        transport.close()


class _Handshake(asyncio.Protocol):
    """One connection until its handshake is finished. As a Guest of ConnectionLimits it can always be evicted."""

    is_authenticated = False

    def __init__(self, port: TlsHandshakes, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._port = port
        self._factory = factory
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()
        if not self._port.unfinished.admit(self, address_of(transport.get_extra_info("peername"))):
            self._transport.abort()
            return
        context, seconds = self._port.context, self._port.limits.seconds
        # Now: in the loop's next turn, the peer's first bytes may have been read without TLS.
        tls = _Begun(
            self._loop.start_tls(self._transport, self, context, server_side=True, ssl_handshake_timeout=seconds)
        )
        task = self._loop.create_task(self._shake_hands(tls))
        self._port.tasks.add(task)
        task.add_done_callback(self._port.tasks.discard)

    def evict(self) -> None:
        self._transport.abort()

    async def _shake_hands(self, tls: "_Begun[asyncio.Transport | None]") -> None:
        try:
            transport = await tls
        except OSError:  # refused, too slow, or gone: the peer's problem
            self._transport.abort()
            return
        finally:
            self._port.unfinished.leave(self)
        if transport is not None and not transport.is_closing():  # it may be gone by now
            self._begin(transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        protocol = self._factory()
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        for data in self._early:
            if not transport.is_closing():
                feed(protocol, data)

    def data_received(self, data: bytes) -> None:
        """Buffer what the peer sends right after its handshake, which may arrive before `_shake_hands` resumes: at most
        one read of the socket.
        """
        self._early.append(data)


def feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Pass the bytes on as a transport would."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        cast("asyncio.Protocol", protocol).data_received(data)
        return
    rest = memoryview(data)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]


class _Begun(Generic[T]):
    """Runs a coroutine up to its first suspension at once; awaiting this object runs the rest."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._awaited = coroutine.send(None)

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            try:
                sent = yield self._awaited
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, sent)
            try:
                self._awaited = step()
            except StopIteration as done:
                return cast("T", done.value)
