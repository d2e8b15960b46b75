"""The watermark again, straight from its definition: event by event and mark by mark, in plain Python.

It shares nothing with the tables but the words of the marks.
"""

from dataclasses import dataclass, field

from penstock.protocol.stored.head import Mark, MarkKind
from penstock.protocol.stored.layout import END_OF_TIME


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
            if is_timeless:  # nobody knows whether it will have times this time
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

    def has_ended(self) -> bool:
        return bool(self.finished) and len(self.finished) >= [*self.finished.values()][-1]


def watermark(sources: dict[str, Source], disorder: dict[str, int]) -> int | None:
    """Of a pipeline that reads all of them."""
    running = {name: source for name, source in sources.items() if not source.has_ended()}
    if not running:
        return END_OF_TIME
    found = [
        stream.watermark(disorder[name])
        for name, source in running.items()
        for stream in source.streams.values()
        if stream.counts()
    ]
    if not found:
        left = [time - disorder[name] for name, source in running.items() for time in source.ever]
        return max(left + [time for source in running.values() for time in source.promised], default=None)
    return None if None in found else min(time for time in found if time is not None)
