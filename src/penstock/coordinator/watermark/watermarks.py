"""The watermark of each pipeline's next cut, folded from the heads of the records that it takes in."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.records import Records, Sources
from penstock.coordinator.settings import Connectors, CoordinatorSettings
from penstock.coordinator.watermark import source_table
from penstock.coordinator.watermark.output_log import OutputLog, Row
from penstock.coordinator.watermark.source_table import Held, StreamTable, Terms, Written, advanced
from penstock.core.errors import PenstockError
from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.stored.event import END_OF_TIME
from penstock.protocol.stored.head import OF_SEGMENTS, MarkKind, PackedHead, numbers, unpack_head
from penstock.protocol.stored.names import CONNECTOR_PREFIX, REPLAY_PREFIX, Form, Source
from penstock.store.store import SegmentStore

# The watermarks that a reader of pipelines' outputs inherits: each is its pipeline's, at the reader's own place.

Find = Callable[[str, Pipeline | None, str, int], Row | None]


def inherited(
    state: State,
    sources: Iterable[str],
    positions: Segments,
    before: Mapping[str, int | None],
    find: Find,
    end: Callable[[str], int],
) -> dict[str, int | None]:
    """By source, of those of these sources that are outputs; None for one that has no watermark yet.

    Where nothing is known of the place any more, it is as it was `before`. An output whose pipeline is not registered
    is as a stream that has ended: once it is read to its `end`, it does not count.
    """
    found: dict[str, int | None] = {}
    for source in sorted(sources):
        parsed = Source.parse(source)
        producer, _, port = parsed.name.partition("/")
        segment = parsed.segment
        if parsed.form is not Form.OUTPUT or segment is None or port.startswith(REPLAY_PREFIX):
            continue  # letters that are sent through again are late by nature: nobody waits for them
        at, pipeline = positions.get(segment, 0), state.pipelines.get(producer)
        row = find(producer, pipeline, port, at)
        if pipeline is None and (row is None or at >= end(segment)):
            continue
        found[source] = before.get(source) if row is None else row.watermark
    return found


# Which streams of a connector are open where a pipeline begins to read it, though they began before that place.
#
# A pipeline may begin with the newest data, or with the oldest that retention has left: then streams have begun
# before. A stream is open there if the first that comes of it is no beginning, or if nothing comes of it and it is
# open now. How far it has come is not known before its next event, so it holds the watermark back until then, as one
# does that has just begun: otherwise what it sends next could be late, though all who have read it from its beginning
# have waited for it.

_BEGINNINGS = (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN)


class FirstMentions:
    """What comes first of each stream, of the heads of records behind a place, segment by segment."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.finished: set[int] = set()
        """Numbers of the segments that have the mark FINISHED behind the place."""

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
    """In all that there is of these segments behind a place. Raises Damaged."""
    first = FirstMentions()
    for segment in segments:
        async for heads in records.heads(segment, at.get(segment, 0), records.end(segment)):
            first.take(head for _, head in heads.found)
    return first


log = logging.getLogger(__name__)

_BYTES_PER_STREAM = 16 * 1024
"""A table is written down when so many bytes have come for each of its streams: it costs a thousandth of them."""


class Folded(NamedTuple):
    """The table at a cut that is not decided yet, the watermark there, and the number of connectors' events in it."""

    table: StreamTable
    watermark: int | None
    events: int = 0


class Standing(NamedTuple):
    """What holds a pipeline's watermark back, and for how long it has not moved, as far as this worker knows."""

    held: Held | None
    unmoved_seconds: float


class _Kept:
    """A pipeline's table, at the place of its last cut."""

    def __init__(self, incarnation: int, table: StreamTable, offsets: Segments, now: float) -> None:
        self.incarnation = incarnation
        self.table = table
        self.offsets = dict(offsets)
        self.moved_at = now
        self.folded_bytes = 0
        self.is_written = False
        self.looked_at: dict[str, int | None] = {}
        """Watermarks of outputs for which it was found out that they change nothing."""
        self.held: Held | None = None
        self.held_in: tuple[StreamTable, dict[str, int | None]] | None = None


