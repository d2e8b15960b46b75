"""When delivery retries: soon at first, then less and less often, or at once on `penstock epoch retry`."""

import asyncio
import time
from contextlib import suppress

from penstock.core.retry import Pauses, RetryPolicy

RETRIES = RetryPolicy(first_seconds=0.1, max_seconds=15.0)
"""An operator who has fixed something should not wait longer; `penstock epoch retry` does not wait at all."""


class Backoff:
    def __init__(self) -> None:
        self._pauses = Pauses(RETRIES)
        self._until = 0.0
        self._now = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Until the next attempt; 0 during one."""
        return max(0.0, self._until - time.monotonic())

    @property
    def tries(self) -> int:
        """Consecutive failures."""
        return self._pauses.failures

    def succeeded(self) -> None:
        self._pauses.reset()
        self._now.clear()

    def retry(self) -> None:
        """Stop waiting. If called during an attempt: do not wait if it fails."""
        self._now.set()

    async def wait(self) -> None:
        """Wait after a failure."""
        delay = self._pauses.next()
        self._until = time.monotonic() + delay
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._now.wait()
        self._now.clear()
        self._until = 0.0
