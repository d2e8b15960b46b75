"""A source's connection to a worker: blocking, with one socket and no thread, and for asyncio."""

import asyncio
import selectors
import socket
import ssl
import time

from penstock.client.sockets import (
    NOT_NOW,
    RECEIVE_BYTES,
    DuplexSocket,
    PeerProtocol,
    Waker,
    connect,
    prepare,
)
from penstock.client.source.failures import closed, no_answer, unreachable
from penstock.client.source.session import BATCH_BYTES, SourceSession, Terms
from penstock.core.address import Address
from penstock.core.errors import PenstockError

FAREWELL_SECONDS = 2.0
"""How long the last frames may take to be sent, and the worker to close its end."""


class BlockingConnection(DuplexSocket):
    """A worker's ACKs are read while we write. Any error it raises is final: close it then."""

    def __init__(self, terms: Terms, address: Address, tls: ssl.SSLContext | None, waker: Waker) -> None:
        """Connects; Lost or Unavailable when nothing listens. The handshake is the session's."""
        super().__init__(_connect(address, tls, terms.timeout_seconds))
        self._waker = waker
        self._selector.register(waker, selectors.EVENT_READ)
        self.session = SourceSession(terms, address, time.monotonic())

    def exchange(self, wait_seconds: float | None) -> None:
        """Send and receive what is possible. If nothing is, wait for that, or for the waker; None: forever."""
        self._outgoing.add(self.session.take())
        if self._move() or wait_seconds == 0:
            return
        self._wait(wait_seconds)
        self._waker.clear()
        self._move()

    def farewell(self) -> None:
        """Let what was sent arrive: all of it leaves, and what comes is read until the worker closes. Closing with
        unread bytes would reset the connection, and our last frames would be lost.
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
        except (OSError, PenstockError):  # the connection ends either way
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


class AsyncConnection(PeerProtocol[PenstockError]):
    def __init__(self, terms: Terms, address: Address, changed: asyncio.Event) -> None:
        super().__init__(changed, BATCH_BYTES)
        self._loop = asyncio.get_running_loop()
        self.session = SourceSession(terms, address, self._loop.time())

    @classmethod
    async def open(
        cls, terms: Terms, address: Address, tls: ssl.SSLContext | None, changed: asyncio.Event
    ) -> "AsyncConnection":
        """Connects; Lost or Unavailable when nothing listens. The handshake is the session's."""
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

    @property
    def room_bytes(self) -> int:
        """How many bytes may be written now."""
        return BATCH_BYTES if self._has_room else 0

    def write(self) -> None:
        """Pass on what the session has to send."""
        if parts := self.session.take():
            self._write(parts)

    async def farewell(self) -> None:
        """Let what was sent arrive: all of it leaves, and what comes is read until the worker closes."""
        self.write()
        self.session.close()
        await self.end_sending(FAREWELL_SECONDS)

    def close(self) -> None:
        self.session.close()
        self._abort()

    def data_received(self, data: bytes) -> None:
        if self.lost is None:
            try:
                self.session.receive(data, self._loop.time())
            except PenstockError as error:
                self._end(error)
        self._changed.set()

    def _loss(self, error: Exception | None) -> PenstockError:
        address = self.session.address
        return closed(address) if error is None else unreachable(address, error)
