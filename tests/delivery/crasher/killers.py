"""Which part is killed when."""

import random
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tests.delivery.crasher.events import PROGRAMS
from tests.delivery.crasher.system import SINKS

PAUSE_SECONDS_MAX = 5.0
"""The longest time between two kills; the average is half of it."""

DOWN_SECONDS_MAX = 1.5
"""How long a killed part sometimes stays away."""

WEIGHTS = {"worker": 3, "driver": 1} | dict.fromkeys(SINKS, 2) | dict.fromkeys(PROGRAMS, 1)

HASTY = 0.1
"""The probability of killing a driver that has output nothing since its last start. With 1 there would be no progress:
a driver takes longer to start than the pause between two kills.
"""


class Kill(NamedTuple):
    part: str
    down_seconds: float = 0.0


class Killer(Protocol):
    def next(self, share: float) -> Kill | None:
        """The part to kill now, if any, given the share of all messages that has come out."""


class Scripted:
    """Each part once, when a given share of all messages has come out."""

    def __init__(self, script: Sequence[tuple[float, str]]) -> None:
        self._script = [*script]

    def next(self, share: float) -> Kill | None:
        if self._script and share >= self._script[0][0]:
            return Kill(self._script.pop(0)[1])
        return None


class Random:
    """Any part, at any time, for `seconds`."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._random = random.Random(seed)
        self._until = time.monotonic() + seconds
        self._at = self._later()
        self._share_at_driver_start = 0.0

    def next(self, share: float) -> Kill | None:
        now = time.monotonic()
        if not self._at <= now < self._until:
            return None
        self._at = self._later()
        (part,) = self._random.choices([*WEIGHTS], [*WEIGHTS.values()])
        down = self._random.choice((0.0, self._random.uniform(0, DOWN_SECONDS_MAX)))
        hasty = self._random.random() < HASTY
        if part == "driver":
            if share <= self._share_at_driver_start and not hasty:
                return None
            self._share_at_driver_start = share
        return Kill(part, down)

    def _later(self) -> float:
        return time.monotonic() + self._random.uniform(0, PAUSE_SECONDS_MAX)
