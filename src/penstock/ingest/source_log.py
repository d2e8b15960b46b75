"""A source's log: every event and mark of its streams goes through `SourceLog.append` into its segments.

Both fronts write here: sessions of programs, and connectors' `out` ports. The log assigns no numbers and never waits:
it stores what it gets at once or not at all, and returns its position; the journal makes it durable.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.access.principals import count_max
from penstock.core.errors import NoRoom, PenstockError, RequestError, StoreFailed
from penstock.core.logs import one_line
from penstock.core.types import INCARNATION, QUOTA, Offset, Position
from penstock.ingest.batch import Batch, Placed
from penstock.ingest.event_times import ArrivalClock, EventTimes
from penstock.ingest.known_streams import KnownStream, KnownStreams, StreamSnapshots, clock_of, next_incarnation
from penstock.ingest.owners import ClaimedStreams
from penstock.ingest.settings import SourceSettings
from penstock.protocol.connector.credits import LargestFrame
from penstock.protocol.stored.head import OF_SEGMENTS, Mark, MarkKind, encode_head
from penstock.protocol.stored.names import CONNECTOR_PREFIX, connector_segment, partition_of
from penstock.store.plan import Addition, AttributeUpdate
from penstock.store.reader import Appended
from penstock.store.store import SegmentStore
from penstock.store.table import Measure

log = logging.getLogger(__name__)

# The quota applies to all segments of a source together, and limits its credits: no segment has its own quota.
_NO_QUOTA = {QUOTA: 2**63 - 1}
_SNAPSHOT_BYTES_PER_STREAM = 16 * 1024
# Marks of one segment per record: a head of about 100 KiB.
_MARKS_PER_RECORD = 5000


def streams_segment(source: str) -> str:
    """The segment with the snapshots of the source's table of streams."""
    return f"{CONNECTOR_PREFIX}{source}/streams"


@dataclass(slots=True)
class SourceCounters:
    """Counters of one source, since the worker started."""

    messages: int = 0
    message_bytes: int = 0
    duplicates: int = 0
    untimed: int = 0
    """Events without a usable time in their data."""


class SourceSegments:
    """The data segments of a source, and the room in them."""

    def __init__(self, store: SegmentStore, source: str, count: int) -> None:
        self._store = store
        self._source = source
        self.names: list[str] = []
        self.finished: Callable[[int], float] = lambda _: 0
        """Up to where a segment, by route, does not count against the quota although it is still retained."""
        self.grow(count)

    def grow(self, count: int) -> None:
        """Create segments up to this number. The segment of the table is created last: if it exists, the source is
        complete. On a full disk they use the reserve, so that a program or connector is admitted and waits for room
        with its first stream. That costs a few hundred bytes per source, and the number of sources is limited.
        """
        names: list[str] = []
        while self._store.exists(name := connector_segment(self._source, len(names))):
            names.append(name)
        is_created = self._store.exists(streams_segment(self._source))
        # A full disk must not lock out a source that exists.
        with suppress(*[NoRoom] if is_created and names else []):
            while len(names) < count:
                name = connector_segment(self._source, len(names))
                if not self._store.exists(name):
                    self._store.create(name, _NO_QUOTA, draining=True)
                names.append(name)
        if not is_created:
            self._store.create(streams_segment(self._source), _NO_QUOTA, draining=True)
        self.names[:] = names

    def length(self, route: int) -> int:
        """Stored bytes, durable or not; 0 if the segment was deleted."""
        name = self.names[route]
        return self._store.length(name) if self._store.exists(name) else 0

    @property
    def disk_has_room(self) -> bool:
        try:
            self._store.journal.check_room(draining=False)
        except (NoRoom, StoreFailed):
            return False
        return True

    @property
    def retained_bytes(self) -> int:
        present = filter(self._store.exists, self.names)  # one may have been deleted over the segment protocol
        return sum(info.length - info.start for info in map(self._store.info, present))

    @property
    def unfinished_bytes(self) -> int:
        """Stored bytes, durable or not, except those that every pipeline has completed and that are retained only
        because Spark may read them again. Those are removed when more data arrives, so a quota that counted them could
        block itself forever.
        """
        return sum(length - finished for _, finished, length in self._offsets())

    @property
    def finished_bytes(self) -> int:
        """Stored bytes that every pipeline has completed."""
        return sum(finished - start for start, finished, _ in self._offsets())

    def _offsets(self) -> Iterator[tuple[int, int, int]]:
        """For each segment: its start, the end of its finished bytes, and its length."""
        for route, name in enumerate(self.names):
            if self._store.exists(name):
                start, length = self._store.info(name).start, self._store.length(name)
                yield start, int(max(start, min(self.finished(route), length))), length


