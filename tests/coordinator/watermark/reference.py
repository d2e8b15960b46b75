"""A reference implementation of the watermark from its definition: event by event and mark by mark, in plain Python.

It shares only the types of the marks with the tables.
"""

from dataclasses import dataclass, field

from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.head import Mark, MarkKind


@dataclass
class Stream:
    """`events` are the times of its events since it was opened; None stands for one without a time."""

    events: list[int | None] = field(default_factory=list)
    declared: list[int] = field(default_factory=list)
    state: str = "active"

    def counts(self) -> bool:
        is_timeless = bool(self.events) and all(time is None for time in self.events) and not self.declared
        return self.state == "active" and not is_timeless

    def watermark(self, disorder: int) -> int | None:
        known = [time - disorder for time in self.events if time is not None] + self.declared
        return max(known, default=None)


@dataclass
class Source:
    streams: dict[int, Stream] = field(default_factory=dict)
    ever: list[int] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    clocks: dict[MarkKind, dict[int, list[int]]] = field(default_factory=dict)
    """Of each kind of clock, by segment, all that it has shown there."""
    segments: dict[MarkKind, int] = field(default_factory=dict)

    def record(self, events: dict[int, int | None], marks: list[Mark]) -> None:
        for mark in marks:
            self._before(mark)
        for stream_id, time in events.items():
            self._event(stream_id, time)
        for mark in marks:
            self._behind(mark)

    def _before(self, mark: Mark) -> None:
        if mark.kind in (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN, MarkKind.WATERMARK):
            stream = self.streams.setdefault(mark.stream_id, Stream())
            is_timeless = stream.state == "active" and not stream.counts()
            stream.state = "active"
            if is_timeless:  # it may have times this time
                stream.events.clear()
        if mark.kind is MarkKind.WATERMARK:
            assert mark.value is not None
            self.streams[mark.stream_id].declared.append(mark.value)
            self.promised.append(mark.value)

    def _event(self, stream_id: int, time: int | None) -> None:
        if time is None:
            if stream_id in self.streams and not any(t is not None for t in self.streams[stream_id].events):
                self.streams[stream_id].events.append(None)
            return
        stream = self.streams.setdefault(stream_id, Stream())
        stream.state = "active"
        stream.events.append(time)
        self.ever.append(time)

    def _behind(self, mark: Mark) -> None:
        stream = self.streams.get(mark.stream_id)
        if mark.kind is MarkKind.ENDED:
            self.streams.pop(mark.stream_id, None)
        elif mark.kind is MarkKind.IDLE and stream is not None and stream.counts():
            stream.state = "idle"
        elif mark.kind is MarkKind.FINISHED:
            assert mark.value is not None
            self.finished[mark.stream_id] = mark.value
        elif mark.kind in (MarkKind.CLOCK, MarkKind.IDLE_CLOCK):
            assert mark.value is not None
            assert mark.segments is not None
            self.clocks.setdefault(mark.kind, {}).setdefault(mark.stream_id, []).append(mark.value)
            self.segments[mark.kind] = max(mark.segments, self.segments.get(mark.kind, 0))

    def clock(self, kind: MarkKind) -> list[int]:
        """The lowest of the segments' highest marks, in a list; empty if a segment has none."""
        shown = self.clocks.get(kind, {})
        return [min(map(max, shown.values()))] if shown and len(shown) >= self.segments[kind] else []

    def watermark(self, disorder: int) -> int | None:
        """That of the slowest active stream, or the clock's. Only for a source with active streams."""
        found = [stream.watermark(disorder) for stream in self.streams.values() if stream.counts()]
        slowest = [] if None in found else [min(time for time in found if time is not None)]
        return max(slowest + self.clock(MarkKind.CLOCK), default=None)

    def left(self, disorder: int) -> list[int]:
        """The candidates for the watermark if no stream is active."""
        times = [time - disorder for time in self.ever] + self.promised
        return times + self.clock(MarkKind.CLOCK) + self.clock(MarkKind.IDLE_CLOCK)

    def has_ended(self) -> bool:
        return bool(self.finished) and len(self.finished) >= [*self.finished.values()][-1]


def watermark(sources: dict[str, Source], disorder: dict[str, int]) -> int | None:
    """The watermark of a pipeline that reads all of these sources."""
    running = {name: source for name, source in sources.items() if not source.has_ended()}
    if not running:
        return END_OF_TIME
    found = [
        source.watermark(disorder[name])
        for name, source in running.items()
        if any(stream.counts() for stream in source.streams.values())
    ]
    if not found:
        return max((time for name, source in running.items() for time in source.left(disorder[name])), default=None)
    return None if None in found else min(time for time in found if time is not None)
