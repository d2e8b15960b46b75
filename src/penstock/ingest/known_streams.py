"""All streams that a source has ever had, which of them count for the watermark, and how the table is stored.

The table is written as a snapshot from time to time; changes since are in the heads of the records after it. The
snapshot has a segment of its own and names the offset of each data segment that it covers. It is written before a data
segment is truncated past that offset, so no fold misses a head.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import islice, takewhile
from math import inf
from typing import Any, NamedTuple

import msgpack

from penstock.core.errors import Damaged
from penstock.protocol.connector import stream_id_of
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.protocol.stored.event import NO_TIME
from penstock.protocol.stored.head import OF_SEGMENTS, HeadFold, Mark, MarkKind, fold_heads
from penstock.store.store import SegmentStore

STREAM_NAME_MAX = 200
"""Characters of a stream's name that are stored: it is for people, and there may be very many streams."""

COUNTER_BITS = 32
COUNT_MAX = (1 << COUNTER_BITS) - 1
"""Ephemeral streams of one incarnation: then the next one starts."""

_LENGTH = struct.Struct(">I")
# Heads that are read and folded at once: bounds the memory that a start needs for them.
_ROWS_PER_STEP = 10_000
_BYTES_PER_STEP = 8 << 20
# A snapshot is written in parts of so many streams: with the longest names a part is far below the largest append.
_PART_ROWS = 10_000


class Standing(IntEnum):
    """Whether a stream counts for the watermark, according to its marks."""

    ENDED = 0
    """Ended, or not started."""
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
    """One stream: its name, the number of its segment (its route), the last message id accepted, and its standing."""

    __slots__ = ("last_id", "name", "route", "standing")

    def __init__(self, name: str, route: int, last_id: int = NOTHING_YET, standing: Standing = Standing.ACTIVE) -> None:
        self.name = name
        self.route = route
        self.last_id = last_id
        self.standing = standing

    def mark(self, mark: Mark) -> None:
        """Apply a stored mark."""
        self.standing = _STANDINGS.get(mark.kind, self.standing)


def started(stream_id: int, stream: KnownStream) -> Mark:
    return Mark(stream_id, MarkKind.STARTED, stream.name, 1 if stream.standing is Standing.ACTIVE else None)


def active_again(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.ACTIVE_AGAIN)


def ended(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.ENDED)


def clock_of(mark: Mark) -> int:
    """The time that a mark of the worker's clock has reached; NO_TIME for any other mark."""
    is_clock = mark.kind in (MarkKind.CLOCK, MarkKind.IDLE_CLOCK)
    return mark.value if is_clock and mark.value is not None else NO_TIME


# Ephemeral streams, such as connections, cannot resume. Their ids are never used again, over any number of restarts:
# the upper half is the source's incarnation, which is raised and durable before the first of them starts; the lower
# half counts. So no ended stream has to be remembered for the sake of its id.


def ephemeral_id(incarnation: int, count: int) -> int:
    assert 0 < incarnation <= COUNT_MAX
    assert 0 < count <= COUNT_MAX
    return incarnation << COUNTER_BITS | count


PARTITION_STRIDE = 256
"""More than a source can have partitions."""


def next_incarnation(now: int, partition: int, partitions: int) -> int:
    """Of a source with several partitions: a number that no other partition ever has, so that their ids differ."""
    assert 0 <= partition < PARTITION_STRIDE
    return now + 1 if partitions == 1 else now - now % PARTITION_STRIDE + PARTITION_STRIDE + partition


def is_ephemeral(stream_id: int, name: str, incarnation: int) -> bool:
    """Streams that can resume have the id that is derived from their name."""
    return 0 < stream_id >> COUNTER_BITS <= incarnation and stream_id_of(name) != stream_id