class TotalQuota:
    """The quota of a principal for all of its sources together. As for a single source, what every pipeline has
    completed does not count.
    """

    def __init__(self, stored: Measure, quota_bytes: int, sources: Callable[[], Iterable["SourceLog"]]) -> None:
        """`sources`: those of the principal, as many as there are now."""
        self._stored = stored
        self._quota_bytes = quota_bytes
        self._sources = sources
        self._finished_bytes: int | None = None
        self._streams: int | None = None

    def has_room(self) -> bool:
        """Whether there is room. Below the quota no source is examined; at the quota, the first call after a tick
        examines all of them.
        """
        if self._stored.size < self._quota_bytes:
            return True
        if self._finished_bytes is None:
            self._finished_bytes = sum(one.data_segments.finished_bytes for one in self._sources())
        return self._stored.size - self._finished_bytes < self._quota_bytes

    def count_stream(self) -> None:
        """Count one more stream. Raises RequestError if that is too many: a stream is remembered permanently, even if
        it never stores anything. The first call after a tick examines all sources.
        """
        if self._streams is None:
            self._streams = sum(len(one.streams) for one in self._sources())
        limit = count_max(self._quota_bytes)
        if self._streams >= limit:
            raise RequestError(
                f"its sources have {self._streams} streams: a quota of {self._quota_bytes} bytes allows {limit}",
                "Use fewer streams, or ask for a larger quota.",
            )
        self._streams += 1

    def tick(self) -> None:
        """Call it several times a second: pipelines may have completed more, and others opened streams."""
        self._finished_bytes = self._streams = None


class Companion(NamedTuple):
    """A batch for another source's log, to be stored in the same step."""

    log: "SourceLog"
    stream_id: int
    batch: Batch


class Signals(Protocol):
    """Turns starts and ends of streams into events of a source of their own."""

    def rows(self, log: "SourceLog", marks: Iterable[Mark]) -> Companion | None:
        """What must be stored together with these marks; None: nothing."""
        ...


class SilenceClock(Protocol):
    """Counts the seconds for which streams were silent although they could have sent."""

    def tick(self, seconds: float, *, can_send: bool) -> None: ...

    def lapsed(self, limit: int) -> list[int]:
        """Streams that have been silent for the idle timeout."""
        ...

    def rest(self, stream_ids: Iterable[int]) -> None:
        """These are marked as idle."""
        ...


class AttachedStreams(Protocol):
    """The streams that one session of a program has open on the source."""

    @property
    def clock(self) -> SilenceClock | None: ...

    @property
    def can_send(self) -> bool: ...

    @property
    def credits(self) -> int: ...

    def update_known(self) -> None:
        """Update `last_id` in the source's table to what the session has stored."""
        ...

    def resync(self, route: int, end: Offset) -> None:
        """Heads could not be read: once `end` is released, acknowledge everything that is stored now on this route."""
        ...


