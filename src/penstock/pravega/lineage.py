"""Streams as pipelines read and write them: the segments of a stream with those that each continues."""

from collections.abc import Iterable, Sequence

from penstock.coordinator.pravega_streams import Lineage, TimeMark
from penstock.pravega.ledger import Changed, Keeper
from penstock.pravega.machine import Reason, Refusal, Scale, found
from penstock.pravega.state import Stream, segment_name
from penstock.protocol.api.pipelines import Segments, Span

_MICROSECONDS = 1000
"""In a unit of the times that writers note: Pravega leaves the unit to its users, who take milliseconds."""


def lineage_of(scope: str, name: str, stream: Stream) -> Lineage:
    def named(numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(segment_name(scope, name, number) for number in numbers)

    def segments(cut: dict[int, int]) -> Segments:
        return dict(zip(named(cut), cut.values(), strict=True))

    continues = dict.fromkeys((one.id for one in stream.epochs[0]), tuple[str, ...]())
    for before, after in zip(stream.epochs, stream.epochs[1:], strict=False):
        ended = [one for one in before if one not in after]
        for new in (one for one in after if one not in before):
            continues[new.id] = named(one.id for one in ended if one.overlaps(new))
    existing = stream.existing()
    return Lineage(
        {segment_name(scope, name, number): before for number, before in continues.items() if number in existing},
        segments(stream.removed),
        [TimeMark(mark.time * _MICROSECONDS, segments(mark.cut)) for mark in stream.marks],
        bool(stream.marks),
    )


class PipelineStreams:
    """The StreamController of the coordinator."""

    def __init__(self, keeper: Keeper, changed: Changed) -> None:
        self._keeper = keeper
        self._changed = changed
        self._lineages: dict[str, tuple[Stream, Lineage]] = {}
        """Of the streams that were asked for, with the state that they were made from."""

    def _found(self, stream: str) -> tuple[str, str, Stream]:
        """Raises Refusal."""
        scope, _, name = stream.partition("/")
        return scope, name, found(self._keeper.state, scope, name)

    def lineage(self, stream: str) -> Lineage | None:
        try:
            scope, name, current = self._found(stream)
        except Refusal:
            self._lineages.pop(stream, None)
            return None
        known = self._lineages.get(stream)
        if known is None or known[0] is not current:
            known = self._lineages[stream] = current, lineage_of(scope, name, current)
        return known[1]

    def spans(self, stream: str) -> Sequence[Span]:
        scope, name, current = self._found(stream)
        if current.is_sealed:
            raise Refusal(Reason.SEALED, f"stream {stream} is sealed")
        active = sorted(current.active, key=lambda one: one.low)
        return [Span(segment_name(scope, name, one.id), one.low, one.high) for one in active]

    def replace_all(self, stream: str, ranges: Iterable[tuple[float, float]]) -> Sequence[Span]:
        scope, name, current = self._found(stream)
        self._keeper.commit(Scale(scope, name, tuple(one.id for one in current.active), tuple(ranges)))
        return self.spans(stream)

    def appended(self, segments: Iterable[str]) -> None:
        self._changed(segments, self._keeper.end)
