"""Sockets that notice when the other end is gone, and a `select` that another thread ends."""

import asyncio
import socket
from collections.abc import Iterable

from penstock.client.sockets import PeerProtocol, Waker
from penstock.core.errors import Unavailable


class Peer(PeerProtocol[Unavailable]):
    def _loss(self, error: Exception | None) -> Unavailable:
        return Unavailable(str(error))

    def send(self, parts: Iterable[bytes]) -> None:
        self._write(parts)

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport


async def test_nothing_is_written_to_a_connection_that_is_ending() -> None:
    """With asyncio's own loop, which watches the closed socket's number otherwise."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    number = ours.fileno()
    with theirs:
        _, peer = await loop.create_connection(lambda: Peer(asyncio.Event(), 1000), sock=ours)
        peer.send([b"one", b"two"])
        assert theirs.recv(10) == b"onetwo"
        peer.transport.abort()
        written: list[Iterable[bytes]] = []
        peer.transport.writelines = written.append  # type: ignore[method-assign, assignment]
        peer.send([b"three"])
        assert written == []
        await asyncio.sleep(0)
        assert not loop.remove_writer(number)


def test_waking_a_loop_that_has_ended_does_nothing() -> None:
    waker = Waker()
    waker.wake()
    waker.close()
    waker.wake()
    assert waker.fileno() == -1
