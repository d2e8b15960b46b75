"""Waiting for a condition that has no event to wait for: as long as a busy machine may need, never a fixed time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

SECONDS_MAX = 120.0
"""Generous, since no test is about how long something takes: only for what never happens."""


def nothing_more() -> object:
    return "it never happened"


def until(
    condition: Callable[[], object], describe: Callable[[], object] = nothing_more, seconds: float = SECONDS_MAX
) -> None:
    """If the condition never holds, fails with what `describe` returns then."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, describe()
        time.sleep(_pause(waited))


async def eventually(
    condition: Callable[[], object], describe: Callable[[], object] = nothing_more, seconds: float = SECONDS_MAX
) -> None:
    """The same in the event loop."""
    await eventually_with(asyncio.sleep, condition, describe, seconds)


async def eventually_with(
    pause: Callable[[float], Awaitable[object]],
    condition: Callable[[], object],
    describe: Callable[[], object] = nothing_more,
    seconds: float = SECONDS_MAX,
) -> None:
    """The same where something else has to run in each pause, of which it gets the seconds."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, describe()
        await pause(_pause(waited))


def _pause(waited: float) -> float:
    """The longer the wait, the rarer the checks: most of them request a worker's status, which costs CPU time."""
    return min(max(0.005, waited / 20), 0.2)
