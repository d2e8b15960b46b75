"""How the bytes of an epoch are divided among tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.coordinator import CoordinatorClient, InputOffset
from penstock.client.segments.range_reader import READ_BYTES, Connected, read_range
from penstock.core.errors import Damaged, DataLoss, RequestError, SegmentTruncated
from penstock.protocol.api.pipelines import Range
from penstock.protocol.stored.bulk import Events, decode
from penstock.protocol.stored.names import Source
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.spark.source.arrow import SegmentBatches, StreamNames
from penstock.spark.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PARTITION_BYTES_MIN = 8 << 20
"""A smaller task costs more than it saves: starting one takes about 10 ms, in which one core reads this many bytes."""

SPLITS_A_PARTITION = 4
"""The worker splits each segment separately, at record ends: this many smaller pieces add up to even partitions."""


@dataclass(frozen=True, slots=True)
class SegmentRanges(InputPartition):
    """What one task reads, in order. Each range starts and ends at an event boundary."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ControlRows(InputPartition):
    """The contents of a batch's control rows: the watermark before and after the batch, in microseconds."""

    epoch: int
    before: int | None
    watermark: int | None


def control_partition(start: InputOffset, end: InputOffset) -> ControlRows:
    """One per batch, however many epochs it contains."""
    assert end.epoch is not None, "a control-only load names a pipeline"
    return ControlRows(end.epoch, start.watermark, end.watermark)


def plan_partitions(
    coordinator: CoordinatorClient, options: SourceOptions, start: InputOffset, end: InputOffset
) -> list[SegmentRanges]:
    """Everything between the offsets, contiguous and in order. Raises DataLoss if bytes are gone, unless the options
    allow continuing without them.
    """
    start = _without_unlinked(start, end, options.sources)
    ranges = ranges_between(start, end, fail_on_data_loss=options.fail_on_data_loss)
    if not ranges:
        return []
    parts = worthwhile(ranges, options.min_partitions or os.cpu_count() or 1)
    found = coordinator.splits(
        ranges,
        parts * SPLITS_A_PARTITION,
        bytes_min=PARTITION_BYTES_MIN // SPLITS_A_PARTITION,
        skip_lost=not options.fail_on_data_loss,
    )
    for lost in found.lost:
        log.warning("%s is lost: continuing without it (failOnDataLoss=false)", lost)
    return packed(found.splits, parts)


def _without_unlinked(start: InputOffset, end: InputOffset, sources: Sequence[str]) -> InputOffset:
    """Without the segments of sources that are no longer read: those segments are not lost."""
    parsed = [*map(Source.parse, sources)]
    gone = start.segments.keys() - end.segments.keys()
    unlinked = {segment for segment in gone if not any(one.owns(segment) for one in parsed)}
    return replace(start, segments={name: at for name, at in start.segments.items() if name not in unlinked})


def ranges_between(start: InputOffset, end: InputOffset, *, fail_on_data_loss: bool) -> list[Range]:
    """The ranges to read, ordered by segment name. A segment that `start` does not name is newer: it is read from its
    beginning. Raises DataLoss if a segment of `start` is gone.
    """
    gone = sorted(start.segments.keys() - end.segments.keys())
    if gone and fail_on_data_loss:
        raise DataLoss(f"segment {gone[0]!r} is gone, and with it everything after {start.segments[gone[0]]}")
    starts = {segment: start.segments.get(segment, 0) for segment in sorted(end.segments)}
    return [Range(segment, at, end.segments[segment]) for segment, at in starts.items() if at < end.segments[segment]]


