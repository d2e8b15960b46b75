"""Streams of Pravega's clients, as sources and as targets of pipelines.

Such a stream is a graph of segments: a scaling seals some of them, and others continue their routing keys. A segment is
read when those that it continues were read to their ends, by earlier epochs: so the events of a routing key are read in
order, however often the stream is scaled. The controller knows the graph; without one there are no such streams.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from penstock.coordinator.machine.state import source_of
from penstock.core.errors import PipelineError, RequestError
from penstock.protocol.api.pipelines import Segments, Span, Staged
from penstock.protocol.stored.names import Form, Source, pravega_number
from penstock.store.store import SegmentStore

_HINT = (
    "Start the worker with --controller-port. In a cluster, use penstock run: the shard of the application has the "
    "controller."
)


def check_is_followed(source: str) -> None:
    """A pipeline does not follow streams of other shards: it would have to know their scalings. Raises RequestError."""
    if Source.parse(source).form is Form.PRAVEGA:
        raise RequestError(f"{source} cannot be read: the controller is in another shard than this pipeline", _HINT)


def is_scaled(segment: str) -> bool:
    """Whether it belongs to a stream of Pravega's clients: other segments may continue it."""
    return Source.parse(source_of(segment)).form is Form.PRAVEGA


class TimeMark(NamedTuple):
    """Whoever has read the segments up to these offsets has all events before this time."""

    time_us: int
    at: Segments


class Lineage(NamedTuple):
    """What the controller knows about one stream."""

    continues: Mapping[str, tuple[str, ...]]
    """Its segments in the order of their creation, each with those that it continues."""
    removed: Mapping[str, int]
    """Segments that a truncation has removed as a whole, with their lengths."""
    marks: Sequence[TimeMark]
    """In the order of their times."""
    has_writers: bool
    """Whether any writer has noted a time, ever."""


class StreamController(Protocol):
    """Of Pravega's clients. Called by the thread that owns the store."""

    def lineage(self, stream: str) -> Lineage | None:
        """Of the stream `SCOPE/STREAM`; None if there is none."""
        ...

    def spans(self, stream: str) -> Sequence[Span]:
        """The active segments with their key ranges. Raises RequestError for a stream that does not accept events."""
        ...

    def replace_all(self, stream: str, ranges: Iterable[tuple[float, float]]) -> Sequence[Span]:
        """Scale the stream: the new active segments, which continue all others. Raises RequestError."""
        ...

    def appended(self, segments: Iterable[str]) -> None:
        """Something was merged into these segments."""
        ...


