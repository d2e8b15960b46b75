"""A connection of the blocking client: one socket, no thread."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from penstock.client.credentials import read_token
from penstock.client.segments.failures import Interrupted, no_answer, unreachable
from penstock.client.segments.operations import Attempts
from penstock.client.sockets import NOT_NOW, DuplexSocket, connect, send_at_once
from penstock.core.address import Address
from penstock.core.errors import PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import (
    NO_REQUEST,
    VERSION_HIGH,
    VERSION_LOW,
    VERSIONED,
    Decoder,
    ErrorMessage,
    Hello,
    Incoming,
    Reply,
    Role,
)

# One connection to a worker, without I/O: Hello first, then every reply goes to its requester.

_NOT_A_WORKER = "Is this the segment port of a penstock worker, and do both sides use TLS, or neither?"


class Receiver(Protocol):
    """Receives the replies. Must not raise: others share the connection."""

    def on_reply(self, reply: Reply) -> None: ...

    def on_lost(self, error: PenstockError) -> None:
        """No reply will come any more."""


class Session:
    """Replies are matched by request id: the order of requests does not hold for reads that wait at the tail.

    Receive into `get_buffer`, then pass how much to `received`. A ProtocolError is final.
    """

    def __init__(self, address: Address, token: str = "") -> None:
        self.address = address
        self.token = token
        """For every request, except appends, which belong to a set-up that had it."""
        self.is_open = False
        self._decoder = Decoder(Role.CLIENT)
        self._receivers: dict[int, Receiver] = {}
        self._last_request_id = 0

    def hello(self) -> bytes:
        """What to send first."""
        return VERSIONED.encode(Hello(VERSION_HIGH, VERSION_LOW))

    def expect(self, receiver: Receiver) -> int:
        """The request id whose replies, one or many, go to this receiver until `forget`."""
        self._last_request_id += 1
        self._receivers[self._last_request_id] = receiver
        return self._last_request_id

    def forget(self, request_id: int) -> None:
        """A reply that comes nevertheless is dropped."""
        self._receivers.pop(request_id, None)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def received(self, count: int) -> None:
        try:
            for incoming in self._decoder.received(count):
                self._handle(incoming)
        except ProtocolError as error:
            raise self._explained(error) from None

    def lost(self, error: PenstockError) -> None:
        """Report it to everybody who still expects a reply."""
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver.on_lost(error)

    def _handle(self, incoming: Incoming) -> None:
        if isinstance(incoming, Hello):
            self._greeted(incoming)
        elif isinstance(incoming, ErrorMessage) and incoming.request_id == NO_REQUEST:
            raise ProtocolError(f"it ended the connection: {incoming.message}", "Look at the worker's log.")
        elif not self.is_open:
            raise ProtocolError(f"{type(incoming).__name__} before Hello")
        elif isinstance(incoming, Reply):
            receiver = self._receivers.get(getattr(incoming, "request_id", NO_REQUEST))
            if receiver is not None:
                receiver.on_reply(incoming)

    def _greeted(self, hello: Hello) -> None:
        if hello.low > VERSION_HIGH or hello.high < VERSION_LOW:
            ours = f"{VERSION_LOW} to {VERSION_HIGH}"
            raise ProtocolError(
                f"it speaks versions {hello.low} to {hello.high}, this client {ours}",
                "Use the same version of penstock.",
            )
        self.is_open = True

    def _explained(self, error: ProtocolError) -> ProtocolError:
        hint = error.hint or (_NOT_A_WORKER if not self.is_open else "Look at the worker's log.")
        return ProtocolError(f"the worker at {self.address}: {error}", hint)


class BlockingConnection(DuplexSocket):
    """Any error it raises is final: close it then."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, timeout_seconds: float, token: str | None = None
    ) -> None:
        """Connects; `token` is by default that of PENSTOCK_TOKEN_FILE, read now. Interrupted or Unavailable when
        nothing listens, ProtocolError if it is not a worker.
        """
        session = Session(address, read_token(address) if token is None else token)
        super().__init__(_connect(address, tls, timeout_seconds))
        self.session = session
        self.timeout_seconds = timeout_seconds
        try:
            self.send([self.session.hello()])
            self.exchange_until(lambda: self.session.is_open)
        except PenstockError:
            self.close()
            raise

    def send(self, parts: Iterable[Buffer]) -> None:
        """Queue the parts, which must stay as they are; `exchange` sends them."""
        self._outgoing.add(parts)

    def ask(self, encode: Callable[[int, str], bytes], extra_seconds: float = 0.0) -> Reply:
        """The reply to one request. `encode` makes its bytes of a request id and the token."""
        answer = _OneReply()
        request_id = self.session.expect(answer)
        try:
            self.send([encode(request_id, self.session.token)])
            self.exchange_until(lambda: answer.reply is not None, extra_seconds)
        finally:
            self.session.forget(request_id)
        assert answer.reply is not None
        return answer.reply

    def exchange_until(self, done: Callable[[], bool], extra_seconds: float = 0.0) -> None:
        while not done():
            self.exchange(self.timeout_seconds + extra_seconds)

    def exchange(self, wait_seconds: float) -> None:
        """Send and receive what is possible. If nothing is, wait; Interrupted if nothing happens in time."""
        if self._move() or not wait_seconds:
            return
        if not self._wait(wait_seconds):
            raise no_answer(self.session.address, wait_seconds)
        self._move()

    def push(self) -> None:
        """Send what is possible, and receive nothing. Does not wait."""
        if self._outgoing.size:
            self._send()

    def _receive(self) -> bool:
        try:
            count = self._socket.recv_into(self.session.get_buffer())
        except NOT_NOW:
            return False
        except OSError as error:
            raise self._unreachable(error) from error
        if not count:
            raise self._closed()
        self.session.received(count)
        return True

    def _unreachable(self, error: OSError) -> PenstockError:
        return unreachable(self.session.address, error)

    def _closed(self) -> Interrupted:
        before = "" if self.session.is_open else " before its Hello"
        return Interrupted(f"the worker at {self.session.address} closed the connection{before}")