def worthwhile(ranges: Iterable[Range], parts: int) -> int:
    """How many tasks, up to `parts`, have enough to do."""
    return max(1, min(parts, sum(piece.end - piece.start for piece in ranges) // PARTITION_BYTES_MIN))


def packed(splits: Iterable[Range], parts: int) -> list[SegmentRanges]:
    """The splits, in their order, as up to `parts` partitions of about the same size; fewer if a task would not be
    worth its cost.
    """
    splits = [*splits]
    total = sum(split.end - split.start for split in splits)
    count = worthwhile(splits, parts)
    taken: dict[int, list[Range]] = {}
    before = 0
    for split in splits:
        size = split.end - split.start
        middle = before + size // 2
        taken.setdefault(middle * count // total, []).append(split)
        before += size
    return [SegmentRanges(tuple(ranges)) for ranges in taken.values()]


# A task: bytes of segments in, Arrow batches out.

BATCH_BYTES = 4 << 20
"""Decoded at once, into one Arrow batch: from this size on, the cost per batch is negligible."""


def read_partition(options: SourceOptions, columns: tuple[str, ...], partition: SegmentRanges) -> Iterator[Any]:
    """The events of the ranges, in order, as RecordBatches. Raises DataLoss if bytes are gone, unless the options allow
    continuing without them.
    """
    freeze()
    with hinted():
        worker = link(options.worker, *options.tls)
        for piece in partition.ranges:
            batches = SegmentBatches(piece.segment, columns, lambda name: stream_names(options.worker, name))
            for events in read_events(worker, piece, batches, fail_on_data_loss=options.fail_on_data_loss):
                yield batches.batch(events)


def read_events(
    worker: Connected, piece: Range, batches: SegmentBatches, *, fail_on_data_loss: bool
) -> Iterator[Events]:
    """Yields nothing for bytes without events. Raises DataLoss, and Damaged for bytes that are not whole events."""
    start = piece.start
    while start < piece.end:
        try:
            yield from _decoded(worker, Range(piece.segment, start, piece.end), batches)
            return
        except SegmentTruncated as error:
            if fail_on_data_loss:
                raise lost(piece.segment, start, min(error.start, piece.end)) from error
            log.warning("%s: continuing at %s without the bytes before it (failOnDataLoss=false)", piece, error.start)
            start = max(error.start, start + 1)


def _decoded(worker: Connected, piece: Range, batches: SegmentBatches) -> Iterator[Events]:
    waiting = _Waiting(min(BATCH_BYTES + READ_BYTES, piece.end - piece.start))
    offset = piece.start
    with closing(read_range(worker, piece.segment, piece.start, piece.end)) as pieces:
        for at, data in pieces:
            waiting.add(data)
            is_last = at + len(data) == piece.end
            del data  # the receive buffer is used again for the next piece
            if len(waiting) >= BATCH_BYTES or is_last:
                events = decode(waiting.data, offset, batches.kind, batches.wanted)
                waiting.drop(events.end - offset)
                offset = events.end
                if len(events):
                    yield events
    if len(waiting):
        raise Damaged(
            f"segment {piece.segment!r}: the range that ends at {piece.end} ends inside the event at {offset}",
            "Its writer did not append whole events.",
        )


class _Waiting:
    """Bytes that wait to be decoded. The memory is allocated once, and grows only for an event that does not fit."""

    def __init__(self, size: int) -> None:
        self._memory = bytearray(size)
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def data(self) -> memoryview:
        """Valid until something is added or dropped."""
        return memoryview(self._memory)[: self._filled]

    def add(self, data: memoryview) -> None:
        end = self._filled + len(data)
        if end > len(self._memory):
            self._memory = bytearray(self.data) + bytearray(2 * end - self._filled)
        self._memory[self._filled : end] = data
        self._filled = end

    def drop(self, count: int) -> None:
        """Drop the first `count` bytes."""
        left = self._memory[count : self._filled]
        self._memory[: len(left)] = left
        self._filled = len(left)


def lost(segment: str, start: int, end: int) -> DataLoss:
    return DataLoss(
        f"segment {segment!r}: the bytes from {start} to {end} were removed before they were read",
        "Retention has overtaken this reader. With the option failOnDataLoss=false it continues without them.",
    )


@cache
def stream_names(worker: str, connector: str) -> StreamNames:
    """Cached for the lifetime of the Python worker."""
    return StreamNames(lambda ids: coordinator(worker).stream_names(connector, ids))


# `spark.read.format("penstock")`: the events stored now, once.


class BatchReader(DataSourceReader):
    """The start and the end of the batch are fixed when Spark plans it; later events are not in it."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with hinted(), CoordinatorClient(options.worker) as coordinator:
            end = InputOffset(coordinator.resolve(options.sources, options.ending))
            _check_known(options.sources, end)
            start = InputOffset(coordinator.resolve(options.sources, options.starting))
            # For an empty list of partitions Spark would invent one of its own.
            return plan_partitions(coordinator, options, start, end) or [SegmentRanges(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:

        assert isinstance(partition, SegmentRanges)
        return read_partition(self._options, self._columns, partition)


def _check_known(sources: Sequence[str], end: InputOffset) -> None:
    """A stream waits for sources that do not exist yet; a batch that reads one is an error."""
    for source in map(Source.parse, sources):
        if not any(map(source.owns, end.segments)):
            raise RequestError(f"source {str(source)!r} not found", "List them: penstock status")
