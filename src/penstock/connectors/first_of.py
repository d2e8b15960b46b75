"""Waiting for whichever comes first."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def first_of(*awaited: Awaitable[Any]) -> int:
    """The place of the first that is done; the others are cancelled, and have ended when this returns. Raises what that
    first one raises.
    """
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    place = next(place for place, task in enumerate(tasks) if task in done)
    tasks[place].result()
    return place
