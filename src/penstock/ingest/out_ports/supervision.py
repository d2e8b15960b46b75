"""A connector's `run`, restarted after a back-off whenever it fails."""

import logging
import random
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from penstock.core.errors import PenstockError
from penstock.protocol.api.deployment import ReconnectSpec

log = logging.getLogger(__name__)

_POWER_MAX = 60
"""Far more failures than any back-off needs to reach its limit; keeps the power finite."""


class Supervision:
    """Of one connector. `failed` gets the reason of each failure, and the seconds until the next try."""

    def __init__(
        self,
        name: str,
        spec: ReconnectSpec,
        failed: Callable[[str, float], None],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._name = name
        self._spec = spec
        self._failed = failed
        self._uniform = uniform
        self.failures = 0
        """In a row."""

    def succeeded(self) -> None:
        """It is connected: the back-off starts again from its first pause."""
        self.failures = 0

    async def run(self, once: Callable[[], Awaitable[None]]) -> None:
        """Until it returns. Raises the last error when all tries are used up."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(self._has_failed),
            wait=self._pause,
            stop=self._is_enough,
            before_sleep=self._report,
            reraise=True,
        ):
            with attempt:
                await once()

    def _has_failed(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failures += 1
        if not isinstance(error, (PenstockError, OSError)):
            log.error("connector %r failed", self._name, exc_info=error)
        return True

    def _is_enough(self, _: RetryCallState) -> bool:
        return self._spec.tries is not None and self.failures >= self._spec.tries

    def _pause(self, _: RetryCallState) -> float:
        """Between half of the limit and all of it, so that many do not come back at once."""
        power = min(self.failures - 1, _POWER_MAX)
        limit = min(self._spec.first_seconds * self._spec.factor**power, self._spec.max_seconds)
        return self._uniform(limit / 2, limit)

    def _report(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        seconds = state.next_action.sleep if state.next_action is not None else 0.0
        self._failed(text_of(error), seconds)


def text_of(error: BaseException | None) -> str:
    """Never empty: some errors have no text, and get their type's name."""
    return str(error) or type(error).__name__
