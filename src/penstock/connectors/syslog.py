"""`syslog`: a server for syslog messages over UDP, TCP and TLS."""

import asyncio
import logging
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, ShownBy, Stream
from penstock.connectors.interceptors.api import RECORD_BYTES_LIMIT, BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.server_auth import ServerAuth
from penstock.connectors.socket_peers import Peer, Peers
from penstock.connectors.sockets import (
    CONNECTIONS_MAX,
    Connection,
    HostName,
    PeerOptions,
    Port,
    ServerTls,
    address_of,
    check_exposure,
    claims_of,
    listening_at,
    server_context,
)
from penstock.connectors.streams import DRAINED, first_of, put_messages, ready_or_draining
from penstock.connectors.udp import DatagramSocket, bound, receive_all
from penstock.connectors.values import Size, SomeSeconds
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that the kernel has accepted and we have not yet."""

_LENGTH_DIGITS_MAX = 10
"""Of the length before a message: no message is so long."""

_BLANKS = b"\n\r\0"
"""What senders put after a message, and sometimes between messages."""

Framing = Literal["auto", "octet-counting", "lines"]


class BadFrame(BadBytes):
    """Where the next message begins is not known."""


class Frames:
    """Cuts a connection into messages (RFC 6587). Pure.

    octet counting     `LENGTH SP MESSAGE`, nothing between messages: section 3.4.1
    lines              a newline after each message: section 3.4.2

    A message begins with `<`, and a length with a digit: with `auto` each message decides.
    """

    def __init__(self, framing: Framing, bytes_max: int) -> None:
        self._framing = framing
        self._bytes_max = bytes_max
        self.rest = b""
        """The beginning of a message."""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete. Raises BadFrame."""
        found: list[bytes] = []
        data, at = self.rest + data, 0
        while at < len(data):
            if data[at] in _BLANKS:
                at += 1
                continue
            try:
                span = self._counted(data, at) if self._is_counted(data[at]) else self._line(data, at)
            except ValueError as error:
                self.rest = b""
                raise BadFrame(str(error), data[at:], found) from None
            if span is None:
                break
            start, at = span
            found.append(data[start:at].rstrip(_BLANKS))
        self.rest = data[at:]
        return [message for message in found if message]

    def finish(self) -> bytes:
        """The peer has sent everything: a last message without a newline. Raises BadFrame if it is incomplete."""
        rest, self.rest = self.rest, b""
        if rest and self._is_counted(rest[0]):
            raise BadFrame("the connection ended in the middle of a message", rest)
        return rest.rstrip(_BLANKS)

    def _is_counted(self, first: int) -> bool:
        return self._framing == "octet-counting" or (self._framing == "auto" and first in b"123456789")

    def _counted(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Where the message starts and ends; None while it is incomplete. Raises ValueError."""
        blank = data.find(b" ", at, at + _LENGTH_DIGITS_MAX + 1)
        digits = data[at:blank] if blank >= 0 else data[at : at + _LENGTH_DIGITS_MAX + 1]
        if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX:
            raise ValueError("a message must begin with its length and a blank")
        if blank < 0:
            return None
        self._check(int(digits))
        end = blank + 1 + int(digits)
        return (blank + 1, end) if end <= len(data) else None

    def _line(self, data: bytes, at: int) -> tuple[int, int] | None:
        end = data.find(b"\n", at)
        self._check((end if end >= 0 else len(data)) - at)
        return (at, end + 1) if end >= 0 else None

    def _check(self, length: int) -> None:
        if length > self._bytes_max:
            raise ValueError(f"a message is longer than message_bytes_max, {self._bytes_max:,}")


class SyslogOptions(Options):
    """An event is one message as it was sent: use the codec `syslog` (RFC 3164 and 5424). Its metadata has the sender's
    address (`peer`). Over TCP and TLS each connection is a stream; all UDP datagrams are one.

    Messages that the worker has not read when it or the connection ends are lost, and so are datagrams that do not fit
    into the kernel's buffer: `dropped_datagrams` in the status counts them.
    """

    host: HostName = "127.0.0.1"
    """The address to listen on. By default only this machine can send. Any other address needs `tls` with `client_ca`
    and `transport: tcp`, unless the worker was started with `--insecure`."""
    port: Port
    """The port for UDP and TCP, usually 514, or 6514 with TLS. 0 is any free port; the log names it."""
    transport: Literal["both", "tcp", "udp"] = "both"
    """The transports to listen on."""
    tls: ServerTls | None = None
    """Encrypt connections (RFC 5425). It needs `transport: tcp`."""
    framing: Framing = "auto"
    """How messages are cut out of a connection (RFC 6587): `octet-counting` expects the length before each message,
    `lines` a newline after it. With `auto`, a message that begins with a digit is octet-counted."""
    message_bytes_max: int = Field(default=64 << 10, ge=480, le=RECORD_BYTES_LIMIT)
    """A longer message is a dead letter, and ends its connection."""
    connections_max: int = Field(default=CONNECTIONS_MAX, ge=1, le=1_000_000)
    """Connections above this number are closed immediately, and counted."""
    dead_peer_after: SomeSeconds = 60.0
    """Close the connection of a peer that has vanished from the network for this long."""
    receive_buffer: Size = 4 << 20
    """The size of the kernel's buffer for unread datagrams. The system's limit is `net.core.rmem_max`."""

    @property
    def auth(self) -> ServerAuth | None:
        """Syslog has none but certificates."""
        return None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tls is not None and self.transport != "tcp":
            raise ValueError("tls needs transport: tcp, because datagrams are not encrypted")
        return self


class Syslog(Connector[SyslogOptions]):
    about = About(
        name="syslog",
        text="Receives syslog messages over UDP, TCP and TLS.",
        options=SyslogOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE, own_event_times=False, sends_messages=True, every_worker=True
        ),
        example={"host": "127.0.0.1", "port": 5514},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_programs.py::TestSyslog",
        ),
    )

    def __init__(self, options: SyslogOptions) -> None:
        super().__init__(options)
        bounds = PeerOptions(connections_max=options.connections_max)
        self._peers = Peers(bounds, self._converse)
        self.addresses: list[str] = []
        """Where it listens."""

    @classmethod
    def check_permitted(cls, options: SyslogOptions, permissions: Permissions) -> None:
        check_exposure(options, permissions)
        super().check_permitted(options, permissions)

    @classmethod
    def capabilities(cls, options: SyslogOptions) -> Capabilities:
        tcp = claims_of(options.host, options.port)
        udp = frozenset(f"udp {claim}" for claim in tcp)
        claims = {"tcp": tcp, "udp": udp, "both": tcp | udp}[options.transport]
        return replace(cls.about.capabilities, claims=claims)

    @property
    def reached_at(self) -> str:
        return f"syslog {self.addresses[0]}" if self.addresses else ""

    async def run(self, host: Host) -> None:
        datagrams, server = await self._listen(host)
        log.info("%s listens on %s", host.name, self.mask.text(", ".join(self.addresses)))
        try:
            host.connected()
            if datagrams is not None:
                await receive_all(datagrams, host, "udp")
            await host.draining()
            if server is not None:
                server.close()
            self._peers.stop_reading()
            await self._peers.all_gone()
        finally:
            if server is not None:
                server.close()
            if datagrams is not None:
                datagrams.close()
            await self._peers.abort()

    async def _listen(self, host: Host) -> tuple[DatagramSocket | None, asyncio.Server | None]:
        """UDP first: with port 0, TCP gets the same number. Raises Lost."""
        options, datagrams, server, port = self.options, None, None, self.options.port
        self.addresses = []
        with listening_at(options.host, options.port):
            if options.transport != "tcp":
                datagrams = await bound(options.host, port, options.receive_buffer, reuse_port=host.shares_port)
                self.addresses.append(datagrams.address)
                port = datagrams.sock.getsockname()[1]
            try:
                server = await self._listen_tcp(port, host) if options.transport != "udp" else None
            except BaseException:
                if datagrams is not None:
                    datagrams.close()
                raise
        return datagrams, server

    async def _listen_tcp(self, port: int, host: Host) -> asyncio.Server:
        options = self.options
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(lambda connection: self._accept(connection, host), options.dead_peer_after),
            options.host,
            port,
            ssl=server_context(options.tls),
            backlog=_BACKLOG,
            reuse_port=host.shares_port or None,
        )
        self.addresses += [address_of(sock.getsockname()) for sock in server.sockets]
        return server

    def _accept(self, connection: Connection, host: Host) -> None:
        if self._peers.is_full or host.is_draining:
            host.count("refused_connections")
            connection.abort()
        else:
            self._peers.begin(connection, host)

    async def _converse(self, peer: Peer, stream: Stream, host: Host) -> None:
        """Like `socket_peers.converse`, for messages: what is left of one in the middle is a dead letter."""
        frames = Frames(self.options.framing, self.options.message_bytes_max)
        try:
            if await first_of(_read(peer, stream, frames, host), peer.aborted()) == 1:
                raise ConnectionResetError("it is closed")
            if peer.peer_ended and (last := frames.finish()):
                await put_messages(stream, host, [last])
        except ConnectionError as error:
            await _end(stream, frames.rest, f"the connection is gone: {error}")
            raise
        except BadFrame as bad:
            host.count("bad_streams")
            await put_messages(stream, host, bad.records)
            await _end(stream, bad.data, str(bad))
            raise
        except BadBytes:
            host.count("bad_streams")
            await stream.close()
            raise
        await _end(stream, frames.rest, DRAINED)


async def _read(peer: Peer, stream: Stream, frames: Frames, host: Host) -> None:
    while True:
        await ready_or_draining(stream, host)
        data = await peer.read()
        if data is None:
            return
        assert isinstance(data, bytes), "a TCP connection is a stream of bytes"
        if not host.has_out:  # if stored, it would never be removed
            host.count("discarded_bytes", len(data))
        elif messages := frames.feed(data):
            await put_messages(stream, host, messages)


async def _end(stream: Stream, rest: bytes, reason: str) -> None:
    if rest:
        await stream.dead_letter(rest, reason)
    await stream.cut_off(reason)
