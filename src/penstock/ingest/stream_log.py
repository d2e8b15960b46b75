"""A connector's table of streams, durable: a snapshot now and then, and the heads of the records behind it.

The snapshot is in a segment of its own and says up to which offset of each data segment it speaks. It is written before
a data segment is truncated past that, so that a fold never misses a head.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from penstock.core.errors import Damaged
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import OF_SEGMENTS, HeadFold, Mark, MarkKind, fold_heads
from penstock.store.store import SegmentStore

_LENGTH = struct.Struct(">I")
# Heads that are read and folded at once: bounds the memory that a start needs for them.
_ROWS_PER_STEP = 10_000
_BYTES_PER_STEP = 8 << 20
# A snapshot is written in parts of so many streams: with the longest names a part is far below the largest append.
_PART_ROWS = 10_000


class Standing(IntEnum):
    """Whether a stream counts for the watermark, as its marks say."""

    ENDED = 0
    """Or not begun."""
    ACTIVE = 1
    IDLE = 2


_STANDINGS = {
    MarkKind.STARTED: Standing.ACTIVE,
    MarkKind.ACTIVE_AGAIN: Standing.ACTIVE,
    MarkKind.WATERMARK: Standing.ACTIVE,
    MarkKind.IDLE: Standing.IDLE,
    MarkKind.ENDED: Standing.ENDED,
}


class KnownStream:
    """A stream that was ever seen: its name, the number of its segment, the last message id that was accepted, and how
    it stands.
    """

    __slots__ = ("last_id", "name", "route", "standing")

    def __init__(self, name: str, route: int, last_id: int = NOTHING_YET, standing: Standing = Standing.ACTIVE) -> None:
        self.name = name
        self.route = route
        self.last_id = last_id
        self.standing = standing


def stands(stream: KnownStream, mark: Mark) -> None:
    """What a stored mark says of its stream."""
    stream.standing = _STANDINGS.get(mark.kind, stream.standing)


def clock_of(mark: Mark) -> int:
    """Up to where the worker's clock is said to have come; NO_TIME of any other mark."""
    is_clock = mark.kind in (MarkKind.CLOCK, MarkKind.IDLE_CLOCK)
    return mark.value if is_clock and mark.value is not None else NO_TIME


class Recovered(NamedTuple):
    """What a connector remembers: its streams, and whether it has ended for good."""

    streams: dict[int, KnownStream]
    has_finished: bool
    clock_us: int
    """As its last CLOCK or IDLE_CLOCK says; NO_TIME if there was none."""


class Snapshot(NamedTuple):
    offsets: dict[str, tuple[int, int]]
    """Of each data segment, its number and the offset up to which the snapshot speaks."""
    streams: dict[int, KnownStream]
    has_finished: bool = False
    clock_us: int = NO_TIME


class StreamLog:
    """`segment` holds the snapshots, `data` are the names of the connector's data segments."""

    def __init__(self, store: SegmentStore, segment: str, data: list[str]) -> None:
        self._store = store
        self._segment = segment
        self._data = data

    def recover(self) -> Recovered:
        """The streams as they were accepted last; call it when everything in the store is durable."""
        offsets, streams, has_finished, clock_us = self._last_snapshot()
        for route, name in enumerate(self._data):
            info = self._store.info(name)
            number, offset = offsets.get(name, (info.number, 0))
            # A segment that was deleted and made anew has another number: the snapshot says nothing of it.
            start = max(offset, info.start) if number == info.number else info.start
            for mark in self._fold(streams, route, name, start, info.length):
                has_finished |= mark.kind is MarkKind.FINISHED
                clock_us = max(clock_us, clock_of(mark))
        return Recovered(streams, has_finished, clock_us)

    def write(self, streams: Mapping[int, KnownStream], *, has_finished: bool = False, clock_us: int = NO_TIME) -> None:
        """Write the table down; the one before is not needed any more once this one is durable."""
        offsets = {name: (self._store.info(name).number, self._store.length(name)) for name in self._data}
        rows = [(stream_id, s.name, s.route, s.last_id, s.standing) for stream_id, s in streams.items()]
        start = self._store.length(self._segment)
        for first in range(0, len(rows) or 1, _PART_ROWS):
            is_last = first + _PART_ROWS >= len(rows)
            part = rows[first : first + _PART_ROWS]
            packed: bytes = msgpack.packb([offsets, first, is_last, part, has_finished, clock_us])
            self._store.append(self._segment, [_LENGTH.pack(len(packed)), packed], draining=True)
        # The truncation stands behind the snapshot in the journal: it cannot be durable without it.
        self._store.truncate(self._segment, start)

    def _last_snapshot(self) -> Snapshot:
        """The last one that is there as a whole."""
        info = self._store.info(self._segment)
        snapshot = Snapshot({}, {})
        streams: dict[int, KnownStream] = {}
        try:
            for offsets, first, is_last, rows, *more in _parts(self._read(info.start, info.length)):
                if first == 0:
                    streams = {}
                streams.update(_streams(rows))
                if is_last:
                    snapshot = Snapshot(offsets, streams, *more)  # they were once written without
        except (ValueError, TypeError, struct.error) as error:  # somebody has written there over the segment protocol
            raise Damaged(f"segment {self._segment!r} is no table of streams: {error}") from None
        return snapshot

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            parts.append(self._store.read(self._segment, start, end - start))
            start += len(parts[-1])
        return b"".join(parts)

    def _fold(self, streams: dict[int, KnownStream], route: int, name: str, start: int, end: int) -> Iterator[Mark]:
        """Gives the marks of the whole source."""
        while start < end:
            pieces = self._store.locate_heads(name, start, end, rows_max=_ROWS_PER_STEP, bytes_max=_BYTES_PER_STEP)
            heads = self._store.fetch_heads(pieces)
            fold = fold_heads(name, heads)
            _take(streams, route, fold)
            yield from (mark for mark in fold.marks if mark.kind in OF_SEGMENTS)
            start = heads[-1][0]


def _take(streams: dict[int, KnownStream], route: int, fold: HeadFold) -> None:
    for mark in fold.marks:
        if mark.kind is MarkKind.STARTED and mark.stream_id not in streams:
            streams[mark.stream_id] = KnownStream(mark.name, route)
    for stream_id, last_id in fold.last.items():
        if stream_id not in streams:  # its start was lost with a segment that was deleted
            streams[stream_id] = KnownStream("", route)
        streams[stream_id].last_id = last_id
    for mark in fold.marks:
        if mark.kind in _STANDINGS and mark.stream_id in streams:
            stands(streams[mark.stream_id], mark)


def _parts(data: bytes) -> Iterator[Any]:
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        yield msgpack.unpackb(data[start:at])


def _streams(rows: Iterable[Any]) -> dict[int, KnownStream]:
    """The standing is missing where it was written without: an active stream is what nobody is harmed by."""
    return {row[0]: KnownStream(*row[1:4], *map(Standing, row[4:])) for row in rows}
