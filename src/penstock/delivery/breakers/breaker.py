"""One breaker: open, closed with a reason, or half-open while a probe is under way."""

from dataclasses import dataclass

from penstock.config.deployment import BreakerSpec


@dataclass(slots=True)
class Breaker:
    """Closed while there is a `reason`. `due` is when a probe may be made, if ever."""

    reason: str | None = None
    due: float | None = None
    is_half_open: bool = False
    waits: int = 0
    """Back-offs since something was delivered: each is twice as long as the one before."""

    @property
    def is_open(self) -> bool:
        return self.reason is None

    def open(self) -> None:
        self.reason, self.due, self.is_half_open = None, None, False

    def close(self, reason: str) -> None:
        """Until `open`: whoever closes it so knows when that is."""
        self.reason, self.due, self.is_half_open = reason, None, False

    def trip(self, reason: str, now: float, spec: BreakerSpec, *, is_told: bool = False) -> None:
        """It failed. One that is closed already stays as it was, but for a probe that has failed, and for one that was
        asked to open and waits for no probe yet: `is_told`.
        """
        if not self.is_open and not self.is_half_open and not (is_told and self.due is None):
            return
        wait = min(spec.half_open_seconds * 2.0**self.waits, spec.half_open_seconds_max)
        self.waits = min(self.waits + 1, _WAITS_MAX)
        self.reason, self.due, self.is_half_open = reason, now + wait, False

    def begin_probe(self, now: float) -> bool:
        """Whether it was due."""
        if self.due is None or now < self.due:
            return False
        self.due, self.is_half_open = None, True
        return True

    def defer_probe(self) -> None:
        """It cannot be made now; it is due as soon as it can."""
        if self.is_half_open:
            self.due, self.is_half_open = 0.0, False

    def delivered(self) -> bool:
        """Something was taken: the back-off begins anew. Whether this was the probe, so that it is open now."""
        if self.is_half_open:
            self.open()
            self.waits = 0
            return True
        if self.is_open:
            self.waits = 0
        return False

    def proved(self) -> None:
        self.waits = 0


_WAITS_MAX = 60
"""Far more than any back-off needs to reach its longest; so that the power stays a number."""
