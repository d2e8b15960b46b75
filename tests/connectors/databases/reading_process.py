"""Runs a connector in the real frame, completes what it stores, and prints how much it is, until it is killed.

python -m tests.connectors.databases.reading_process FOLDER TYPE CONFIG
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from penstock.connectors.registry import CONNECTORS
from penstock.protocol.stored.names import connector_segment
from penstock.testing.frame import NAME, Frame


async def main(folder: str, type_name: str, config: dict[str, Any]) -> None:
    async with Frame(Path(folder), CONNECTORS.get(type_name), config) as frame:
        while True:
            complete(frame)
            print(frame.instance.host.counters.events, flush=True)
            await asyncio.sleep(0.01)


def complete(frame: Frame) -> None:
    """Like pipelines, but what is complete stays: the test looks at all of it."""
    segments = [name for route in range(2) if frame.store.exists(name := connector_segment(NAME, route))]
    frame.sources.completion(NAME).advance({name: int(frame.store.info(name).length) for name in segments})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
