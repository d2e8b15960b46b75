"""Waiting for a condition that has no event: for as long as a busy machine may need, and never for a fixed time."""

import asyncio
import time
from collections.abc import Callable

SECONDS_MAX = 120.0
"""No test is about how long something takes: this is for what never happens."""


def nothing_more() -> object:
    return "it never happened"


def until(is_so: Callable[[], object], told: Callable[[], object] = nothing_more, seconds: float = SECONDS_MAX) -> None:
    """Fails with what is `told` then if it never is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)


async def eventually(
    is_so: Callable[[], object], told: Callable[[], object] = nothing_more, seconds: float = SECONDS_MAX
) -> None:
    """The same in the event loop."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, told()
        await asyncio.sleep(0.005)
