"""What a task does: bytes of segments in, Arrow batches out. The driver's processes import none of it."""

import logging
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import Any

from penstock.client.segments.range_reader import READ_BYTES, Connected, read_range
from penstock.coordinator.messages import Range
from penstock.core.errors import Damaged, DataLoss, SegmentTruncated
from penstock.protocol.stored.bulk import Events, decode
from penstock.spark.python_worker import coordinator, freeze, hinted, link
from penstock.spark.source_arrow import SegmentBatches
from penstock.spark.source_options import SourceOptions
from penstock.spark.source_partitions import SegmentRanges
from penstock.spark.stream_names import StreamNames

log = logging.getLogger(__name__)

BATCH_BYTES = 4 << 20
"""Decoded at once, to one Arrow batch: from here on the cost of a batch does not show beside that of its bytes."""


def read_partition(options: SourceOptions, columns: tuple[str, ...], partition: SegmentRanges) -> Iterator[Any]:
    """The events of the ranges, in order, as RecordBatches. Raises DataLoss where bytes are gone, unless the options
    say to go on without them.
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
    """Nothing is given for bytes without events. Raises DataLoss, and Damaged for what are no whole events."""
    start = piece.start
    while start < piece.end:
        try:
            yield from _decoded(worker, Range(piece.segment, start, piece.end), batches)
            return
        except SegmentTruncated as error:
            if fail_on_data_loss:
                raise lost(piece.segment, start, min(error.start, piece.end)) from error
            log.warning("%s: going on at %s without the bytes before it, as failOnDataLoss says", piece, error.start)
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
    """Bytes that wait to be decoded. Its memory is made once, and grows only for an event that does not fit."""

    def __init__(self, size: int) -> None:
        self._memory = bytearray(size)
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def data(self) -> memoryview:
        """Until something is added or dropped."""
        return memoryview(self._memory)[: self._filled]

    def add(self, data: memoryview) -> None:
        end = self._filled + len(data)
        if end > len(self._memory):
            self._memory = bytearray(self.data) + bytearray(2 * end - self._filled)
        self._memory[self._filled : end] = data
        self._filled = end

    def drop(self, count: int) -> None:
        """The first ones."""
        left = self._memory[count : self._filled]
        self._memory[: len(left)] = left
        self._filled = len(left)


def lost(segment: str, start: int, end: int) -> DataLoss:
    return DataLoss(
        f"segment {segment!r}: the bytes from {start} to {end} were removed before they were read",
        "Retention has overtaken this reader. With the option failOnDataLoss=false it goes on without them.",
    )


@cache
def stream_names(worker: str, connector: str) -> StreamNames:
    """Kept for as long as the Python worker lives."""
    return StreamNames(lambda ids: coordinator(worker).stream_names(connector, ids))
