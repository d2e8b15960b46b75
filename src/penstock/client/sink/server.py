"""The servers of both sinks: connections of the asyncio sink, and the loop of the blocking sink."""

import asyncio
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, TypeVar

from penstock.client.sink.base import (
    CONNECTIONS_MAX,
    LAST_WORDS_SECONDS,
    RECEIVE_BYTES,
    UNSENT_BYTES_MAX,
    logger,
    reason_of,
)
from penstock.client.sink.participant import Effect, Steps, perform
from penstock.client.sink.session import Desk, SinkSession
from penstock.client.sockets import NOT_NOW, Outgoing, Waker, prepare
from penstock.client.steps import run_steps_async

# A connection of the asyncio sink.


class AsyncConnection:
    """The bytes of one session. A peer that is gone is not an error: it sends nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: SinkSession) -> None:
        self._reader = reader
        self._writer = writer
        self.session = session
        writer.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    async def receive(self, deadline: float | None) -> bytes | None:
        """Empty if the connection is closed, None if nothing arrived by the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._reader.read(RECEIVE_BYTES)
        except TimeoutError as error:
            return None if error.errno is None else b""
        except OSError:
            return b""

    async def send(self) -> None:
        """Send the session's bytes."""
        with suppress(OSError):
            if not self._writer.is_closing():  # see `client.sockets.PeerProtocol`
                self._writer.writelines(self.session.take())
            await self._writer.drain()

    async def farewell(self) -> None:
        """Let the ERROR arrive: read and discard incoming bytes until the peer closes."""
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.send()
                if not self._writer.can_write_eof():  # TLS, which lingers by itself
                    self._writer.close()
                    await self._writer.wait_closed()
                    return
                self._writer.write_eof()
                while await self._reader.read(RECEIVE_BYTES):
                    pass

    def abort(self) -> None:
        """Close at once. The session may be in the middle of a call, and notices afterwards."""
        self._writer.transport.abort()


# The connections of the asyncio sink, served one call at a time.

T = TypeVar("T")


class Server:
    """One call at a time, whatever connects meanwhile. After a call that raises there are no more."""

    def __init__(self, desk: Desk, executor: ThreadPoolExecutor, handshake_seconds: float) -> None:
        self.failure: Exception | None = None
        """What the author's code or the log raised."""
        self.changed = asyncio.Event()
        """Set when there is a failure and it was reported to the worker; and by others, to wake the server."""
        self._desk = desk
        self._executor = executor
        self._handshake_seconds = handshake_seconds
        self._turn = asyncio.Lock()
        self._connections: dict[AsyncConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer has connected."""
        peer = str(writer.get_extra_info("peername"))
        with suppress(OSError):  # it is already gone, as the first read will show
            prepare(writer.get_extra_info("socket"))
        if len(self._connections) >= CONNECTIONS_MAX:
            waiting = next(connection for connection in self._connections if not connection.session.is_greeted)
            logger.warning("%s: closed, there are %d connections already", waiting.session.peer, CONNECTIONS_MAX)
            self._forget(waiting)
        connection = AsyncConnection(reader, writer, SinkSession(self._desk, peer))
        connection.session.on_replaced = connection.abort
        self._connections[connection] = None
        task = asyncio.create_task(self._talk(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def perform(self, steps: Steps[T]) -> T:
        """As `participant.perform`, while the loop continues."""
        async with self._turn:
            if self.failure is not None:
                raise self.failure
            try:
                return await run_steps_async(steps, self._call)
            except Exception as error:
                self.failure = error
                raise

    async def close(self) -> None:
        """Nothing is discarded: the next start does that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):  # those whose task had not started
            self._forget(connection)
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def _call(self, effect: Effect) -> Any:
        if iscoroutinefunction(effect.call):
            return await effect.call(*effect.args)
        return await asyncio.get_running_loop().run_in_executor(self._executor, effect.call, *effect.args)

    async def _talk(self, connection: AsyncConnection) -> None:
        session = connection.session
        try:
            await self._exchange(connection)
            await self.perform(session.ended())
        except Exception as error:
            session.fail(reason_of(error))
            await connection.farewell()
            self.changed.set()
        finally:
            self._forget(connection)

    def _forget(self, connection: AsyncConnection) -> None:
        connection.abort()
        self._connections.pop(connection, None)

    async def _exchange(self, connection: AsyncConnection) -> None:
        session = connection.session
        deadline: float | None = asyncio.get_running_loop().time() + self._handshake_seconds
        while data := await connection.receive(deadline):
            await self.perform(session.receive(data))
            await connection.send()
            if session.is_over:
                break
            if session.is_greeted:
                deadline = None
        if data is None:
            session.fail(f"no HELLO within {self._handshake_seconds:g} s")
        if session.is_over:
            await connection.farewell()


