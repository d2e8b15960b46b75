"""A connection to a connector sink: the bytes of one session."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from penstock.client.sockets import DEAD_PEER_SECONDS, prepare
from penstock.connectors.connector_protocol.options import ConnectorProtocolOptions
from penstock.connectors.connector_protocol.session import OutputSession
from penstock.connectors.sink_api import SinkLost
from penstock.core.types import Buffer

UNSENT_BYTES_MAX = 256 * 1024
"""What waits for the sink to read, besides the kernel's buffers: "TCP is the backpressure"."""

PIECE_BYTES = 256 * 1024
"""Given to the transport at a time, which copies what it cannot send at once."""

RECEIVE_BYTES = 64 * 1024

FAREWELL_SECONDS = 2.0
"""For a sink to read the last that was sent, and to close."""


class OutputConnection(asyncio.Protocol):
    """It reads all the time, so that what a sink says while data is sent, or while nothing is, is noticed.

    One task at a time waits on it.
    """

    def __init__(self, session: OutputSession, options: ConnectorProtocolOptions) -> None:
        self.session = session
        self.lost: SinkLost | None = None
        """Why it is of no use any more; None while it is."""
        self._options = options
        self._where = options.where
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self._has_room = True
        self._transport: asyncio.Transport | None = None
        self._spare: socket.socket | None = None

    async def connect(self, tls: ssl.SSLContext | None) -> None:
        """SinkLost when nobody listens, or TLS fails."""
        options = self._options
        assert options.port is not None, "without one there is no port `in`"
        name = None if tls is None else options.server_name or options.host
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, options.host, options.port, ssl=tls, server_hostname=name)
        except ssl.SSLError as error:
            hint = "Check certificates and authorities, and that the sink speaks TLS."
            raise SinkLost(f"no TLS connection to the sink at {self._where}: {error}", hint) from error
        except OSError as error:
            raise self._unreachable(error) from error
        self.flush()

    def flush(self) -> None:
        """Pass on what the session has to send. SinkLost when it is lost."""
        self.check()
        assert self._transport is not None
        if parts := self.session.take():
            self._transport.writelines(parts)

    async def send(self, data: Buffer) -> None:
        """As fast as the sink reads. SinkLost when it is lost, whatever of it has gone out."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            await self.until(lambda: self._has_room)
            assert self._transport is not None
            self._transport.write(view[start : start + PIECE_BYTES])
            await asyncio.sleep(0)  # the sink may have something to say
        self.check()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """SinkLost when it is lost before that."""
        while True:
            self.check()
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()

    def check(self) -> None:
        """SinkLost when it is lost."""
        if self.lost is not None:
            raise SinkLost(str(self.lost), self.lost.hint)

    async def farewell(self) -> None:
        """Let what was sent arrive: all of it leaves, and what comes is read until the sink closes."""
        assert self._transport is not None
        with suppress(OSError):  # it is over already; a TimeoutError is one
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._closed.wait()

    def close(self, reason: SinkLost | None = None) -> None:
        """At once."""
        self._end(reason or SinkLost(f"the connection to the sink at {self._where} is closed"))
        self._close_spare()
        if self._transport is not None:
            self._transport.abort()

    @property
    def _stall_milliseconds(self) -> int:
        """TCP gives up a sink that has not read for so long. One that may take its time to vote may do so to commit,
        and does not read meanwhile.
        """
        return round(max(DEAD_PEER_SECONDS, self._options.vote) * 1000)

    def _close_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _read_rest(self) -> None:
        """A transport that could not write does not read any more; but the sink may have said why it closed."""
        with suppress(OSError):
            while self._spare is not None and self.lost is None and (data := self._spare.recv(RECEIVE_BYTES)):
                self.data_received(data)

    def _say_last(self) -> None:
        assert self._transport is not None
        self._transport.writelines(self.session.take())
        self._transport.close()

    def _end(self, error: SinkLost) -> None:
        if self.lost is None:
            self.lost = error
            self._changed.set()

    def _unreachable(self, error: Exception) -> SinkLost:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return SinkLost(f"the sink at {self._where} cannot be reached: {reason}")

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        connected = transport.get_extra_info("socket")
        with suppress(OSError):  # it is lost already: the transport will notice
            prepare(connected)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._stall_milliseconds)
        if transport.get_extra_info("ssl_object") is None:
            self._spare = connected.dup()
            self._spare.setblocking(False)

    def data_received(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            self.session.receive(data)
            self.flush()
        except SinkLost as error:
            self._end(error)
            self._say_last()
        self._changed.set()

    def pause_writing(self) -> None:
        self._has_room = False

    def resume_writing(self) -> None:
        self._has_room = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()
        self._close_spare()
        self._end(
            SinkLost(f"the sink at {self._where} closed the connection") if exc is None else self._unreachable(exc)
        )
        self._closed.set()
