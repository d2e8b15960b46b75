"""`udp-server` and `udp-client`: each datagram is a message, and any of them may be lost."""

import asyncio
import logging
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from penstock.connectors.api import (
    About,
    Capabilities,
    Connector,
    Host,
    Lost,
    Options,
    Outgoing,
    ShownBy,
    Stream,
    StreamGone,
)
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.sockets import HostName, Port, address_of, claims_of, listening_at
from penstock.connectors.streams import (
    DRAINED,
    open_when_there_is_room,
    put_messages,
    readable_or_done,
    ready_or_draining,
)
from penstock.connectors.url_forms import UrlForm, address
from penstock.connectors.values import Size
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

DATAGRAM_BYTES_MAX = 65_535
"""No datagram of UDP is longer, headers included."""

PAYLOAD_BYTES_MAX = 65_507
"""What fits into one over IPv4."""

TURN_DATAGRAMS = 1000
TURN_BYTES = 1 << 20
"""What is received in one turn of the loop, and stored in one step."""

GATHER_SECONDS_MAX = 0.005
"""From the first datagram on: the kernel keeps what follows, and one record stores all of it."""

FILLED_PER_SECOND = 400 << 20
"""Of the kernel's buffer, which counts nearly 1 KiB for the smallest datagram: a small buffer is read sooner."""

FEW_DATAGRAMS = TURN_DATAGRAMS // 2
"""If more have arrived in one turn, the next follows at once."""

_MEMORY_INFO = 55
"""SO_MEMINFO: numbers about the socket's buffers. The last one is that of datagrams which the kernel has dropped for
lack of room."""

_MEMORY = struct.Struct("9I")

_UNSENT_SECONDS = 0.001
"""Until the next try, when the kernel has no room for a datagram that leaves."""

_TRIES_MAX = 1000


class Received(NamedTuple):
    """Datagrams in their order, and where each comes from."""

    datagrams: list[bytes]
    peers: list[Any]


class DatagramSocket:
    """Receives many datagrams at a time, and counts what the kernel has dropped since the last time."""

    def __init__(self, sock: socket.socket, receive_buffer: int) -> None:
        self.sock = sock
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        buffer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self.gather_seconds = min(GATHER_SECONDS_MAX, buffer / FILLED_PER_SECOND)
        self._dropped = 0

    @property
    def address(self) -> str:
        return address_of(self.sock.getsockname())

    def receive(self, host: Host) -> Received:
        """What has arrived, at most TURN_DATAGRAMS and about TURN_BYTES. Does not wait."""
        datagrams, peers, receive, size = list[bytes](), list[Any](), self.sock.recvfrom, 0
        while len(datagrams) < TURN_DATAGRAMS and size < TURN_BYTES:
            try:
                data, peer = receive(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                break
            except ConnectionRefusedError:  # the answer to a datagram that we have sent
                host.count("refused_datagrams")
                continue
            datagrams.append(data)
            peers.append(peer)
            size += len(data)
        self._count_dropped(host)
        return Received(datagrams, peers)

    def _count_dropped(self, host: Host) -> None:
        """Once in a turn: the count in each datagram (SO_RXQ_OVFL) makes receiving a quarter slower."""
        try:
            found = self.sock.getsockopt(socket.SOL_SOCKET, _MEMORY_INFO, _MEMORY.size)
        except OSError:
            return
        if len(found) == _MEMORY.size:
            dropped = _MEMORY.unpack(found)[-1]
            since = (dropped - self._dropped) & 0xFFFFFFFF  # the kernel's counter starts again after 2**32
            if since:
                host.count("dropped_datagrams", since)
            self._dropped = dropped

    def close(self) -> None:
        self.sock.close()


async def bound(host: str, port: int, receive_buffer: int, *, reuse_port: bool = False) -> DatagramSocket:
    """Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        return DatagramSocket(sock, receive_buffer)
    except BaseException:
        sock.close()
        raise


async def receive_all(source: DatagramSocket, host: Host, name: str) -> None:
    """Datagrams into one stream, until nothing more should be read. While the stream may not send, the kernel keeps
    what fits into its buffer, and drops and counts the rest. Bad bytes end the stream, and another one follows.
    """
    draining = asyncio.ensure_future(host.draining())
    try:
        while not host.is_draining:
            stream = await open_when_there_is_room(host, name)
            if stream is not None:
                await _receive_into(stream, source, host, draining)
    finally:
        draining.cancel()


async def _receive_into(stream: Stream, source: DatagramSocket, host: Host, draining: asyncio.Future[None]) -> None:
    try:
        while await ready_or_draining(stream, host):
            received = source.receive(host)
            await _store(received, stream, host)
            if len(received.datagrams) < FEW_DATAGRAMS:
                await readable_or_done(source.sock.fileno(), draining)
                await asyncio.sleep(source.gather_seconds)
        await _store(source.receive(host), stream, host)
        await stream.cut_off(DRAINED)
    except BadBytes:
        host.count("bad_streams")
        await stream.close()


async def _store(received: Received, stream: Stream, host: Host) -> None:
    if not host.has_out:  # if stored, it would never be removed
        host.count("discarded_bytes", sum(map(len, received.datagrams)))
    elif received.datagrams:
        await put_messages(stream, host, received.datagrams, metadata_of(received.peers))


def metadata_of(peers: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Most datagrams of a turn come from few peers: their addresses are formatted once."""
    known: dict[Any, Mapping[str, Any]] = {peer: {"peer": address_of(peer)} for peer in set(peers)}
    return [known[peer] for peer in peers]


class UdpServerOptions(Options):
    """Each datagram is an event, with the sender's address in its metadata (`peer`). All are one stream, in the order
    of their arrival. Interceptors process each datagram separately.

    UDP has no acknowledgements: what does not fit into the kernel's buffer while the worker is busy, down, or at its
    quota is lost. `dropped_datagrams` in the status counts what the kernel has dropped while the connector runs.
    """

    host: HostName = "127.0.0.1"
    """The address to listen on. By default only this machine can send. Any other address needs a worker that was
    started with `--insecure`: UDP has neither encryption nor authentication."""
    port: Port
    """The port to listen on. 0 is any free port; the log names it."""
    receive_buffer: Size = 4 << 20
    """The size of the kernel's buffer for unread datagrams. The system's limit is `net.core.rmem_max`."""


class UdpServer(Connector[UdpServerOptions]):
    about = About(
        name="udp-server",
        text="Receives UDP datagrams. Each is an event.",
        options=UdpServerOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE, own_event_times=False, sends_messages=True, every_worker=True
        ),
        example={"host": "127.0.0.1", "port": 8125},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_programs.py::TestUdpServer",
        ),
    )

    def __init__(self, options: UdpServerOptions) -> None:
        super().__init__(options)
        self.addresses: list[str] = []

    @classmethod
    def check_permitted(cls, options: UdpServerOptions, permissions: Permissions) -> None:
        permissions.check_server(options.host, has_tls=False, has_auth=False)

    @classmethod
    def capabilities(cls, options: UdpServerOptions) -> Capabilities:
        claims = frozenset(f"udp {claim}" for claim in claims_of(options.host, options.port))
        return replace(cls.about.capabilities, claims=claims)

    @property
    def reached_at(self) -> str:
        return f"udp {self.addresses[0]}" if self.addresses else ""

    async def run(self, host: Host) -> None:
        options = self.options
        with listening_at(options.host, options.port):
            source = await bound(options.host, options.port, options.receive_buffer, reuse_port=host.shares_port)
        self.addresses = [source.address]
        log.info("%s listens on udp %s", host.name, self.mask.text(source.address))
        try:
            host.connected()
            await receive_all(source, host, "udp")
        finally:
            source.close()


