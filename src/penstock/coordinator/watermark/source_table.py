"""The streams of one connector at a pipeline's position: which are active, and the highest event time of each.

A table contains only what the heads of records contain. The connector's disorder is subtracted when the watermark is
computed, so it may be changed at any time.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.state import source_of
from penstock.core.errors import Damaged
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME
from penstock.protocol.stored.head import Mark, MarkKind, PackedHead, fold_packed, numbers, unpack_head
from penstock.protocol.stored.names import COORDINATOR_PREFIX, OUTPUT_PREFIX
from penstock.store.store import SegmentStore

__all__ = ["SILENT", "Blocker", "SourceTable", "StreamTable", "Terms", "Times", "advanced"]

SILENT = NO_TIME
"""Instead of a highest event time: the stream is active, but none of its events has arrived."""

Times = dict[int, int]
"""Stream id → highest event time."""


class Slowest(NamedTuple):
    """The active stream with the lowest watermark; None: they all follow the clock. `time` is the watermark, SILENT
    if there is none.
    """

    stream_id: int | None
    time: int


@dataclass(slots=True)
class Clock:
    """The time of a clock in each segment, by number. It counts once every segment has one."""

    times: Times = field(default_factory=dict)
    segments: int = 0

    @property
    def time(self) -> int:
        """The lowest of the segments' times; NO_TIME until every segment has one."""
        return min(self.times.values()) if 0 < self.segments <= len(self.times) else NO_TIME

    def fold(self, mark: Mark) -> None:
        time = min(mark.value if mark.value is not None else NO_TIME, END_OF_TIME)
        self.times[mark.stream_id] = max(time, self.times.get(mark.stream_id, NO_TIME))
        self.segments = max(self.segments, mark.segments or 1)

    def copy(self) -> "Clock":
        return Clock(dict(self.times), self.segments)


