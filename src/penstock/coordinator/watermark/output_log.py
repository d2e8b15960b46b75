"""A durable log of the watermarks of a pipeline's output, including those of epochs that the ledger has forgotten.

The ledger has the last merged epochs. Before it forgets them, they are written to a segment of the pipeline, some at a
time: `u32 length · [incarnation, [port], [[epoch, watermark, [end of each port's output, or -1]]]]`. So a reader that
starts with the oldest output, or lags by any amount, gets the watermark of its own position. When retention removes
output, the entries about it are removed too.
"""

import logging
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgpack

from penstock.coordinator.ledger import NO_QUOTA
from penstock.coordinator.machine.state import EPOCHS_MAX, MergedEpoch, Pipeline
from penstock.core.errors import Damaged, PenstockError
from penstock.protocol.stored.names import COORDINATOR_PREFIX, output_segment
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

CHUNK_EPOCHS = EPOCHS_MAX // 10
"""Merged epochs that are written at once: long before the ledger forgets the first of them."""

_CHUNKS_IN_MEMORY = 2
"""The newest chunks keep their rows in memory, because only durable bytes can be read. Each is written at least an
epoch after the previous one.
"""

_LENGTH = struct.Struct(">I")
_ABSENT = -1


class Row(NamedTuple):
    """The watermark of an epoch, and where each port's output ended after it."""

    watermark: int | None
    ends: Mapping[str, int]


class _Chunk(NamedTuple):
    """The place of some rows in the segment, and where the outputs ended after the last of them."""

    start: int
    end: int
    ends: Mapping[str, int]
    rows: list[Row] | None = None


class _Log:
    """The log of one pipeline. Chunks are in memory without their rows, except those that may not be durable yet, and
    the last one that was read.
    """

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []
        self.last = (0, -1)
        """Incarnation and number of the last epoch that was written."""
        self.looked_at: _Chunk | None = None

    def add(self, start: int, end: int, incarnation: int, epoch: int, rows: list[Row]) -> None:
        before = self.chunks[-1].ends if self.chunks else {}
        self.chunks.append(_Chunk(start, end, {**before, **rows[-1].ends}, rows))
        self.last = incarnation, epoch
        if len(self.chunks) > _CHUNKS_IN_MEMORY:
            self.chunks[-1 - _CHUNKS_IN_MEMORY] = self.chunks[-1 - _CHUNKS_IN_MEMORY]._replace(rows=None)


def log_segment(pipeline: str) -> str:
    return f"{COORDINATOR_PREFIX}outputs/{pipeline}"


