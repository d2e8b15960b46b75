"""Room in a connector: within its quota, and on the disk. Many streams wait for it together."""

import asyncio
from collections.abc import Callable

from penstock.ingest.connector import Connector
from penstock.ingest.connectors.window import Window

LOOK_SECONDS = 0.05
"""Between two looks, while somebody waits: room is made by pipelines, a few times a second."""


class Room:
    """`there` is looked up anew each time: some microseconds."""

    def __init__(self, connector: Connector, window: Window, check: Callable[[], None]) -> None:
        """What is in the window counts for the quota as well. `check` raises StoreFailed where there will never be room
        again.
        """
        self._connector = connector
        self._window = window
        self._check = check
        self._looking: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
        quota = self._connector.settings.quota_bytes
        if quota is not None and self._connector.unfinished_bytes + self._window.in_flight_bytes >= quota:
            return False
        return self._connector.has_room()

    async def wait(self) -> None:
        """Return when there may be room. One task looks for all who wait. Raises StoreFailed."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        while not self.there:
            self._check()
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
