"""The other side of one connection, whatever it speaks, and what it says, into a stream."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.connectors.api import Host, Stream, StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.streaming import DRAINED, open_when_there_is_room, read_into


class Peer(Protocol):
    """All raise ConnectionError when the connection is gone."""

    @property
    def peer(self) -> str:
        """Its address."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Goes along with all its events."""

    @property
    def peer_ended(self) -> bool:
        """It has said all, and ended well."""

    @property
    def listens(self) -> bool:
        """Whether it may still be sent to."""

    async def read(self) -> bytes | None:
        """None: it has said all, or `stop_reading` was called and what was taken from it is out. Nothing is lost when
        it is cancelled.
        """

    def stop_reading(self) -> None: ...

    async def send(self, values: Sequence[bytes]) -> None:
        """Return when it has them, as far as can be known."""

    def end(self) -> None:
        """We have said all; it may go on if what it speaks has such a thing."""

    async def close(self) -> None:
        """Well, after what was sent."""

    def abort(self) -> None:
        """At once."""


async def converse(peer: Peer, stream: Stream, host: Host) -> None:
    """What the peer says, into its stream, which has ended when this returns or raises. Raises ConnectionError,
    BadBytes and what the frame raises.
    """
    try:
        await read_into(stream, peer.read, host)
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
    """What a server says that we have connected to: a stream of the port `out`, or nothing where nobody wants it.
    `began` is told of the stream. Returns when it has said all, or nothing more is to be read. Raises as `converse`.
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
        host.count("discarded_bytes", len(data))