# A connection of the blocking sink: one socket, no thread.


class BlockingConnection:
    """Moves bytes when `select` reports that it can; `is_closed` when it is no longer usable. Its exceptions come from
    the author's code or from the log, never from the peer.

    After an ERROR it continues to read, and discards, until the peer has closed: closing with unread bytes would reset
    the connection, and the ERROR would be lost.
    """

    def __init__(self, accepted: socket.socket, session: SinkSession, handshake_seconds: float) -> None:
        self._socket = accepted
        self._tls = accepted if isinstance(accepted, ssl.SSLSocket) else None
        self._shakes_hands = self._tls is not None
        self._handshake_seconds = handshake_seconds
        self._outgoing = Outgoing()
        self.session = session
        self.deadline: float | None = time.monotonic() + handshake_seconds
        """When to call `expire`."""
        self.events = selectors.EVENT_READ
        """What to wait for."""
        self.is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def advance(self) -> None:
        """Receive and send what is possible."""
        if self.is_closed or (self._shakes_hands and not self._shake_hands()):
            return
        while data := self._receive():
            if not self.session.is_over:
                perform(self.session.receive(data))
                self._note_progress()
            if self._tls is None or not self._tls.pending():  # which no `select` would report
                break
        self.send()

    def expire(self, now: float) -> None:
        """Check the time: no HELLO arrived in time, or the peer does not read its ERROR."""
        if self.deadline is None or now < self.deadline:
            return
        if self.session.is_over or self._shakes_hands:
            self.close()
        else:
            self.session.fail(f"no HELLO within {self._handshake_seconds:g} s")
            self._note_progress()
            self.send()

    def send(self) -> None:
        """Send the session's bytes, as far as that is possible now."""
        self._outgoing.add(self.session.take())
        try:
            while self._outgoing.size and not self.is_closed:
                self._outgoing.sent(self._socket.send(self._outgoing.next()[0]))
            if self.session.is_over and not self.is_closed:
                self._end_sending()
        except NOT_NOW:
            pass
        except OSError:
            self.close()
        reading = selectors.EVENT_READ if self._outgoing.size <= UNSENT_BYTES_MAX else 0
        self.events = reading | (selectors.EVENT_WRITE if self._outgoing.size else 0)

    def close(self) -> None:
        self.is_closed = True
        self.session.close()
        self._socket.close()

    def _end_sending(self) -> None:
        if self._tls is None:
            self._socket.shutdown(socket.SHUT_WR)
        else:
            self._tls.unwrap()
            self.close()

    def _shake_hands(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.events = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.events = selectors.EVENT_WRITE
            return False
        except OSError:
            self.close()
            return False
        self._shakes_hands = False
        return True

    def _receive(self) -> bytes:
        """Empty if there is nothing now, or nothing any more."""
        if self.is_closed or self._outgoing.size > UNSENT_BYTES_MAX:
            return b""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except NOT_NOW:
            return b""
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    def _note_progress(self) -> None:
        if self.session.is_over:
            self.deadline = time.monotonic() + LAST_WORDS_SECONDS
        elif self.session.is_greeted:
            self.deadline = None


class Entrance(NamedTuple):
    """Where and how connections are accepted."""

    listener: socket.socket
    tls: ssl.SSLContext | None
    handshake_seconds: float


class Loop:
    """Serves connections, one call after the other, until `stop`."""

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
        """Raises what the author's code or the log raises, after reporting it to the worker."""
        try:
            while not is_stopped():
                self._turn()
        except Exception as error:
            self._send_farewell(reason_of(error))
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
        """Wait for what the connection needs next, or forget it."""
        if not self._still_has(connection):
            perform(connection.session.ended())

    def _still_has(self, connection: BlockingConnection) -> bool:
        """Forgets a closed connection before another one gets its file descriptor."""
        if not connection.is_closed:
            self._selector.modify(connection, connection.events)
            return True
        if connection in self._connections:
            del self._connections[connection]
            self._selector.unregister(connection)
        return False

    def _send_farewell(self, reason: str) -> None:
        """The sink has failed: no more calls, but the worker receives the reason."""
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
        """Forgets closed connections; returns how many are left."""
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
        with suppress(OSError):  # the peer is already gone
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
