"""The loop of the blocking sink: who connects, who has sent something, whose time is up."""

import selectors
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from penstock.client.sink.base import CONNECTIONS_MAX, LAST_WORDS_SECONDS, logger, reason_of
from penstock.client.sink.blocking_connection import BlockingConnection
from penstock.client.sink.effects import perform
from penstock.client.sink.session import Desk, SinkSession
from penstock.client.source.sockets import Waker, prepare


class Entrance(NamedTuple):
    """Where connections come from, and on what terms."""

    listener: socket.socket
    tls: ssl.SSLContext | None
    handshake_seconds: float


class Loop:
    """Serves connections, one call after the other, until it is told to stop."""

    def __init__(self, desk: Desk, entrance: Entrance, waker: Waker) -> None:
        self._desk = desk
        self._entrance = entrance
        self._waker = waker
        self._connections: dict[BlockingConnection, None] = {}
        self._selector = selectors.DefaultSelector()
        entrance.listener.setblocking(False)
        self._selector.register(entrance.listener, selectors.EVENT_READ)
        self._selector.register(waker, selectors.EVENT_READ)

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Raises what the author's code or the log raises, when the worker was told."""
        try:
            while not is_stopped():
                self._turn()
        except Exception as error:
            self._say_farewell(reason_of(error))
            raise
        finally:
            for connection in self._connections:
                connection.close()
            self._selector.close()

    def _turn(self) -> None:
        deadlines = [at for connection in self._connections if (at := connection.deadline) is not None]
        wait_seconds = max(min(deadlines) - time.monotonic(), 0.0) if deadlines else None
        for key, _ in self._selector.select(wait_seconds):
            if isinstance(key.fileobj, BlockingConnection):
                key.fileobj.advance()
                self._settle(key.fileobj)
            elif key.fileobj is self._waker:
                self._waker.clear()
            else:
                self._accept()
        now = time.monotonic()
        for connection in list(self._connections):
            connection.expire(now)
            self._settle(connection)

    def _settle(self, connection: BlockingConnection) -> None:
        """Wait for what it needs next, or forget it."""
        if not self._still_has(connection):
            perform(connection.session.ended())

    def _still_has(self, connection: BlockingConnection) -> bool:
        """Forgets one that is closed, before another one has its file's number."""
        if not connection.is_closed:
            self._selector.modify(connection, connection.events)
            return True
        if connection in self._connections:
            del self._connections[connection]
            self._selector.unregister(connection)
        return False

    def _say_farewell(self, reason: str) -> None:
        """The sink has failed: nothing is called any more, but the worker is told why."""
        self._selector.unregister(self._entrance.listener)
        self._selector.unregister(self._waker)
        for connection in self._connections:
            connection.session.fail(reason)
            connection.send()
        until = time.monotonic() + LAST_WORDS_SECONDS
        while self._keep_open() and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                assert isinstance(key.fileobj, BlockingConnection)
                key.fileobj.advance()

    def _keep_open(self) -> int:
        """Forgets the closed ones, and says how many are left."""
        for connection in list(self._connections):
            self._still_has(connection)
        return len(self._connections)

    def _drop(self, connection: BlockingConnection) -> None:
        connection.close()
        self._still_has(connection)

    def _accept(self) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            waiting = next(connection for connection in self._connections if not connection.session.is_greeted)
            logger.warning("%s: closed, there are %d connections already", waiting.session.peer, CONNECTIONS_MAX)
            self._drop(waiting)
        with suppress(OSError):  # whoever it was is gone already
            accepted, peer = self._entrance.listener.accept()
            self._welcome(accepted, str(peer))

    def _welcome(self, accepted: socket.socket, peer: str) -> None:
        try:
            prepare(accepted)
            accepted.setblocking(False)
            if self._entrance.tls is not None:
                accepted = self._entrance.tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        except BaseException:
            accepted.close()
            raise
        session = SinkSession(self._desk, peer)
        connection = BlockingConnection(accepted, session, self._entrance.handshake_seconds)
        session.on_replaced = partial(self._drop, connection)
        self._connections[connection] = None
        self._selector.register(connection, connection.events)