@dataclass(slots=True)
class SourceTable:
    """`declared` has the watermarks that were declared for streams that are active or idle."""

    active: Times = field(default_factory=dict)
    idle: Times = field(default_factory=dict)
    declared: Times = field(default_factory=dict)
    highest: int = NO_TIME
    """The highest event time of all streams."""
    promised: int = NO_TIME
    """The highest time that was ever declared."""
    finished: set[int] = field(default_factory=set)
    """Numbers of the segments that have the mark FINISHED."""
    segments: int = 0
    """How many segments will have that mark; 0: it was not seen yet."""
    clock: Clock = field(default_factory=Clock)
    """The arrival clock: all later events of all streams have this time or a later one."""
    idle_clock: Clock = field(default_factory=Clock)
    """The idle clock, which counts while no stream is active."""

    def copy(self) -> "SourceTable":
        times = dict(self.active), dict(self.idle), dict(self.declared)
        clocks = self.clock.copy(), self.idle_clock.copy()
        return SourceTable(*times, self.highest, self.promised, set(self.finished), self.segments, *clocks)

    def __len__(self) -> int:
        return len(self.active) + len(self.idle)

    @property
    def has_finished(self) -> bool:
        """The source has ended for good, and all of it has been read."""
        return 0 < self.segments <= len(self.finished)

    def watermark(self, disorder_us: int) -> int | None:
        """The lowest of the active streams' watermarks, SILENT if one has none yet; or the arrival clock, if that is
        higher. None if no stream is active.
        """
        return max(self._least(disorder_us), self.clock.time) if self.active else None

    def _least(self, disorder_us: int) -> int:
        active, declared = self.active, self.declared
        if not declared:
            return stream_watermark(min(active.values()), disorder_us)
        plain = [time for stream_id, time in active.items() if stream_id not in declared]
        stated = [max(active[i] - disorder_us, time) for i, time in declared.items() if i in active]
        least = [stream_watermark(min(plain), disorder_us)] if plain else []
        return min([*least, *stated, END_OF_TIME])

    def slowest(self, disorder_us: int) -> Slowest | None:
        """The stream whose watermark `watermark` returns."""
        if not self.active:
            return None
        time = self._least(disorder_us)
        if time < self.clock.time:
            return Slowest(None, self.clock.time)
        declared = self.declared
        if not declared:
            highest = min(self.active.values())
            return Slowest(next(i for i, each in self.active.items() if each == highest), time)
        of = (max(stream_watermark(each, disorder_us), declared.get(i, NO_TIME)) for i, each in self.active.items())
        return Slowest(next(i for i, each in zip(self.active, of, strict=True) if each == time), time)

    def left(self, disorder_us: int) -> int:
        """The watermark when no stream is active: the highest that any stream has had. NO_TIME if there was none."""
        return max(stream_watermark(self.highest, disorder_us), self.promised, self.clock.time, self.idle_clock.time)

    # Folding.

    def begin(self, open_before: Iterable[int], finished: Iterable[int], segments: int) -> None:
        """The state at the position from which it is folded: streams that are open, segments that have ended."""
        self.active |= dict.fromkeys(open_before, SILENT)
        self.finished |= {*finished}
        self.segments = segments if self.finished else 0

    def fold(self, heads: Iterable[Buffer]) -> int:
        """Fold records of one segment, in order; returns how many events they contain. Raises Damaged."""
        events = 0
        for run in _runs(head for data in heads if (head := unpack_head(data)) is not None):
            for mark in run[0].marks:
                self._before(mark)
            self._events(run)
            for mark in run[0].marks:
                self._after(mark)
            events += sum(head.count for head in run)
        return events

    def _before(self, mark: Mark) -> None:
        """Fold a mark that applies before the events of its record."""
        if mark.kind in (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN, MarkKind.WATERMARK):
            before = self.idle.pop(mark.stream_id, SILENT)
            self.active.setdefault(mark.stream_id, before)
        if mark.kind is MarkKind.WATERMARK and mark.value is not None:
            declared = min(mark.value, END_OF_TIME)
            self.declared[mark.stream_id] = max(declared, self.declared.get(mark.stream_id, NO_TIME))
            self.promised = max(declared, self.promised)

    def _after(self, mark: Mark) -> None:
        """Fold a mark that applies after the events of its record."""
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
                    del active[stream_id]  # its events have no times: it does not block the watermark
            else:
                before = idle.pop(stream_id, NO_TIME) if idle else NO_TIME
                active[stream_id] = max(time, before, active.get(stream_id, NO_TIME))
        highest = max(times)
        self.highest = max(self.highest, highest)


def stream_watermark(time: int, disorder_us: int) -> int:
    """The watermark of a stream with this highest event time. SILENT stays SILENT."""
    return time if time == NO_TIME else min(max(time - disorder_us, NO_TIME + 1), END_OF_TIME)


def _runs(heads: Iterator[PackedHead]) -> Iterator[list[PackedHead]]:
    """Groups heads without marks. One with marks is alone, since marks apply before its events or after them."""
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


# A pipeline's watermark is computed from the highest event time of every active stream, at the pipeline's own position.
#
# A stream's watermark is its highest event time minus its connector's disorder, or the declared one if that is higher.
# The pipeline's is the lowest of its streams' watermarks and of those of the outputs that it reads.
#
# - A stream that has started but sent no event blocks it, because its first event time is unknown; a stream whose
#   events have no times does not. Streams that have ended or are idle do not block it.
# - Where events get their times from the worker's clock, the clock's marks set the watermark: no stream blocks it.
# - Where no stream is active, it is the highest that any stream has had, or the time of the clock's marks.
# - A source that has ended for good does not block it. When all sources have ended, it is END_OF_TIME.


class Terms(NamedTuple):
    """What heads do not contain: which connectors are read (None: those that were seen), and their disorder in µs."""

    connectors: frozenset[str] | None = None
    disorder: Callable[[str], int] = lambda _: 0


NO_DISORDER = Terms()


class Blocker(NamedTuple):
    """What blocks a watermark: a stream of a connector, the clock from which a connector's events get their times, or
    an output. The last two have no stream.
    """

    source: str
    stream_id: int | None
    time: int | None
    """Its own watermark; None: it has none yet."""


