"""Reads that wait at a segment's tail until there is data, the segment ends, or their time is up."""

import asyncio
from collections import defaultdict
from collections.abc import Callable


class TailReads:
    """Waiting reads by segment. Each is woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wait_seconds: float) -> None:
        self._loop = loop
        self._wait_seconds = wait_seconds
        self._waiting: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, segment: str, answer: Callable[[], None]) -> Callable[[], None]:
        """Call `answer` when the segment changes or the time is up. Returns what cancels it."""
        number = self._next = self._next + 1
        timer = self._loop.call_later(self._wait_seconds, lambda: self._wake_one(segment, number))

        def woken() -> None:
            timer.cancel()
            answer()

        self._waiting[segment][number] = woken

        def cancel() -> None:
            timer.cancel()
            self._remove(segment, number)

        return cancel

    def wake(self, segment: str) -> None:
        for woken in self._waiting.pop(segment, {}).values():
            woken()

    def wake_all(self) -> None:
        for segment in list(self._waiting):
            self.wake(segment)

    def _wake_one(self, segment: str, number: int) -> None:
        woken = self._remove(segment, number)
        if woken is not None:
            woken()

    def _remove(self, segment: str, number: int) -> Callable[[], None] | None:
        waiting = self._waiting.get(segment)
        if waiting is None:
            return None
        woken = waiting.pop(number, None)
        if not waiting:
            self._waiting.pop(segment, None)
        return woken
