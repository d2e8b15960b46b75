"""What runs in a process that is killed: a connector in the real frame, which completes what it stores."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.connectors.registry import CONNECTORS
from penstock.protocol.stored.names import connector_segment
from penstock.testing.frame import NAME, Frame


def read(folder: Path, type_name: str, config: Mapping[str, Any], stored: Any) -> None:
    """Until it is killed. `stored` gets the number of events."""
    asyncio.run(_read(folder, type_name, config, stored))


async def _read(folder: Path, type_name: str, config: Mapping[str, Any], stored: Any) -> None:
    async with Frame(folder, CONNECTORS.get(type_name), config) as frame:
        while True:
            complete(frame)
            stored.value = frame.instance.host.counters.events
            await asyncio.sleep(0.01)


def complete(frame: Frame) -> None:
    """Like pipelines, but what is complete stays: the test looks at all of it."""
    segments = [name for route in range(2) if frame.store.exists(name := connector_segment(NAME, route))]
    frame.sources.completion(NAME).advance({name: int(frame.store.info(name).length) for name in segments})