class StreamTable:
    """The streams of each connector. `outputs` has the watermarks of the pipelines' outputs that are read."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceTable] = {}
        self.outputs: dict[str, int | None] = {}

    def copy(self) -> "StreamTable":
        new = StreamTable()
        new.sources = {name: source.copy() for name, source in self.sources.items()}
        new.outputs = dict(self.outputs)
        return new

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def of(self, source: str) -> SourceTable:
        """The connector's part of the table, created if it is missing."""
        return self.sources.setdefault(source, SourceTable())

    def forget(self, sources: Iterable[str]) -> None:
        """Forget sources that the pipeline no longer reads."""
        for source in [*sources]:
            self.sources.pop(source, None)

    def fold(self, source: str, heads: Iterable[Buffer]) -> int:
        """Fold records of one segment of the connector, in order; returns the number of events. Raises Damaged."""
        return self.of(source).fold(heads)

    def watermark(self, terms: Terms = NO_DISORDER) -> int | None:
        """None while it is unknown, or blocked by a silent stream or by an output without a watermark."""
        watermarks = self._watermarks(terms)
        blocking = [time for time in watermarks.values() if time < END_OF_TIME]
        if blocking:
            found = min(blocking)
        elif watermarks and not self._without_watermark(terms, watermarks):
            found = END_OF_TIME
        else:
            seen = [name for name in self._without_watermark(terms, watermarks) if name in self.sources]
            found = max((self.sources[name].left(terms.disorder(name)) for name in seen), default=NO_TIME)
        return None if found == NO_TIME else found

    def blocker(self, terms: Terms = NO_DISORDER) -> Blocker | None:
        """What blocks the watermark; None if no source is active, or all have ended."""
        watermarks = self._watermarks(terms)
        source = min(watermarks, key=lambda name: watermarks[name], default=None)
        if source is None or watermarks[source] >= END_OF_TIME:
            return None
        if source in self.outputs:
            return Blocker(source, None, self.outputs[source])
        slowest = self.sources[source].slowest(terms.disorder(source))
        assert slowest is not None
        return Blocker(source, slowest.stream_id, None if slowest.time == SILENT else slowest.time)

    def _watermarks(self, terms: Terms) -> dict[str, int]:
        """The watermark of each source that is active or has ended; NO_TIME if it is not known."""
        watermarks = {name: NO_TIME if time is None else min(time, END_OF_TIME) for name, time in self.outputs.items()}
        for name, source in self.sources.items():
            found = END_OF_TIME if source.has_finished else source.watermark(terms.disorder(name))
            if found is not None:
                watermarks[name] = found
        return watermarks

    def _without_watermark(self, terms: Terms, watermarks: Mapping[str, int]) -> list[str]:
        """The connectors without an active stream that have not ended for good."""
        connectors = self.sources.keys() if terms.connectors is None else terms.connectors
        return [name for name in connectors if name not in watermarks]


def advanced(before: int | None, table: StreamTable, terms: Terms = NO_DISORDER) -> int | None:
    """The watermark of the next cut: it never goes back."""
    now = table.watermark(terms)
    return before if now is None else now if before is None else max(before, now)


# A pipeline's table of streams is made durable: it is written from time to time, with the offsets that it reflects.
#
# It is also written before data that it was folded from are truncated, so that a fold never misses a head. An entry is
# `u32 length · msgpack`; a table is one or more entries, the last of which is flagged. It contains what heads contain,
# and nothing that depends on settings.

_LENGTH = struct.Struct(">I")
_ROWS_PER_PART = 200_000
"""At 16 bytes each a part is far below the largest append."""
_ACTIVE, _IDLE, _DECLARED = 0, 1, 2


class Written(NamedTuple):
    """A table as it was written, and the offset that it reflects in each segment."""

    table: StreamTable
    offsets: Segments


def table_segment(pipeline: str) -> str:
    return f"{COORDINATOR_PREFIX}streams/{pipeline}"


