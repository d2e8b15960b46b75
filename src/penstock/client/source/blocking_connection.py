"""A connection of the blocking source: one socket, no thread."""

import selectors
import socket
import ssl
import time

from penstock.client.segments.address import Address
from penstock.client.segments.outgoing import Outgoing
from penstock.client.source.failures import closed, unreachable
from penstock.client.source.session import SourceSession, Terms
from penstock.client.source.sockets import Waker, prepare
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