class AwayClock:
    """Measures how long active streams that are not open have been silent while their program could have reconnected
    and sent.

    It counts its own seconds: no stream becomes idle because the worker is down, busy, or grants no credits.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._now = 0.0
        self._since: dict[int, float] = {}
        """Ordered by time, because the clock never goes back."""

    def __len__(self) -> int:
        return len(self._since)

    def tick(self, seconds: float, *, can_send: bool) -> None:
        if can_send:
            self._now += seconds

    def add(self, stream_id: int) -> None:
        """Its silence starts now."""
        self._since.pop(stream_id, None)
        self._since[stream_id] = self._now

    def remove(self, stream_id: int) -> None:
        self._since.pop(stream_id, None)

    def lapsed(self, limit: int) -> list[int]:
        until = self._now - self._timeout_seconds
        return [*islice(takewhile(lambda stream_id: self._since[stream_id] <= until, self._since), limit)]

    def rest(self, stream_ids: Iterable[int]) -> None:
        """Forget these streams: they are marked as idle."""
        for stream_id in stream_ids:
            self.remove(stream_id)


class KnownStreams(dict[int, KnownStream]):
    """By id. A dict, because sessions look streams up for every frame; only these methods add and remove."""

    def __init__(self, known: Mapping[int, KnownStream], idle_timeout_seconds: float | None, incarnation: int) -> None:
        super().__init__(known)
        self.incarnation = incarnation
        """The incarnation of the ephemeral streams; 0: there were none yet."""
        self.active_count = sum(stream.standing is Standing.ACTIVE for stream in self.values())
        self.idle = {i for i, stream in self.items() if stream.standing is Standing.IDLE}
        """Streams that need the mark ACTIVE_AGAIN with their next message."""
        self.may_send: Callable[[int], bool] = lambda _: True
        """Whether the gate would let a stream send, if its program were there."""
        self.set_idle_timeout(idle_timeout_seconds)

    def set_idle_timeout(self, seconds: float | None) -> None:
        """Set the timeout. Silence is counted from scratch."""
        self._has_timeout = seconds is not None
        self.away = AwayClock(seconds or inf)
        for stream_id in self:
            self.detached(stream_id)

    def find(self, stream_id: int, name: str, routes: int) -> KnownStream:
        """The stream. A new one is permanently assigned to one of this many segments."""
        stream = self.get(stream_id)
        if stream is None:
            digest = hashlib.blake2b(stream_id.to_bytes(8, "big"), digest_size=8).digest()
            route = int.from_bytes(digest, "big") % routes
            stream = self[stream_id] = KnownStream(name, route, standing=Standing.ENDED)
        return stream

    def detached(self, stream_id: int) -> None:
        """The stream is no longer open. If it counts for the watermark, its silence starts now."""
        if not self._has_timeout:
            return
        stream = self.get(stream_id)
        if stream is not None and stream.standing is Standing.ACTIVE and self.may_send(stream_id):
            self.away.add(stream_id)

    def mark(self, mark: Mark) -> None:
        """The mark is stored."""
        stream = self[mark.stream_id]
        self.active_count -= stream.standing is Standing.ACTIVE
        stream.mark(mark)
        self.active_count += stream.standing is Standing.ACTIVE
        self.away.remove(mark.stream_id)
        if stream.standing is Standing.IDLE:
            self.idle.add(mark.stream_id)
        else:
            self.idle.discard(mark.stream_id)

    def ephemeral(self) -> list[int]:
        """The ephemeral streams of all incarnations that are not forgotten yet."""
        return [stream_id for stream_id in self if self.is_ephemeral(stream_id)] if self.incarnation else []

    def is_ephemeral(self, stream_id: int) -> bool:
        stream = self.get(stream_id)
        return stream is not None and is_ephemeral(stream_id, stream.name, self.incarnation)

    def forget(self, stream_id: int) -> bool:
        """Remove a stream that will never return. False if it is unknown."""
        known = self.pop(stream_id, None)
        if known is None:
            return False
        self.active_count -= known.standing is Standing.ACTIVE
        self.idle.discard(stream_id)
        self.away.remove(stream_id)
        return True


class Snapshot(NamedTuple):
    offsets: dict[str, tuple[int, int]]
    """For each data segment, its number and the offset up to which the snapshot covers it."""
    streams: dict[int, KnownStream]
    has_finished: bool = False
    clock_us: int = NO_TIME


class Recovered(NamedTuple):
    """What a source remembers across a restart."""

    streams: dict[int, KnownStream]
    has_finished: bool
    """Whether it has ended for good."""
    clock_us: int
    """The time of its last CLOCK or IDLE_CLOCK mark; NO_TIME if there was none."""


class StreamSnapshots:
    """The table on disk: `segment` contains the snapshots, `data` are the names of the source's data segments."""

    def __init__(self, store: SegmentStore, segment: str, data: list[str]) -> None:
        self._store = store
        self._segment = segment
        self._data = data

    def recover(self) -> Recovered:
        """The table as it was last stored. Call it when everything in the store is durable. Raises Damaged."""
        offsets, streams, has_finished, clock_us = self._last_snapshot()
        for route, name in enumerate(self._data):
            info = self._store.info(name)
            number, offset = offsets.get(name, (info.number, 0))
            # A segment that was deleted and created again has another number: the snapshot does not cover it.
            start = max(offset, info.start) if number == info.number else info.start
            for mark in self._fold(streams, route, name, start, info.length):
                has_finished |= mark.kind is MarkKind.FINISHED
                clock_us = max(clock_us, clock_of(mark))
        return Recovered(streams, has_finished, clock_us)

    def write(self, streams: Mapping[int, KnownStream], *, has_finished: bool = False, clock_us: int = NO_TIME) -> None:
        """Write a snapshot; the one before is not needed once this one is durable."""
        offsets = {name: (self._store.info(name).number, self._store.length(name)) for name in self._data}
        rows = [(stream_id, s.name, s.route, s.last_id, s.standing) for stream_id, s in streams.items()]
        start = self._store.length(self._segment)
        for first in range(0, len(rows) or 1, _PART_ROWS):
            is_last = first + _PART_ROWS >= len(rows)
            part = rows[first : first + _PART_ROWS]
            packed: bytes = msgpack.packb([offsets, first, is_last, part, has_finished, clock_us])
            self._store.append(self._segment, [_LENGTH.pack(len(packed)), packed], draining=True)
        # The truncation follows the snapshot in the journal: it cannot be durable without it.
        self._store.truncate(self._segment, start)

    def _last_snapshot(self) -> Snapshot:
        """The last one that is complete."""
        info = self._store.info(self._segment)
        snapshot = Snapshot({}, {})
        streams: dict[int, KnownStream] = {}
        try:
            for offsets, first, is_last, rows, *more in _parts(self._read(info.start, info.length)):
                if first == 0:
                    streams = {}
                streams.update(_streams(rows))
                if is_last:
                    snapshot = Snapshot(offsets, streams, *more)  # older snapshots lack the last fields
        except (ValueError, TypeError, struct.error) as error:  # it was written over the segment protocol
            raise Damaged(f"segment {self._segment!r} is not a valid table of streams: {error}") from None
        return snapshot

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            parts.append(self._store.read(self._segment, start, end - start))
            start += len(parts[-1])
        return b"".join(parts)

    def _fold(self, streams: dict[int, KnownStream], route: int, name: str, start: int, end: int) -> Iterator[Mark]:
        """Apply the heads to `streams`; yields the marks that concern the whole source."""
        while start < end:
            pieces = self._store.locate_heads(name, start, end, rows_max=_ROWS_PER_STEP, bytes_max=_BYTES_PER_STEP)
            heads = self._store.fetch_heads(pieces)
            fold = fold_heads(name, heads)
            _apply(streams, route, fold)
            yield from (mark for mark in fold.marks if mark.kind in OF_SEGMENTS)
            start = heads[-1][0]


def _apply(streams: dict[int, KnownStream], route: int, fold: HeadFold) -> None:
    for mark in fold.marks:
        if mark.kind is MarkKind.STARTED and mark.stream_id not in streams:
            streams[mark.stream_id] = KnownStream(mark.name, route)
    for stream_id, last_id in fold.last.items():
        if stream_id not in streams:  # its start was lost with a segment that was deleted
            streams[stream_id] = KnownStream("", route)
        streams[stream_id].last_id = last_id
    for mark in fold.marks:
        if mark.kind in _STANDINGS and mark.stream_id in streams:
            streams[mark.stream_id].mark(mark)


def _parts(data: bytes) -> Iterator[Any]:
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(data, at)[0]
        yield msgpack.unpackb(data[start:at])


def _streams(rows: Iterable[Any]) -> dict[int, KnownStream]:
    """Older snapshots have no standing. Counting a stream as active is safe."""
    return {row[0]: KnownStream(*row[1:4], *map(Standing, row[4:])) for row in rows}
