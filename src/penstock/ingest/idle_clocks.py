"""Clocks of silence: how long streams have said nothing while they could have.

Each counts seconds of its own, which run only while those whom it is for could send: a worker that is down, or busy, or
gives no credits, makes no stream idle.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Protocol


class SilentStreams(Protocol):
    """The table of a session's open streams, which knows what each run of messages has touched."""

    def next_mark(self) -> int: ...

    def silent(self, mark: int, limit: int) -> list[int]: ...

    def rest(self, stream_ids: Iterable[int]) -> None: ...


class SessionClock:
    """Of the streams that are open in a session. It remembers marks of the table, and nothing of single streams: a
    sweep looks at the table's columns, and a message costs nothing.
    """

    def __init__(self, table: SilentStreams, timeout_seconds: float) -> None:
        self._table = table
        self._timeout_seconds = timeout_seconds
        self._now = 0.0
        self._could_send = False
        self._marks: deque[tuple[float, int]] = deque()

    def tick(self, seconds: float, *, can_send: bool) -> None:
        """So much time has passed. It counts if the source could send at its beginning and at its end."""
        if can_send and self._could_send:
            self._now += seconds
        self._could_send = can_send

    def lapsed(self, limit: int) -> list[int]:
        """Streams that have been silent for the timeout, or up to one sweep longer. Call it regularly: each call is a
        sweep, and what it remembers of the last ones is bounded by how many of them fall into the timeout.
        """
        if self._marks and self._marks[-1][0] == self._now:
            self._marks.pop()  # the clock has stood still: the newer mark says more
        self._marks.append((self._now, self._table.next_mark()))
        since = self._now - self._timeout_seconds
        while len(self._marks) > 1 and self._marks[1][0] <= since:
            self._marks.popleft()
        at, mark = self._marks[0]
        return self._table.silent(mark, limit) if at <= since else []

    def rest(self, stream_ids: Iterable[int]) -> None:
        """These have been told of."""
        self._table.rest(stream_ids)


class AwayClock:
    """Of the active streams of a connector that no session has: their program could come back, and send."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._now = 0.0
        self._since: dict[int, float] = {}
        """In the order of time, for the clock never goes back."""

    def __len__(self) -> int:
        return len(self._since)

    def tick(self, seconds: float, *, can_send: bool) -> None:
        if can_send:
            self._now += seconds

    def add(self, stream_id: int) -> None:
        """Its silence begins now."""
        self._since.pop(stream_id, None)
        self._since[stream_id] = self._now

    def remove(self, stream_id: int) -> None:
        self._since.pop(stream_id, None)

    def rest(self, stream_ids: Iterable[int]) -> None:
        """These have been told of."""
        for stream_id in stream_ids:
            self.remove(stream_id)

    def lapsed(self, limit: int) -> list[int]:
        until = self._now - self._timeout_seconds
        return [*islice(takewhile(lambda stream_id: self._since[stream_id] <= until, self._since), limit)]
