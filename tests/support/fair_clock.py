"""A clock for limits in seconds on a machine that does other things too."""

import os
import time
from contextlib import suppress
from pathlib import Path


class FairClock:
    """Counts the seconds in which all threads of this process, and of the given ones, got a core when they wanted one.
    On a quiet machine, and where the kernel does not count how long threads wait, these are all seconds.
    """

    def __init__(self, *processes: int) -> None:
        self._processes = (os.getpid(), *processes)
        self._seconds = 0.0
        self._looked_at, self._waits = time.monotonic(), self._look()

    def seconds(self) -> float:
        """Since it was made. To be asked once a second or so: from look to look, only the thread that waited longest
        counts.
        """
        now, waits = time.monotonic(), self._look()
        longest = max((wait - self._waits.get(thread, 0.0) for thread, wait in waits.items()), default=0.0)
        self._seconds += max(0.0, now - self._looked_at - longest)
        self._looked_at, self._waits = now, waits
        return self._seconds

    def _look(self) -> dict[str, float]:
        """How long each thread was ready to run and did not, ever since it was started."""
        found = {}
        for process in self._processes:
            for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with suppress(OSError, IndexError):  # one that ends just now
                    found[str(thread)] = int(thread.read_text().split()[1]) / 1e9
        return found
