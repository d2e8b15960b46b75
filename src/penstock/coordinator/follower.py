"""What a home shard knows of a source in another shard, for one pipeline. Pure: replies go in, requests come out.

A follower is for one pipeline, not for all that read the source: one that lags, or has stopped, must not keep the
others from reading, and a window from the slowest to the fastest of them would have no bound.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.core.types import Buffer
from penstock.protocol.api.pipelines import Segments
from penstock.protocol.api.shards import (
    RECORD_BYTES,
    Block,
    ClockWanted,
    Follow,
    Followed,
    FollowedSegment,
    Opening,
    OutputRows,
)
from penstock.protocol.stored.head import numbers, unpack_head

WINDOW_BYTES = 32 << 20
"""Heads in memory for each pipeline and source: enough for an epoch of a gigabyte with records of a few kilobytes. A
cut goes as far as the heads that are here, so with smaller records epochs are smaller."""

REPLY_BYTES = 4 << 20
"""Of heads in one reply: it is decoded at once, in the event loop."""

TOTAL_BYTES = 256 << 20
"""Heads in memory for all followers of a process: eight windows. When so much is here or on its way, a follower gets
no more than its share."""

SHARE_BYTES = 256 << 10
"""What a follower may have in any case, so that no pipeline waits for another one to read."""

NO_BLOCK = Block(b"", b"", b"", b"")


class Window:
    """Consecutive records of one segment, from the pipeline's position on: where each ends, when it arrived, its head.
    Arrival times never go back inside a segment, whatever the clocks of its owners did.
    """

    def __init__(self, base: int = 0) -> None:
        self.base = base
        """Where the first record starts."""
        self.begin = 0
        """The first offset of the segment that is still stored."""
        self.durable = 0
        """Up to here it is durable."""
        self.number = 0
        """Of the segment in its shard; 0: not known yet. If it was deleted and created again, it has another one, and
        offsets mean other bytes.
        """
        self.bytes = 0
        self._ends: list[int] = []
        self._arrivals: list[int] = []
        self._heads: list[Buffer] = []

    @property
    def end(self) -> int:
        """Up to here the records are known."""
        return self._ends[-1] if self._ends else self.base

    def add(self, start: int, records: Iterable[tuple[int, int, Buffer]]) -> None:
        """Records that start at `start`: end, arrival, head. What is known already is skipped; if bytes in between were
        removed before they were read, the window continues after them.
        """
        if start > self.end:
            self._clear(start)
        last = self._arrivals[-1] if self._arrivals else 0
        for end, arrival, head in records:
            if end <= self.end:
                continue
            last = max(last, arrival)
            self._ends.append(end)
            self._arrivals.append(last)
            self._heads.append(head)
            self.bytes += RECORD_BYTES + len(head)

    def _clear(self, base: int) -> None:
        self.base, self.bytes = base, 0
        del self._ends[:], self._arrivals[:], self._heads[:]

    def trim(self, position: int) -> None:
        """The pipeline has read up to there."""
        count = bisect_right(self._ends, position)
        if count:
            self.base = self._ends[count - 1]
            self.bytes -= sum(RECORD_BYTES + len(head) for head in self._heads[:count])
            del self._ends[:count], self._arrivals[:count], self._heads[:count]

    def boundary(self, start: int, limit: int) -> int:
        """The last record end up to `limit`; if there is none, the first one after `start`."""
        at = bisect_right(self._ends, limit)
        found = self._ends[at - 1] if at else self.base
        if found > start:
            return found
        after = bisect_right(self._ends, start)
        return self._ends[after] if after < len(self._ends) else max(start, self.end)

    def arrival(self, offset: int) -> int:
        """When the record at the offset arrived."""
        at = bisect_right(self._ends, offset)
        return self._arrivals[at] if at < len(self._arrivals) else 0

    def arrived_before(self, start: int, end: int, arrival: int) -> int:
        """The end of the records in [start, end) that arrived before that time; `start` if there are none."""
        at = min(bisect_left(self._arrivals, arrival), bisect_right(self._ends, end))
        return max(start, self._ends[at - 1] if at else self.base)

    def heads(self, start: int, end: int) -> list[tuple[int, Buffer]]:
        first, last = bisect_right(self._ends, start), bisect_right(self._ends, end)
        return [*zip(self._ends[first:last], self._heads[first:last], strict=True)]


class Budget:
    """What all followers of a process have in memory, or on its way."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(slots=True)
