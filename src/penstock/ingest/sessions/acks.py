"""Acknowledgements of a session: runs of messages, those that wait for pipelines, and how long the oldest waits."""

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from penstock.core.address import Address
from penstock.core.errors import PenstockError
from penstock.core.types import Offset, Position
from penstock.ingest.completion import Completion
from penstock.protocol.connector import NOTHING_YET, Ack, Acked, NotifyAck, encode
from penstock.protocol.connector.bulk import DROPPED, Admission, Columns, encode_acks
from penstock.protocol.connector.bulk import Column as AckColumn

ENTRIES_MAX = 64
"""Times that a session remembers, however long it waits: the oldest is accurate to 1/32 of the whole period."""

# Streams to release before yielding to the loop: about a microsecond each.
_RELEASED_PER_TURN = 2000


class Run:
    """Messages that are received, stored and acknowledged together. It contains only numbers: the bytes are in the
    receive buffer, and are copied into stored events at once.
    """

    __slots__ = ("accepted", "admission", "count", "duplicates", "ends", "position", "received_at", "size")

    def __init__(
        self, columns: Columns, admission: Admission, received_at: float, position: Position, dead: int = 0
    ) -> None:
        """`dead`: how many of them are dead letters."""
        self.admission = admission
        self.received_at = received_at
        self.position = position
        """It is durable when the journal is, up to here."""
        self.count = len(columns)
        self.size = columns.size
        self.duplicates = int(admission.totals.messages[DROPPED]) - dead
        self.accepted = admission.count - self.duplicates - dead
        self.ends: dict[int, Offset] = {}
        """Where its record in each segment ends, by route."""

    def ack(self, granted: int) -> bytes:
        """The ACK for all streams in it."""
        streams = self.admission.streams
        if not self.admission.problem:
            return encode_acks(granted, streams.stream_ids, streams.last_ids)
        pairs = zip(streams.stream_ids.tolist(), streams.last_ids.tolist(), strict=True)
        return encode(Ack(granted, tuple(Acked(*pair) for pair in pairs if pair[1] != NOTHING_YET)))


class Replies(Protocol):
    """What the streams of a session send back to the program."""

    def accept(self, reply: NotifyAck) -> None:
        """Accept a NOTIFY. Its credit is returned with the next ACK."""
        ...

    def refuse(self, reply: NotifyAck) -> None:
        """Refuse a NOTIFY. Its credit is returned after a pause, because programs retry on the next ACK."""
        ...

    def return_refused(self) -> None:
        """A refused stream is free: return its credit without waiting for the pause."""
        ...

    def send_elsewhere(self, address: Address) -> None:
        """Its streams belong to another partition of the source, which is served there."""
        ...

    def fail(self, error: PenstockError) -> None:
        """End the session, with this reason."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether the program is on its way elsewhere, or gone: nothing more is opened for it here."""
        ...

    def acknowledge(self, stream_ids: AckColumn, last_ids: AckColumn) -> None:
        """Acknowledge these streams up to these messages, after earlier acknowledgements."""
        ...

    def flush_soon(self) -> None:
        """Send what can be acknowledged and granted, at the end of this turn of the loop."""
        ...

    @property
    def credits(self) -> int:
        """How many messages the program may send; 0 if it is not connected."""
        ...


class PendingAcks:
    """The acknowledgements of single streams: those that wait until their segment is released up to an offset, and
    those that can be sent. `ended` is called for a stream whose end was waiting.
    """

    def __init__(self, completion: Completion, replies: Replies, ended: Callable[[int], None]) -> None:
        self._completion = completion
        self._replies = replies
        self._ended = ended
        self._waiting = WaitingStreams()
        self._ready: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, stream_id: int, last_id: int) -> None:
        """The acknowledgement can be sent."""
        self._ready.append((stream_id, last_id))

    def add_at(self, route: int, offset: Offset, stream_id: int, last_id: int) -> None:
        """The acknowledgement can be sent when the segment is released up to this offset; at once if it already is."""
        if offset <= self._completion.passed(route):
            self.add(stream_id, last_id)
        else:
            self.await_point(route, offset, stream_id, last_id)

    def await_point(self, route: int, offset: Offset, stream_id: int, last_id: int) -> None:
        self._waiting.add_point(route, offset, stream_id, last_id)
        self._completion.wait(self)

    def await_end(self, route: int, offset: Offset, stream_id: int) -> None:
        self._waiting.add_end(route, offset, stream_id)
        self._completion.wait(self)

    def passes(self, stream_id: int, last_id: int) -> bool:
        """Whether the stream waits for nothing above this id. If so, it stops waiting."""
        return self._waiting.passes(stream_id, last_id)

    def release(self, route: int, passed: float) -> bool:
        """Implements `completion.Waiter`: acknowledge and end what has waited for the segment to be
        released this far.
        """
        due = self._waiting.due(route, passed, _RELEASED_PER_TURN)
        self._ready += due.points
        for stream_id in due.ends:
            self._ended(stream_id)
        self.send()
        if not self._waiting:
            self._completion.forget(self)
        if due.points or due.ends:
            self._replies.flush_soon()
        return due.is_all

    def send(self) -> None:
        if self._ready:
            ready, self._ready = self._ready, []
            self._replies.acknowledge(*(array("Q", column) for column in zip(*ready, strict=True)))

    def keep_ends(self) -> None:
        """Stop waiting for all streams that have not ended."""
        self._waiting.keep_ends()

    def clear(self) -> None:
        self._waiting.clear()
        self._completion.forget(self)


