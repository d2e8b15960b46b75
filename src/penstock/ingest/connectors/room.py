"""Room in a connector: within its quota, and on the disk. Many streams wait for it together."""

import asyncio
from collections.abc import Callable

from penstock.ingest.connector import Connector

LOOK_SECONDS = 0.05
"""Between two looks, while somebody waits: room is made by pipelines, a few times a second."""


class Room:
    """`there` is looked up each time: some microseconds."""

    def __init__(self, connector: Connector, check: Callable[[], None]) -> None:
        """`check` raises StoreFailed where there will never be room again."""
        self._connector = connector
        self._check = check
        self._looking: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
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
