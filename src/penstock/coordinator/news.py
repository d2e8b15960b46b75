"""Wakes those who wait for something new: after each group of the journal that has become durable."""

import asyncio
from contextlib import suppress


class News:
    """`count` grows with every group: take it before you look, and wait with it afterwards; so nothing is missed."""

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.count += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def end(self) -> None:
        """Nobody waits any more."""
        self.is_over = True
        self.ring()

    async def wait(self, seen: int, seconds: float) -> None:
        """Until there is something newer than `seen`, but so long at most."""
        if self.count != seen or self.is_over:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting
        self._waiting.discard(waiting)
