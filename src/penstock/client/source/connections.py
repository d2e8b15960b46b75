"""A connection of the blocking source: one socket, no thread."""

import asyncio
import selectors
import socket
import ssl
import time
from contextlib import suppress
from typing import cast

from penstock.client.sockets import Outgoing, Waker, prepare
from penstock.client.source.failures import closed, no_answer, unreachable
from penstock.client.source.session import BATCH_BYTES, SourceSession, Terms
from penstock.core.address import Address
from penstock.core.errors import PenstockError

RECEIVE_BYTES = 64 * 1024

FAREWELL_SECONDS = 2.0
"""How long the last frames may take to leave, and the worker to close its end."""

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BlockingConnection:
    """Sends and receives in the same call: a worker's ACKs are read while we write. No byte is lost by a partial send.

    Any error it raises is final: close it then.
    """

    def __init__(self, terms: Terms, address: Address, tls: ssl.SSLContext | None, waker: Waker) -> None:
        """Connects; Lost or Unavailable when nobody listens. The handshake is the session's."""
        self._socket = connect(address, tls, terms.timeout_seconds)
        self._is_tls = tls is not None
        self._outgoing = Outgoing()
        self._waker = waker
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(waker, selectors.EVENT_READ)
        self.session = SourceSession(terms, address, time.monotonic())

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing.size

    def exchange(self, wait_seconds: float | None) -> None:
        """Send and receive what is possible. If that is nothing, wait for it, or for the waker; None: for ever."""
        self._outgoing.add(self.session.take())
        if self._move() or wait_seconds == 0:
            return
        writing = selectors.EVENT_WRITE if self._outgoing.size else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | writing)
        self._selector.select(wait_seconds)
        self._waker.clear()
        self._move()

    def farewell(self) -> None:
        """Let what was sent arrive: all of it leaves, and what comes is read until the worker closes. To close with
        bytes unread would reset the connection, and with it our last frames.
        """
        deadline = time.monotonic() + FAREWELL_SECONDS
        self._outgoing.add(self.session.take())
        self.session.close()
        self._selector.unregister(self._waker)
        try:
            while self._outgoing.size and self._wait(selectors.EVENT_WRITE, deadline):
                self._send()
            self._socket.shutdown(socket.SHUT_WR)
            while self._wait(selectors.EVENT_READ, deadline) and self._socket.recv(RECEIVE_BYTES):
                pass
        except (OSError, PenstockError):  # it is over, one way or the other
            pass

    def close(self) -> None:
        self.session.close()
        self._selector.close()
        self._socket.close()

    def _wait(self, events: int, deadline: float) -> bool:
        self._selector.modify(self._socket, events)
        left = deadline - time.monotonic()
        return left > 0 and bool(self._selector.select(left))

    def _move(self) -> bool:
        sent = bool(self._outgoing.size) and self._send()
        return self._receive() or sent

    def _send(self) -> bool:
        try:
            buffers = self._outgoing.next()
            count = self._socket.send(buffers[0]) if self._is_tls else self._socket.sendmsg(buffers)
        except _NOT_NOW:
            return False
        except OSError as error:
            while self._receive():  # the worker may have said why
                pass
            raise unreachable(self.session.address, error) from error
        self._outgoing.sent(count)
        return True

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except _NOT_NOW:
            return False
        except OSError as error:
            raise unreachable(self.session.address, error) from error
        if not data:
            raise closed(self.session.address)
        self.session.receive(data, time.monotonic())
        return True


def connect(address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> socket.socket:
    try:
        connected = socket.create_connection((address.host, address.port), timeout_seconds)
        try:
            prepare(connected)
            if tls is not None:
                connected = tls.wrap_socket(connected, server_hostname=address.host)
            connected.setblocking(False)
        except BaseException:
            connected.close()
            raise
    except OSError as error:
        raise unreachable(address, error) from error
    return connected


# A connection of the asyncio source.


class AsyncConnection(asyncio.Protocol):
    """`changed` is set when there may be something to do: bytes came, there is room to write, or it is lost."""

    def __init__(self, terms: Terms, address: Address, changed: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self.session = SourceSession(terms, address, self._loop.time())
        self.lost: PenstockError | None = None
        """Why it is of no use any more; None while it is."""
        self.room_bytes = 0
        """What may be written now."""
        self._changed = changed
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._spare: socket.socket | None = None

    @classmethod
    async def open(
        cls, terms: Terms, address: Address, tls: ssl.SSLContext | None, changed: asyncio.Event
    ) -> "AsyncConnection":
        """Connects; Lost or Unavailable when nobody listens. The handshake is the session's."""
        connection = cls(terms, address, changed)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(terms.timeout_seconds):
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
        except TimeoutError:
            raise no_answer(address, terms.timeout_seconds) from None
        except OSError as error:
            raise unreachable(address, error) from error
        return connection

    def write(self) -> None:
        """Pass on what the session has to send."""
        parts = self.session.take()
        if parts and self._transport is not None:
            self._transport.writelines(parts)

    async def farewell(self) -> None:
        """Let what was sent arrive: all of it leaves, and what comes is read until the worker closes."""
        self.write()
        self.session.close()
        assert self._transport is not None
        with suppress(OSError):  # it is over already; a TimeoutError is one
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._closed.wait()

    def close(self) -> None:
        self.session.close()
        self._close_spare()
        if self._transport is not None:
            self._transport.abort()

    def _close_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _read_rest(self) -> None:
        """A transport that could not write does not read any more; but the worker may have said why it closed."""
        with suppress(OSError):
            while self._spare is not None and self.lost is None and (data := self._spare.recv(RECEIVE_BYTES)):
                self.data_received(data)

    def _end(self, error: PenstockError) -> None:
        if self.lost is None:
            self.lost = error
            self._changed.set()

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BATCH_BYTES)
        connected = transport.get_extra_info("socket")
        with suppress(OSError):  # it is lost already: the transport will notice
            prepare(connected)
        if transport.get_extra_info("ssl_object") is None:
            self._spare = connected.dup()
            self._spare.setblocking(False)
        self.room_bytes = BATCH_BYTES

    def data_received(self, data: bytes) -> None:
        if self.lost is None:
            try:
                self.session.receive(data, self._loop.time())
            except PenstockError as error:
                self._end(error)
        self._changed.set()

    def pause_writing(self) -> None:
        self.room_bytes = 0

    def resume_writing(self) -> None:
        self.room_bytes = BATCH_BYTES
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()
        self._close_spare()
        address = self.session.address
        self._end(closed(address) if exc is None else unreachable(address, exc))
        self._closed.set()
