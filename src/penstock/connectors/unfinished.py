"""Deliveries that failed half-way: how far each got, so that this process does not send what was sent again."""

from collections.abc import Callable
from typing import Generic, TypeVar

_COUNT_MAX = 1000
"""One for each stream that waits. The oldest is forgotten, and sent again from its beginning."""

P = TypeVar("P")


class Unfinished(Generic[P]):
    """By the names of deliveries, which are the same when they are repeated."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._found: dict[str, P] = {}

    def take(self, name: str) -> P:
        """How far the delivery got; from its beginning, if it is not known."""
        return self._found.pop(name) if name in self._found else self._make()

    def keep(self, name: str, progress: P) -> None:
        if name:
            self._found[name] = progress
            if len(self._found) > _COUNT_MAX:
                del self._found[next(iter(self._found))]
