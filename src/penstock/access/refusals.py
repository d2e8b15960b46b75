"""Requests that were refused for lack of access: counted by port, logged, and slowed down where there are many."""

import logging
from collections import Counter
from enum import Enum

from penstock.core.errors import PenstockError
from penstock.core.logs import quoted

REFUSALS_AT_ONCE = 100
"""Refused without a delay: an application whose token was revoked may ask so often, from all its tasks at once."""
REFUSALS_PER_SECOND = 100.0
"""After that. A refusal takes well under a millisecond, so that they leave most of the worker's time to others."""
REFUSAL_SECONDS_MAX = 5.0
"""The longest delay: a refused request takes memory until its delay is over, even if its peer is gone. Long enough that
the 500 connections of a port keep to REFUSALS_PER_SECOND."""


class Port(Enum):
    HTTP = "http"
    SEGMENT = "segment"
    CONNECTOR = "connector"
    CONTROLLER = "controller"


class Refusals:
    """Of one worker, since it started. A reason never contains a credential."""

    def __init__(self) -> None:
        self._counts = Counter(dict.fromkeys((Port.HTTP, Port.SEGMENT, Port.CONNECTOR), 0))

    def expect(self, port: Port) -> None:
        """The worker has this port, too."""
        self._counts.setdefault(port, 0)

    def counts(self) -> list[tuple[Port, int]]:
        return [*self._counts.items()]

    def count(self, port: Port) -> None:
        """For a refusal that is logged elsewhere."""
        self._counts[port] += 1

    def add(self, port: Port, peer: str, error: PenstockError, *, is_logged: bool = True) -> None:
        """Lines are limited for each port."""
        self.count(port)
        if is_logged:
            logging.getLogger(f"{__name__}.{port.value}").warning("%s was refused: %s", peer, quoted(error))


class RefusalPace:
    """Of one port. An unauthenticated peer waits after a refusal before it can ask again: not for the first refusals,
    but when there are many. Otherwise peers that ask as fast as they are refused would have most of the worker's time.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def delay(self, now: float) -> float:
        """Counts a refusal. Returns how many seconds its peer waits."""
        earliest = now - REFUSALS_AT_ONCE / REFUSALS_PER_SECOND
        self._next = min(max(self._next, earliest) + 1 / REFUSALS_PER_SECOND, now + REFUSAL_SECONDS_MAX)
        return max(self._next - now, 0.0)
