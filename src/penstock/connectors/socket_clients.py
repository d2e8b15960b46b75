"""The connections of a client connector: one for everything, or one for each stream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from penstock.connectors.api import Connector, Host, Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.connectors.socket_peers import Peer, listen
from penstock.connectors.sockets import DialOptions
from penstock.core.errors import PenstockError
from penstock.core.retry import Pauses, RetryPolicy

log = logging.getLogger(__name__)

_RETRIES = RetryPolicy(first_seconds=0.1, max_seconds=30.0, jitter=0.0)
"""Between two attempts to connect for one stream: the first pause, doubled each time, and the longest."""

Connect = Callable[[], Awaitable[Peer]]
"""Raises OSError."""


class Dialling(Protocol):
    """The same as the methods of Connector."""

    async def run(self, host: Host) -> None: ...

    async def stream_started(self, stream: StreamRef, host: Host) -> None: ...

    async def stream_closed(self, stream: StreamRef, host: Host) -> None: ...

    async def deliver(self, outgoing: Outgoing, host: Host) -> None: ...


def dialling(options: DialOptions, where: str, connect: Connect) -> Dialling:
    return (OneConnection if options.connections == "one" else ConnectionPerStream)(options, where, connect)


class OneConnection:
    """One connection, which `run` owns. What was not acknowledged when it broke is sent again over the next one."""

    def __init__(self, options: DialOptions, where: str, connect: Connect) -> None:
        self._options = options
        self._where = where
        self._connect = connect
        self._peer: Peer | None = None

    async def run(self, host: Host) -> None:
        self._peer = await _connected(self._connect, self._options, self._where)
        host.connected()
        try:
            await listen(self._peer, host)
            if not host.is_draining:
                raise Lost(f"{self._where} has closed the connection")
            await asyncio.Event().wait()  # for what is still to be sent, until this is cancelled
        except ConnectionError as error:
            raise Lost(f"the connection to {self._where} is gone: {error}") from error
        except asyncio.CancelledError:
            if host.is_draining:
                await self._peer.close()
            raise
        finally:
            self._peer.abort()
            self._peer = None

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        host.opened(stream)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None: ...

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        if self._peer is None:
            raise Lost(f"no connection to {self._where}")
        if host.is_draining and not self._peer.listens:  # `run` no longer reads, and does not see that it is gone
            self._peer = await _connected(self._connect, self._options, self._where)
        await _sent(self._peer, outgoing, self._options, self._where)


@dataclass(slots=True, eq=False)
class _Line:
    """A stream's connection, over all its reconnects."""

    task: asyncio.Task[None] | None = None
    peer: Peer | None = None
    is_ending: bool = False
    connected: asyncio.Event = field(default_factory=asyncio.Event)


