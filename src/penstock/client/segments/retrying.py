"""When to try again: after a pause that grows, with full jitter so that many clients do not come back at once."""

from typing import Any

from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

TIMEOUT_SECONDS = 30.0
"""How long a worker may be silent when it owes a reply: a slow disk takes seconds, one that is gone takes for ever."""

RETRY_SECONDS = 60.0
"""How long to try again before the caller is told: enough for a worker to be restarted and to recover."""

_PAUSE_SECONDS_FIRST = 0.05
_PAUSE_SECONDS_MAX = 2.0


def retrying(retry_seconds: float, *on: type[Exception]) -> Retrying:
    """To be iterated: each attempt is a context manager. The last error is raised when the time is up."""
    return Retrying(**_policy(retry_seconds, on))


def async_retrying(retry_seconds: float, *on: type[Exception]) -> AsyncRetrying:
    return AsyncRetrying(**_policy(retry_seconds, on))


def _policy(retry_seconds: float, on: tuple[type[Exception], ...]) -> dict[str, Any]:
    return {
        "retry": retry_if_exception_type(on),
        "wait": wait_random_exponential(multiplier=_PAUSE_SECONDS_FIRST, max=_PAUSE_SECONDS_MAX),
        "stop": stop_after_delay(retry_seconds),
        "reraise": True,
    }
