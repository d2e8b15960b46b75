"""What was measured, and the few statistics that benchmarks report."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one contender did in one round. `events` are acknowledged ones, all inside `seconds`."""

    events: int
    seconds: float
    event_bytes: int
    latencies_ms: tuple[float, ...] = ()
    read_mb_per_s: float | None = None
    peak_rss_bytes: int = 0

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


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: each round compares what ran seconds apart, so that a
    noisy minute weighs on both sides alike."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
