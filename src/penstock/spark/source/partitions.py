"""How the bytes of an epoch are divided among tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.client.coordinator import CoordinatorClient, InputOffset
from penstock.core.errors import DataLoss
from penstock.core.types import NO_EPOCH
from penstock.protocol.api.pipelines import Range
from penstock.protocol.api.side_outputs import SideKey
from penstock.protocol.stored.names import Source
from penstock.spark.source.options import SourceOptions

log = logging.getLogger(__name__)

PARTITION_BYTES_MIN = 8 << 20
"""A smaller task costs more than it saves: starting one takes about 10 ms, in which one core reads this many bytes."""

SPLITS_A_PARTITION = 4
"""The worker splits each segment separately, at record ends: this many smaller pieces add up to even partitions."""


NO_WORKERS: Mapping[str, str] = MappingProxyType({})


class PlacedRange(NamedTuple):
    """A range, and where a task reads it: the ranges of one epoch may be at several workers."""

    worker: str
    """The HTTP address, as executors reach it; its status has the segment port."""
    piece: Range


def placed(
    options: SourceOptions, ranges: Iterable[Range], workers: Mapping[str, str] = NO_WORKERS
) -> tuple[PlacedRange, ...]:
    """Each range at the worker that has its segment: the load's own, unless `workers` has another for the segment."""
    return tuple(PlacedRange(workers.get(one.segment, options.task_worker), one) for one in ranges)


@dataclass(frozen=True, slots=True)
class SegmentRanges(InputPartition):
    """What one task reads, in order. Each range starts and ends at an event boundary."""

    placed: tuple[PlacedRange, ...]
    epoch: int = NO_EPOCH
    key: SideKey | None = None
    """Of the dead letters of a reader with a codec."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(one.piece for one in self.placed)


@dataclass(frozen=True, slots=True)
class ControlRows(InputPartition):
    """The contents of a batch's control rows: the watermark before and after the batch, in microseconds."""

    epoch: int
    before: int | None
    watermark: int | None


@dataclass(frozen=True, slots=True)
class FusedRanges(InputPartition):
    """What one task of a fused load reads, and the epoch that its events belong to. The first one, number 0, also
    returns the control rows.
    """

    control: ControlRows
    events: SegmentRanges
    number: int


def fused_partitions(control: ControlRows, events: Sequence[SegmentRanges]) -> list[FusedRanges]:
    """At least one, for the control rows."""
    return [FusedRanges(control, one, number) for number, one in enumerate(events or [SegmentRanges(())])]


def control_partition(start: InputOffset, end: InputOffset) -> ControlRows:
    """One per batch, however many epochs it contains."""
    assert end.epoch is not None, "a control-only load names a pipeline"
    return ControlRows(end.epoch, start.watermark, end.watermark)


def plan_partitions(
    coordinator: CoordinatorClient,
    options: SourceOptions,
    start: InputOffset,
    end: InputOffset,
    left_out: Sequence[Range] = (),
    *,
    is_fresh: bool = False,
    workers: Mapping[str, str] = NO_WORKERS,
) -> list[SegmentRanges]:
    """Everything between the offsets, contiguous and in order, without what is left out. Raises DataLoss if bytes are
    gone, unless the options allow continuing without them. `is_fresh`: the worker has just cut a pipeline's epoch
    there, so it has the bytes, and a small epoch needs no further request; `workers` are those of the cut.
    """
    start = _without_unread(coordinator, start, end, options.sources)
    ranges = ranges_between(start, end, fail_on_data_loss=options.fail_on_data_loss)
    ranges = without(ranges, left_out)
    if is_fresh and ranges and _parts(options, ranges) == 1:
        return [SegmentRanges(placed(options, ranges, workers))]
    return split_ranges(coordinator, options, ranges)


