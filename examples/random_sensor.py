"""A sensor that measures ten times a second, with asyncio. It keeps no history: what was not stored is measured again.

python examples/random_sensor.py [HOST:PORT [COUNT]]
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator

from penstock.client import AsyncSource, Message


async def main(address: str, last: int) -> None:
    async def measure(after: int | None) -> AsyncIterator[Message]:
        for number in range((after or 0) + 1, last + 1):
            await asyncio.sleep(0.1)
            celsius = round(random.gauss(20, 2), 2)
            yield Message(number, json.dumps({"celsius": celsius}).encode(), int(time.time() * 1000), b"roof")

    source = AsyncSource(address, source="sensors", on_ack=lambda _, number: print(f"{number} measurements are safe"))
    source.stream("roof", measure)
    await source.run()


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7100"
    asyncio.run(main(address, int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize))
