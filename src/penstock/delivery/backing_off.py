"""When to try again: soon at first, then less and less often, or when somebody says so."""

import asyncio
import random
import time
from contextlib import suppress

FIRST_SECONDS = 0.1
LAST_SECONDS = 15.0
"""An operator who has mended something does not want to wait longer; `penstock epoch retry` does not wait at all."""


class BackingOff:
    def __init__(self) -> None:
        self.tries = 0
        """That have failed in a row."""
        self._until = 0.0
        self._now = asyncio.Event()

    @property
    def seconds(self) -> float:
        """Until the next try; 0 if that goes on."""
        return max(0.0, self._until - time.monotonic())

    def succeeded(self) -> None:
        self.tries = 0
        self._now.clear()

    def retry(self) -> None:
        """Do not wait any longer; while a try goes on: not after it, should it fail."""
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
