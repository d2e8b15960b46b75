"""Connectors' segments, read in the order in which their records came, whichever segment each of them lies in.

Where one segment were read ahead of another, a stream that begins in that other one would find the watermark ahead of
it, and be late, though it was in time when it came. (Records that compaction has moved count as newer than they are.)
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.coordinator.reading.records import Records

_TURNS = 16
"""Of each segment in one cut: so much of what a cut may take is given away at most, a sixteenth."""


class Backlog(NamedTuple):
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def taken_in_order(records: Records, waiting: Mapping[str, Backlog], bytes_max: int) -> dict[str, int]:
    """How far each of these can be read within so many bytes, one record at least: it is always the turn of the one
    that is farthest behind.
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


def in_step(records: Records, waiting: Mapping[str, Backlog], ends: Mapping[str, int]) -> dict[str, int]:
    """Of what is read up to these ends only what came before the first that is left. Never nothing at all, though
    records that were moved may say so.
    """
    left = {name: records.position(name, end) for name, end in ends.items() if end < waiting[name].end}
    first = min(left, key=lambda name: left[name], default=None)
    if first is None:
        return dict(ends)
    found = {
        name: end if name == first else records.came_before(name, waiting[name].start, end, left[first])
        for name, end in ends.items()
    }
    return found if any(end > waiting[name].start for name, end in found.items()) else dict(ends)
