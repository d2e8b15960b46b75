"""Servers whose connections are streams: each connection is also the place where the replies to its events go."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from socket import socket
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.connectors.api import Capabilities, Connector, Host, Outgoing, Stream, StreamGone, StreamLost, StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.server_auth import UNAUTHORIZED
from penstock.connectors.sockets import (
    PeerOptions,
    ServerOptions,
    address_of,
    check_exposure,
    claims_of,
    listening_at,
)
from penstock.connectors.streams import DRAINED, first_of, open_when_there_is_room, read_into, size_of
from penstock.core.errors import PenstockError
from penstock.core.logs import one_line
from penstock.core.types import Guarantee

PEER_CAPABILITIES = Capabilities(
    source=Guarantee.AT_MOST_ONCE,
    sink=Guarantee.AT_MOST_ONCE,
    is_linked=True,
    own_event_times=False,
    every_worker=True,
    on_stream_started="Opens every stream; closes a stream of its own while its peer does not read.",
)
"""Of every server whose connections are streams."""

# The other side of one connection, whatever its protocol, and reading it into a stream.


class Peer(Protocol):
    """The other side of a connection. All methods raise ConnectionError when the connection is gone."""

    @property
    def peer(self) -> str:
        """Its address."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Stored with all its events."""

    @property
    def peer_ended(self) -> bool:
        """It has sent everything, and ended properly."""

    @property
    def listens(self) -> bool:
        """Whether data can still be sent to it."""

    async def read(self) -> bytes | Sequence[bytes] | None:
        """Any part of a stream of bytes, or whole messages. None: it has sent everything, or `stop_reading` was called
        and all data received before was returned. Nothing is lost when it is cancelled.
        """

    def stop_reading(self) -> None: ...

    async def send(self, values: Sequence[bytes]) -> None:
        """Returns when the peer has the data, as far as can be known."""

    def end(self) -> None:
        """We have sent everything; it may continue if its protocol allows that."""

    async def close(self) -> None:
        """Close properly, after everything was sent."""

    def abort(self) -> None:
        """Immediately."""

    async def aborted(self) -> None:
        """Returns when `abort` was called."""


async def converse(peer: Peer, stream: Stream, host: Host) -> None:
    """Reads the peer into its stream, which has ended when this returns or raises. Raises ConnectionError, BadBytes and
    whatever the frame raises.

    While the stream may not send, nothing is read, and only a failing send notices that the connection is gone. It
    aborts the connection, and this ends: whether the stream may ever send again can depend on a new connection.
    """
    try:
        if await first_of(read_into(stream, peer.read, host), peer.aborted()) == 1:
            raise ConnectionResetError("a send to it has failed")
    except ConnectionError as error:
        await stream.cut_off(f"the connection is gone: {error}")
        raise
    except BadBytes:
        host.count("bad_streams")
        await stream.close()
        raise
    if peer.peer_ended:
        await stream.close()
    else:
        await stream.cut_off(DRAINED)


async def listen(peer: Peer, host: Host, began: Callable[[StreamRef], None] = lambda stream: None) -> None:  # noqa: ARG005
    """Reads from a server that we have connected to: into a stream of the port `out`, or nowhere if nothing is linked
    to it. `began` receives the stream. Returns when the server has sent everything, or nothing more should be read.
    Raises like `converse`.
    """
    stopping = asyncio.create_task(_stop_reading(peer, host))
    try:
        if not host.has_out:
            await _discard(peer, host)
            return
        stream = await open_when_there_is_room(host, peer.peer, peer.metadata)
        if stream is not None:
            began(stream.ref)
            await converse(peer, stream, host)
    finally:
        stopping.cancel()


async def _stop_reading(peer: Peer, host: Host) -> None:
    await host.draining()
    peer.stop_reading()