def split_ranges(
    coordinator: CoordinatorClient, options: SourceOptions, ranges: Sequence[Range]
) -> list[SegmentRanges]:
    """The ranges as partitions, in their order. Raises DataLoss as above."""
    if not ranges:
        return []
    parts = _parts(options, ranges)
    found = coordinator.splits(
        ranges,
        parts * SPLITS_A_PARTITION,
        bytes_min=PARTITION_BYTES_MIN // SPLITS_A_PARTITION,
        skip_lost=not options.fail_on_data_loss,
    )
    for lost in found.lost:
        log.warning("%s is lost: continuing without it (failOnDataLoss=false)", lost)
    return packed(placed(options, found.splits, found.workers), parts)


def _parts(options: SourceOptions, ranges: Sequence[Range]) -> int:
    return worthwhile(ranges, options.min_partitions or os.cpu_count() or 1)


def _without_unread(
    coordinator: CoordinatorClient, start: InputOffset, end: InputOffset, sources: Sequence[str]
) -> InputOffset:
    """Without the segments that this epoch does not read although they are not lost: those of sources that are not
    linked, or were not linked when the epoch was planned. Spark may run it again after they are.
    """
    missing = start.segments.keys() - end.segments.keys()
    parsed = [*map(Source.parse, sources)]
    linked = {segment for segment in missing if any(one.owns(segment) for one in parsed)}
    lost = linked - coordinator.resolve(sources, "latest").keys() if linked else linked
    return replace(start, segments={name: at for name, at in start.segments.items() if name not in missing - lost})


def ranges_between(start: InputOffset, end: InputOffset, *, fail_on_data_loss: bool) -> list[Range]:
    """The ranges to read, ordered by segment name. A segment that `start` does not name is newer: it is read from its
    beginning. Raises DataLoss if a segment of `start` is gone.
    """
    gone = sorted(start.segments.keys() - end.segments.keys())
    if gone and fail_on_data_loss:
        raise DataLoss(f"segment {gone[0]!r} is gone, and with it everything after {start.segments[gone[0]]}")
    starts = {segment: start.segments.get(segment, 0) for segment in sorted(end.segments)}
    return [Range(segment, at, end.segments[segment]) for segment, at in starts.items() if at < end.segments[segment]]


def without(ranges: Iterable[Range], left_out: Sequence[Range]) -> list[Range]:
    """The ranges without these bytes, in the same order. What is left out does not overlap, and may not be in them."""
    found = []
    for whole in ranges:
        start = whole.start
        holes = sorted((one.start, one.end) for one in left_out if one.segment == whole.segment)
        for hole_start, hole_end in holes:
            if start < hole_start < whole.end:
                found.append(Range(whole.segment, start, hole_start))
            if hole_start < whole.end:
                start = max(start, hole_end)
        if start < whole.end:
            found.append(Range(whole.segment, start, whole.end))
    return found


def worthwhile(ranges: Iterable[Range], parts: int) -> int:
    """How many tasks, up to `parts`, have enough to do."""
    return max(1, min(parts, sum(piece.end - piece.start for piece in ranges) // PARTITION_BYTES_MIN))


def packed(splits: Iterable[PlacedRange], parts: int) -> list[SegmentRanges]:
    """The splits, in their order, as up to `parts` partitions of about the same size; fewer if a task would not be
    worth its cost.
    """
    splits = [*splits]
    total = sum(split.piece.end - split.piece.start for split in splits)
    count = worthwhile([split.piece for split in splits], parts)
    taken: dict[int, list[PlacedRange]] = {}
    before = 0
    for split in splits:
        size = split.piece.end - split.piece.start
        middle = before + size // 2
        _add(taken.setdefault(middle * count // total, []), split)
        before += size
    return [SegmentRanges(tuple(ranges)) for ranges in taken.values()]


def _add(ranges: list[PlacedRange], split: PlacedRange) -> None:
    """A split that continues the last one becomes part of it: a task reads long ranges faster than short ones."""
    worker, piece = split
    if ranges and (ranges[-1].worker, ranges[-1].piece.segment, ranges[-1].piece.end) == (
        worker,
        piece.segment,
        piece.start,
    ):
        piece = Range(piece.segment, ranges.pop().piece.start, piece.end)
    ranges.append(PlacedRange(worker, piece))
