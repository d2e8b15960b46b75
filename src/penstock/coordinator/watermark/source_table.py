"""The streams of one connector at a pipeline's place: which are active, and how far each of them has come.

What is kept is what the heads of records say. The connector's disorder is taken off when the watermark is asked for, so
it may be set anew at any time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.types import Buffer
from penstock.protocol.stored.head import Mark, MarkKind, PackedHead, numbers, unpack_head
from penstock.protocol.stored.head_fold import fold_packed
from penstock.protocol.stored.layout import END_OF_TIME, NO_TIME

SILENT = NO_TIME
"""In the place of a highest event time: the stream is active, and no event of it has come."""

Times = dict[int, int]
"""Stream id → highest event time."""


class Slowest(NamedTuple):
    """The stream that is farthest behind; None: all of them wait for the clock. `time` is the watermark, SILENT if
    there is none.
    """

    stream_id: int | None
    time: int


@dataclass(slots=True)
class Clock:
    """How far a clock has come in each segment, by number. It counts where every segment has it."""

    times: Times = field(default_factory=dict)
    segments: int = 0

    @property
    def time(self) -> int:
        """NO_TIME until it is known of every segment."""
        return min(self.times.values()) if 0 < self.segments <= len(self.times) else NO_TIME

    def fold(self, mark: Mark) -> None:
        time = min(mark.value if mark.value is not None else NO_TIME, END_OF_TIME)
        self.times[mark.stream_id] = max(time, self.times.get(mark.stream_id, NO_TIME))
        self.segments = max(self.segments, mark.segments or 1)

    def copy(self) -> "Clock":
        return Clock(dict(self.times), self.segments)


@dataclass(slots=True)
class SourceTable:
    """`declared` has what somebody has said of streams that are active or idle."""

    active: Times = field(default_factory=dict)
    idle: Times = field(default_factory=dict)
    declared: Times = field(default_factory=dict)
    highest: int = NO_TIME
    """Of all events, of whatever stream."""
    promised: int = NO_TIME
    """The highest time that was ever declared."""
    finished: set[int] = field(default_factory=set)
    """Numbers of the segments that have the mark FINISHED."""
    segments: int = 0
    """In how many segments that mark stands; 0: it was not seen yet."""
    clock: Clock = field(default_factory=Clock)
    """Of arrival: no event of whatever stream comes that is before it."""
    idle_clock: Clock = field(default_factory=Clock)
    """It counts while no stream is active."""

    def copy(self) -> "SourceTable":
        times = dict(self.active), dict(self.idle), dict(self.declared)
        clocks = self.clock.copy(), self.idle_clock.copy()
        return SourceTable(*times, self.highest, self.promised, set(self.finished), self.segments, *clocks)

    def __len__(self) -> int:
        return len(self.active) + len(self.idle)

    @property
    def has_finished(self) -> bool:
        """The source has ended for good, and all of it is behind this place."""
        return 0 < self.segments <= len(self.finished)

    def watermark(self, disorder_us: int) -> int | None:
        """The least of the active streams' watermarks, SILENT if one has none yet; or the clock of arrival, if that is
        higher. None if no stream is active.
        """
        return max(self._least(disorder_us), self.clock.time) if self.active else None

    def _least(self, disorder_us: int) -> int:
        active, declared = self.active, self.declared
        if not declared:
            return behind(min(active.values()), disorder_us)
        plain = [time for stream_id, time in active.items() if stream_id not in declared]
        said = [max(active[i] - disorder_us, time) for i, time in declared.items() if i in active]
        least = [behind(min(plain), disorder_us)] if plain else []
        return min([*least, *said, END_OF_TIME])

    def slowest(self, disorder_us: int) -> Slowest | None:
        """Whose watermark that is."""
        if not self.active:
            return None
        time = self._least(disorder_us)
        if time < self.clock.time:
            return Slowest(None, self.clock.time)
        declared = self.declared
        if not declared:
            highest = min(self.active.values())
            return Slowest(next(i for i, each in self.active.items() if each == highest), time)
        of = (max(behind(each, disorder_us), declared.get(i, NO_TIME)) for i, each in self.active.items())
        return Slowest(next(i for i, each in zip(self.active, of, strict=True) if each == time), time)

    def left(self, disorder_us: int) -> int:
        """The watermark when no stream is active: the highest that any of them has had. NO_TIME if there was none."""
        return max(behind(self.highest, disorder_us), self.promised, self.clock.time, self.idle_clock.time)

    # Folding.

    def begin(self, open_before: Iterable[int], finished: Iterable[int], segments: int) -> None:
        """What was so before the place from which it is folded: streams that are open, segments that have ended."""
        self.active |= dict.fromkeys(open_before, SILENT)
        self.finished |= {*finished}
        self.segments = segments if self.finished else 0

    def fold(self, heads: Iterable[Buffer]) -> int:
        """Take in records of one segment, in order; returns how many events they hold. Raises Damaged."""
        events = 0
        for run in _runs(head for data in heads if (head := unpack_head(data)) is not None):
            for mark in run[0].marks:
                self._before(mark)
            self._events(run)
            for mark in run[0].marks:
                self._behind(mark)
            events += sum(head.count for head in run)
        return events

    def _before(self, mark: Mark) -> None:
        """What stands before the events of its record."""
        if mark.kind in (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN, MarkKind.WATERMARK):
            before = self.idle.pop(mark.stream_id, SILENT)
            self.active.setdefault(mark.stream_id, before)
        if mark.kind is MarkKind.WATERMARK and mark.value is not None:
            declared = min(mark.value, END_OF_TIME)
            self.declared[mark.stream_id] = max(declared, self.declared.get(mark.stream_id, NO_TIME))
            self.promised = max(declared, self.promised)

    def _behind(self, mark: Mark) -> None:
        """What stands behind the events of its record."""
        match mark.kind:
            case MarkKind.ENDED:
                for times in (self.active, self.idle, self.declared):
                    times.pop(mark.stream_id, None)
            case MarkKind.IDLE:
                time = self.active.pop(mark.stream_id, None)
                if time is not None:
                    self.idle[mark.stream_id] = time
            case MarkKind.FINISHED:
                self.finished.add(mark.stream_id)
                self.segments = mark.value or 1
            case MarkKind.CLOCK:
                self.clock.fold(mark)
            case MarkKind.IDLE_CLOCK:
                self.idle_clock.fold(mark)
            case _:
                pass

    def _events(self, heads: list[PackedHead]) -> None:
        if len(heads) == 1:
            ids, times = numbers("Q", heads[0].columns.stream_ids), numbers("q", heads[0].columns.highest_times)
        else:
            folded = fold_packed(heads)
            ids, times = folded.stream_ids, folded.highest_times
        if not ids:
            return
        active, idle = self.active, self.idle
        for stream_id, time in zip(ids, times, strict=True):
            if time == NO_TIME:
                if active.get(stream_id) == SILENT and stream_id not in self.declared:
                    del active[stream_id]  # its events have no times: it holds nothing back
            else:
                before = idle.pop(stream_id, NO_TIME) if idle else NO_TIME
                active[stream_id] = max(time, before, active.get(stream_id, NO_TIME))
        highest = max(times)
        self.highest = max(self.highest, highest)


def behind(time: int, disorder_us: int) -> int:
    """The watermark of a stream whose highest event time this is. SILENT stays so."""
    return time if time == NO_TIME else min(max(time - disorder_us, NO_TIME + 1), END_OF_TIME)


def _runs(heads: Iterator[PackedHead]) -> Iterator[list[PackedHead]]:
    """Heads without marks are taken together; one with marks alone: these stand before its events, or behind them."""
    run: list[PackedHead] = []
    for head in heads:
        if head.marks and run:
            yield run
            run = []
        run.append(head)
        if head.marks:
            yield run
            run = []
    if run:
        yield run