async def _discard(peer: Peer, host: Host) -> None:
    while (data := await peer.read()) is not None:
        host.count("discarded_bytes", size_of(data))


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Place:
    peer: Peer
    ref: StreamRef
    all_replied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last reply to its stream has left."""
    sending: asyncio.Task[None] | None = None
    """A send that the peer is slow to read."""


Converse = Callable[[Peer, Stream, Host], Awaitable[None]]
"""Like `converse`."""


class Peers:
    """The connections of one server connector."""

    def __init__(self, options: PeerOptions, read: Converse = converse) -> None:
        self._options = options
        self._read = read
        self._places: dict[StreamRef, _Place] = {}
        self._serving: dict[asyncio.Task[None], Peer] = {}
        self._replies: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        return len(self._serving) >= self._options.connections_max

    def begin(
        self, peer: Peer, host: Host, admitted: Callable[[], Awaitable[bool]] | None = None
    ) -> asyncio.Task[None]:
        """Serves the whole connection: its stream, then its replies; done when the connection is closed. Before
        anything is stored, `admitted` decides whether the peer may connect at all.
        """
        task = asyncio.create_task(self._serve(peer, host, admitted))
        self._serving[task] = peer
        task.add_done_callback(self._serving.pop)
        return task

    async def _serve(self, peer: Peer, host: Host, admitted: Callable[[], Awaitable[bool]] | None) -> None:
        try:
            if admitted is not None and not await admitted():
                host.count(UNAUTHORIZED)
                return
            stream = await open_when_there_is_room(host, peer.peer, peer.metadata)
            if stream is not None:
                await self._in_its_place(peer, stream, host)
                await peer.close()
        except ConnectionError as error:
            log.debug("%s: the connection of %s is gone: %s", host.name, peer.peer, error)
        except PenstockError as error:
            log.warning("%s: the connection of %s ends: %s", host.name, peer.peer, one_line(error))
        except Exception:  # bad input, or a bug of ours, ends one connection at most
            log.exception("%s: the connection of %s has failed", host.name, peer.peer)
        finally:
            peer.abort()

    async def _in_its_place(self, peer: Peer, stream: Stream, host: Host) -> None:
        place = self._places[stream.ref] = _Place(peer, stream.ref)
        try:
            await self._read(peer, stream, host)
            if host.has_in and not self._options.broadcast and peer.listens:
                await self._replies_to(place)
        finally:
            del self._places[stream.ref]
            if place.sending is not None:
                place.sending.cancel()

    async def _replies_to(self, place: _Place) -> None:
        """Returns when the peer has all replies, or its time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.half_closed):
                await place.all_replied.wait()
                if place.sending is not None:
                    await asyncio.wait([place.sending])

    def stop_reading(self) -> None:
        for peer in self._serving.values():
            peer.stop_reading()

    async def all_gone(self) -> None:
        """Returns when every connection is closed."""
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def abort(self) -> None:
        """Immediately."""
        tasks = [*self._serving, *self._replies]
        for peer in self._serving.values():
            peer.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def replied(self, stream: StreamRef) -> None:
        """All replies to this stream have been sent."""
        if stream in self._places:
            self._places[stream].all_replied.set()

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        """Send to the connection that the events belong to, or to all. Raises StreamLost, StreamGone."""
        if self._options.broadcast:
            await self._to_all(outgoing.values, host)
        else:
            await self._to_one(self._place_of(outgoing.stream, host), outgoing.values, host)

    def _place_of(self, stream: StreamRef | None, host: Host) -> _Place:
        if stream is None or stream.connector != host.name:
            whose = "no single stream" if stream is None else f"a stream of {stream.connector}"
            raise StreamGone(f"events of {whose} belong to no connection of {host.name}", "Set `broadcast: true`.")
        if stream not in self._places:
            raise StreamGone(f"the connection of stream {stream.stream_id} is gone")
        return self._places[stream]

    async def _to_one(self, place: _Place, values: Sequence[bytes], host: Host) -> None:
        if place.sending is not None:
            raise StreamLost(f"{place.peer.peer} has not read the data sent before")
        task = self._sending(place.peer, values)
        done, _ = await asyncio.wait([task], timeout=self._options.slow_after)
        if not done:
            host.count("slow_peers")
            place.sending = task
            host.closed(place.ref, f"{place.peer.peer} does not read what is sent to it")
            task.add_done_callback(partial(self._taken, place, host))
        elif (error := task.exception()) is not None:
            raise StreamGone(f"the connection to {place.peer.peer} is gone: {error}")

    def _taken(self, place: _Place, host: Host, task: asyncio.Task[None]) -> None:
        place.sending = None
        if task.cancelled() or task.exception() is not None:
            host.count("cut_off_replies")
        elif place.ref in self._places:
            host.opened(place.ref)

    async def _to_all(self, values: Sequence[bytes], host: Host) -> None:
        """A peer that is too slow is disconnected: the others do not wait."""
        tasks = {self._sending(place.peer, values): place.peer for place in self._places.values()}
        if not tasks:
            host.count("sent_to_nobody", len(values))
            return
        _, late = await asyncio.wait(tasks, timeout=self._options.slow_after)
        for task in late:
            host.count("slow_peers")
            task.cancel()
            tasks[task].abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sending(self, peer: Peer, values: Sequence[bytes]) -> asyncio.Task[None]:
        task = asyncio.create_task(_send(peer, values))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)
        return task


async def _send(peer: Peer, values: Sequence[bytes]) -> None:
    await peer.send(values)


# A connector that listens.

P = TypeVar("P", bound=PeerOptions)
S = TypeVar("S", bound=ServerOptions)


class Listening(NamedTuple):
    sockets: Sequence[socket]
    stop: Callable[[], None]
    """Accept no more connections; open ones stay. It may be called twice."""


class LocalServer(Connector[P], ABC):
    """What servers of all protocols have in common. A subclass implements listening, and starts each connection in
    `peers`.
    """

    def __init__(self, options: P) -> None:
        super().__init__(options)
        self.peers = Peers(options)
        self.addresses: list[str] = []
        """Where it listens."""

    @abstractmethod
    def listening(self) -> AbstractContextManager[None]:
        """Turns an OSError of `listen` into Lost."""

    @abstractmethod
    async def listen(self, host: Host) -> Listening: ...

    async def run(self, host: Host) -> None:
        with self.listening():
            listening = await self.listen(host)
        self.addresses = [address_of(sock.getsockname()) for sock in listening.sockets]
        log.info("%s listens on %s", host.name, self.mask.text(", ".join(self.addresses)))
        try:
            host.connected()
            await host.draining()
            listening.stop()
            self.peers.stop_reading()
            await self.peers.all_gone()
        finally:
            listening.stop()
            await self.peers.abort()

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:  # noqa: ARG002
        self.peers.replied(stream)

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        await self.peers.deliver(outgoing, host)


class PeerServer(LocalServer[S]):
    """A server on the network."""

    @classmethod
    def check_permitted(cls, options: S, permissions: Permissions) -> None:
        check_exposure(options, permissions)
        super().check_permitted(options, permissions)

    @classmethod
    def capabilities(cls, options: S) -> Capabilities:
        return replace(cls.about.capabilities, claims=claims_of(options.host, options.port))

    def listening(self) -> AbstractContextManager[None]:
        return listening_at(self.options.host, self.options.port)
