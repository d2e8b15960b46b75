"""What a pipeline's watermark is made of: of every active stream the highest event time, at the pipeline's own place.

The watermark is the minimum over them. A stream that has begun and said nothing yet holds it back, for nobody knows
where it begins; one whose events have no times does not. When all have ended, it is the highest time of them all.
"""

from collections.abc import Iterable, Iterator

from penstock.core.types import Buffer
from penstock.protocol.stored.head import MarkKind, PackedHead, numbers, unpack_head
from penstock.protocol.stored.head_fold import fold_packed
from penstock.protocol.stored.layout import NO_TIME

SILENT = NO_TIME
"""In the place of a highest event time: the stream is active, and no event of it has come."""

Times = dict[int, int]
"""Stream id → highest event time."""


class StreamTable:
    """Of each source, the active streams and the idle ones. `outputs` has the watermarks of pipelines that are read."""

    def __init__(self) -> None:
        self.active: dict[str, Times] = {}
        self.idle: dict[str, Times] = {}
        self.outputs: dict[str, int | None] = {}
        self.highest = NO_TIME

    def copy(self) -> "StreamTable":
        new = StreamTable()
        new.active = {source: dict(times) for source, times in self.active.items()}
        new.idle = {source: dict(times) for source, times in self.idle.items()}
        new.outputs = dict(self.outputs)
        new.highest = self.highest
        return new

    def __len__(self) -> int:
        return sum(map(len, [*self.active.values(), *self.idle.values()]))

    def forget(self, sources: Iterable[str]) -> None:
        """Those that the pipeline reads no more."""
        for source in [*sources]:
            self.active.pop(source, None)
            self.idle.pop(source, None)

    def watermark(self) -> int | None:
        """None while it is not known, or held back by a stream that is silent, or an output that has none."""
        if None in self.outputs.values():
            return None
        least = [min(times.values()) for times in self.active.values() if times]
        least += [watermark for watermark in self.outputs.values() if watermark is not None]
        found = min(least) if least else self.highest
        return None if found == NO_TIME else found

    def fold(self, source: str, heads: Iterable[Buffer]) -> None:
        """Take in records of one segment, in order. Raises Damaged."""
        for run in _runs(head for data in heads if (head := unpack_head(data)) is not None):
            for mark in run[0].marks:
                if mark.kind in (MarkKind.STARTED, MarkKind.ACTIVE_AGAIN):
                    self._begin(source, mark.stream_id)
            self._events(source, run)
            for mark in run[0].marks:
                if mark.kind is MarkKind.ENDED:
                    self._end(source, mark.stream_id)
                elif mark.kind is MarkKind.IDLE:
                    self._rest(source, mark.stream_id)

    def _begin(self, source: str, stream_id: int) -> None:
        before = self.idle.get(source, {}).pop(stream_id, SILENT)
        self.active.setdefault(source, {}).setdefault(stream_id, before)

    def _end(self, source: str, stream_id: int) -> None:
        self.active.get(source, {}).pop(stream_id, None)
        self.idle.get(source, {}).pop(stream_id, None)

    def _rest(self, source: str, stream_id: int) -> None:
        time = self.active.get(source, {}).pop(stream_id, None)
        if time is not None:
            self.idle.setdefault(source, {})[stream_id] = time

    def _events(self, source: str, heads: list[PackedHead]) -> None:
        if len(heads) == 1:
            ids, times = numbers("Q", heads[0].columns.stream_ids), numbers("q", heads[0].columns.highest_times)
        else:
            folded = fold_packed(heads)
            ids, times = folded.stream_ids, folded.highest_times
        if not ids:
            return
        active, idle = self.active.setdefault(source, {}), self.idle.get(source, {})
        for stream_id, time in zip(ids, times, strict=True):
            if time == NO_TIME:
                if active.get(stream_id) == SILENT:
                    del active[stream_id]  # its events have no times: it holds nothing back
            else:
                before = idle.pop(stream_id, NO_TIME) if idle else NO_TIME
                active[stream_id] = max(time, before, active.get(stream_id, NO_TIME))
        highest = max(times)
        self.highest = max(self.highest, highest)


def _runs(heads: Iterator[PackedHead]) -> Iterator[list[PackedHead]]:
    """Heads without marks are taken together; one with marks alone: these stand before its events, or behind them."""
    run: list[PackedHead] = []
    for head in heads:
        if head.marks and run:
            yield run
            run = []
        run.append(head)
        if head.marks:
            yield run
            run = []
    if run:
        yield run


def advanced(before: int | None, table: StreamTable) -> int | None:
    """The watermark of the next cut: it never goes back."""
    now = table.watermark()
    return before if now is None else now if before is None else max(before, now)
