"""`unix-server` and `unix-client`: connections over a socket in the file system, on one machine."""

import asyncio
import os
import select
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.connectors.api import About, Capabilities, Host, Lost, Outgoing, ShownBy
from penstock.connectors.row_formats import encode
from penstock.connectors.socket_clients import Client
from penstock.connectors.socket_peers import PEER_CAPABILITIES, Listening, LocalServer
from penstock.connectors.sockets import CLIENT_ON_STREAM_STARTED, Connection, DialOptions, PeerOptions
from penstock.core.types import Guarantee

_BACKLOG = 1024
"""Connections that the kernel has accepted and we have not yet."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the program that has connected, from the kernel."""


class UnixConnection(Connection):
    """Data counts as sent when the program at the other end has read it."""

    _credentials: tuple[int, ...] = (0, -1, -1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # it is gone again, or the platform does not say
            packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self._credentials = _CREDENTIALS.unpack(packed)
        super().connection_made(transport)

    @property
    def peer(self) -> str:
        """By the kernel's word: `pid 123 uid 1000`."""
        pid, uid, _ = self._credentials
        return f"pid {pid} uid {uid}"

    @property
    def metadata(self) -> dict[str, Any]:
        pid, uid, gid = self._credentials
        return {"peer": self.peer, "pid": pid, "uid": uid, "gid": gid}

    def _is_closed(self, sock: socket.socket) -> bool:
        """A peer that closes takes what it has not read with it, and then nothing is left to be acknowledged."""
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLHUP)
        return any(found & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, found in poll.poll(0))


class UnixServerOptions(PeerOptions):
    """Use interceptors, such as `split` and `join`: without them an event is whatever one read returns. The permissions
    of the socket file and its directory decide who may connect. The metadata of every event has the `pid`, `uid` and
    `gid` of the connected program, as the kernel reports them.

    A socket that another program has left behind is replaced; one on which a program listens is not. When a connection
    breaks, what was received is kept, and half a record becomes a dead letter; what the peer has not read is lost.
    """

    path: Path
    """The socket to create."""
    mode: Annotated[str, Field(pattern=r"^[0-7]{3,4}$")] = "600"
    """The permissions of the socket file, in octal digits: `660` lets the group connect."""


class UnixServer(LocalServer[UnixServerOptions]):
    about = About(
        name="unix-server",
        text="Listens on a Unix socket. Each connection is a stream; a reply goes to the connection of its event.",
        options=UnixServerOptions,
        capabilities=replace(PEER_CAPABILITIES, every_worker=False),  # a path belongs to one process of one machine
        example={"path": "/run/app/events.sock", "mode": "660"},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_programs.py::TestUnixServer",
            sink="tests/connectors/conformance/test_programs.py::TestUnixServer",
        ),
    )

    @classmethod
    def capabilities(cls, options: UnixServerOptions) -> Capabilities:
        return replace(cls.about.capabilities, claims=frozenset({f"the socket {os.path.normpath(options.path)}"}))

    @property
    def reached_at(self) -> str:
        return f"unix {self.addresses[0]}" if self.addresses else ""

    def listening(self) -> AbstractContextManager[None]:
        return _listening_on(self.options.path)

    async def listen(self, host: Host) -> Listening:
        options = self.options
        sock = await asyncio.to_thread(bound, options.path, int(options.mode, 8))
        inode = options.path.stat().st_ino
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: UnixConnection(lambda connection: self._accept(connection, host), options.dead_peer_after),
            sock=sock,
            backlog=_BACKLOG,
        )

        def stop() -> None:
            server.close()
            _remove(options.path, inode)

        return Listening(server.sockets or (), stop)

    def _accept(self, connection: Connection, host: Host) -> None:
        if self.peers.is_full or host.is_draining:
            host.count("refused_connections")
            connection.abort()
        else:
            self.peers.begin(connection, host)


def bound(path: Path, mode: int) -> socket.socket:
    """No one can connect before it has its rights, because it does not listen yet. Raises OSError."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode) and not _is_listened_on(path):
            path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(mode)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # its backlog is full, or we have no right to it
            return True
        return True


def _remove(path: Path, inode: int) -> None:
    """Unless another program has replaced it."""
    with suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


@contextmanager
def _listening_on(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = (
            "Does another program listen there? Choose another path, in a directory where the worker may create files."
        )
        raise Lost(f"it cannot listen on {path}: {reason}", hint) from error


class UnixClientOptions(DialOptions):
    """Values count as delivered when the program that listens has read them from the socket; the rest is sent again
    over the next connection. What the program sends over one connection is a stream; if nothing is linked to `out`, it
    is read and dropped.
    """

    path: Path
    """The socket of the program that listens."""
    format: Literal["raw", "lines", "json"] = "raw"
    """How events are sent. `raw`: the values as the interceptors return them. `lines`: a newline after each value.
    `json`: one object per line, with `id`, `event_time_us`, `key` and `value`."""


class UnixClient(Client[UnixClientOptions]):
    about = About(
        name="unix-client",
        text="Connects to a Unix socket, sends values to it, and receives what it sends.",
        options=UnixClientOptions,
        capabilities=Capabilities(
            source=Guarantee.AT_MOST_ONCE,
            sink=Guarantee.AT_LEAST_ONCE,
            own_event_times=False,
            on_stream_started=CLIENT_ON_STREAM_STARTED,
        ),
        example={"path": "/run/app/events.sock", "format": "lines"},
        shown_by=ShownBy(
            source="tests/connectors/conformance/test_programs.py::TestUnixClientPerStream",
            sink="tests/application/test_sink_kills.py::test_every_value_reaches_programs_functions_and_segments",
        ),
    )

    @classmethod
    def where(cls, options: UnixClientOptions) -> str:
        return str(options.path)

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: UnixConnection(dead_peer_seconds=self.options.dead_peer_after), str(self.options.path)
        )
        return connection

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        data = encode(outgoing, self.options.format)
        await super().deliver(replace(outgoing, values=[data], ids=[outgoing.ids[-1]]), host)
