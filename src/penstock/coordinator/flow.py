"""What flows through pipelines and to their sinks, and how long it takes: for /status and /metrics.

All of it is in memory and counted since the worker started; no decision depends on it.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.coordinator.machine.state import CUTS_MAX, MergedEpoch, Pipeline, State
from penstock.protocol.api.pipelines import Segments, Staged
from penstock.protocol.stored.names import output_segment

# When the bytes of each segment arrived, and how many rows they are: samples in memory, for measurements alone.

SPACING_SECONDS = 0.1
"""Between two samples of a segment: a latency is at most this much too long, and never too short."""

SAMPLES_MAX = 512
"""Samples of one segment. Beyond it, neighbours are joined: measurements stay right within one percent."""


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
    """By segment name. Bytes that arrived before the worker started, or whose samples are pruned, have no time."""

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
        joined = samples[:1]
        for sample in samples[1:]:
            if sample.time - joined[-1].time < spacing:
                joined[-1] = _joined(joined[-1], sample)
            else:
                joined.append(sample)
        self._samples[segment], self._spacing[segment] = joined, spacing

    def oldest(self, segment: str, start: int) -> float | None:
        """When the first byte at or after `start` arrived."""
        samples = self._samples.get(segment, [])
        at = bisect_right(samples, start, key=lambda sample: sample.end)
        return samples[at].time if at < len(samples) else None

    def rows(self, segment: str, start: int, end: int) -> int:
        """The number of rows between two offsets, as far as the samples know."""
        samples = self._samples.get(segment, [])
        first = bisect_right(samples, start, key=lambda sample: sample.end)
        last = bisect_right(samples, end - 1, key=lambda sample: sample.begin)
        return sum(sample.rows_before(end) - sample.rows_before(start) for sample in samples[first:last])

    def prune(self, segment: str, upto: int) -> None:
        """Forget what ends there or before. With few samples left, their spacing is short again."""
        samples = self._samples.get(segment, [])
        del samples[: bisect_right(samples, upto, key=lambda sample: sample.end)]
        if len(samples) <= SAMPLES_MAX // 4:
            self._spacing.pop(segment, None)

    def keep(self, segments: Iterable[str]) -> None:
        """Forget all other segments."""
        known = {*segments}
        for segment in [segment for segment in self._samples if segment not in known]:
            del self._samples[segment]
            self._spacing.pop(segment, None)


def _joined(first: _Sample, second: _Sample) -> _Sample:
    return _Sample(first.begin, second.end, min(first.time, second.time), first.rows + second.rows)


BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds: from a fast epoch to a sink that was away for half an hour."""


class Distribution:
    """Durations in seconds: the count in each bucket and, last, above all of them; their sum, and the newest."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0
        self.last: float | None = None

    def observe(self, seconds: float) -> None:
        self.last = max(0.0, seconds)
        self.counts[bisect_left(BUCKETS, self.last)] += 1
        self.sum += self.last


@dataclass(slots=True)
class _Epoch:
    number: int
    cut_at: float
    arrived: float | None
    """When the first of its input arrived; None if it has no input, or the time is not known."""
    merged_at: float | None = None


class PastEpoch(NamedTuple):
    """A complete epoch."""

    number: int
    arrived: float | None
    cut_at: float
    merged_at: float | None
    complete_at: float


PAST_MAX = 100
"""Complete epochs of a pipeline that are remembered."""


class PipelineFlow:
    """The measurements of one pipeline. An epoch is measured when it is complete."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.rows_in = 0
        self.bytes_in = 0
        self.rows_out: dict[str, int] = {}
        """By port."""
        self.duration = Distribution()
        """From the cut to completion."""
        self.processing = Distribution()
        """From the cut to the merge."""
        self.delivering = Distribution()
        """From the merge to completion."""
        self.latency = Distribution()
        """From the arrival of an epoch's first input to its completion."""
        self.open: deque[_Epoch] = deque(maxlen=CUTS_MAX)
        """Epochs that are not complete: no more are ever cut."""
        self.past: deque[PastEpoch] = deque(maxlen=PAST_MAX)

    def running_since(self) -> float | None:
        """When the first epoch was cut that is not merged yet; None if there is none, or it was cut before the worker
        started.
        """
        return next((epoch.cut_at for epoch in self.open if epoch.merged_at is None), None)

    def complete(self, upto: int, now: float) -> None:
        while self.open and self.open[0].number <= upto:
            epoch = self.open.popleft()
            self.past.append(PastEpoch(epoch.number, epoch.arrived, epoch.cut_at, epoch.merged_at, now))
            self.duration.observe(now - epoch.cut_at)
            if epoch.merged_at is not None:
                self.processing.observe(epoch.merged_at - epoch.cut_at)
                self.delivering.observe(now - epoch.merged_at)
            if epoch.arrived is not None:
                self.latency.observe(now - epoch.arrived)