class UdpClientOptions(Options):
    """Each value is one datagram: do not use `join`. A value that is too long for a datagram is a dead letter.
    Datagrams that the server answers with are events of one stream.

    Nothing is acknowledged and nothing is sent again. `refused_datagrams` in the status counts how often the server's
    machine has reported that nothing listens on the port.
    """

    host: HostName = "127.0.0.1"
    """The server's name or address."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """The server's port."""
    receive_buffer: Size = 1 << 20
    """The size of the kernel's buffer for unread answers."""


class UdpClient(Connector[UdpClientOptions]):
    about = About(
        name="udp-client",
        text="Sends each value as a UDP datagram, and receives answers.",
        options=UdpClientOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_MOST_ONCE,
            own_event_times=False,
            sends_messages=True,
            on_stream_started="Opens every stream.",
        ),
        example={"host": "127.0.0.1", "port": 8125},
        url=UrlForm(written="udp://HOST:PORT", place=address, fields=("host", "port")),
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_programs.py::TestUdpClient",
            sink="tests/connectors/conformance/test_programs.py::TestUdpClient",
        ),
    )

    def __init__(self, options: UdpClientOptions) -> None:
        super().__init__(options)
        self._socket: DatagramSocket | None = None

    async def run(self, host: Host) -> None:
        self._socket = await self._connected()
        try:
            host.connected()
            if host.has_out:
                await receive_all(self._socket, host, "udp")
            await asyncio.Event().wait()  # for what is still to be sent, until this is cancelled
        finally:
            self._socket.close()
            self._socket = None

    async def _connected(self) -> DatagramSocket:
        options = self.options
        try:
            found = await asyncio.get_running_loop().getaddrinfo(options.host, options.port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, where = found[0]
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            raise Lost(f"{options.host}:{options.port} cannot be used: {error}") from error
        try:
            sock.connect(where)
            return DatagramSocket(sock, options.receive_buffer)
        except OSError as error:
            sock.close()
            raise Lost(f"{options.host}:{options.port} cannot be reached: {error.strerror or error}") from error

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        if self._socket is None:
            raise Lost(f"no socket for {self.options.host}:{self.options.port} yet")
        long = [place for place, value in enumerate(outgoing.values) if len(value) > PAYLOAD_BYTES_MAX]
        sock = self._socket.sock
        for value in outgoing.values:
            if len(value) <= PAYLOAD_BYTES_MAX:
                try:
                    sock.send(value)
                except OSError as error:  # of few
                    await self._send(sock, value, error, host)
        if long:
            raise StreamGone(f"a datagram has at most {PAYLOAD_BYTES_MAX} bytes", "Send less, or use TCP.", places=long)

    @staticmethod
    async def _send(sock: socket.socket, value: bytes, error: OSError, host: Host) -> None:
        """Again, after this error."""
        for _ in range(_TRIES_MAX):
            match error:
                case ConnectionRefusedError():  # the answer to an earlier one: this one is not sent yet
                    host.count("refused_datagrams")
                case BlockingIOError():
                    await asyncio.sleep(_UNSENT_SECONDS)
                case _:
                    raise Lost(f"a datagram cannot be sent: {error.strerror or error}") from error
            try:
                sock.send(value)
            except OSError as again:
                error = again
            else:
                return
        raise Lost("the kernel accepts no datagrams")
