"""Prints a segment's events as they arrive, until the segment is sealed.

python examples/follow.py SEGMENT [HOST:PORT]
"""

import asyncio
import sys

from penstock.client.segments import AsyncSegmentClient


async def main(segment: str, address: str) -> None:
    async with AsyncSegmentClient(address) as client:
        async for event in client.events(segment, follow=True):
            print(event.offset, bytes(event.data).decode(errors="replace"), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:7101"))
