"""Computes offsets for readers without a pipeline, and the ranges of tasks for all readers. Stores nothing."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.coordinator.machine.state import source_of
from penstock.coordinator.pravega_streams import is_scaled
from penstock.coordinator.records import Records, RecordView
from penstock.coordinator.shared import Shared
from penstock.core.errors import DataLoss, RequestError
from penstock.protocol.api.pipelines import AtSegments, Limits, Range, Segments, Splits, Starting
from penstock.protocol.stored.names import CONNECTOR_PREFIX

# Connectors' segments are read in the order in which their records arrived, across segments.
#
# If one segment were read ahead of another, the watermark could be past the first events of a stream that starts in
# the other one: they would be late, although they arrived in time. (Records that compaction has moved count as newer
# than they are.)

_TURNS = 16
"""How often each segment gets its turn in one cut: at most a sixteenth of the cut's allowance stays unused."""


class Backlog(NamedTuple):
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ends_by_arrival(records: RecordView, waiting: Mapping[str, Backlog], bytes_max: int) -> dict[str, int]:
    """How far to read each segment within this many bytes, but at least one record. The segment whose next record is
    the oldest is always next.
    """
    if bytes_max >= sum(backlog.size for backlog in waiting.values()):
        return {name: records.boundary(name, *backlog) for name, backlog in waiting.items()}
    found = {name: backlog.start for name, backlog in waiting.items()}
    turns = [(records.position(name, at), name) for name, at in found.items()]
    heapify(turns)
    left = bytes_max
    step = left if len(waiting) == 1 else left // (_TURNS * len(waiting))
    while turns:
        _, name = turns[0]
        limit = min(found[name] + min(step, left), waiting[name].end)
        end = records.boundary(name, found[name], limit)
        if end - found[name] > left < bytes_max:
            break
        heappop(turns)
        left, found[name] = left - (end - found[name]), end
        if end < waiting[name].end:
            heappush(turns, (records.position(name, end), name))
    return in_step(records, waiting, found)


def in_step(records: RecordView, waiting: Mapping[str, Backlog], ends: Mapping[str, int]) -> dict[str, int]:
    """Reduce these ends to the records that arrived before the first excluded one. At least one record always remains,
    even if the positions of moved records suggest otherwise.
    """
    left = {name: records.position(name, end) for name, end in ends.items() if end < waiting[name].end}
    first = min(left, key=lambda name: left[name], default=None)
    if first is None:
        return dict(ends)
    found = {
        name: end if name == first else records.arrived_before(name, waiting[name].start, end, left[first])
        for name, end in ends.items()
    }
    return found if any(end > waiting[name].start for name, end in found.items()) else dict(ends)


# Where the next cut ends: on record ends, within limits.


class Allowance(NamedTuple):
    """The limits of one cut, over all segments. `rows` None: only bytes are limited."""

    bytes: int
    rows: int | None = None


def backlogs(records: RecordView, positions: Segments, upto: Segments) -> dict[str, Backlog]:
    """The durable bytes of each segment that are not read yet, up to `upto`."""
    found = {}
    for name, start in positions.items():
        end = min(records.end(name), upto.get(name, 1 << 63))
        if end > start:
            found[name] = Backlog(start, end)
    return found


