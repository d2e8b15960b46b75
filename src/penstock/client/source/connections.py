"""A connection of the blocking source: one socket, no thread."""

import asyncio
import selectors
import socket
import ssl
import time
from contextlib import suppress
from typing import cast

from penstock.client.sockets import (
    NOT_NOW,
    RECEIVE_BYTES,
    DuplexSocket,
    SpareSocket,
    Waker,
    connect,
    end_sending,
    prepare,
)
from penstock.client.source.failures import closed, no_answer, unreachable
from penstock.client.source.session import BATCH_BYTES, SourceSession, Terms
from penstock.core.address import Address
from penstock.core.errors import PenstockError

FAREWELL_SECONDS = 2.0
"""How long the last frames may take to leave, and the worker to close its end."""


class BlockingConnection(DuplexSocket):
    """A worker's ACKs are read while we write. Any error it raises is final: close it then."""

    def __init__(self, terms: Terms, address: Address, tls: ssl.SSLContext | None, waker: Waker) -> None:
        """Connects; Lost or Unavailable when nobody listens. The handshake is the session's."""
        super().__init__(_connect(address, tls, terms.timeout_seconds))
        self._waker = waker
        self._selector.register(waker, selectors.EVENT_READ)
        self.session = SourceSession(terms, address, time.monotonic())

    def exchange(self, wait_seconds: float | None) -> None:
        """Send and receive what is possible. If that is nothing, wait for it, or for the waker; None: forever."""
        self._outgoing.add(self.session.take())
        if self._move() or wait_seconds == 0:
            return
        self._wait(wait_seconds)
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
            while self._outgoing.size and self._is_ready(selectors.EVENT_WRITE, deadline):
                self._send()
            self._socket.shutdown(socket.SHUT_WR)
            while self._is_ready(selectors.EVENT_READ, deadline) and self._socket.recv(RECEIVE_BYTES):
                pass
        except (OSError, PenstockError):  # it is over, one way or the other
            pass

    def close(self) -> None:
        self.session.close()
        super().close()

    def _is_ready(self, events: int, deadline: float) -> bool:
        self._selector.modify(self._socket, events)
        left = deadline - time.monotonic()
        return left > 0 and bool(self._selector.select(left))

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except NOT_NOW:
            return False
        except OSError as error:
            raise self._unreachable(error) from error
        if not data:
            raise closed(self.session.address)
        self.session.receive(data, time.monotonic())
        return True

    def _unreachable(self, error: OSError) -> PenstockError:
        return unreachable(self.session.address, error)


def _connect(address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> socket.socket:
    try:
        return connect(address, tls, timeout_seconds, prepare)
    except OSError as error:
        raise unreachable(address, error) from error


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
        self._spare: SpareSocket | None = None

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
        await end_sending(self._transport, self._closed, FAREWELL_SECONDS)

    def close(self) -> None:
        self.session.close()
        if self._spare is not None:
            self._spare.close()
        if self._transport is not None:
            self._transport.abort()

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
        self._spare = SpareSocket(transport)
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
        assert self._spare is not None
        while self.lost is None and (data := self._spare.receive()):
            self.data_received(data)
        self._spare.close()
        address = self.session.address
        self._end(closed(address) if exc is None else unreachable(address, exc))
        self._closed.set()
