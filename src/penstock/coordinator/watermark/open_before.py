"""Which streams of a connector are open where a pipeline begins to read it, though they began before that place.

A pipeline may begin with the newest data, or with the oldest that retention has left: then streams have begun before. A
stream is open there if the first that comes of it is no beginning, or if nothing comes of it and it is open now. How
far it has come is not known before its next event, so it holds the watermark back until then, as one does that has just
begun: otherwise what it sends next could be late, though all who have read it from its beginning have waited for it.
"""

from collections.abc import Iterable

from penstock.coordinator.messages import Segments
from penstock.coordinator.reading.records import Records
from penstock.core.types import Buffer
from penstock.protocol.stored.head import OF_SEGMENTS, MarkKind, PackedHead, numbers, unpack_head

_BEGINNINGS = (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN)


class FirstMentions:
    """What comes first of each stream, of the heads of records behind a place, segment by segment."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.finished: set[int] = set()
        """Numbers of the segments that have the mark FINISHED behind the place."""

    def open_before(self, open_now: Iterable[int]) -> set[int]:
        return self.open.union(open_now) - (self.seen - self.open)

    def take(self, heads: Iterable[Buffer]) -> None:
        """Raises Damaged."""
        for data in heads:
            head = unpack_head(data)
            if head is not None:
                self._take(head)

    def _take(self, head: PackedHead) -> None:
        for mark in head.marks:
            if mark.kind is MarkKind.FINISHED:
                self.finished.add(mark.stream_id)
            elif mark.kind in _BEGINNINGS and mark.stream_id not in self.seen:
                self.seen.add(mark.stream_id)
                if mark.was_open:
                    self.open.add(mark.stream_id)
        others = {mark.stream_id for mark in head.marks if mark.kind not in OF_SEGMENTS}
        new = others.union(numbers("Q", head.columns.stream_ids)) - self.seen
        self.seen |= new
        self.open |= new


async def first_mentions(records: Records, segments: Iterable[str], at: Segments) -> FirstMentions:
    """In all that there is of these segments behind a place. Raises Damaged."""
    first = FirstMentions()
    for segment in segments:
        async for heads in records.heads(segment, at.get(segment, 0), records.end(segment)):
            first.take(head for _, head in heads.found)
    return first
