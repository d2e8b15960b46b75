"""Runs what the cores of the clients request. A core is a generator: it yields calls, and is sent what each returned,
or thrown what it raised. So one core decides for the blocking and for the asyncio client, and nothing in it waits.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

C = TypeVar("C")
T = TypeVar("T")


def run_steps(steps: Generator[C, Any, T], call: Callable[[C], object]) -> T:
    """Returns the generator's result. Anything but an Exception, such as Ctrl-C, ends it in the middle."""
    try:
        step = next(steps)
        while True:
            try:
                result = call(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_steps_async(steps: Generator[C, Any, T], call: Callable[[C], Awaitable[object]]) -> T:
    """As `run_steps`, while the loop continues."""
    try:
        step = next(steps)
        while True:
            try:
                result = await call(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
