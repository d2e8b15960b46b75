"""When delivery tries again: soon at first, then less and less often, or at once on `penstock epoch retry`."""

import asyncio
import random
import time
from contextlib import suppress

FIRST_SECONDS = 0.1
LAST_SECONDS = 15.0
"""An operator who has fixed something should not wait longer; `penstock epoch retry` does not wait at all."""


class Backoff:
    def __init__(self) -> None:
        self.tries = 0
        """Failures in a row."""
        self._until = 0.0
        self._now = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Until the next try; 0 during one."""
        return max(0.0, self._until - time.monotonic())

    def succeeded(self) -> None:
        self.tries = 0
        self._now.clear()

    def retry(self) -> None:
        """Stop waiting. During a try: do not wait after it if it fails."""
        self._now.set()

    async def wait(self) -> None:
        """After a failure."""
        longest = min(FIRST_SECONDS * 2.0**self.tries, LAST_SECONDS)
        self.tries = min(self.tries + 1, 20)
        delay = random.uniform(longest / 2, longest)
        self._until = time.monotonic() + delay
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._now.wait()
        self._now.clear()
        self._until = 0.0
