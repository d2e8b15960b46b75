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
    began = time.monotonic()
    while not is_so():
        waited = time.monotonic() - began
        assert waited < seconds, told()
        time.sleep(_pause(waited))


async def eventually(
    is_so: Callable[[], object], told: Callable[[], object] = nothing_more, seconds: float = SECONDS_MAX
) -> None:
    """The same in the event loop."""
    began = time.monotonic()
    while not is_so():
        waited = time.monotonic() - began
        assert waited < seconds, told()
        await asyncio.sleep(_pause(waited))


def _pause(waited: float) -> float:
    """What takes long is looked at less often: to look, most often at a worker's status, takes time of the machine."""
    return min(max(0.005, waited / 20), 0.2)
