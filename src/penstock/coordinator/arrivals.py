"""When the bytes of each segment arrived, and how many rows they are: samples in memory, for measurements alone."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

SPACING_SECONDS = 0.1
"""Between two samples of a segment: a latency is at most this much too long, and never too short."""

SAMPLES_MAX = 512
"""Of one segment. When there are more, half of them go, evenly: what is measured stays right within one percent."""


class _Sample(NamedTuple):
    """The bytes [begin, end): none of them arrived before `time`."""

    begin: int
    end: int
    time: float
    rows: int

    def rows_before(self, offset: int) -> int:
        """By their share of the bytes. Cumulative, so that the parts of a sample add up to its rows."""
        inside = min(max(offset, self.begin), self.end) - self.begin
        return self.rows * inside // (self.end - self.begin)


class Arrivals:
    """Of segments, by name. What is not known (it arrived before the worker started, or is pruned) has no time."""

    def __init__(self) -> None:
        self._samples: dict[str, list[_Sample]] = {}
        self._spacing: dict[str, float] = {}

    def note(self, segment: str, end: int, time: float, *, begin: int | None = None, rows: int = 0) -> None:
        """The segment has grown up to `end`. `begin`: where it ended before, if not where the last sample did."""
        samples = self._samples.setdefault(segment, [])
        last = samples[-1] if samples else None
        start = begin if begin is not None else last.end if last is not None else 0
        if end <= start or (last is not None and end <= last.end):
            return
        if last is not None and last.end == start and time - last.time < self._spacing.get(segment, SPACING_SECONDS):
            samples[-1] = _joined(last, _Sample(start, end, time, rows))
        else:
            samples.append(_Sample(start, end, time, rows))
            self._thin(segment)

    def _thin(self, segment: str) -> None:
        samples = self._samples[segment]
        if len(samples) <= SAMPLES_MAX:
            return
        span = samples[-1].time - samples[0].time
        spacing = max(2 * self._spacing.get(segment, SPACING_SECONDS), 2 * span / SAMPLES_MAX)
        kept = samples[:1]
        for sample in samples[1:]:
            if sample.time - kept[-1].time < spacing:
                kept[-1] = _joined(kept[-1], sample)
            else:
                kept.append(sample)
        self._samples[segment], self._spacing[segment] = kept, spacing

    def oldest(self, segment: str, start: int) -> float | None:
        """When the first byte at or after `start` arrived."""
        samples = self._samples.get(segment, [])
        at = bisect_right(samples, start, key=lambda sample: sample.end)
        return samples[at].time if at < len(samples) else None

    def rows(self, segment: str, start: int, end: int) -> int:
        """Between two offsets, as far as the samples know."""
        samples = self._samples.get(segment, [])
        first = bisect_right(samples, start, key=lambda sample: sample.end)
        last = bisect_right(samples, end - 1, key=lambda sample: sample.begin)
        return sum(sample.rows_before(end) - sample.rows_before(start) for sample in samples[first:last])

    def prune(self, segment: str, upto: int) -> None:
        """Nobody will ask for what ends there or before. With few samples left their spacing is short again."""
        samples = self._samples.get(segment, [])
        del samples[: bisect_right(samples, upto, key=lambda sample: sample.end)]
        if len(samples) <= SAMPLES_MAX // 4:
            self._spacing.pop(segment, None)

    def keep(self, segments: Iterable[str]) -> None:
        """Forget all others."""
        kept = {*segments}
        for segment in [segment for segment in self._samples if segment not in kept]:
            del self._samples[segment]
            self._spacing.pop(segment, None)


def _joined(first: _Sample, second: _Sample) -> _Sample:
    return _Sample(first.begin, second.end, min(first.time, second.time), first.rows + second.rows)