@dataclass(slots=True)
class SinkFlow:
    """What was delivered to one sink."""

    rows: int = 0
    epochs: int = 0


@dataclass(slots=True)
class Flow:
    """`clock` counts seconds. Belongs to the thread that owns the store."""

    clock: Callable[[], float]
    pipelines: dict[str, PipelineFlow] = field(default_factory=dict)
    sinks: dict[tuple[str, str], SinkFlow] = field(default_factory=dict)
    """By pipeline and sink."""
    _arrivals: Arrivals = field(default_factory=Arrivals)
    _unsampled_since: float | None = None
    """When the first group became durable after the last sample; None if there was none."""

    def of(self, name: str, pipeline: Pipeline) -> PipelineFlow:
        flow = self.pipelines.setdefault(name, PipelineFlow(pipeline.incarnation))
        if flow.incarnation != pipeline.incarnation:  # it was reset: its epochs count from 0 again
            flow.incarnation = pipeline.incarnation
            flow.open.clear()
            flow.past.clear()
        return flow

    def cut(self, name: str, pipeline: Pipeline, ends: Segments, rows: int) -> tuple[int, int]:
        """The next epoch of `pipeline` ends at `ends`. `rows`: those of segments whose heads were counted. Returns the
        rows and bytes of the epoch.
        """
        now = self.clock()
        arrived = now if self._unsampled_since is None else self._unsampled_since
        starts = {segment: pipeline.position(pipeline.planned, segment) for segment in ends}
        for segment, end in ends.items():
            self._arrivals.note(segment, end, arrived)
        times = [self._arrivals.oldest(segment, start) for segment, start in starts.items()]
        flow = self.of(name, pipeline)
        rows += sum(self._arrivals.rows(one, start, ends[one]) for one, start in starts.items())
        size = sum(ends[segment] - start for segment, start in starts.items())
        flow.rows_in += rows
        flow.bytes_in += size
        known = [time for time in times if time is not None]
        flow.open.append(_Epoch(pipeline.next_epoch, now, min(known, default=None)))
        return rows, size

    def merged(self, name: str, pipeline: Pipeline, epoch: MergedEpoch, staged: Sequence[Staged]) -> None:
        """Its output counts as having arrived when its input did: so the latency of a pipeline that reads the output
        is measured from the original events.
        """
        now, flow = self.clock(), self.of(name, pipeline)
        merged = [one for one in flow.open if epoch.start < one.number <= epoch.end]
        for one in merged:
            one.merged_at = now
        arrived = min((one.arrived for one in merged if one.arrived is not None), default=now)
        for port, (_, rows) in _by_port(staged).items():
            flow.rows_out[port] = flow.rows_out.get(port, 0) + rows
        for port, (length, rows) in _by_port(one for one in staged if not one.target).items():
            end = epoch.ends[port]
            self._arrivals.note(output_segment(name, port), end, arrived, begin=end - length, rows=rows)

    def delivered(self, name: str, rows: Mapping[str, int]) -> None:
        """An epoch of a pipeline was delivered to these sinks."""
        for sink, count in rows.items():
            flow = self.sinks.setdefault((name, sink), SinkFlow())
            flow.rows += count
            flow.epochs += 1

    def settle(self, state: State) -> None:
        """After each durable group: epochs may be complete, and something may have arrived."""
        now = self.clock()
        if self._unsampled_since is None:
            self._unsampled_since = now
        for name, flow in self.pipelines.items():
            pipeline = state.pipelines.get(name)
            if flow.open and pipeline is not None and pipeline.incarnation == flow.incarnation:
                flow.complete(pipeline.complete, now)

    def sample(self, state: State, ends: Callable[[], Segments]) -> None:
        """Now and then. `ends`: how long the segments are that pipelines read; not asked for if nothing has arrived."""
        if self._unsampled_since is None:
            return
        self._forget(state)
        found = ends()
        self._arrivals.keep(found)
        for segment, end in found.items():
            self._arrivals.note(segment, end, self._unsampled_since)
        for segments in state.released.values():
            for segment, upto in segments.items():
                self._arrivals.prune(segment, upto)
        self._unsampled_since = None

    def _forget(self, state: State) -> None:
        """Forget pipelines that are dropped and sinks that are unbound."""
        bound = {(name, sink) for name, pipeline in state.pipelines.items() for sink in pipeline.sinks}
        self.pipelines = {name: flow for name, flow in self.pipelines.items() if name in state.pipelines}
        self.sinks = {key: flow for key, flow in self.sinks.items() if key in bound}


def _by_port(staged: Iterable[Staged]) -> dict[str, tuple[int, int]]:
    """Bytes and rows."""
    found: dict[str, tuple[int, int]] = {}
    for one in staged:
        length, rows = found.get(one.port, (0, 0))
        found[one.port] = length + one.length, rows + (one.rows or 0)
    return found
