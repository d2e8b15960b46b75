"""What the connections of all clients share: sockets that detect dead peers, and the bytes to send."""

import asyncio
import selectors
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar, cast

from penstock.core.address import Address
from penstock.core.errors import PenstockError
from penstock.core.platforms import keep_alive, limit_unacknowledged
from penstock.core.types import Buffer

DEAD_PEER_SECONDS = 60
"""A peer that sends no TCP segment for this long is gone; a live but idle one answers every probe."""

_PROBE_SECONDS = 15

RECEIVE_BYTES = 64 * 1024

NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a non-blocking socket raises when it can neither send nor receive at the moment."""


def connect(
    address: Address,
    tls: ssl.SSLContext | None,
    timeout_seconds: float,
    prepare: Callable[[socket.socket], object],
) -> socket.socket:
    """A non-blocking socket. Raises OSError when nothing listens there, or TLS fails."""
    connected = socket.create_connection((address.host, address.port), timeout_seconds)
    try:
        prepare(connected)
        if tls is not None:
            connected = tls.wrap_socket(connected, server_hostname=address.host)
        connected.setblocking(False)
    except BaseException:
        connected.close()
        raise
    return connected


def send_at_once(connected: socket.socket) -> None:
    """Small requests do not wait for the acknowledgement of earlier ones."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def prepare(connected: socket.socket) -> None:
    """Send at once, and detect dead peers: a source may be idle for hours and not notice that its peer is gone."""
    send_at_once(connected)
    keep_alive(connected, _PROBE_SECONDS, _PROBE_SECONDS, DEAD_PEER_SECONDS // _PROBE_SECONDS)
    limit_unacknowledged(connected, DEAD_PEER_SECONDS * 1000)


class Waker:
    """Ends a `select` from another thread, or from a signal handler."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        with suppress(OSError):  # it is already awake, or has ended in the meantime
            self._writer.send(b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


# Bytes on their way to a socket.

_BUFFERS_MAX = 64
"""Passed to the system in one call; it accepts at most 1,024."""


class Outgoing:
    """Buffers in order; nothing is copied."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.size = 0

    def add(self, parts: Iterable[Buffer]) -> None:
        for part in parts:
            if part:
                view = memoryview(part).cast("B")
                self._views.append(view)
                self.size += len(view)

    def next(self) -> list[memoryview]:
        return list(islice(self._views, _BUFFERS_MAX))

    def sent(self, count: int) -> None:
        self.size -= count
        while count:
            view = self._views.popleft()
            if count < len(view):
                self._views.appendleft(view[count:])
                return
            count -= len(view)

    def send_to(self, connected: socket.socket) -> bool:
        """As much as a non-blocking socket takes now; return whether that was anything. Raises OSError when it is
        closed.
        """
        buffers = self.next()
        try:
            # TLS encrypts one buffer at a time.
            is_tls = isinstance(connected, ssl.SSLSocket)
            count = connected.send(buffers[0]) if is_tls else connected.sendmsg(buffers)
        except NOT_NOW:
            return False
        self.sent(count)
        return True


class DuplexSocket(ABC):
    """A non-blocking socket that sends and receives in the same call: we read a peer's replies while we send, so that a
    peer that stops reading until its replies are taken does not block us forever.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._outgoing = Outgoing()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connected, selectors.EVENT_READ)

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing.size

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def _wait(self, wait_seconds: float | None) -> bool:
        """Until something can be sent or received; return whether it can. None: no limit."""
        writing = selectors.EVENT_WRITE if self._outgoing.size else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | writing)
        return bool(self._selector.select(wait_seconds))

    def _move(self) -> bool:
        """Send and receive what is possible now; return whether that was anything."""
        sent = bool(self._outgoing.size) and self._send()
        return self._receive() or sent

    def _send(self) -> bool:
        try:
            return self._outgoing.send_to(self._socket)
        except OSError as error:
            while self._receive():  # the peer may have sent the reason
                pass
            raise self._unreachable(error) from error

    @abstractmethod
    def _receive(self) -> bool:
        """What is there now; return whether that was anything. Raises when the connection is closed."""

    @abstractmethod
    def _unreachable(self, error: OSError) -> Exception: ...


# Asyncio connections that end in order.


class SpareSocket:
    """A second handle of a transport's socket: a transport that could not write no longer reads, but the peer may have
    sent the reason for closing. With TLS there is none, because the bytes are encrypted.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._socket: socket.socket | None = None
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket").dup()
            self._socket.setblocking(False)

    def receive(self) -> bytes:
        """What has arrived and was not read; empty if nothing is left."""
        with suppress(OSError):
            if self._socket is not None:
                return self._socket.recv(RECEIVE_BYTES)
        return b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


E = TypeVar("E", bound=PenstockError)


class PeerProtocol(asyncio.Protocol, Generic[E]):
    """A connection to a worker or to a sink program. `changed` is set when there may be something to do: bytes arrived,
    there is room to write, or the connection is lost. What the peer sent last is received even if writing has failed.
    """

    def __init__(self, changed: asyncio.Event, unsent_bytes_max: int) -> None:
        self.lost: E | None = None
        """Why the connection is no longer usable; None while it is."""
        self._changed = changed
        self._unsent_bytes_max = unsent_bytes_max
        self._has_room = False
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._spare: SpareSocket | None = None

    @abstractmethod
    def _loss(self, error: Exception | None) -> E:
        """What to report when the connection is lost; without an error, the peer has closed it."""

    async def end_sending(self, timeout_seconds: float) -> None:
        """Let what was written arrive: wait until the peer closes, or the time is up."""
        assert self._transport is not None
        with suppress(OSError):  # the connection is lost already; a TimeoutError is one too
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
            async with asyncio.timeout(timeout_seconds):
                await self._closed.wait()

    def _write(self, parts: Iterable[Buffer]) -> None:
        """Nothing, if the transport is closing: asyncio of Python 3.12 and 3.13 would then watch the number of a socket
        that is closed, and the next connection that gets this number would receive nothing.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def _abort(self) -> None:
        if self._spare is not None:
            self._spare.close()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: E) -> None:
        if self.lost is None:
            self.lost = error
            self._changed.set()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._unsent_bytes_max)
        with suppress(OSError):  # it is lost already: the transport will notice
            prepare(transport.get_extra_info("socket"))
        self._spare = SpareSocket(transport)
        self._has_room = True

    def pause_writing(self) -> None:
        self._has_room = False

    def resume_writing(self) -> None:
        self._has_room = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._spare is not None
        while self.lost is None and (data := self._spare.receive()):
            self.data_received(data)
        self._spare.close()
        self._end(self._loss(exc))
        self._closed.set()
