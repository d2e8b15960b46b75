"""A connection of the asyncio source."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import cast

from penstock.client.segments.address import Address
from penstock.client.source.blocking_connection import FAREWELL_SECONDS, RECEIVE_BYTES
from penstock.client.source.failures import closed, no_answer, unreachable
from penstock.client.source.outflow import BATCH_BYTES
from penstock.client.source.session import SourceSession, Terms
from penstock.client.source.sockets import prepare
from penstock.core.errors import PenstockError


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
