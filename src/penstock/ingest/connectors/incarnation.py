"""Ids for streams that cannot resume, from a connector's incarnation, which is durable before the first of them."""

import asyncio

from penstock.core.errors import NoRoom
from penstock.ingest.connector import Connector
from penstock.ingest.connectors.room import LOOK_SECONDS
from penstock.ingest.fleeting import COUNT_MAX, fleeting_id
from penstock.store.journal import Durability


class Incarnation:
    """Of one host: raised at its first stream, and again when its ids are used up."""

    def __init__(self, connector: Connector, durability: Durability, count_max: int = COUNT_MAX) -> None:
        self._connector = connector
        self._durability = durability
        self._count_max = count_max
        self._count = count_max
        self._raising = asyncio.Lock()

    async def begin(self) -> None:
        """Raise it now. Waits for room on the disk."""
        async with self._raising:
            await self._raise()

    async def next_id(self) -> int:
        """One that was never used."""
        while True:
            async with self._raising:
                if self._count >= self._count_max:
                    await self._raise()
            self._count += 1
            found = fleeting_id(self._connector.incarnation, self._count)
            if found not in self._connector.streams:
                return found

    async def _raise(self) -> None:
        while True:
            try:
                self._connector.raise_incarnation()
                break
            except NoRoom:
                await asyncio.sleep(LOOK_SECONDS)
        await self._durability.caught_up()
        self._count = 0
