"""A connection of the asyncio client; calls and appenders share it."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, cast

from penstock.client.segments.address import Address
from penstock.client.segments.calls import Attempts
from penstock.client.segments.failures import Interrupted, no_answer, unreachable
from penstock.client.segments.session import Session
from penstock.core.errors import PenstockError, ProtocolError
from penstock.core.types import Buffer
from penstock.protocol.segment import Reply

_WRITE_BUFFER_BYTES_MAX = 4 * 2**20
"""What the transport may hold before appenders wait for acknowledgements to send more."""

_CLOSE_SECONDS = 2.0
"""How long a peer may take to end TLS in order."""


class AsyncConnection(asyncio.BufferedProtocol):
    def __init__(self, address: Address) -> None:
        self.session = Session(address)
        self.lost: PenstockError | None = None
        """Why it is of no use any more; None while it is."""
        self.is_write_blocked = False
        self._transport: asyncio.Transport | None = None
        self._opened = asyncio.Event()
        self._closed = asyncio.Event()

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None, timeout_seconds: float) -> "AsyncConnection":
        """Interrupted or Unavailable when nobody listens, ProtocolError when it is no worker."""
        connection = cls(address)
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
        if self.lost is None and self._transport is not None:
            self._transport.writelines(parts)

    async def ask(self, attempts: Attempts[Any], timeout_seconds: float) -> Reply:
        """The reply to a call. Interrupted when the connection is lost before it comes."""
        if self.lost is not None:
            raise self.lost
        answer = _Answer(asyncio.get_running_loop().create_future())
        request_id = self.session.expect(answer)
        try:
            self.write([attempts.encode(request_id)])
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
