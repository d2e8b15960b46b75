"""When to retry: after a pause that grows with each failure, up to a maximum, and is partly random.

Loops run on tenacity (`retrying`, `async_retrying`). Event-driven code counts its failures and calls `pause`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

Uniform: TypeAlias = Callable[[float, float], float]

_POWER_MAX = 60
"""By then every pause has long reached its maximum; the bound keeps the power finite."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    first_seconds: float
    max_seconds: float
    factor: float = 2.0
    jitter: float = 0.5
    """The random part of a pause, so that many clients do not retry at once: 0 for none of it, 1 for all."""

    def pause(self, failures: int, uniform: Uniform = random.uniform) -> float:
        """Seconds to wait after this many consecutive failures (at least 1)."""
        longest = min(self.first_seconds * self.factor ** min(failures - 1, _POWER_MAX), self.max_seconds)
        return uniform(longest * (1 - self.jitter), longest)

    def retrying(self, seconds_max: float, *on: type[Exception]) -> Retrying:
        """Call it with a function and its arguments, or iterate over it: each attempt is a context manager. Raises the
        last error when the time is up.
        """
        return Retrying(**self._arguments(seconds_max, on))

    def async_retrying(self, seconds_max: float, *on: type[Exception]) -> AsyncRetrying:
        """Like `retrying`, for coroutine functions and `async for`."""
        return AsyncRetrying(**self._arguments(seconds_max, on))

    def _arguments(self, seconds_max: float, on: tuple[type[Exception], ...]) -> dict[str, Any]:
        return {
            "retry": retry_if_exception_type(on),
            "wait": self._wait,
            "stop": stop_after_delay(seconds_max),
            "reraise": True,
        }

    def _wait(self, state: RetryCallState) -> float:
        return self.pause(state.attempt_number)


class Pauses:
    """The pauses of a policy, one after another; `reset` starts over."""

    def __init__(self, policy: RetryPolicy, uniform: Uniform = random.uniform) -> None:
        self._policy = policy
        self._uniform = uniform
        self.failures = 0
        """Consecutive failures so far."""

    def next(self) -> float:
        """The pause after one more failure."""
        self.failures += 1
        return self._policy.pause(self.failures, self._uniform)

    def reset(self) -> None:
        """Start over; call it after a success."""
        self.failures = 0