class SourceLog:
    """One for each source; outlives sessions and connectors. Used only in the worker's event loop."""

    def __init__(
        self,
        name: str,
        store: SegmentStore,
        settings: SourceSettings,
        snapshot_bytes: int,
        clock: ArrivalClock | None = None,
    ) -> None:
        """Creates the source, or opens an existing one. Raises Damaged."""
        self.name = name
        self.settings = settings
        self.largest_frame = LargestFrame()
        self.counters = SourceCounters()
        self.data_segments = SourceSegments(store, name, settings.segments)
        self.segments = self.data_segments.names
        self.times = EventTimes(store, streams_segment(name), clock or ArrivalClock(), settings)
        self.sessions: set[AttachedStreams] = set()
        self.programs_changed_us: int | None = None
        """When a program connected or disconnected last, by the clock of arrivals; None: none has since the worker
        started.
        """
        self.stamp: Callable[[], int] = lambda: 0
        """When a record arrives, for its head; 0: it is not recorded."""
        self.signals: Signals | None = None
        self.partition: ClaimedStreams | None = None
        """Of a source with several partitions: its streams are opened with the consent of the source's registry."""
        self.dead_letters_fit: Callable[[], bool] = lambda: True
        """Whether there is room for its dead letters, if it needs any."""
        self.total_quota: TotalQuota | None = None
        """The quota of the principal whose programs write to it."""
        self._store = store
        self._snapshot_bytes = snapshot_bytes
        self._bytes_since_snapshot = 0
        self._events_end = [store.length(segment) for segment in self.segments]
        self._snapshots = StreamSnapshots(store, streams_segment(name), self.segments)
        streams, self.has_finished, self.clock_us = self._snapshots.recover()
        self.times.clock.promised(self.clock_us)
        incarnation = store.attribute(streams_segment(name), INCARNATION) or 0
        self.streams = KnownStreams(streams, settings.idle_timeout_seconds, incarnation)

    def reconfigure(self, settings: SourceSettings) -> None:
        """Change the settings. Streams stay in their segments."""
        self.times.configure(settings)
        had, self.settings = self.settings, settings
        if settings.segments > len(self.segments):
            self.data_segments.grow(settings.segments)
            self._events_end += [self._store.length(segment) for segment in self.segments[len(self._events_end) :]]
        if settings.idle_timeout_seconds != had.idle_timeout_seconds:
            self.streams.set_idle_timeout(settings.idle_timeout_seconds)

    def join(self, session: AttachedStreams) -> None:
        """A program has connected."""
        self.sessions.add(session)
        self.programs_changed_us = self.times.clock.now()

    def leave(self, session: AttachedStreams) -> None:
        self.sessions.discard(session)
        self.programs_changed_us = self.times.clock.now()

    def is_at_quota(self) -> bool:
        """Whether its own quota, that of its dead letters, or that of its principal is reached."""
        quota = self.settings.quota_bytes
        if quota is not None and self.data_segments.unfinished_bytes >= quota:
            return True
        if not self.dead_letters_fit():
            return True
        return self.total_quota is not None and not self.total_quota.has_room()

    def has_room(self) -> bool:
        """Whether its programs may send more."""
        return not self.is_at_quota() and self.data_segments.disk_has_room

    def find(self, stream_id: int, name: str) -> KnownStream:
        """The stream, assigned to a segment if it is new."""
        return self.streams.find(stream_id, name, min(self.settings.segments, len(self.segments)))

    def raise_incarnation(self) -> Position:
        """Start the next incarnation. Its ids may be used when this is durable. Raises like `append`."""
        number = partition_of(self.name).number
        after = next_incarnation(self.streams.incarnation, number, self.settings.partitions)
        position = self._store.update_attributes([AttributeUpdate(streams_segment(self.name), INCARNATION, after)])
        self.streams.incarnation = after
        return position

    def forget(self, stream_id: int) -> None:
        """Forget a stream that has ended and will never return. A restart still finds its marks until the next
        snapshot, which is therefore written sooner.
        """
        if self.streams.forget(stream_id):
            self._bytes_since_snapshot += _SNAPSHOT_BYTES_PER_STREAM
            self.snapshot_if_due()

    # Storing.

    def append(self, batches: Sequence[Batch], beside: Companion | None = None) -> list[Placed]:
        """Store events and marks, and what stands `beside` them in another source, all or none. Raises NoRoom with
        nothing stored.
        """
        additions = [self._addition(batch) for batch in batches]
        signals = self._companion(batches) if self.signals is not None else None
        companions = [one for one in (signals, beside) if one is not None]
        if not companions:
            return self._stored(batches, additions, self._store.append_all(additions))
        others = [one.log._addition(one.batch) for one in companions]  # noqa: SLF001  of the same class
        appended = self._store.append_all([*additions, *others])
        placed = self._stored(batches, additions, appended[: len(batches)])
        for one, other, there in zip(companions, others, appended[len(batches) :], strict=True):
            one.log._stored([one.batch], [other], [there])  # noqa: SLF001
            one.log.streams.detached(one.stream_id)
        return placed

    def _addition(self, batch: Batch) -> Addition:
        head = encode_head(batch.streams, batch.marks, batch.events, self.stamp())
        return Addition(self.segments[batch.route], [batch.data], head)

    def _companion(self, batches: Sequence[Batch]) -> Companion | None:
        marks = [mark for batch in batches for mark in batch.marks]
        return self.signals.rows(self, marks) if marks and self.signals is not None else None

    def _stored(
        self, batches: Sequence[Batch], additions: Sequence[Addition], appended: Sequence[Appended]
    ) -> list[Placed]:
        for batch in batches:
            for mark in batch.marks:
                self._marked(mark)
        if any(batch.events for batch in batches):
            self.times.last_event_us = self.times.clock.now()
        placed = []
        for batch, addition, (end, position, _) in zip(batches, additions, appended, strict=True):
            self._bytes_since_snapshot += len(addition.buffers[0]) + len(addition.head)
            placed.append(Placed(position, end, self._events_end[batch.route]))
            if batch.events:
                self._events_end[batch.route] = end
        return placed

    def _marked(self, mark: Mark) -> None:
        if mark.kind in OF_SEGMENTS:
            self.has_finished |= mark.kind is MarkKind.FINISHED
            self.clock_us = max(self.clock_us, clock_of(mark))
        else:
            self.streams.mark(mark)

    def count_untimed(self, count: int, reason: str) -> None:
        """Count stored events without a usable time in their data. The first one is logged, and the 10th, 100th, …"""
        before, self.counters.untimed = self.counters.untimed, self.counters.untimed + count
        if len(str(before)) < len(str(self.counters.untimed)) or not before:
            total = self.counters.untimed
            log.warning("source %r: events without a usable time so far: %s; %s", self.name, total, one_line(reason))

    # Marks in separate records. All of these raise like `append`.

    def mark(self, marks: Iterable[Mark]) -> None:
        """Store marks of streams, many in one record."""
        by_route: dict[int, list[Mark]] = {}
        for mark in marks:
            by_route.setdefault(self.streams[mark.stream_id].route, []).append(mark)
        while by_route:
            self.append([Batch(route, waiting[:_MARKS_PER_RECORD]) for route, waiting in by_route.items()])
            left = {route: waiting[_MARKS_PER_RECORD:] for route, waiting in by_route.items()}
            by_route = {route: waiting for route, waiting in left.items() if waiting}

    def mark_idle(self, stream_ids: Iterable[int]) -> None:
        """Mark these streams as idle: the watermark does not wait for them until their next message."""
        self.mark(Mark(stream_id, MarkKind.IDLE) for stream_id in stream_ids)

    def declare(self, time_us: int, stream_ids: Iterable[int]) -> None:
        """Declare that no more events before this time follow on these streams. An earlier event is still stored, but
        may be late. A declaration below a previous one has no effect.
        """
        self.mark(Mark(stream_id, MarkKind.WATERMARK, "", time_us) for stream_id in stream_ids)

    def finish(self) -> None:
        """The source has ended for good: a pipeline that has read this in all segments sees the watermark at the end of
        time. What the source sends later is stored, but late.
        """
        count = len(self.segments)
        self.append([Batch(route, [Mark(route, MarkKind.FINISHED, "", count)]) for route in range(count)])

    def mark_clock(self, kind: MarkKind, time_us: int) -> None:
        """Record in all segments how far the worker's clock is: CLOCK or IDLE_CLOCK."""
        count = len(self.segments)
        self.append([Batch(route, [Mark(route, kind, "", time_us, count)]) for route in range(count)])
        self.times.clock.promised(time_us)

    # The table of streams.

    def snapshot_if_due(self) -> None:
        """Write a snapshot if much was stored since the last one. Do not call it between receiving and storing a run of
        messages, because ids that a session has accepted count as stored.
        """
        if self._bytes_since_snapshot > max(self._snapshot_bytes, _SNAPSHOT_BYTES_PER_STREAM * len(self.streams)):
            self._bytes_since_snapshot = 0
            try:
                self.snapshot()
            except PenstockError as error:  # the table can be recovered from the heads as well, only more slowly
                log.warning("cannot write a snapshot of the streams of source %r: %s", self.name, error)

    def snapshot(self) -> None:
        for session in self.sessions:
            session.update_known()
        self._snapshots.write(self.streams, has_finished=self.has_finished, clock_us=self.clock_us)
        self._bytes_since_snapshot = 0
