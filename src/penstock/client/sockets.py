"""Sockets that detect dead peers."""

import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from penstock.core.types import Buffer

DEAD_PEER_SECONDS = 60
"""A peer that sends no TCP segment for this long is gone; a live but idle one answers every probe."""

_PROBE_SECONDS = 15


def prepare(connected: socket.socket) -> None:
    """Send at once, and detect dead peers: a source may be idle for hours and not notice that its peer is gone."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, DEAD_PEER_SECONDS // _PROBE_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_SECONDS * 1000)


class Waker:
    """Ends a `select` from another thread, or from a signal handler."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        with suppress(OSError):  # it is already awake, or has ended meanwhile
            self._writer.send(b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


# Bytes on their way to a socket.

_BUFFERS_MAX = 64
"""Passed to the system in one call; it accepts at most 1,024."""


class Outgoing:
    """Buffers in order; nothing is copied."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self.size = 0

    def add(self, parts: Iterable[Buffer]) -> None:
        for part in parts:
            if part:
                view = memoryview(part).cast("B")
                self._views.append(view)
                self.size += len(view)

    def next(self) -> list[memoryview]:
        return list(islice(self._views, _BUFFERS_MAX))

    def sent(self, count: int) -> None:
        self.size -= count
        while count:
            view = self._views.popleft()
            if count < len(view):
                self._views.appendleft(view[count:])
                return
            count -= len(view)
