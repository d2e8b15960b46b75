"""Where to connect next, and when: pauses that grow, with full jitter so that many sources do not come back at once."""

import random
from collections import deque
from collections.abc import Callable

from penstock.client.segments.address import Address
from penstock.client.source.failures import Lost, Restarted, parse_address
from penstock.core.errors import ProtocolError, RequestError

PAUSE_SECONDS_FIRST = 0.05
PAUSE_SECONDS_MAX = 5.0

RESTARTS_MAX = 16
"""RESTARTs in a row, without progress, that are not failures: workers that send us around in a circle are one."""

STEADY_SECONDS = 10.0
"""A connection that lasted so long was a good one, even if nothing was to be sent."""


class Pauses:
    """Each is a random part of a limit that doubles, up to a largest one."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._count = 0

    def next(self) -> float:
        limit = min(PAUSE_SECONDS_FIRST * 2 ** min(self._count, 30), PAUSE_SECONDS_MAX)
        self._count += 1
        return self._uniform(0.0, limit)


class Reconnecting:
    """The address to use, and the time since things began to fail.

    A RESTART's address is tried first, and the one that we were given again when nobody answers there.
    """

    def __init__(
        self, home: Address, retry_seconds: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._home = home
        self._addresses = deque((home,))
        self._retry_seconds = retry_seconds
        self._uniform = uniform
        self.progressed()

    @property
    def address(self) -> Address:
        return self._addresses[0]

    def progressed(self) -> None:
        """The last connection was of use: what failed before it does not count any more."""
        self._pauses = Pauses(self._uniform)
        self._failing_since: float | None = None
        self._restarts = 0

    def not_connected(self) -> None:
        """Nobody answers at this address."""
        self._addresses.rotate()

    def pause(self, error: Lost, now: float) -> float:
        """Seconds to wait before the next connection. Raises the error when the time for trying again is over."""
        if isinstance(error, Restarted):
            self._move(error.address)
            self._restarts += 1
            if self._restarts <= RESTARTS_MAX:
                return self._pauses.next()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._retry_seconds:
            raise error
        return self._pauses.next()

    def _move(self, text: str) -> None:
        if not text:
            return
        try:
            target = parse_address(text)
        except RequestError:
            raise ProtocolError(f"RESTART: the worker at {self.address} sent us to {text!r:.100}") from None
        self._addresses = deque(dict.fromkeys((target, self._home)))
