"""How the bytes of an epoch are divided among tasks."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from penstock.client.coordinator import CoordinatorClient, InputOffset, Range
from penstock.core.errors import DataLoss
from penstock.protocol.stored.names import Source
from penstock.spark.source_options import SourceOptions

log = logging.getLogger(__name__)

PARTITION_BYTES_MIN = 8 << 20
"""Below it a task costs more than it saves: some 10 ms each, in which one core reads as much."""

SPLITS_A_PARTITION = 4
"""The worker cuts on record ends, each segment for itself: from so many smaller pieces even partitions are made."""


@dataclass(frozen=True, slots=True)
class SegmentRanges(InputPartition):
    """What one task reads, in order: each range begins and ends where an event does."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ControlRows(InputPartition):
    """What a batch's control rows say: the watermark before it and behind it, in microseconds."""

    epoch: int
    before: int | None
    watermark: int | None


def control_partition(start: InputOffset, end: InputOffset) -> ControlRows:
    """One for a batch, however many epochs it holds."""
    assert end.epoch is not None, "a control-only load names a pipeline"
    return ControlRows(end.epoch, start.watermark, end.watermark)


def plan_partitions(
    coordinator: CoordinatorClient, options: SourceOptions, start: InputOffset, end: InputOffset
) -> list[SegmentRanges]:
    """All that lies between the offsets, contiguous and in order. Raises DataLoss where bytes are gone, unless the
    options say to go on without them.
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
        log.warning("%s is lost: going on without it, as failOnDataLoss says", lost)
    return packed(found.splits, parts)


def _without_unlinked(start: InputOffset, end: InputOffset, sources: Sequence[str]) -> InputOffset:
    """Without the segments of sources that are read no more: they are not gone."""
    parsed = [*map(Source.parse, sources)]
    gone = start.segments.keys() - end.segments.keys()
    unlinked = {segment for segment in gone if not any(one.owns(segment) for one in parsed)}
    return replace(start, segments={name: at for name, at in start.segments.items() if name not in unlinked})


def ranges_between(start: InputOffset, end: InputOffset, *, fail_on_data_loss: bool) -> list[Range]:
    """What is to be read, in the order of the segments' names. One that `start` does not name came later: it is read
    from its beginning. Raises DataLoss if one of `start` is gone.
    """
    gone = sorted(start.segments.keys() - end.segments.keys())
    if gone and fail_on_data_loss:
        raise DataLoss(f"segment {gone[0]!r} is gone, and with it what came after {start.segments[gone[0]]}")
    begins = {segment: start.segments.get(segment, 0) for segment in sorted(end.segments)}
    return [Range(segment, at, end.segments[segment]) for segment, at in begins.items() if at < end.segments[segment]]


def worthwhile(ranges: Iterable[Range], parts: int) -> int:
    """How many of so many tasks have enough to do."""
    return max(1, min(parts, sum(piece.end - piece.start for piece in ranges) // PARTITION_BYTES_MIN))


def packed(splits: Iterable[Range], parts: int) -> list[SegmentRanges]:
    """The splits, in their order, as up to so many partitions of about the same size: fewer, if a task would not be
    worth it.
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
