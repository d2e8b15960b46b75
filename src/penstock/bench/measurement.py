"""What was measured, and the few statistics that benchmarks report."""

from collections.abc import Sequence
from dataclasses import dataclass

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a server's processor time went to: its own code, or the kernel on its behalf."""

    user: float = 0.0
    system: float = 0.0

    def since(self, before: "Cpu", seconds: float) -> "Cpu":
        """Cores that were busy, on average over the `seconds` from `before` to now."""
        return Cpu((self.user - before.user) / seconds, (self.system - before.system) / seconds)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one contender did in one round. `events` are acknowledged ones, all inside `seconds`."""

    events: int
    seconds: float
    event_bytes: int
    latencies_ms: tuple[float, ...] = ()
    read_mb_per_s: float | None = None
    peak_rss_bytes: int = 0
    cpu: Cpu = Cpu()
    """Cores busy under load."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Payload alone: the same figure for the same events, whatever a protocol puts around them."""
        return self.events_per_s * self.event_bytes / MEGABYTE


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours ÷ theirs, round by round: each compares what ran seconds apart. Their median is the
    figure; how far they lie apart is how much it can be trusted.
    """
    return [a / b for a, b in zip(ours, theirs, strict=True)]
