"""A TCP connection that reads only on request, so that backpressure reaches the peer."""

import asyncio
import fcntl
import re
import socket
import ssl
import struct
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from penstock.connectors.api import Lost, Options
from penstock.connectors.interceptors.api import RECORD_BYTES_LIMIT, RECORD_BYTES_MAX
from penstock.connectors.permissions import Permissions
from penstock.connectors.server_auth import ServerAuth, check_needs
from penstock.connectors.values import SecondsOrOff, SomeSeconds
from penstock.core.connection_limits import find_dead_peers
from penstock.core.errors import RequestError
from penstock.core.tls_handshakes import close_once

_POLL_SECONDS = (0.0005, 0.05)
"""Between two polls of what the peer's machine has not acknowledged yet: there is no notification."""

_QUIET_LOOKS = 3
"""Consecutive polls that must find nothing in flight: under TLS there is a buffer that shows only after a turn of the
loop."""

_TCP_CLOSE = 7
"""A state of the kernel's (net/tcp_states.h): there is no connection any more."""

_CLOSE_SECONDS = 2.0
"""How long a peer may take to read the rest of what was sent to it."""


class Connection(asyncio.Protocol):
    """`read` reads from the socket what one event of the loop brings (256 KiB at most), and then nothing until the next
    `read`. A write buffers everything that is passed in one call: the caller limits it. Everything is called in the
    loop.
    """

    def __init__(
        self, on_connected: Callable[["Connection"], None] | None = None, dead_peer_seconds: float = 60.0
    ) -> None:
        self._on_connected = on_connected
        self._dead_peer_seconds = dead_peer_seconds
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._peer_ended = self._stopped = False
        self._lost: Exception | None = None
        self._changed: asyncio.Future[None] | None = None
        self._is_tls = False
        self._aborted = asyncio.Event()

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        find_dead_peers(self._transport, max(1, round(self._dead_peer_seconds)))
        if self._on_connected is not None:
            self._on_connected(self)

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

    # called by connectors

    @property
    def peer(self) -> str:
        """`address:port`."""
        return address_of(self.transport.get_extra_info("peername"))

    @property
    def metadata(self) -> dict[str, str]:
        return {"peer": self.peer}

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The peer's, if it has one that was verified."""
        found: Mapping[str, Any] | None = self.transport.get_extra_info("peercert")
        return found

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def peer_ended(self) -> bool:
        """The peer has sent everything; it may still read."""
        return self._peer_ended

    @property
    def listens(self) -> bool:
        """Whether data can still be sent to it."""
        return self._lost is None and not self.transport.is_closing()

    async def read(self) -> bytes | None:
        """The data that has arrived; None when the peer has sent everything, or after `stop_reading`. Raises
        ConnectionError. Nothing is lost when it is cancelled.
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

    async def read_line(self, bytes_max: int) -> bytes | None:
        """The first line, without its end; what follows it is left for `read`. None if the peer ends before that, or
        the line is too long. Raises ConnectionError.
        """
        data = b""
        while b"\n" not in data:
            piece = await self.read() if len(data) <= bytes_max else None
            if piece is None:
                return None
            data += piece
        line, _, rest = data.partition(b"\n")
        if rest:
            self._chunks.insert(0, rest)
        return line.removesuffix(b"\r") if len(line) <= bytes_max else None

    def stop_reading(self) -> None:
        """`read` returns what was already received from the peer, then None."""
        self._stopped = True
        self._wake()

    async def send(self, values: Sequence[bytes]) -> None:
        """Returns when the peer's machine has them. Raises ConnectionError."""
        if not self.listens:
            raise self._error()
        self.transport.write(b"".join(values))
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Returns when the peer's machine has everything that was written. Raises ConnectionError."""
        pause, longest = _POLL_SECONDS
        quiet = 0
        while quiet < _QUIET_LOOKS:
            if self._lost is not None:
                raise self._error()
            quiet = 0 if self.transport.get_write_buffer_size() or self._unacknowledged() else quiet + 1
            await asyncio.sleep(0 if quiet else pause)
            pause = min(2 * pause, longest)

    def end(self) -> None:
        """We have sent everything; the peer may continue."""
        if self.listens and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            close_once(self.transport)

    async def close(self) -> None:
        """After what was written; what the peer still sends is discarded. Takes some seconds at most. A peer that does
        not notice the end by itself is not reset before that: a reset could destroy what it has not read yet.
        """
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.acknowledged()
                self.end()
                self._stopped = False
                while await self.read() is not None:
                    pass
        close_once(self.transport)

    def abort(self) -> None:
        """Immediately; the peer sees that this is not a proper end."""
        self.transport.abort()
        self._aborted.set()

    async def aborted(self) -> None:
        await self._aborted.wait()

    def _is_closed(self, sock: socket.socket) -> bool:
        """Whether the kernel has no connection any more. Raises OSError."""
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)

    def _unacknowledged(self) -> int:
        """A peer that has reset the connection has acknowledged nothing, although nothing is left to send to it."""
        sock = self.transport.get_extra_info("socket")
        try:
            (waiting,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
            is_closed = self._is_closed(sock)
        except (OSError, ValueError) as error:
            raise ConnectionAbortedError("the connection is closed") from error
        if is_closed:
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
    """The address in a socket's peer name."""
    if not isinstance(peername, tuple):
        return str(peername or "unknown")
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Where servers listen, and the error if they cannot.


def claims_of(host: str, port: int) -> frozenset[str]:
    """The address that a server needs for itself."""
    return frozenset({_shown(host, port)}) if port else frozenset()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_ERRNO = re.compile(r"^\[errno \d+\] ", re.IGNORECASE)
"""What asyncio writes before the reason since Python 3.13."""


@contextmanager
def listening_at(host: str, port: int) -> Iterator[None]:
    """Turns an OSError into Lost, with the address that it could not listen on: not every OSError names it."""
    try:
        yield
    except OSError as error:
        reason = _ERRNO.sub("", (error.strerror or str(error)).rpartition(": ")[2])
        hint = "Choose another port, or an address of this machine."
        raise Lost(f"it cannot listen on {_shown(host, port)}: {reason}", hint) from error


# Options of connectors with a socket.

CONNECTIONS_MAX = 10_000
"""The default for one server: each connection costs a stream in the table and some buffers."""

CLIENT_ON_STREAM_STARTED = (
    "Opens all streams while it is connected. "
    "With `connections: per-stream` it connects for this stream, then opens it."
)

Port = Annotated[int, Field(ge=0, le=65535)]
HostName = Annotated[str, Field(min_length=1)]
"""A host, not empty: an empty one would mean every address of the machine."""


class ServerTls(Options):
    cert: Path
    """The server's certificate and its chain, as a PEM file."""
    key: Path | None = None
    """The key, if it is not in the same file. It must not have a password."""
    client_ca: Path | None = None
    """Authorities for client certificates. Without it, clients need none."""


class ClientTls(Options):
    ca: Path | None = None
    """Authorities to trust, instead of the system's."""
    cert: Path | None = None
    """The client's certificate."""
    key: Path | None = None
    """The key, if it is not in the same file. It must not have a password."""
    server_name: str = ""
    """The name in the server's certificate, if it is not the host."""


class ListenOptions(Options):
    """Where a server on the network listens, and for whom."""

    host: HostName = "127.0.0.1"
    """The address to listen on. By default only this machine can connect. Any other address needs `tls` and `auth`,
    unless the worker was started with `--insecure`."""
    port: Port
    """The port to listen on. 0 is any free port; the log names it."""
    tls: ServerTls | None = None
    """Encrypt connections. Without it nothing is encrypted."""
    auth: ServerAuth | None = None
    """Who may connect. By default everybody who reaches the port."""

    @model_validator(mode="after")
    def _check_auth(self) -> Self:
        check_needs(self.auth, has_client_ca=self.tls is not None and self.tls.client_ca is not None)
        return self


class PeerOptions(Options):
    """The connections of a server, and replies to them."""

    connections_max: int = Field(default=CONNECTIONS_MAX, ge=1, le=1_000_000)
    """Connections above this number are closed immediately, and counted."""
    dead_peer_after: SomeSeconds = 60.0
    """Close the connection of a peer that has vanished from the network, or has read nothing, for this long."""
    slow_after: SomeSeconds = 1.0
    """Close the stream of a peer that has not read for this long, until it has."""
    half_closed: SomeSeconds = 60.0
    """How long a peer that has half-closed its connection can wait for replies."""
    broadcast: bool = False
    """Send everything to all connections, instead of each reply to the connection that its event came from."""


class ServerOptions(PeerOptions, ListenOptions):  # the options of the last base come first in the documentation
    """A server on the network whose connections are streams."""


class Listens(Protocol):
    """The options of a server that decide who reaches it."""

    @property
    def host(self) -> str: ...

    @property
    def tls(self) -> ServerTls | None: ...

    @property
    def auth(self) -> ServerAuth | None: ...


def check_exposure(options: Listens, permissions: Permissions) -> None:
    """A certificate of an authority that the server names is proof enough of who a client is. Raises NotPermitted."""
    tls = options.tls
    has_auth = options.auth is not None or (tls is not None and tls.client_ca is not None)
    permissions.check_server(options.host, has_tls=tls is not None, has_auth=has_auth)


class DialOptions(Options):
    connections: Literal["one", "per-stream"] = "one"
    """`one`: one connection for everything. `per-stream`: one for each stream, opened when the stream starts and closed
    when it ends."""
    connect_timeout: SomeSeconds = 10.0
    """For one attempt to connect."""
    dead_peer_after: SomeSeconds = 60.0
    """Close the connection to a server that has vanished from the network, or has read nothing, for this long."""
    half_closed: SomeSeconds = 60.0
    """With `per-stream`: how long the server can still send after the last event of the stream."""


class ClientOptions(DialOptions):
    tls: ClientTls | None = None
    """Encrypt the connection. `{}` trusts the system's authorities."""


_QUEUED_MESSAGES = 4
"""Messages that the library reads ahead from the socket: each may have `message_bytes_max`."""

_WRITE_BUFFER_BYTES = 256 << 10
"""Above it, sending waits for the peer."""

_WS_CLOSE_SECONDS = 5.0
"""How long a peer may take to confirm that the connection closes."""


class WsOptions(Options):
    messages: Literal["text", "binary"] = "text"
    """How values are sent. A value that is not UTF-8 is always binary. Both kinds are received."""
    message_bytes_max: int = Field(default=RECORD_BYTES_MAX, ge=1, le=RECORD_BYTES_LIMIT)
    """A peer that sends a longer message is disconnected, with code 1009."""
    ping_interval: SecondsOrOff = 20.0
    """The interval of pings, while the peer is being read. `off`: no pings."""
    ping_timeout: SecondsOrOff = 20.0
    """A peer that does not answer a ping for this long is disconnected, unless it is not being read. `off`: never."""
    compression: bool = False
    """Compress messages if the peer can. It costs about 300 KiB of memory for each connection."""


def connection_arguments(options: WsOptions) -> dict[str, Any]:
    """For the library, without its own pings: on a connection that we do not read, no pong is seen, and they would
    close it.
    """
    return {
        "max_size": options.message_bytes_max,
        "max_queue": _QUEUED_MESSAGES,
        "write_limit": _WRITE_BUFFER_BYTES,
        "ping_interval": None,
        "close_timeout": _WS_CLOSE_SECONDS,
        "compression": "deflate" if options.compression else None,
    }


def server_context(tls: ServerTls | None) -> ssl.SSLContext | None:
    """Files are read when the server starts to listen. Raises RequestError."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An empty password, so that OpenSSL does not ask for one at the worker's terminal: keys with a password are
        # refused.
        context.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # includes SSLError
        raise _unusable((tls.cert, tls.key, tls.client_ca), error) from None
    return context


def client_context(tls: ClientTls | None) -> ssl.SSLContext | None:
    """Files are read at every connection: a new certificate needs no restart. Raises RequestError."""
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        raise _unusable((tls.ca, tls.cert, tls.key), error) from None
    return context


def _unusable(paths: tuple[Path | None, ...], error: OSError) -> RequestError:
    names = ", ".join(str(path) for path in paths if path is not None)
    return RequestError(f"the TLS files ({names}) cannot be used: {error}", "They must be PEM files.")


# Where clients connect, and the headers that they send: checked before anything is tried.

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


def check_url(url: str, plain: str, encrypted: str, *, has_tls: bool) -> None:
    """`plain` and `encrypted` are the allowed schemes. Raises ValueError, whose message contains nothing of the URL."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in (plain, encrypted) and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or is out of range
        is_whole = False
    if not is_whole or not url.isprintable() or " " in url:
        raise ValueError(f"expected {plain}://HOST… or {encrypted}://HOST…")
    if parts.username is not None or parts.password is not None:
        raise ValueError("anyone can see a user in a URL: write an Authorization header")
    if has_tls and parts.scheme == plain:
        raise ValueError(f"tls is for {encrypted}://: with {plain}:// nothing is encrypted")


def is_header_value(value: str) -> bool:
    """Whether it can be sent: one line of ASCII."""
    return _VALUE.fullmatch(value) is not None


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises ValueError."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        if not is_header_value(value):
            raise ValueError(f"the header {name} must be one line of ASCII")
    return headers


def _one_line(value: str) -> str:
    if not is_header_value(value):
        raise ValueError("a header must be one line of ASCII")
    return value


HeaderValue = Annotated[str, AfterValidator(_one_line)]
Headers = Annotated[dict[str, str], AfterValidator(check_headers)]