class _OneReply:
    """Stores the reply; if there will be none, the connection itself raises."""

    def __init__(self) -> None:
        self.reply: Reply | None = None

    def on_reply(self, reply: Reply) -> None:
        self.reply = reply

    def on_lost(self, error: PenstockError) -> None:
        pass


class Connected(Protocol):
    """Provides a connection, and keeps it for the next use."""

    def connected(self) -> BlockingConnection:
        """Raises Interrupted while the worker is unavailable."""

    def drop(self) -> None:
        """The connection is no longer usable."""


def _connect(address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> socket.socket:
    try:
        return connect(address, tls, timeout_seconds, send_at_once)
    except OSError as error:
        raise unreachable(address, error) from error


# A connection of the asyncio client; calls and appenders share it.

_WRITE_BUFFER_BYTES_MAX = 4 * 2**20
"""What the transport may hold before appenders wait for acknowledgements to send more."""

_CLOSE_SECONDS = 2.0
"""How long a peer may take to end TLS in order."""


class AsyncConnection(asyncio.BufferedProtocol):
    def __init__(self, address: Address, token: str) -> None:
        self.session = Session(address, token)
        self.lost: PenstockError | None = None
        """Why it is no longer usable; None while it is."""
        self.is_write_blocked = False
        self._transport: asyncio.Transport | None = None
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, address: Address, tls: ssl.SSLContext | None, timeout_seconds: float, token: str | None = None
    ) -> "AsyncConnection":
        """As the blocking connection."""
        connection = cls(address, read_token(address) if token is None else token)
        try:
            async with asyncio.timeout(timeout_seconds):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
                await connection._opened.wait()
        except TimeoutError:
            connection.abort(no_answer(address, timeout_seconds))
        except OSError as error:
            connection.abort(unreachable(address, error))
        except BaseException:
            connection.abort(Interrupted("cancelled"))
            raise
        if connection.lost is not None:
            raise connection.lost
        return connection

    def write(self, parts: Iterable[Buffer]) -> None:
        """Into the transport, which may keep the parts: they must stay as they are."""
        if self.lost is None and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)  # while it is not closing: see `client.sockets.PeerProtocol`

    async def ask(self, attempts: Attempts[Any], timeout_seconds: float) -> Reply:
        """The reply to a call. Interrupted when the connection is lost before it comes."""
        if self.lost is not None:
            raise self.lost
        answer = _Answer(asyncio.get_running_loop().create_future())
        request_id = self.session.expect(answer)
        try:
            self.write([attempts.encode(request_id, self.session.token)])
            async with asyncio.timeout(timeout_seconds):
                return await answer.future
        except TimeoutError:
            lost = no_answer(self.session.address, timeout_seconds)
            self.abort(lost)
            raise lost from None
        finally:
            self.session.forget(request_id)

    def abort(self, error: PenstockError) -> None:
        """End it at once, for this reason."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                self._transport.abort()

    def _end(self, error: PenstockError) -> None:
        if self.lost is None:
            self.lost = error
            self._opened.set()
            self.session.lost(error)

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        self.write([self.session.hello()])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.session.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is not None:
            return
        try:
            self.session.received(nbytes)
        except ProtocolError as error:
            self.abort(error)
        if self.session.is_open:
            self._opened.set()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_write_blocked = True

    def resume_writing(self) -> None:
        self.is_write_blocked = False

    def connection_lost(self, exc: Exception | None) -> None:
        address = self.session.address
        before = "" if self.session.is_open else " before its Hello"
        closed = Interrupted(f"the worker at {address} closed the connection{before}")
        self._end(closed if exc is None else unreachable(address, exc))
        self._closed.set()


class _Answer:
    def __init__(self, future: asyncio.Future[Reply]) -> None:
        self.future = future

    def on_reply(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def on_lost(self, error: PenstockError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