def write(store: SegmentStore, pipeline: str, incarnation: int, written: Written) -> None:
    """Replaces the one before: the truncation follows this table in the journal, so is never durable without it."""
    segment = table_segment(pipeline)
    if not store.exists(segment):
        store.create(segment, NO_QUOTA, draining=True)
    start = store.length(segment)
    parts = [*_parts(written.table)]
    for number, part in enumerate(parts, start=1):
        head = [incarnation, number == 1, number == len(parts), dict(written.offsets)]
        packed: bytes = msgpack.packb([*head, _sources(written.table), written.table.outputs, *part])
        store.append(segment, [_LENGTH.pack(len(packed)), packed], draining=True)
    store.truncate(segment, start)


def _sources(table: StreamTable) -> dict[str, list[Any]]:
    """The fields of each source that do not belong to a single stream."""
    return {
        name: [s.highest, s.promised, s.segments, sorted(s.finished), *map(_clock, (s.clock, s.idle_clock))]
        for name, s in table.sources.items()
    }


def _clock(clock: Clock) -> list[Any]:
    return [clock.segments, sorted(clock.times.items())]


def _parts(table: StreamTable) -> Iterator[tuple[str, int, bytes, bytes]]:
    """At least one part: source, kind (active, idle or declared), ids, times."""
    any_rows = False
    for source, streams in table.sources.items():
        for kind, times in ((_ACTIVE, streams.active), (_IDLE, streams.idle), (_DECLARED, streams.declared)):
            ids, values = [*times], [*times.values()]
            for first in range(0, len(ids), _ROWS_PER_PART):
                any_rows = True
                rows = slice(first, first + _ROWS_PER_PART)
                yield source, kind, _little_endian("Q", ids[rows]), _little_endian("q", values[rows])
    if not any_rows:
        yield "", _ACTIVE, b"", b""


def _little_endian(code: str, values: list[int]) -> bytes:
    column = array(code, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def read(store: SegmentStore, pipeline: str, incarnation: int) -> Written | None:
    """The last complete table, if it is of this incarnation; call it when the store is durable."""
    segment = table_segment(pipeline)
    if not store.exists(segment):
        return None
    found: Written | None = None
    table = StreamTable()
    try:
        for number, is_first, is_last, offsets, sources, outputs, *rows in _entries(store, segment):
            if is_first:
                table = StreamTable()
            _add(table, *rows)
            table.outputs = _by_source(outputs)
            if is_last:
                _add_sources(table, sources)
                found = Written(table, offsets) if number == incarnation else None
    except (ValueError, TypeError, struct.error) as error:
        raise Damaged(f"the table of streams (segment {segment!r}) cannot be read: {error}") from None
    return found


def _add(table: StreamTable, source: str, kind: int, ids: bytes, times: bytes) -> None:
    if ids:
        streams = table.of(source)
        column: Times = (streams.active, streams.idle, streams.declared)[kind]
        column.update(zip(numbers("Q", ids), numbers("q", times), strict=True))


def _add_sources(table: StreamTable, sources: dict[str, list[Any]] | int) -> None:
    if isinstance(sources, int):  # an older format: one highest time for all sources
        sources = {name: [sources, NO_TIME, 0, []] for name in table.sources}
    for name, (highest, promised, segments, finished, *clocks) in sources.items():
        found = table.of(name)
        found.highest, found.promised, found.segments, found.finished = highest, promised, segments, set(finished)
        if clocks:  # an older format has none
            found.clock, found.idle_clock = (Clock(dict(times), number) for number, times in clocks)


def _by_source(outputs: dict[str, int | None]) -> dict[str, int | None]:
    """In an older format the keys are segments."""
    return {source_of(name) if name.startswith(OUTPUT_PREFIX) else name: time for name, time in outputs.items()}


def _entries(store: SegmentStore, segment: str) -> Iterator[Any]:
    info = store.info(segment)
    data = bytearray()
    while info.start + len(data) < info.length:
        data += store.read(segment, info.start + len(data), info.length)
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        yield msgpack.unpackb(bytes(data[start:at]), strict_map_key=False)
