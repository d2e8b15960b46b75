"""The watermark of each pipeline's next cut, folded from the heads of the records that it takes in."""

import logging
from collections.abc import Iterable

from penstock.coordinator.machine.state import Pipeline, State, source_of
from penstock.coordinator.messages import Segments
from penstock.coordinator.reading.records import Records
from penstock.coordinator.watermark import table_log
from penstock.coordinator.watermark.stream_table import StreamTable, advanced
from penstock.coordinator.watermark.table_log import Written
from penstock.core.errors import PenstockError
from penstock.protocol.stored.names import CONNECTOR_PREFIX, Form, Source
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_BYTES_PER_STREAM = 16 * 1024
"""A table is written down when so many bytes have come for each of its streams: it costs a thousandth of them."""


class _Kept:
    """A pipeline's table, at the place of its last cut."""

    def __init__(self, incarnation: int, table: StreamTable, offsets: Segments) -> None:
        self.incarnation = incarnation
        self.table = table
        self.offsets = dict(offsets)
        self.folded_bytes = 0
        self.is_written = False


class Watermarks:
    """Tables are owned by it and never half done: a fold works on a copy, which `keep` puts in its place."""

    def __init__(self, store: SegmentStore, records: Records, table_bytes: int) -> None:
        self._store = store
        self._records = records
        self._table_bytes = table_bytes
        self._kept: dict[str, _Kept] = {}
        store.before_truncate(self._before_truncate)

    async def recover(self, name: str, pipeline: Pipeline) -> None:
        """Bring a pipeline's table back: as it was written down, and the heads behind that up to the last cut."""
        offsets = pipeline.segments(pipeline.planned)
        written = table_log.read(self._store, name, pipeline.incarnation)
        table, start = written or Written(StreamTable(), _beginning(pipeline))
        for segment, end in offsets.items():
            await self._fold(table, segment, start.get(segment, 0), end)
        self._kept[name] = _Kept(pipeline.incarnation, table, offsets)

    async def fold(self, state: State, name: str, ends: Segments) -> tuple[StreamTable, int | None]:
        """The table and the watermark at a cut whose segments end so. Nothing is changed before `keep`."""
        pipeline = state.pipelines[name]
        kept = self._kept.get(name)
        if kept is None or kept.incarnation != pipeline.incarnation:
            kept = self._kept[name] = _Kept(pipeline.incarnation, StreamTable(), _beginning(pipeline))
        table = kept.table.copy()
        table.forget(table.active.keys() - pipeline.sources)
        for segment, end in ends.items():
            await self._fold(table, segment, pipeline.position(pipeline.planned, segment), end)
        table.outputs = _outputs(state, pipeline, {**pipeline.segments(pipeline.planned), **ends}, table.outputs)
        return table, advanced(pipeline.watermark, table)

    async def _fold(self, table: StreamTable, segment: str, start: int, end: int) -> None:
        if segment.startswith(CONNECTOR_PREFIX):
            async for heads in self._records.heads(segment, start, end):
                table.fold(source_of(segment), (head for _, head in heads.found))

    def keep(self, name: str, table: StreamTable, ends: Segments) -> None:
        """The cut stands in the ledger: its table takes the place of the last one."""
        kept = self._kept[name]
        kept.folded_bytes += sum(end - kept.offsets.get(segment, 0) for segment, end in ends.items())
        kept.table, kept.is_written = table, False
        kept.offsets |= ends
        if kept.folded_bytes > max(self._table_bytes, _BYTES_PER_STREAM * len(table)):
            try:
                self._write(name, kept)
            except PenstockError as error:  # it can be made from the heads as well, only more slowly
                log.warning("the table of streams of pipeline %r is not written down: %s", name, error)
                kept.folded_bytes = 0

    def forget(self, name: str) -> None:
        """The pipeline is gone."""
        self._kept.pop(name, None)
        if self._store.exists(table_log.table_segment(name)):
            self._store.delete(table_log.table_segment(name))

    def _before_truncate(self, segment: str) -> None:
        """The heads below the truncation are lost to a later fold: write down what was made from them."""
        for name, kept in self._kept.items():
            if segment in kept.offsets and not kept.is_written:
                self._write(name, kept)

    def _write(self, name: str, kept: _Kept) -> None:
        table_log.write(self._store, name, kept.incarnation, Written(kept.table, kept.offsets))
        kept.is_written, kept.folded_bytes = True, 0


def _beginning(pipeline: Pipeline) -> Segments:
    """Where the pipeline began to read."""
    found: dict[str, int] = {}
    for spec in pipeline.inputs.values():
        for segment, offset in spec.starting.items():
            found[segment] = min(offset, found.get(segment, offset))
    return found


def _outputs(state: State, pipeline: Pipeline, ends: Segments, before: dict[str, int | None]) -> dict[str, int | None]:
    """The watermark of each output that is read, at these ends. Of a pipeline that is not registered: none counts."""
    found: dict[str, int | None] = {}
    for source in _output_sources(pipeline.sources):
        producer, _, port = source.name.partition("/")
        segment = source.segment
        if producer in state.pipelines and segment is not None:
            found[segment] = before.get(segment)
            for batch in state.pipelines[producer].batches.values():
                if port in batch.ends and batch.ends[port] <= ends.get(segment, 0):
                    found[segment] = batch.watermark
    return found


def _output_sources(sources: Iterable[str]) -> list[Source]:
    return [parsed for parsed in map(Source.parse, sources) if parsed.form is Form.OUTPUT]
