"""A TCP connection that reads only when it is asked to: what nobody wants yet stays with the peer."""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from penstock.core.keepalive import find_dead_peers

_POLL_SECONDS = (0.0005, 0.05)
"""Between two looks at what the peer's machine has not acknowledged yet: it says nothing by itself."""

_QUIET_LOOKS = 3
"""In a row that find nothing on its way: under TLS there is a buffer that shows only when the loop goes round."""

_TCP_CLOSE = 7
"""A state of the kernel's (net/tcp_states.h): there is no connection any more."""

_CLOSE_SECONDS = 2.0
"""For a peer to take the rest of what was sent to it."""


class Connection(asyncio.Protocol):
    """`read` takes from the socket what one event of the loop brings (256 KiB at most) and then nothing until the next
    `read`. Writing buffers what is given in one call, which is the caller's limit. Everything is called in the loop.
    """

    def __init__(self, made: Callable[["Connection"], None] | None = None, dead_peer_seconds: float = 60.0) -> None:
        self._made = made
        self._dead_peer_seconds = dead_peer_seconds
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._peer_ended = self._stopped = False
        self._lost: Exception | None = None
        self._changed: asyncio.Future[None] | None = None
        self._is_tls = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        find_dead_peers(self._transport, max(1, round(self._dead_peer_seconds)))
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._pause()
        self._wake()

    def eof_received(self) -> bool:
        self._peer_ended = True
        self._wake()
        return not self._is_tls  # TLS has no half-closed connections

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc if exc is not None else ConnectionAbortedError("the connection is closed")
        self._wake()

    # ours

    @property
    def peer(self) -> str:
        """`address:port`."""
        return address_of(self.transport.get_extra_info("peername"))

    @property
    def metadata(self) -> dict[str, str]:
        return {"peer": self.peer}

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def peer_ended(self) -> bool:
        """The peer has said all; it may still listen."""
        return self._peer_ended

    @property
    def listens(self) -> bool:
        """Whether it may still be sent to."""
        return self._lost is None and not self.transport.is_closing()

    async def read(self) -> bytes | None:
        """What is there; None when the peer has said all, or after `stop_reading`. Raises ConnectionError. Nothing is
        lost when it is cancelled.
        """
        while not (self._chunks or self._peer_ended or self._stopped or self._lost):
            self._changed = asyncio.get_running_loop().create_future()
            self.transport.resume_reading()
            try:
                await self._changed
            finally:
                self._changed = None
                self._pause()
        if self._chunks:
            data, self._chunks = b"".join(self._chunks), []
            return data
        if self._lost is not None and not self._peer_ended:
            raise self._error()
        return None

    def stop_reading(self) -> None:
        """`read` gives what was taken from the peer already, then nothing."""
        self._stopped = True
        self._wake()

    async def send(self, values: Sequence[bytes]) -> None:
        """Return when the peer's machine has them. Raises ConnectionError."""
        if not self.listens:
            raise self._error()
        self.transport.write(b"".join(values))
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Return when the peer's machine has all that was written. Raises ConnectionError."""
        pause, longest = _POLL_SECONDS
        quiet = 0
        while quiet < _QUIET_LOOKS:
            if self._lost is not None:
                raise self._error()
            quiet = 0 if self.transport.get_write_buffer_size() or self._unacknowledged() else quiet + 1
            await asyncio.sleep(0 if quiet else pause)
            pause = min(2 * pause, longest)

    def end(self) -> None:
        """We have said all; the peer may go on."""
        if self.listens and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    async def close(self) -> None:
        """After what was written; what the peer still says is not read by anybody. Takes some seconds at most. A peer
        that does not see the end by itself is not reset before: that could destroy what it has not read yet.
        """
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.acknowledged()
                self.end()
                self._stopped = False
                while await self.read() is not None:
                    pass
        self.transport.close()

    def abort(self) -> None:
        """At once; the peer sees that it was not meant to end here."""
        self.transport.abort()

    def _unacknowledged(self) -> int:
        """A peer that has reset the connection has acknowledged nothing, though nothing is left to be sent to it."""
        sock = self.transport.get_extra_info("socket")
        try:
            (waiting,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except (OSError, ValueError) as error:
            raise ConnectionAbortedError("the connection is closed") from error
        if state == _TCP_CLOSE:
            raise ConnectionResetError("the peer has closed the connection")
        return cast("int", waiting)

    def _error(self) -> ConnectionError:
        if isinstance(self._lost, ConnectionError):
            return self._lost
        return ConnectionResetError(str(self._lost or "the connection is closing"))

    def _pause(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def address_of(peername: Any) -> str:
    """Of what a socket says of its other side."""
    if not isinstance(peername, tuple):
        return str(peername or "unknown")
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
