"""The CPU time of this process and the clock, while `running`; what is `paused` does not count: a connector's peer is a
process of its own, which takes a second to start, more on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK_SECONDS = 1e-6
"""No work takes less."""


class Stopwatch:
    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.clock_s = 0.0
        self._is_running = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts from 0."""
        self.cpu_s = self.clock_s = 0.0
        self._is_running = True
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)
            self._is_running = False
            self.cpu_s, self.clock_s = max(self.cpu_s, TICK_SECONDS), max(self.clock_s, TICK_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        is_running = self._is_running
        if is_running:
            self._count(1)
        try:
            yield
        finally:
            if is_running:
                self._count(-1)

    def _count(self, sign: int) -> None:
        self.cpu_s += sign * time.process_time()
        self.clock_s += sign * time.monotonic()


STOPWATCH = Stopwatch()
"""Of the case that is measured: one at a time."""