class Watermarks:
    """Tables are owned by it and never half done: a fold works on a copy, which `keep` puts in its place.

    `clock` counts seconds.
    """

    def __init__(
        self,
        store: SegmentStore,
        records: Records,
        settings: CoordinatorSettings,
        clock: Callable[[], float],
        connectors: Connectors,
    ) -> None:
        self._store = store
        self._records = records
        self._settings = settings
        self._clock = clock
        self._connectors = connectors
        self._sources = Sources(store, records)
        self._kept: dict[str, _Kept] = {}
        self.outputs = OutputLog(store)
        store.before_truncate(self._before_truncate)

    async def recover(self, state: State, name: str) -> None:
        """Bring a pipeline's table back: as it was written down, and the heads behind that up to the last cut."""
        pipeline = state.pipelines[name]
        offsets = pipeline.segments(pipeline.planned)
        written = source_table.read(self._store, name, pipeline.incarnation)
        table, start = written or Written(StreamTable(), {})
        start = {**_beginning(pipeline), **start}
        await self._begin(table, pipeline, start)
        for segment, end in offsets.items():
            await self._fold(table, segment, start.get(segment, 0), end)
        table.outputs = self._inherited(state, pipeline, offsets, table.outputs)
        self._kept[name] = _Kept(pipeline.incarnation, table, offsets, self._clock())

    async def fold(self, state: State, name: str, ends: Segments) -> Folded:
        """The table and the watermark at a cut whose segments end so. Nothing is changed before `keep`."""
        pipeline = state.pipelines[name]
        table = self._of(name, pipeline).table.copy()
        table.forget(table.sources.keys() - pipeline.sources)
        at = pipeline.segments(pipeline.planned)
        await self._begin(table, pipeline, at)
        events = 0
        for segment, end in ends.items():
            events += await self._fold(table, segment, at.get(segment, 0), end)
        positions = {**at, **ends}
        table.outputs = self._inherited(state, pipeline, positions, table.outputs)
        return Folded(table, advanced(pipeline.watermark, table, self._terms(pipeline)), events)

    def moved(self, state: State, name: str) -> Folded | None:
        """As `fold`, for a pipeline that has nothing new to read: None unless an output that it reads carries a higher
        watermark by now, so that its own rises. Not so soon after the last rise, but for the end of all time.
        """
        pipeline = state.pipelines[name]
        kept = self._of(name, pipeline)
        table = self._with_outputs(state, pipeline, kept)
        if table.outputs in (kept.table.outputs, kept.looked_at):
            return None
        watermark = advanced(pipeline.watermark, table, self._terms(pipeline))
        if watermark == pipeline.watermark:
            kept.looked_at = table.outputs
            return None
        is_soon = self._clock() - kept.moved_at < self._settings.watermark_seconds
        return None if is_soon and watermark != END_OF_TIME else Folded(table, watermark)

    def _of(self, name: str, pipeline: Pipeline) -> _Kept:
        kept = self._kept.get(name)
        if kept is None or kept.incarnation != pipeline.incarnation:
            kept = _Kept(pipeline.incarnation, StreamTable(), _beginning(pipeline), self._clock())
            self._kept[name] = kept
        return kept

    def _terms(self, pipeline: Pipeline) -> Terms:
        sources = {str(source) for source in map(Source.parse, pipeline.sources) if source.form is Form.CONNECTOR}
        return Terms(frozenset(sources), self._connectors.disorder_us)

    def _inherited(
        self, state: State, pipeline: Pipeline, positions: Segments, before: dict[str, int | None]
    ) -> dict[str, int | None]:
        return inherited(state, pipeline.sources, positions, before, self.outputs.find, self._records.end)

    async def _begin(self, table: StreamTable, pipeline: Pipeline, at: Segments) -> None:
        """Of connectors that nothing is known of yet, which streams are open where the pipeline begins with them. Where
        it has all from the beginning, the heads say so.
        """
        for source in sorted((self._terms(pipeline).connectors or frozenset()) - table.sources.keys()):
            segments = self._sources.segments(source)
            if any(at.get(segment, 0) for segment in segments):
                open_now, has_finished = self._connectors.open_streams(source), self._connectors.has_finished(source)
                first = await first_mentions(self._records, segments, at)
                has_finished = has_finished and not first.seen  # else it goes on, for whoever begins behind its end
                finished = {*range(len(segments))} - first.finished if has_finished else ()
                table.of(source).begin(first.open_before(open_now), finished, len(segments))

    async def _fold(self, table: StreamTable, segment: str, start: int, end: int) -> int:
        """How many events of a connector are there. Other segments have no heads."""
        events = 0
        if segment.startswith(CONNECTOR_PREFIX):
            async for heads in self._records.heads(segment, start, end):
                events += table.fold(source_of(segment), (head for _, head in heads.found))
        return events

    def keep(self, name: str, folded: Folded, before: int | None, ends: Segments) -> None:
        """The cut stands in the ledger: its table takes the place of the last one, whose watermark was `before`."""
        kept = self._kept[name]
        if folded.watermark != before:
            kept.moved_at = self._clock()
        kept.folded_bytes += sum(end - kept.offsets.get(segment, 0) for segment, end in ends.items())
        kept.table, kept.is_written = folded.table, False
        kept.offsets |= ends
        if kept.folded_bytes > max(self._settings.table_bytes, _BYTES_PER_STREAM * len(folded.table)):
            try:
                self._write(name, kept)
            except PenstockError as error:  # it can be made from the heads as well, only more slowly
                log.warning("the table of streams of pipeline %r is not written down: %s", name, error)
                kept.folded_bytes = 0

    def standing(self, state: State, name: str) -> Standing | None:
        """At the pipeline's last cut; None if nothing is known of it."""
        pipeline, kept = state.pipelines[name], self._kept.get(name)
        if kept is None or kept.incarnation != pipeline.incarnation:
            return None
        table = self._with_outputs(state, pipeline, kept)
        looked_for = kept.table, table.outputs
        if kept.held_in != looked_for:  # it is looked for once for each cut, for that takes its time
            kept.held, kept.held_in = table.held(self._terms(pipeline)), looked_for
        return Standing(kept.held, self._clock() - kept.moved_at)

    def _with_outputs(self, state: State, pipeline: Pipeline, kept: _Kept) -> StreamTable:
        """The table, with the watermarks that outputs carry by now. It shares the streams: fold a copy."""
        table = StreamTable()
        table.sources = {name: source for name, source in kept.table.sources.items() if name in pipeline.sources}
        positions = pipeline.segments(pipeline.planned)
        table.outputs = self._inherited(state, pipeline, positions, kept.table.outputs)
        return table

    def forget(self, name: str, *, outputs: bool) -> None:
        """The pipeline is gone; with `outputs` what it has put out is, too."""
        self._kept.pop(name, None)
        if self._store.exists(source_table.table_segment(name)):
            self._store.delete(source_table.table_segment(name))
        if outputs:
            self.outputs.forget(name)

    def _before_truncate(self, segment: str) -> None:
        """The heads below the truncation are lost to a later fold: write down what was made from them."""
        for name, kept in self._kept.items():
            if segment in kept.offsets and not kept.is_written:
                self._write(name, kept)

    def _write(self, name: str, kept: _Kept) -> None:
        source_table.write(self._store, name, kept.incarnation, Written(kept.table, kept.offsets))
        kept.is_written, kept.folded_bytes = True, 0


def _beginning(pipeline: Pipeline) -> Segments:
    """Where the pipeline began to read."""
    found: dict[str, int] = {}
    for spec in pipeline.inputs.values():
        for segment, offset in spec.starting.items():
            found[segment] = min(offset, found.get(segment, offset))
    return found
