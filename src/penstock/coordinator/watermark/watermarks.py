"""The watermark of each pipeline's next cut, folded from the heads of the records in the cut."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.records import Records, RecordView
from penstock.coordinator.settings import CoordinatorSettings
from penstock.coordinator.watermark import source_table
from penstock.coordinator.watermark.output_log import OutputLog, Row
from penstock.coordinator.watermark.source_table import Blocker, StreamTable, Terms, Times, Written, advanced
from penstock.core.errors import PenstockError
from penstock.core.types import NO_EPOCH, Buffer
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.event import END_OF_TIME, NO_TIME
from penstock.protocol.stored.head import OF_SEGMENTS, MarkKind, PackedHead, numbers, unpack_head
from penstock.protocol.stored.names import CONNECTOR_PREFIX, REPLAY_PREFIX, Form, Source
from penstock.store.store import SegmentStore

# A reader of a pipeline's output inherits that pipeline's watermark, as it was at the reader's own position.


class OutputAt(NamedTuple):
    """What is known about an output at a position in it."""

    row: Row | None
    """The last epoch that ends there or before it; None: none is known."""
    is_registered: bool
    """Whether its pipeline is registered."""
    is_at_end: bool


Look = Callable[[Source, int], OutputAt]
Noted = Callable[[Source, Segments, int | None], tuple[bool, int | None]]
"""Whether a stream of Pravega's clients counts, and its watermark at these positions; it was this before."""


def inherited(
    sources: Iterable[str], positions: Segments, before: Mapping[str, int | None], look: Look, noted: Noted
) -> dict[str, int | None]:
    """The watermark of each of these sources that is an output, or a stream whose writers note times; None for one that
    has no watermark yet.

    If nothing is known about the position any more, the watermark is the one in `before`. An output whose pipeline is
    not registered is treated like a stream that has ended: once it is read to its end, it does not count.
    """
    found: dict[str, int | None] = {}
    for source in sorted(sources):
        parsed = Source.parse(source)
        if parsed.form is Form.PRAVEGA:
            counts, time = noted(parsed, positions, before.get(source))
            found |= {source: time} if counts else {}
        segment, port = parsed.segment, parsed.name.partition("/")[2]
        if parsed.form is not Form.OUTPUT or segment is None or port.startswith(REPLAY_PREFIX):
            continue  # replayed dead letters are late anyway: no watermark waits for them
        at = look(parsed, positions.get(segment, 0))
        if not at.is_registered and (at.row is None or at.is_at_end):
            continue
        found[source] = before.get(source) if at.row is None else at.row.watermark
    return found


# Which streams of a connector are already open at the position from which a pipeline starts to read it.
#
# A pipeline may start with the newest data, or with the oldest that retention has left: some streams have started
# before that. A stream is open at the position if its first mention after it is not a start, or if there is no mention
# and the stream is open now. Its highest event time is not known before its next event, so it blocks the watermark
# until then, like a stream that has just started. Otherwise its next events could be late for this pipeline, while
# pipelines that have read it from its start have waited for it.

_BEGINNINGS = (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN)


