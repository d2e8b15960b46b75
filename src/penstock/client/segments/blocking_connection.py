"""A connection of the blocking client: one socket, no thread."""

import selectors
import socket
import ssl
from collections.abc import Callable, Iterable

from penstock.client.segments.address import Address
from penstock.client.segments.failures import Interrupted, no_answer, unreachable
from penstock.client.segments.outgoing import Outgoing
from penstock.client.segments.session import Session
from penstock.core.errors import PenstockError
from penstock.core.types import Buffer

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BlockingConnection:
    """Sends and receives in the same call: a peer that does not read on until we have read its replies gets them.

    Any error it raises is final: close it then.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> None:
        """Connects. Interrupted or Unavailable when nobody listens, ProtocolError when it is no worker."""
        self.session = Session(address)
        self._outgoing = Outgoing()
        self.timeout_seconds = timeout_seconds
        self._tls = tls is not None
        self._selector = selectors.DefaultSelector()
        self._socket = _connect(address, tls, timeout_seconds)
        try:
            self._selector.register(self._socket, selectors.EVENT_READ)
            self.send([self.session.hello()])
            self.exchange_until(lambda: self.session.is_open)
        except PenstockError:
            self.close()
            raise

    @property
    def unsent_bytes(self) -> int:
        return self._outgoing.size

    def send(self, parts: Iterable[Buffer]) -> None:
        """Queue the parts, which must stay as they are; `exchange` sends them."""
        self._outgoing.add(parts)

    def exchange_until(self, done: Callable[[], bool], extra_seconds: float = 0.0) -> None:
        while not done():
            self.exchange(self.timeout_seconds + extra_seconds)

    def exchange(self, wait_seconds: float) -> None:
        """Send and receive what is possible. If that is nothing, wait for it; Interrupted when it does not come."""
        if self._move() or not wait_seconds:
            return
        writing = selectors.EVENT_WRITE if self._outgoing.size else 0
        self._selector.modify(self._socket, selectors.EVENT_READ | writing)
        if not self._selector.select(wait_seconds):
            raise no_answer(self.session.address, wait_seconds)
        self._move()

    def push(self) -> None:
        """Send what is possible, and receive nothing. Does not wait."""
        if self._outgoing.size:
            self._send()

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def _move(self) -> bool:
        sent = bool(self._outgoing.size) and self._send()
        return self._receive() or sent

    def _send(self) -> bool:
        try:
            count = self._send_some()
        except _NOT_NOW:
            return False
        except OSError as error:
            while self._receive():  # the worker may have said why
                pass
            raise unreachable(self.session.address, error) from error
        self._outgoing.sent(count)
        return True

    def _send_some(self) -> int:
        buffers = self._outgoing.next()
        return self._socket.send(buffers[0]) if self._tls else self._socket.sendmsg(buffers)

    def _receive(self) -> bool:
        try:
            count = self._socket.recv_into(self.session.get_buffer())
        except _NOT_NOW:
            return False
        except OSError as error:
            raise unreachable(self.session.address, error) from error
        if not count:
            raise self._closed()
        self.session.received(count)
        return True

    def _closed(self) -> Interrupted:
        before = "" if self.session.is_open else " before its Hello"
        return Interrupted(f"the worker at {self.session.address} closed the connection{before}")


def _connect(address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> socket.socket:
    try:
        connected = socket.create_connection((address.host, address.port), timeout_seconds)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connected = tls.wrap_socket(connected, server_hostname=address.host)
            connected.setblocking(False)
        except BaseException:
            connected.close()
            raise
    except OSError as error:
        raise unreachable(address, error) from error
    return connected
