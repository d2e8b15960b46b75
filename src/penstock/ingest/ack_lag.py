"""How long the oldest message of a session has waited for its acknowledgement, while pipelines hold these back."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ENTRIES_MAX = 64
"""Times that a session remembers, however long it waits: the oldest is right to within a 32nd of the whole."""


@dataclass(slots=True)
class _Entry:
    received_at: float
    ends: dict[int, int]


class AckLag:
    """Messages that came about the same time are one entry: the time of the first, and the offsets of the last in each
    segment. When there are too many, two neighbours become one.
    """

    __slots__ = ("_entries", "_width")

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._width = 0.0

    def add(self, received_at: float, ends: Mapping[int, int]) -> None:
        """Messages came then, and are stored up to these offsets, by route."""
        last = self._entries[-1] if self._entries else None
        if last is not None and received_at - last.received_at < self._width:
            last.ends.update(ends)
            return
        self._entries.append(_Entry(received_at, dict(ends)))
        if len(self._entries) > ENTRIES_MAX:
            self._join_neighbours()

    def oldest(self, passed: Callable[[int], float]) -> float | None:
        """When the oldest came that is not acknowledged; `passed(route)` says how far its segment is."""
        while self._entries and all(end <= passed(route) for route, end in self._entries[0].ends.items()):
            self._entries.popleft()
        self._width = min(self._width, self._fitting_width())
        return self._entries[0].received_at if self._entries else None

    def _fitting_width(self) -> float:
        """So that what there is would fit twice."""
        if not self._entries:
            return 0.0
        return (self._entries[-1].received_at - self._entries[0].received_at) / (ENTRIES_MAX // 2)

    def _join_neighbours(self) -> None:
        entries = list(self._entries)
        self._width = self._fitting_width()
        self._entries = deque(entries[::2])
        for entry, following in zip(entries[::2], entries[1::2], strict=False):
            entry.ends.update(following.ends)