class PravegaStreams:
    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.controller: StreamController | None = None
        """None: the worker has none, or it has not started yet."""
        self._routes: dict[str, tuple[int, str, tuple[Span, ...]]] = {}
        """Pipeline → its last epoch with a target, and the segments that the epoch's tasks have routed rows to."""

    # As a source.

    def check(self, sources: Iterable[str]) -> None:
        """Raises RequestError if there is a stream of Pravega's clients among them, and no controller."""
        for source in sources if self.controller is None else ():
            if Source.parse(source).form is Form.PRAVEGA:
                raise RequestError(
                    f"{source} cannot be read: this worker has no controller for Pravega's clients", _HINT
                )

    def _lineage(self, source: Source) -> Lineage | None:
        return None if self.controller is None else self.controller.lineage(source.name)

    def _lineages(self, sources: Iterable[str]) -> Iterator[Lineage]:
        for parsed in map(Source.parse, sources if self.controller is not None else ()):
            if parsed.form is Form.PRAVEGA and (found := self._lineage(parsed)) is not None:
                yield found

    def segments(self, source: Source) -> list[str]:
        """Those that exist, in the order of their creation."""
        found = self._lineage(source)
        return [] if found is None else [name for name in found.continues if self._store.exists(name)]

    def admitted(self, positions: Segments) -> Segments:
        """Without the segments that continue one which was not read to its end."""
        lineages = [*self._lineages({source_of(name) for name in positions})]
        if not lineages:
            return positions
        waiting = {
            name
            for lineage in lineages
            for name, before in lineage.continues.items()
            if not all(self._is_read(lineage, one, positions.get(one)) for one in before)
        }
        return {name: at for name, at in positions.items() if name not in waiting}

    def _is_read(self, lineage: Lineage, segment: str, at: int | None) -> bool:
        """Whether a sealed segment was read to its end. What is not known any more is behind every reader."""
        if self._store.exists(segment):
            return at is not None and at >= self._store.length(segment)
        return at is None or at >= lineage.removed.get(segment, 0)

    def lost(self, sources: Iterable[str], position: Callable[[str], int], begun: Collection[str]) -> dict[str, int]:
        """Segments that were removed before they were read to their ends, with their lengths. `begun`: all segments of
        these streams that existed when the reader began; those that were removed before do not concern it.
        """
        found: dict[str, int] = {}
        for source in sources:
            for lineage in self._lineages([source]):
                last = max((pravega_number(name) for name in begun if source_of(name) == source), default=-1)
                found |= {
                    name: length
                    for name, length in lineage.removed.items()
                    if position(name) < length and (name in begun or pravega_number(name) > last)
                }
        return found

    def was_removed(self, segment: str, at: int) -> bool:
        """Whether a truncation of its stream has removed the segment, which had these bytes."""
        return any(at <= lineage.removed.get(segment, -1) for lineage in self._lineages([source_of(segment)]))

    def watermark(self, source: Source, positions: Segments, before: int | None) -> tuple[bool, int | None]:
        """Whether the stream counts, and its watermark for a reader that is there; `before` is what it was before.
        Streams whose writers note no times do not count.
        """
        found = self._lineage(source)
        if found is None:
            return before is not None, before
        if not found.has_writers:
            return False, None
        passed = (mark.time_us for mark in reversed(found.marks) if self._has_passed(found, mark, positions))
        last = next(passed, before)
        return True, last if before is None or last is None else max(last, before)

    def _has_passed(self, lineage: Lineage, mark: TimeMark, positions: Segments) -> bool:
        """A segment that the reader does not know was removed before it began, or is ahead of it."""
        return all(
            positions[name] >= at if name in positions else at == 0 or name not in lineage.continues
            for name, at in mark.at.items()
        )

    # As a target.

    def route(self, pipeline: str, epoch: int, target: str) -> tuple[Span, ...]:
        """The segments to which all tasks of an epoch route its rows. Raises RequestError."""
        known = self._routes.get(pipeline)
        if known is None or known[:2] != (epoch, target):
            known = self._routes[pipeline] = epoch, target, tuple(self._writable(target))
        return known[2]

    def _writable(self, target: str) -> Sequence[Span]:
        source = Source.parse(target)
        if source.form is not Form.PRAVEGA:
            raise RequestError(f"{target!r} is not a valid target", "Write pravega:SCOPE/STREAM.")
        if self.controller is None:
            raise RequestError(
                f"{target} cannot be written: this worker has no controller for Pravega's clients", _HINT
            )
        return self.controller.spans(source.name)

    @contextmanager
    def merging(self, pipeline: str, epoch: int, staged: Iterable[Staged]) -> Iterator[tuple[tuple[str, str], ...]]:
        """The merges, of target and source, for what was staged with a target. If the stream was scaled since the rows
        were routed, it has their key ranges meanwhile, and its own again at the end: so they come after everything
        before, and before everything after. Raises PipelineError if nothing can be merged.
        """
        routed = [one for one in staged if one.target]
        if not routed:
            yield ()
            return
        target = source_of(routed[0].target)
        wanted, active = self.route(pipeline, epoch, target), self._writable(target)
        if not {one.target for one in routed} <= {span.segment for span in wanted}:
            raise PipelineError(
                f"{target} was scaled, and the worker was restarted, while epoch {epoch} was running",
                "Let Spark run the batch again.",
            )
        assert self.controller is not None
        stream, is_scaled = Source.parse(target).name, [*wanted] != [*active]
        now = self.controller.replace_all(stream, [span.range for span in wanted]) if is_scaled else active
        into = {old.segment: new.segment for old, new in zip(wanted, now, strict=True)}
        try:
            yield tuple((into[one.target], one.segment) for one in routed)
        finally:
            if is_scaled:
                self.controller.replace_all(stream, [span.range for span in active])
        self._routes.pop(pipeline, None)
        self.controller.appended(into.values())
