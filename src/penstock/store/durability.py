"""Runs what must wait until the journal is durable up to a position, in the event loop, in order."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.core.types import Position
from penstock.store.journal import Journal

# Actions that are run before the loop gets its turn: so many take about a millisecond.
_ACTIONS_PER_TURN = 500


class Durability:
    """`after(position, action)` runs the action once everything before the position is durable."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]) -> None:
        self._journal = journal
        self._loop = loop
        self._on_failure = on_failure
        self._waiting: deque[tuple[Position, Callable[[], None]]] = deque()
        self._afterwards: list[Callable[[], None]] = []
        self._called = False
        journal.on_change(self._wake)

    def after(self, position: Position, action: Callable[[], None]) -> None:
        if position <= self._journal.durable and not self._waiting:
            action()
        else:
            self._waiting.append((position, action))

    async def caught_up(self) -> None:
        """Return when everything that is queued now is durable, and the actions before that have run; at once if the
        journal has failed.
        """
        if not self._journal.failed:
            done = asyncio.Event()
            self.after(self._journal.end, done.set)
            await done.wait()

    def after_each_group(self, action: Callable[[], None]) -> None:
        """Run it whenever some of the actions have been run: once for all of them."""
        self._afterwards.append(action)

    def _wake(self) -> None:
        """In the journal's thread. One call into the loop serves many groups."""
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._advance)

    def _advance(self) -> None:
        self._called = False
        durable = self._journal.durable
        for _ in range(_ACTIONS_PER_TURN):
            if not self._waiting or self._waiting[0][0] > durable:
                break
            self._waiting.popleft()[1]()
        else:
            self._wake()
        for action in self._afterwards:
            action()
        if self._journal.failed:
            self._on_failure()
