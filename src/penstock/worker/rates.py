"""How fast everything flows now: counters as they were a moment ago, in a small ring, and as they are."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

SAMPLE_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""Rates are over so long: an epoch of a few seconds shows as a rate, and what has stopped is 0 soon."""

SAMPLES_MAX = int(WINDOW_SECONDS / SAMPLE_SECONDS) + 1

Key: TypeAlias = tuple[str, ...]
"""What is counted, like ("source", "orders", "events")."""


class _Sample(NamedTuple):
    time: float
    counts: Mapping[Key, int]


class Rates:
    """`count` reads all counters as they are. They never go back, but one may go away and begin again at 0."""

    def __init__(self, count: Callable[[], Mapping[Key, int]], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self.sample()

    def sample(self) -> None:
        """Every SAMPLE_SECONDS."""
        self._samples.append(_Sample(self._clock(), self._count()))

    @property
    def seconds(self) -> float:
        """What the rates are over: the window, or the time since the start."""
        return self._clock() - self._samples[0].time

    def per_second(self) -> dict[Key, float]:
        """Of each counter that there is now. One that was not there at the beginning of the window began at 0."""
        before, seconds = self._samples[0].counts, max(self.seconds, SAMPLE_SECONDS)
        return {key: _grown(before.get(key, 0), now) / seconds for key, now in self._count().items()}


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now
