"""The clock that gives events the time of their arrival. It never goes back, and keeps what marks have promised."""

import time
from collections.abc import Callable

from penstock.protocol.stored.event import NO_TIME


def wall_clock_us() -> int:
    return time.time_ns() // 1000


class ArrivalClock:
    """In microseconds since 1970; one for all connectors of a worker. Where the wall clock is set back it stands still
    until that has caught up: a time in the past would put an event behind a watermark that is in the journal already.
    """

    def __init__(self, wall_us: Callable[[], int] = wall_clock_us) -> None:
        self._wall_us = wall_us
        self._floor = NO_TIME

    def now(self) -> int:
        self._floor = max(self._floor, self._wall_us())
        return self._floor

    def promised(self, time_us: int) -> None:
        """A mark in the journal says that nothing before this time comes any more."""
        self._floor = max(self._floor, time_us)