class Follower:
    """`starts`: where the pipeline's table of streams was written, or where the pipeline begins. `planned`: its last
    cut, from which on it reads. `needs_opening`: the source is new to the table of streams. Call `close` in the end:
    `budget` is shared.
    """

    home: int
    source: str
    incarnation: int
    starts: Segments
    planned: Segments
    needs_opening: bool = False
    budget: Budget = field(default_factory=Budget)
    windows: dict[str, Window] = field(default_factory=dict)
    disorder_us: int = 0
    has_finished: bool = False
    times: tuple[bool, bool, float | None, int, int | None, int] | None = None
    opening: Opening | None = None
    output: OutputRows | None = None
    problem: str = "it has not answered yet"
    """Why nothing is known at the moment."""
    asked: int = 0
    """Bytes of heads that the reply under way may bring."""
    _version: str = ""
    _counted: int = 0
    """Of its bytes, in the budget."""

    @property
    def bytes(self) -> int:
        """In memory, or on their way."""
        return self.asked + sum(window.bytes for window in self.windows.values())

    def _count(self) -> None:
        now = self.bytes
        self.budget.bytes += now - self._counted
        self._counted = now

    def close(self) -> None:
        """Nothing reads it any more, but for a cut that is under way."""
        self.budget.bytes -= self._counted
        self.budget, self._counted = Budget(), 0

    @property
    def is_ready(self) -> bool:
        """Whether a cut can be decided: everything up to the last one is here."""
        if not self._version or (self.needs_opening and self.opening is None):
            return False
        return all(self.windows[name].end >= at for name, at in self.planned.items() if name in self.windows)

    @property
    def segments(self) -> list[str]:
        """In the order in which the source shard names them."""
        return [*self.windows]

    def request(self, wait_ms: int, clock: ClockWanted) -> Follow | None:
        """None: there is no room for more. Ask again after `read`."""
        self.asked = 0
        self._count()
        own = self._counted if self.is_ready else 0  # what the last cut has read is bounded by the table's writes
        room = room_for(own, self.budget.bytes)
        if room <= 0:
            return None
        self.asked = min(room, REPLY_BYTES)
        self._count()
        return Follow(
            home=self.home,
            source=self.source,
            after={**self.starts, **{name: window.end for name, window in self.windows.items()}},
            known=self._version,
            bytes_max=self.asked,
            opening_at=self.starts if self.needs_opening and self.opening is None else None,
            reads_at=self.planned,
            wait_ms=wait_ms,
            clock=clock,
        )

    def take(self, reply: Followed) -> None:
        """A reply to any earlier request; a late one does no harm."""
        self.asked = 0
        for name, news in reply.segments.items():
            self._take(name, news)
        self._version, self.problem = reply.version, ""
        self.disorder_us, self.has_finished, self.times = reply.disorder_us, reply.has_finished, reply.times
        self.opening = reply.opening or self.opening
        self.output = reply.output
        self._count()

    def _take(self, name: str, news: FollowedSegment) -> None:
        if not news.number and name in self.windows and self.windows[name].number:
            return  # it is not there now; if it is created again, it has another number
        window = self.windows.get(name)
        if window is None:
            window = self.windows[name] = Window(self.starts.get(name, 0))
        if 0 != window.number != news.number:
            if self.planned.get(name, 0):  # nothing of it is there any more: the next cut raises DataLoss
                window.durable = 0
                return
            window = self.windows[name] = Window()
        window.number = news.number
        window.begin, window.durable = news.begin, max(news.end, window.durable)
        if news.start <= window.end or news.start == news.begin:
            window.add(news.start, records_of(news.block))

    def read(self, positions: Segments) -> None:
        """The pipeline's last cut is there."""
        self.planned = {name: at for name, at in positions.items() if name in self.windows}
        for name, at in self.planned.items():
            self.windows[name].trim(at)
        self._count()

    def lost(self, problem: str) -> None:
        """The source shard does not answer."""
        self.asked = 0
        self.problem = problem
        self._count()

    def row(self, at: int) -> tuple[bool, int | None]:
        """Whether there is a watermark of the output at this offset, and which."""
        rows = self.output.rows if self.output is not None else ()
        found = [watermark for end, watermark in rows if end <= at]
        return (True, found[-1]) if found else (False, None)


def room_for(own: int, total: int) -> int:
    """Bytes that a follower may ask for, which has `own` of a `total` of all followers. Not above 0: none."""
    return min(WINDOW_BYTES - own, max(TOTAL_BYTES - total, SHARE_BYTES - own))


def packed(records: Iterable[tuple[int, int, Buffer]]) -> Block:
    """End, arrival and head of each."""
    ends, arrivals, lengths, heads = array("Q"), array("Q"), array("I"), bytearray()
    for end, arrival, head in records:
        ends.append(end)
        arrivals.append(arrival)
        lengths.append(len(head))
        heads += head
    if sys.byteorder == "big":
        for column in (ends, arrivals, lengths):
            column.byteswap()
    return Block(ends.tobytes(), arrivals.tobytes(), lengths.tobytes(), bytes(heads))


def records_of(block: Block) -> Iterable[tuple[int, int, Buffer]]:
    at, heads = 0, memoryview(block.heads)
    columns = numbers("Q", block.ends), numbers("Q", block.arrivals), numbers("I", block.lengths)
    for end, arrival, length in zip(*columns, strict=True):
        yield end, arrival, heads[at : at + length]
        at += length


def arrival_of(head: Buffer) -> int:
    """0: not known."""
    found = unpack_head(head) if head else None
    return 0 if found is None else found.arrival_us