class ConnectionPerStream:
    """A stream is open while its own connection is up. Events that belong to no single stream have a connection as
    well. Events of the connector's own streams are sent to the server that they came from, over the same connection.
    """

    def __init__(self, options: DialOptions, where: str, connect: Connect) -> None:
        self._options = options
        self._where = where
        self._connect = connect
        self._lines: dict[StreamRef | None, _Line] = {}
        self._own: dict[StreamRef, _Line] = {}
        """Streams of the connector itself: what servers send."""
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, host: Host) -> None:
        host.connected()
        try:
            await asyncio.Event().wait()  # until this is cancelled
        finally:
            tasks = [line.task for line in self._lines.values() if line.task is not None] + list(self._ending)
            self._lines.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        line = self._lines.get(stream)
        if stream.connector == host.name or (line is not None and line.peer is not None):
            host.opened(stream)
        elif line is None:
            self._begin(stream, host)

    def _begin(self, stream: StreamRef | None, host: Host) -> _Line:
        line = self._lines[stream] = _Line()
        line.task = asyncio.create_task(self._keep(line, stream, host))
        return line

    async def _keep(self, line: _Line, stream: StreamRef | None, host: Host) -> None:
        """Stay connected until the stream has ended."""
        pauses = Pauses(_RETRIES)
        while True:
            try:
                line.peer = await _connected(self._connect, self._options, self._where)
                line.connected.set()
                pauses.reset()
                reason = await self._used(line.peer, line, stream, host)
            except Lost as error:
                reason = str(error)
            finally:
                line.peer = None
                line.connected.clear()
            if line.is_ending:
                return
            if stream is not None:
                host.closed(stream, reason)
            await asyncio.sleep(pauses.next())

    async def _used(self, peer: Peer, line: _Line, stream: StreamRef | None, host: Host) -> str:
        """Returns why the connection has ended. Replies to what the server has sent on it are delivered as long as it
        is up.
        """
        own: list[StreamRef] = []

        def began(ref: StreamRef) -> None:
            own.append(ref)
            self._own[ref] = line

        if stream is not None:
            host.opened(stream)
        try:
            await listen(peer, host, began)
            if host.is_draining and peer.listens and not line.is_ending:
                await asyncio.Event().wait()  # for what is still to be sent
        except (ConnectionError, PenstockError) as error:
            return f"the connection to {self._where} is gone: {error}"
        finally:
            peer.abort()
            for ref in own:
                self._own.pop(ref, None)
        return f"{self._where} has closed the connection"

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:
        self._own.pop(stream, None)
        line = self._lines.pop(stream, None)
        if line is not None:
            task = asyncio.create_task(self._wind_up(line, host))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _wind_up(self, line: _Line, host: Host) -> None:
        """Let the server send for a while longer."""
        assert line.task is not None
        line.is_ending = True
        try:
            if line.peer is not None and not host.is_draining:
                line.peer.end()
                await asyncio.wait([line.task], timeout=self._options.half_closed)
            elif line.peer is not None:
                await line.peer.close()
        finally:
            line.task.cancel()
            await asyncio.gather(line.task, return_exceptions=True)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        line = self._line_of(outgoing.stream, host)
        if outgoing.stream is None:
            await self._connection_of(line)
        if line.peer is None:
            raise StreamLost(f"no connection to {self._where} for this stream")
        try:
            await _sent(line.peer, outgoing, self._options, self._where)
        except Lost as error:
            raise StreamLost(str(error)) from error

    def _line_of(self, stream: StreamRef | None, host: Host) -> _Line:
        if stream is None or stream.connector != host.name:
            return self._lines.get(stream) or self._begin(stream, host)
        line = self._own.get(stream)
        if line is None:
            raise StreamGone(f"the connection of stream {stream.stream_id} is gone")
        return line

    async def _connection_of(self, line: _Line) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.connect_timeout):
                await line.connected.wait()


async def _connected(connect: Connect, options: DialOptions, where: str) -> Peer:
    try:
        async with asyncio.timeout(options.connect_timeout):
            return await connect()
    except (OSError, PenstockError) as error:  # includes TimeoutError, and TLS files that cannot be used
        raise Lost(f"{where} cannot be reached: {str(error) or 'it does not answer'}") from error


async def _sent(peer: Peer, outgoing: Outgoing, options: DialOptions, where: str) -> None:
    try:
        async with asyncio.timeout(options.dead_peer_after):
            await peer.send(outgoing.values)
    except OSError as error:
        peer.abort()
        raise Lost(f"{where} did not accept data: {str(error) or 'no progress in time'}") from error


# A connector that connects to a server: its type adds only how to connect.

C = TypeVar("C", bound=DialOptions)


class Client(Connector[C]):
    def __init__(self, options: C) -> None:
        super().__init__(options)
        self._dialling = dialling(options, self.where(options), self.connect)

    @classmethod
    def where(cls, options: C) -> str:
        """The server, for people."""
        raise AssertionError(f"{cls.__name__} does not name the address for {options}")

    async def connect(self) -> Peer:
        """Raises OSError."""
        raise AssertionError(f"{type(self).__name__} connects")

    async def run(self, host: Host) -> None:
        await self._dialling.run(host)

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        await self._dialling.stream_started(stream, host)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:
        await self._dialling.stream_closed(stream, host)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        await self._dialling.deliver(outgoing, host)