class FirstMentions:
    """The first mention of each stream in the heads of the records after a position, segment by segment."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.finished: set[int] = set()
        """Numbers of the segments that have the mark FINISHED after the position."""

    def open_before(self, open_now: Iterable[int]) -> set[int]:
        return self.open.union(open_now) - (self.seen - self.open)

    def take(self, heads: Iterable[Buffer]) -> None:
        """Raises Damaged."""
        for data in heads:
            head = unpack_head(data)
            if head is not None:
                self._take(head)

    def _take(self, head: PackedHead) -> None:
        for mark in head.marks:
            if mark.kind is MarkKind.FINISHED:
                self.finished.add(mark.stream_id)
            elif mark.kind in _BEGINNINGS and mark.stream_id not in self.seen:
                self.seen.add(mark.stream_id)
                if mark.was_open:
                    self.open.add(mark.stream_id)
        others = {mark.stream_id for mark in head.marks if mark.kind not in OF_SEGMENTS}
        new = others.union(numbers("Q", head.columns.stream_ids)) - self.seen
        self.seen |= new
        self.open |= new


async def first_mentions(records: Records, segments: Iterable[str], at: Segments) -> FirstMentions:
    """The first mentions in everything that these segments contain after a position. Raises Damaged."""
    first = FirstMentions()
    for segment in segments:
        async for heads in records.heads(segment, at.get(segment, 0), records.end(segment)):
            first.take(head for _, head in heads.found)
    return first


class OpenAt(NamedTuple):
    """The state of a connector where a pipeline starts to read it: streams that are open, segments that have ended for
    good, and how many segments there are.
    """

    streams: Collection[int]
    finished: Collection[int]
    segments: int


class WatermarkView(Protocol):
    """What a pipeline's watermark needs to know about its sources, wherever they are."""

    @property
    def records(self) -> RecordView: ...

    def segments(self, source: str) -> list[str]: ...

    def disorder_us(self, source: str) -> int: ...

    async def open_at(self, source: str, at: Segments) -> OpenAt: ...

    def output_at(self, state: State, source: Source, at: int) -> OutputAt: ...


log = logging.getLogger(__name__)

_BYTES_PER_STREAM = 16 * 1024
"""Bytes of input per stream between two writes of a table: writing it costs a thousandth of them."""


class Folded(NamedTuple):
    """The table at a cut that is not decided yet, its watermark, and the number of connectors' events in it."""

    table: StreamTable
    watermark: int | None
    events: int = 0


class Standing(NamedTuple):
    """What blocks a pipeline's watermark, and for how long it has not moved, as far as this worker knows."""

    blocker: Blocker | None
    unmoved_seconds: float


class _CurrentTable:
    """A pipeline's table at its last cut."""

    def __init__(self, incarnation: int, table: StreamTable, offsets: Segments, now: float) -> None:
        self.incarnation = incarnation
        self.table = table
        self.offsets = dict(offsets)
        self.moved_at = now
        self.folded_bytes = 0
        self.is_written = False
        self.written: Segments = {}
        """The offsets that the table reflected when it was written last, since the worker started."""
        self.written_at = now
        self.without_effect: dict[str, int | None] = {}
        """Watermarks of outputs that are known not to raise the pipeline's own."""
        self.blocker: Blocker | None = None
        self.blocker_for: tuple[StreamTable, dict[str, int | None]] | None = None