async def ends(records: RecordView, waiting: Mapping[str, Backlog], allowed: Allowance) -> dict[str, int]:
    """Where the cut ends in each segment; it contains at least one record. Records of connectors are taken in order of
    arrival, other segments in proportion to their backlog.
    """
    total = sum(backlog.size for backlog in waiting.values())
    connectors = {name: backlog for name, backlog in waiting.items() if name.startswith(CONNECTOR_PREFIX)}
    of_connectors = sum(backlog.size for backlog in connectors.values())
    found = ends_by_arrival(records, connectors, min(of_connectors, allowed.bytes * of_connectors // total))
    for name, (start, end) in waiting.items():
        if name not in connectors:
            share = min(end - start, allowed.bytes * (end - start) // total)
            found[name] = records.boundary(name, start, start + share)
    if allowed.rows is not None:
        for name, end in found.items():
            rows_max = allowed.rows * waiting[name].size // total
            found[name] = await records.rows_end(name, waiting[name].start, end, rows_max)
        found |= in_step(records, connectors, {name: found[name] for name in connectors})
    return {name: end for name, end in found.items() if end > waiting[name].start}


# Ranges of segments in parts of about the same size, for many readers: contiguous, in order, on record ends.

PARTS_MAX = 100_000
"""Each part is a Spark task, and an entry in the reply."""


def split(records: Records, ranges: Sequence[Range], parts: int, bytes_min: int, *, skip_lost: bool) -> Splits:
    """Raises DataLoss if bytes were removed; with `skip_lost` they are skipped and reported instead."""
    _check_parts(parts)
    there, lost = _stored(records, ranges, skip_lost=skip_lost)
    size = max(1, bytes_min, -(-sum(r.end - r.start for r in there) // parts))
    return Splits([part for r in there for part in _parts(records, r, size)], lost)


def parts_of(records: Records, ranges: Sequence[Range], size: int, *, skip_lost: bool) -> Splits:
    """As `split`, in parts of about this size."""
    there, lost = _stored(records, ranges, skip_lost=skip_lost)
    return Splits([part for r in there for part in _parts(records, r, max(1, size))], lost)


def _check_parts(parts: int) -> None:
    if not 1 <= parts <= PARTS_MAX:
        raise RequestError(f"{parts} parts", f"Ask for 1 to {PARTS_MAX}.")


def _stored(records: Records, ranges: Sequence[Range], *, skip_lost: bool) -> tuple[list[Range], list[Range]]:
    """What is still there of the ranges, and what is not. Raises DataLoss."""
    there, lost = [], []
    for wanted in ranges:
        begin = min(_begin(records, wanted), wanted.end)
        if begin > wanted.start:
            lost.append(Range(wanted.segment, wanted.start, begin))
        if begin < wanted.end:
            there.append(Range(wanted.segment, begin, wanted.end))
    if lost and not skip_lost:
        raise _gone(lost[0])
    return there, lost


def _begin(records: Records, wanted: Range) -> int:
    """The first offset that is still stored. A segment that does not exist has lost all its bytes."""
    end = records.end(wanted.segment)
    if not end:
        return wanted.end
    if wanted.end > end:
        raise RequestError(f"segment {wanted.segment!r} ends at {end}, before {wanted.end}")
    return max(wanted.start, records.begin(wanted.segment))


def _gone(lost: Range) -> DataLoss:
    text = f"the bytes {lost.start} to {lost.end} of segment {lost.segment!r} were removed before they were read"
    return DataLoss(text)


def _parts(records: Records, whole: Range, size: int) -> Iterator[Range]:
    """Parts of at least `size` bytes, unless the whole range is smaller: the last part includes the remainder."""
    start = whole.start
    for left in range((whole.end - start) // size, 1, -1):
        target = start + max(size, (whole.end - start) // left)
        end = records.ceiling(whole.segment, min(target, whole.end))
        if whole.end - end < size:
            break
        yield Range(whole.segment, start, end)
        start = end
    yield Range(whole.segment, start, whole.end)


class Readers:
    """Sources of other shards are asked about there."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def resolve(self, sources: Sequence[str], position: Starting) -> dict[str, int]:
        shared, found = self._shared, dict[str, int]()
        for shard, names in (await shared.remote.by_shard(await shared.remote.partitions(sources))).items():
            if shard is None:
                found |= await shared.sources.resolve(names, _in(names, position))
            else:
                found |= await shared.remote.resolve(shard, names, _in(names, position))
        return found

    async def cut(
        self,
        sources: Sequence[str],
        start: Segments,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
    ) -> dict[str, int]:
        """Where to read to from `start`. Waits for new data; returns the start itself if none arrived. With sources in
        several shards, each gets its part of the limits, and the first that has anything new ends the wait.
        """
        shared, names = self._shared, await self._shared.remote.partitions(sources)
        by_shard = await shared.remote.by_shard(names)
        if by_shard.keys() <= {None}:
            return await self.cut_here(names, start, upto=upto, limits=limits, wait_seconds=wait_seconds)
        share = _shared(limits, len(by_shard))
        pending = set["asyncio.Future[dict[str, int]]"]()
        for shard, there in by_shard.items():
            own = {name: at for name, at in start.items() if source_of(name) in there}
            ends = None if upto is None else {name: at for name, at in upto.items() if source_of(name) in there}
            if shard is None:
                asked = self.cut_here(there, own, upto=ends, limits=share, wait_seconds=wait_seconds)
            else:
                asked = shared.remote.cut(shard, there, own, ends, share, wait_seconds)
            pending.add(asyncio.ensure_future(asked))
        return dict(sorted((await _first_new(pending, start)).items()))

    async def cut_here(
        self,
        names: Sequence[str],
        start: Segments,
        *,
        upto: Segments | None = None,
        limits: Limits | None = None,
        wait_seconds: float = 0.0,
    ) -> dict[str, int]:
        """As `cut`, for sources of this shard."""
        shared, loop = self._shared, asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, shared.settings.wait_seconds_max)
        while True:
            seen = shared.news.count
            segments = shared.sources.all_segments(names)
            positions = {**dict.fromkeys(segments, 0), **start}
            bounds = {} if upto is None else {**dict.fromkeys(segments, 0), **upto}
            waiting = backlogs(shared.records, shared.streams.admitted(positions), bounds)
            lost = shared.streams.lost(names, lambda name: start.get(name, 0), start)
            if waiting or lost:
                limits = limits or Limits()
                bytes_max = shared.settings.epoch_bytes if limits.bytes is None else limits.bytes
                found = await ends(shared.records, waiting, Allowance(bytes_max, limits.rows)) | lost
                # Also those of which nothing was read: whether one is lost later depends on whether it existed here.
                known = {name: at for name, at in positions.items() if is_scaled(name)}
                return dict(sorted({**known, **start, **found}.items()))
            if loop.time() >= deadline or shared.news.is_over:
                return dict(start)
            await shared.news.wait(seen, deadline - loop.time())

    async def splits(self, ranges: Sequence[Range], parts: int, bytes_min: int, *, skip_lost: bool) -> Splits:
        """In the order of the ranges, with the addresses of those in other shards."""
        remote = self._shared.remote
        shards = {one.segment: await remote.shard_of(source_of(one.segment)) for one in ranges}
        if not any(shard is not None for shard in shards.values()):
            return split(self._shared.records, ranges, parts, bytes_min, skip_lost=skip_lost)
        _check_parts(parts)
        size = max(1, bytes_min, -(-sum(one.end - one.start for one in ranges) // parts))
        found, lost = list[Range](), list[Range]()
        for one in ranges:
            shard = shards[one.segment]
            if shard is None:
                here = parts_of(self._shared.records, [one], size, skip_lost=skip_lost)
            else:
                here = await remote.split(shard, [one], size, skip_lost=skip_lost)
            found += here.splits
            lost += here.lost
        return Splits(found, lost, await remote.addresses(shards))

    async def places(self, segments: Sequence[str]) -> dict[str, str]:
        """Segment → the HTTP address of the process that serves it; those of this shard are not in it."""
        return await self._shared.remote.addresses(segments)


def _in(sources: Sequence[str], starting: Starting) -> Starting:
    """The part of a starting position that concerns these sources."""
    if not isinstance(starting, AtSegments):
        return starting
    return AtSegments({name: at for name, at in starting.segments.items() if source_of(name) in sources})


def _shared(limits: Limits | None, count: int) -> Limits | None:
    """What each of so many shards may use of the limits."""
    if limits is None:
        return None
    size, rows = (None if limit is None else max(1, limit // count) for limit in (limits.bytes, limits.rows))
    return Limits(size, rows)


async def _first_new(pending: set["asyncio.Future[dict[str, int]]"], start: Segments) -> dict[str, int]:
    """The ends from those shards that have something new when the first of them has."""
    found = dict(start)
    try:
        while pending and found == start:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                found |= one.result()
        return found
    finally:
        for one in pending:
            one.cancel()
