"""Bytes on their way to a socket."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from penstock.core.types import Buffer

_BUFFERS_MAX = 64
"""Handed to the system at once; it takes at most 1,024."""


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
