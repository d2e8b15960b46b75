"""What the middle of a sink wants done, for the shells to do: calls that write, wait and sync.

The middle is written as generators: each yields an Effect, is sent what the call returned, or is thrown what it
raised. So one and the same code decides for the blocking sink and for the asyncio one, and nothing in it waits.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of the author's code, or of the transaction log."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()


Steps: TypeAlias = Generator[Effect, Any, T]


def perform(steps: Steps[T]) -> T:
    """Do all of it here and now. What is not an Exception, Ctrl-C for one, ends it in the middle."""
    try:
        effect = next(steps)
        while True:
            try:
                result = effect.call(*effect.args)
            except Exception as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
