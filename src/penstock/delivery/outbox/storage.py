"""What the sink side of hosting needs of the worker's store."""

import asyncio
from dataclasses import dataclass

from penstock.coordinator.records import Records
from penstock.core.types import Position
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore


@dataclass(frozen=True, slots=True)
class Storage:
    store: SegmentStore
    records: Records
    durability: Durability

    async def durable(self, position: Position) -> None:
        """Return when the journal is, up to there: then it can be read."""
        done = asyncio.Event()
        self.durability.after(position, done.set)
        await done.wait()