class Watermarks:
    """Owns the tables. A table is never half updated: a fold works on a copy, and `keep` replaces the table with it.

    `clock` counts seconds.
    """

    def __init__(
        self,
        store: SegmentStore,
        settings: CoordinatorSettings,
        clock: Callable[[], float],
        outputs: OutputLog,
        views: Callable[[str], WatermarkView],
        noted: Noted = lambda _, __, before: (before is not None, before),
    ) -> None:
        """`views`: of a pipeline."""
        self._noted = noted
        self._store = store
        self._settings = settings
        self._clock = clock
        self._views = views
        self._current: dict[str, _CurrentTable] = {}
        self.outputs = outputs
        store.before_truncate(self._before_truncate)

    async def recover(self, state: State, name: str) -> None:
        """Restore a pipeline's table: read the written one, and fold the heads after it up to the last cut."""
        pipeline, view = state.pipelines[name], self._views(name)
        offsets = pipeline.segments(pipeline.planned)
        table, start = self.written(name, pipeline)
        await self._begin(view, table, pipeline, start)
        for segment, end in offsets.items():
            await self._fold(view, table, segment, start.get(segment, 0), end)
        table.outputs = self._inherited(view, state, pipeline, offsets, table.outputs)
        self._current[name] = _CurrentTable(pipeline.incarnation, table, offsets, self._clock())

    async def recover_or_lose(self, state: State, name: str) -> None:
        """Without its table the watermark misses some streams, but nothing else depends on it."""
        try:
            await self.recover(state, name)
        except PenstockError as error:
            log.error("the table of streams of pipeline %r is lost: %s", name, error)
            self._of(name, state.pipelines[name])

    def written(self, name: str, pipeline: Pipeline) -> Written:
        """The pipeline's table as it was written last, and from where on heads are folded into it. Raises Damaged."""
        found = source_table.read(self._store, name, pipeline.incarnation)
        table, start = found or Written(StreamTable(), {})
        return Written(table, {**_beginning(pipeline), **start})

    def is_recovered(self, name: str, pipeline: Pipeline) -> bool:
        """Or is new, so that there is nothing to recover."""
        current = self._current.get(name)
        if current is not None and current.incarnation == pipeline.incarnation:
            return True
        return pipeline.planned == NO_EPOCH

    def knows(self, name: str, source: str) -> bool:
        """Whether the pipeline's table has the connector."""
        current = self._current.get(name)
        return current is not None and source in current.table.sources

    def retained_from(self, name: str, segment: str, floor: int) -> int:
        """From where on the heads of a segment of another shard are still needed: from `floor`, or from where they are
        not in the written table yet. Writes the table if it is worthwhile by now.
        """
        current, settings = self._current.get(name), self._settings
        if current is None:
            return 0
        wanted = floor - current.written.get(segment, 0)
        is_due = self._clock() - current.written_at >= settings.truncate_seconds or wanted >= settings.truncate_bytes
        if wanted > 0 and is_due and not current.is_written:
            self._write(name, current)
        return min(floor, current.written.get(segment, 0))

    async def fold(self, state: State, name: str, ends: Segments) -> Folded:
        """The table and the watermark at a cut with these ends. Nothing changes before `keep`."""
        pipeline, view = state.pipelines[name], self._views(name)
        table = self._of(name, pipeline).table.copy()
        table.forget(table.sources.keys() - pipeline.sources)
        at = pipeline.segments(pipeline.planned)
        await self._begin(view, table, pipeline, at)
        events = 0
        for segment, end in ends.items():
            events += await self._fold(view, table, segment, at.get(segment, 0), end)
        positions = {**at, **ends}
        table.outputs = self._inherited(view, state, pipeline, positions, table.outputs)
        return Folded(table, advanced(pipeline.watermark, table, _terms(view, pipeline)), events)

    def moved(self, state: State, name: str) -> Folded | None:
        """Like `fold`, for a pipeline that has nothing new to read. None unless the watermark of an output that it
        reads has risen and raises the pipeline's own. Also None soon after the last rise, except for END_OF_TIME.
        """
        pipeline, view = state.pipelines[name], self._views(name)
        current = self._of(name, pipeline)
        table = self._with_outputs(view, state, pipeline, current)
        if table.outputs in (current.table.outputs, current.without_effect):
            return None
        watermark = advanced(pipeline.watermark, table, _terms(view, pipeline))
        if watermark == pipeline.watermark:
            current.without_effect = table.outputs
            return None
        is_soon = self._clock() - current.moved_at < self._settings.watermark_seconds
        return None if is_soon and watermark != END_OF_TIME else Folded(table, watermark)

    def _of(self, name: str, pipeline: Pipeline) -> _CurrentTable:
        current = self._current.get(name)
        if current is None or current.incarnation != pipeline.incarnation:
            current = _CurrentTable(pipeline.incarnation, StreamTable(), _beginning(pipeline), self._clock())
            self._current[name] = current
        return current

    async def _begin(self, view: WatermarkView, table: StreamTable, pipeline: Pipeline, at: Segments) -> None:
        """For connectors that are new to the table, add the streams that are open where the pipeline starts to read.
        If it reads a connector from its beginning, the heads contain them.
        """
        for source in sorted((_terms(view, pipeline).connectors or frozenset()) - table.sources.keys()):
            if any(at.get(segment, 0) for segment in view.segments(source)):
                table.of(source).begin(*await view.open_at(source, at))

    async def _fold(self, view: WatermarkView, table: StreamTable, segment: str, start: int, end: int) -> int:
        """Returns the number of a connector's events. Other segments have no heads."""
        events = 0
        if segment.startswith(CONNECTOR_PREFIX):
            async for heads in view.records.heads(segment, start, end):
                events += table.fold(source_of(segment), (head for _, head in heads.found))
        return events

    def keep(self, name: str, folded: Folded, before: int | None, ends: Segments) -> None:
        """The cut is in the ledger: its table replaces the last one, whose watermark was `before`."""
        current = self._current[name]
        if folded.watermark != before:
            current.moved_at = self._clock()
        current.folded_bytes += sum(end - current.offsets.get(segment, 0) for segment, end in ends.items())
        current.table, current.is_written = folded.table, False
        current.offsets |= ends
        if current.folded_bytes > max(self._settings.table_bytes, _BYTES_PER_STREAM * len(folded.table)):
            try:
                self._write(name, current)
            except PenstockError as error:  # it can also be rebuilt from the heads, only more slowly
                log.warning("the table of streams of pipeline %r could not be written: %s", name, error)
                current.folded_bytes = 0

    def standing(self, state: State, name: str) -> Standing | None:
        """What blocks the watermark at the pipeline's last cut; None if there is no table."""
        pipeline, current = state.pipelines[name], self._current.get(name)
        if current is None or current.incarnation != pipeline.incarnation:
            return None
        view = self._views(name)
        table = self._with_outputs(view, state, pipeline, current)
        inputs = current.table, table.outputs
        if current.blocker_for != inputs:  # once for each cut, because the search is slow
            current.blocker, current.blocker_for = table.blocker(_terms(view, pipeline)), inputs
        return Standing(current.blocker, self._clock() - current.moved_at)

    def read_times(self, source: str) -> tuple[Times, int]:
        """The highest event time of each active stream of a connector, and the highest of all its streams. They come
        from the pipeline that has read the newest events; NO_TIME if no pipeline has read any.
        """
        tables = (current.table.sources.get(source) for current in self._current.values())
        newest = max((one for one in tables if one is not None), key=lambda one: one.highest, default=None)
        return ({}, NO_TIME) if newest is None else (newest.active, newest.highest)

    def _with_outputs(
        self, view: WatermarkView, state: State, pipeline: Pipeline, current: _CurrentTable
    ) -> StreamTable:
        """The table with the current watermarks of outputs. It shares the streams with the original, so fold a copy."""
        table = StreamTable()
        table.sources = {name: source for name, source in current.table.sources.items() if name in pipeline.sources}
        positions = pipeline.segments(pipeline.planned)
        table.outputs = self._inherited(view, state, pipeline, positions, current.table.outputs)
        return table

    def _inherited(
        self, view: WatermarkView, state: State, pipeline: Pipeline, positions: Segments, before: dict[str, int | None]
    ) -> dict[str, int | None]:
        return inherited(pipeline.sources, positions, before, partial(view.output_at, state), self._noted)

    def forget(self, name: str, *, outputs: bool) -> None:
        """The pipeline is gone; with `outputs`, its output is gone too."""
        self._current.pop(name, None)
        if self._store.exists(source_table.table_segment(name)):
            self._store.delete(source_table.table_segment(name))
        if outputs:
            self.outputs.forget(name)

    def _before_truncate(self, segment: str) -> None:
        """A later fold cannot read the heads below the truncation: write the table that they were folded into."""
        for name, current in self._current.items():
            if segment in current.offsets and not current.is_written:
                self._write(name, current)

    def _write(self, name: str, current: _CurrentTable) -> None:
        source_table.write(self._store, name, current.incarnation, Written(current.table, current.offsets))
        current.is_written, current.folded_bytes = True, 0
        current.written, current.written_at = dict(current.offsets), self._clock()


def _terms(view: WatermarkView, pipeline: Pipeline) -> Terms:
    sources = {str(source) for source in map(Source.parse, pipeline.sources) if source.form is Form.CONNECTOR}
    return Terms(frozenset(sources), view.disorder_us)


def _beginning(pipeline: Pipeline) -> Segments:
    """Where the pipeline started to read."""
    found: dict[str, int] = {}
    for spec in pipeline.inputs.values():
        for segment, offset in spec.starting.items():
            found[segment] = min(offset, found.get(segment, offset))
    return found