class Due(NamedTuple):
    """What has waited long enough."""

    points: list[tuple[int, int]]
    """Streams, each with the message id to acknowledge."""
    ends: list[int]
    """Streams that end."""
    is_all: bool


class _Point(NamedTuple):
    offset: int
    last_id: int


class WaitingStreams:
    """A stream waits at most once for a point of reference, and once for its end: so there are no more entries than
    streams, however long they wait.
    """

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}
        self._heaps: defaultdict[int, list[tuple[int, bool, int]]] = defaultdict(list)
        """By route: the offset, whether it is an end, the stream."""

    def __bool__(self) -> bool:
        return any(self._heaps.values())

    def add_point(self, route: int, offset: int, stream_id: int, last_id: int) -> None:
        """Acknowledge `last_id` once the segment is released up to `offset`, and nothing below it before."""
        if stream_id not in self._points:
            heappush(self._heaps[route], (offset, False, stream_id))
        self._points[stream_id] = _Point(offset, last_id)

    def add_end(self, route: int, offset: int, stream_id: int) -> None:
        """The stream ends once its segment is released up to `offset`."""
        heappush(self._heaps[route], (offset, True, stream_id))

    def passes(self, stream_id: int, last_id: int) -> bool:
        """Whether this id may be acknowledged, because it is not below what the stream waits for. If so, it stops
        waiting.
        """
        point = self._points.get(stream_id)
        if point is None:
            return True
        if last_id < point.last_id:
            return False
        del self._points[stream_id]
        return True

    def due(self, route: int, passed: float, limit: int) -> Due:
        """Remove and return at most `limit` entries that have waited for `passed` or less."""
        heap = self._heaps[route]
        due = Due([], [], is_all=True)
        while heap and heap[0][0] <= passed:
            if limit == 0:
                return due._replace(is_all=False)
            limit -= 1
            _, is_end, stream_id = heappop(heap)
            if is_end:
                due.ends.append(stream_id)
            elif (point := self._points.get(stream_id)) is not None and point.offset > passed:
                heappush(heap, (point.offset, False, stream_id))
            elif point is not None:
                del self._points[stream_id]
                due.points.append((stream_id, point.last_id))
        return due

    def keep_ends(self) -> None:
        """Forget all points of reference."""
        self._points.clear()
        for route, heap in self._heaps.items():
            self._heaps[route] = [entry for entry in heap if entry[1]]
            heapify(self._heaps[route])

    def clear(self) -> None:
        self._points.clear()
        self._heaps.clear()


@dataclass(slots=True)
class _Entry:
    received_at: float
    ends: dict[int, int]


class AckLag:
    """Tracks when the oldest message that waits for pipelines arrived. Messages of about the same time share an entry:
    the time of the first, and the offsets of the last in each segment. If there are too many entries, neighbours are
    merged.
    """

    __slots__ = ("_entries", "_width")

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._width = 0.0

    def add(self, received_at: float, ends: Mapping[int, int]) -> None:
        """Messages arrived at this time, and are stored up to these offsets, by route."""
        last = self._entries[-1] if self._entries else None
        if last is not None and received_at - last.received_at < self._width:
            last.ends.update(ends)
            return
        self._entries.append(_Entry(received_at, dict(ends)))
        if len(self._entries) > ENTRIES_MAX:
            self._join_neighbours()

    def oldest(self, passed: Callable[[int], float]) -> float | None:
        """When the oldest unacknowledged message arrived; `passed(route)` is how far a segment is acknowledged."""
        while self._entries and all(end <= passed(route) for route, end in self._entries[0].ends.items()):
            self._entries.popleft()
        self._width = min(self._width, self._fitting_width())
        return self._entries[0].received_at if self._entries else None

    def _fitting_width(self) -> float:
        """A width with which twice as many entries would fit."""
        if not self._entries:
            return 0.0
        return (self._entries[-1].received_at - self._entries[0].received_at) / (ENTRIES_MAX // 2)

    def _join_neighbours(self) -> None:
        entries = list(self._entries)
        self._width = self._fitting_width()
        self._entries = deque(entries[::2])
        for entry, following in zip(entries[::2], entries[1::2], strict=False):
            entry.ends.update(following.ends)
