"""The streams of a session whose acknowledgement waits until their segment is released up to an offset."""

from collections import defaultdict
from heapq import heapify, heappop, heappush
from typing import NamedTuple


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
    streams, however long that takes.
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
        """Whether this may be acknowledged: it is not below what the stream waits for. Then it waits no longer."""
        point = self._points.get(stream_id)
        if point is None:
            return True
        if last_id < point.last_id:
            return False
        del self._points[stream_id]
        return True

    def due(self, route: int, passed: float, limit: int) -> Due:
        """Take what has waited for `passed` or less, `limit` entries of it at most."""
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