class OutputLog:
    """Owned by the coordinator's service. Create it when everything in the store is durable."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._logs: dict[str, _Log] = {}

    def note(self, name: str, pipeline: Pipeline) -> None:
        """Called after a merge: write the epochs that are due. Never fails, because the ledger still has them."""
        try:
            if len(self._unwritten(name, pipeline)) >= CHUNK_EPOCHS:
                self.write(name, pipeline)
        except PenstockError as error:
            log.warning("the watermarks of pipeline %r's output could not be written: %s", name, error)

    def write(self, name: str, pipeline: Pipeline) -> None:
        """Write all epochs that the ledger has, because it is about to forget them."""
        numbers = self._unwritten(name, pipeline)
        if not numbers:
            return
        segment = log_segment(name)
        if not self._store.exists(segment):
            self._store.create(segment, NO_QUOTA, draining=True)
        epochs = [(number, pipeline.epochs[number]) for number in numbers]
        ports = [*dict.fromkeys(port for _, epoch in epochs for port in epoch.ends)]
        rows = [[number, b.watermark, [b.ends.get(port, _ABSENT) for port in ports]] for number, b in epochs]
        packed: bytes = msgpack.packb([pipeline.incarnation, ports, rows])
        start = int(self._store.length(segment))
        end = self._store.append(segment, [_LENGTH.pack(len(packed)), packed], draining=True).end
        decoded = [Row(epoch.watermark, epoch.ends) for _, epoch in epochs]
        self._of(name).add(start, int(end), pipeline.incarnation, numbers[-1], decoded)
        self._give_up(name)

    def _unwritten(self, name: str, pipeline: Pipeline) -> list[int]:
        last = self._of(name).last
        return [number for number in pipeline.epochs if (pipeline.incarnation, number) > last]

    def _give_up(self, name: str) -> None:
        """Remove chunks whose successor covers only removed output. The last two always stay."""
        chunks, gone = self._of(name).chunks, 0
        while gone + 2 < len(chunks) and all(self._is_gone(name, *each) for each in chunks[gone + 1].ends.items()):
            gone += 1
        if gone:
            del chunks[:gone]
            self._store.truncate(log_segment(name), chunks[0].start)

    def _is_gone(self, name: str, port: str, end: int) -> bool:
        segment = output_segment(name, port)
        return not self._store.exists(segment) or self._store.info(segment).start >= end

    def forget(self, name: str) -> None:
        """The pipeline's output was deleted."""
        self._logs.pop(name, None)
        if self._store.exists(log_segment(name)):
            self._store.delete(log_segment(name))

    def find(self, name: str, pipeline: Pipeline | None, port: str, position: int) -> Row | None:
        """The last epoch whose output in the port ends at this position or before it; None if none is known.
        `pipeline` is None if it is not registered any more.
        """
        for epoch in reversed(pipeline.epochs.values() if pipeline is not None else ()):
            if epoch.ends.get(port, position + 1) <= position:
                return Row(epoch.watermark, epoch.ends)
        return self._find(name, port, position)

    def rows(self, name: str, pipeline: Pipeline | None, port: str, position: int) -> list[tuple[int, int | None]]:
        """Where the port's output ended, and the watermark there: the last one at the position or before it, and those
        that follow. `find` returns the same for each of these ends. Every row is looked at once, in the order of
        epochs, in which ends never go back: of those with the same end the last one counts.
        """
        found = {
            row.ends[port]: row.watermark
            for row in self._in_order(name, pipeline, port, position)
            if row.ends.get(port, _ABSENT) > position
        }
        first = self.find(name, pipeline, port, position)
        before = [] if first is None else [(min(first.ends[port], position), first.watermark)]
        return before + sorted(found.items(), key=lambda row: row[0])

    def _in_order(self, name: str, pipeline: Pipeline | None, port: str, position: int) -> Iterator[Row | MergedEpoch]:
        """Written epochs from about the position on, then those of the ledger; some are in both."""
        found = self._of(name)
        for chunk in found.chunks:
            if chunk.ends.get(port, _ABSENT) >= position:
                yield from self._rows(name, found, chunk)
        yield from pipeline.epochs.values() if pipeline is not None else ()

    def _find(self, name: str, port: str, position: int) -> Row | None:
        found = self._of(name)
        at = bisect_right(found.chunks, position, key=lambda chunk: chunk.ends.get(port, _ABSENT))
        for chunk in found.chunks[max(at - 1, 0) : at + 1][::-1]:
            for row in reversed(self._rows(name, found, chunk)):
                if 0 <= row.ends.get(port, _ABSENT) <= position:
                    return row
        return None

    def _rows(self, name: str, found: _Log, chunk: _Chunk) -> list[Row]:
        if chunk.rows is not None:
            return chunk.rows
        if found.looked_at is None or found.looked_at.start != chunk.start:
            data = self._read(log_segment(name), chunk.start, chunk.end)
            rows = [row for _, _, each in _entries(data) for row in each]
            found.looked_at = chunk._replace(rows=rows)
        return found.looked_at.rows or []

    def _of(self, name: str) -> _Log:
        if name not in self._logs:
            self._logs[name] = self._recovered(log_segment(name))
        return self._logs[name]

    def _recovered(self, segment: str) -> _Log:
        found = _Log()
        if not self._store.exists(segment):
            return found
        info = self._store.info(segment)
        at = int(info.start)
        try:
            for size, (incarnation, epoch), rows in _entries(self._read(segment, at, int(info.length))):
                found.add(at, at + size, incarnation, epoch, rows)
                at += size
        except (ValueError, TypeError, LookupError, struct.error) as error:
            raise Damaged(f"the watermark log (segment {segment!r}) cannot be read: {error}") from None
        return found

    def _read(self, segment: str, start: int, end: int) -> bytes:
        data = bytearray()
        while start + len(data) < end:
            part = self._store.read(segment, start + len(data), end - start - len(data))
            if not part:
                raise Damaged(f"segment {segment!r} ends before {end}")
            data += part
        return bytes(data)


def _entries(data: bytes) -> Iterator[tuple[int, tuple[int, int], list[Row]]]:
    """For each entry: its size, its incarnation and last epoch, and its rows."""
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, at)[0]
        incarnation, ports, rows = msgpack.unpackb(data[start:end])
        yield end - at, (incarnation, rows[-1][0]), [_row(ports, row) for row in rows]
        at = end


def _row(ports: list[str], row: list[Any]) -> Row:
    _, watermark, ends = row
    return Row(watermark, {port: end for port, end in zip(ports, ends, strict=True) if end != _ABSENT})
