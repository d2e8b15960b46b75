"""A connector, as the gateway knows it: its segments, the streams that were ever seen, and whether it has room."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple, Protocol

from penstock.core.errors import NoRoom, PenstockError, StoreFailed
from penstock.core.types import INCARNATION, OWN_TIMES, QUOTA, Buffer, Offset, Position
from penstock.ingest.arrival_clock import ArrivalClock
from penstock.ingest.counters import ConnectorCounters
from penstock.ingest.fleeting import is_fleeting
from penstock.ingest.idle_clocks import AwayClock
from penstock.ingest.settings import ConnectorSettings
from penstock.ingest.stream_log import KnownStream, Standing, StreamLog, clock_of, stands
from penstock.protocol.connector.credits import LargestFrame
from penstock.protocol.stored.head import NO_COLUMNS, OF_SEGMENTS, Mark, MarkKind, StreamColumns, encode_head
from penstock.store.plan import Addition, AttributeUpdate
from penstock.store.reader import Appended
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

PREFIX = "connector/"

# What a mark stands on where there is no message: an event without data. Readers of streams pass over it.
_EMPTY_EVENT = bytes(8)
# The quota is counted over all of a connector's segments, and binds its credits: none is for one of them alone.
_NO_QUOTA = {QUOTA: 2**63 - 1}
_SNAPSHOT_BYTES_PER_STREAM = 16 * 1024
# Of one segment, in one record: a head of some 100 KiB.
_MARKS_PER_RECORD = 5000


def streams_segment(name: str) -> str:
    return f"{PREFIX}{name}/streams"


def data_segment(name: str, route: int) -> str:
    return f"{PREFIX}{name}/{route}"


class Placed(NamedTuple):
    """Where a record of a segment ends; it is durable once the journal is, up to `position`."""

    position: Position
    end: Offset
    before: Offset
    """Where the last events before it end. Records of marks alone may lie between: no stream waits for these."""


class Batch(NamedTuple):
    """So many `events` for the segment of one route, their bytes, and what the head of their record says."""

    route: int
    marks: Sequence[Mark]
    events: int = 0
    data: Buffer = _EMPTY_EVENT
    streams: StreamColumns = NO_COLUMNS


class Signals(Protocol):
    """Hears of streams that start and end, in the record that says so."""

    def rows(self, connector: "Connector", marks: Iterable[Mark]) -> "Beside | None":
        """What is to be stored beside these marks; None: nothing."""
        ...


class Beside(NamedTuple):
    """A batch of another connector's stream."""

    connector: "Connector"
    stream_id: int
    batch: Batch


class Connector:
    """Owned by the gateway; outlives its sessions. All changes go through the store's one thread."""

    def __init__(
        self,
        name: str,
        store: SegmentStore,
        settings: ConnectorSettings,
        snapshot_bytes: int,
        clock: ArrivalClock | None = None,
    ) -> None:
        self.name = name
        self.clock = clock or ArrivalClock()
        self.settings = settings
        self.largest_frame = LargestFrame()
        self.counters = ConnectorCounters()
        self._store = store
        self._snapshot_bytes = snapshot_bytes
        self._appended = 0
        self.segments = self._open_segments()
        self._events_end = [store.length(segment) for segment in self.segments]
        self._log = StreamLog(store, streams_segment(name), self.segments)
        self.streams, self.has_finished, self.clock_us = self._log.recover()
        self.clock.promised(self.clock_us)
        self.last_event_us: int | None = None
        """When the last event was stored; None: not since the worker started."""
        own_times = store.attribute(streams_segment(name), OWN_TIMES)
        self.has_own_times = None if own_times is None else bool(own_times)
        """Whether an event has come with a time of its own; None: unknown, for no event has come yet, or all that have
        were stored by a version that did not record it."""
        self.active_count = sum(stream.standing is Standing.ACTIVE for stream in self.streams.values())
        self.idle = {i for i, stream in self.streams.items() if stream.standing is Standing.IDLE}
        """Streams whose next message is to say that they are active again."""
        self.finished: Callable[[int], float] = lambda _: 0
        """Up to where a segment, by its route, does not count against the quota though it is held."""
        self.may_send: Callable[[int], bool] = lambda _: True
        """Whether a stream could send, if its program were there."""
        self.away = AwayClock(settings.idle_timeout_seconds or inf)
        for stream_id in self.streams:
            self.stays_away(stream_id)
        self.current_ids: Callable[[], None] = lambda: None
        """Brings `last_id` of the streams that are open in sessions up to date."""
        self.signals: Signals | None = None
        self.incarnation = store.attribute(streams_segment(name), INCARNATION) or 0
        """Of the streams that cannot resume."""

    def _open_segments(self) -> list[str]:
        """Those that exist, and more if the setting has grown: a stream stays where it was put.
        The table's own segment is made last: where it is there, the connector was made.
        """
        names: list[str] = []
        while self._store.exists(data_segment(self.name, len(names))):
            names.append(data_segment(self.name, len(names)))
        made = self._store.exists(streams_segment(self.name))
        with suppress(*[NoRoom] if made and names else []):  # a full disk must not keep out what is there already
            while len(names) < self.settings.segments:
                name = data_segment(self.name, len(names))
                if not self._store.exists(name):
                    self._store.create(name, _NO_QUOTA)
                names.append(name)
        if not made:
            self._store.create(streams_segment(self.name), _NO_QUOTA)
        return names

    def find(self, stream_id: int, name: str) -> KnownStream:
        """The stream, put into a segment if it is new."""
        stream = self.streams.get(stream_id)
        if stream is None:
            digest = hashlib.blake2b(stream_id.to_bytes(8, "big"), digest_size=8).digest()
            route = int.from_bytes(digest, "big") % min(self.settings.segments, len(self.segments))
            stream = self.streams[stream_id] = KnownStream(name, route, standing=Standing.ENDED)
        return stream

    def stays_away(self, stream_id: int) -> None:
        """No session has the stream. If it counts, its silence begins now."""
        stream = self.streams.get(stream_id)
        has_timeout = self.settings.idle_timeout_seconds is not None
        if has_timeout and stream is not None and stream.standing is Standing.ACTIVE and self.may_send(stream_id):
            self.away.add(stream_id)

    def reconfigure(self, settings: ConnectorSettings) -> None:
        """From now on. What has begun goes on: streams stay where they are, and their silence counts anew."""
        had, self.settings = self.settings, settings
        if settings.segments > len(self.segments):
            self.segments[:] = self._open_segments()
            self._events_end += [self._store.length(segment) for segment in self.segments[len(self._events_end) :]]
        if settings.idle_timeout_seconds != had.idle_timeout_seconds:
            self.away = AwayClock(settings.idle_timeout_seconds or inf)
            for stream_id in self.streams:
                self.stays_away(stream_id)

    # Streams that cannot resume.

    def raise_incarnation(self) -> Position:
        """The next one; its ids may be used when this is durable. As `append`."""
        update = AttributeUpdate(streams_segment(self.name), INCARNATION, self.incarnation + 1)
        position = self._store.update_attributes([update])
        self.incarnation += 1
        return position

    def fleeting(self) -> list[int]:
        """The streams that cannot resume, of all incarnations, as far as they are not forgotten."""
        return [stream_id for stream_id in self.streams if self.is_fleeting(stream_id)] if self.incarnation else []

    def is_fleeting(self, stream_id: int) -> bool:
        stream = self.streams.get(stream_id)
        return stream is not None and is_fleeting(stream_id, stream.name, self.incarnation)

    def forget(self, stream_id: int) -> None:
        """It has ended, and will never be back. Its marks are found by a start until the next snapshot: that comes the
        sooner for it.
        """
        known = self.streams.pop(stream_id, None)
        if known is not None:
            self.active_count -= known.standing is Standing.ACTIVE
            self.idle.discard(stream_id)
            self.away.remove(stream_id)
            self._appended += _SNAPSHOT_BYTES_PER_STREAM
            self.snapshot_if_due()

    # Storing.

    def append(self, batches: Sequence[Batch]) -> list[Placed]:
        """Store events with the heads that tell of them, all or none. Raises DiskFull, with nothing stored."""
        additions = [self._addition(batch) for batch in batches]
        beside = self._beside(batches) if self.signals is not None else None
        if beside is not None:
            additions.append(beside.connector._addition(beside.batch))  # noqa: SLF001  of the same class
        appended = self._store.append_all(additions)
        placed = self._stored(batches, additions, appended)
        if beside is not None:
            beside.connector._stored([beside.batch], additions[-1:], appended[-1:])  # noqa: SLF001
            beside.connector.stays_away(beside.stream_id)
        return placed

    def _beside(self, batches: Sequence[Batch]) -> Beside | None:
        marks = [mark for batch in batches for mark in batch.marks]
        return self.signals.rows(self, marks) if marks and self.signals is not None else None

    def _stored(
        self, batches: Sequence[Batch], additions: Sequence[Addition], appended: Sequence[Appended]
    ) -> list[Placed]:
        for batch in batches:
            for mark in batch.marks:
                self._marked(mark)
        if any(batch.events for batch in batches):
            self.last_event_us = self.clock.now()
        placed = []
        for batch, addition, (end, position, _) in zip(batches, additions, appended, strict=False):
            self._appended += len(addition.buffers[0]) + len(addition.head)
            placed.append(Placed(position, end, self._events_end_before(batch, end)))
        return placed

    def _marked(self, mark: Mark) -> None:
        """The mark is stored."""
        if mark.kind in OF_SEGMENTS:
            self.has_finished |= mark.kind is MarkKind.FINISHED
            self.clock_us = max(self.clock_us, clock_of(mark))
            return
        stream = self.streams[mark.stream_id]
        self.active_count -= stream.standing is Standing.ACTIVE
        stands(stream, mark)
        self.active_count += stream.standing is Standing.ACTIVE
        self.away.remove(mark.stream_id)
        if stream.standing is Standing.IDLE:
            self.idle.add(mark.stream_id)
        else:
            self.idle.discard(mark.stream_id)

    def rest(self, stream_ids: Iterable[int]) -> None:
        """These streams are silent: until their next message nobody waits for them. As `append`."""
        self.mark(Mark(stream_id, MarkKind.IDLE) for stream_id in stream_ids)

    def declare(self, time_us: int, stream_ids: Iterable[int]) -> None:
        """No more events before this time come on these streams. What is stored of them later and is before it counts
        as any other event does: it may be late. A lower time than one before changes nothing. As `append`.
        """
        self.mark(Mark(stream_id, MarkKind.WATERMARK, "", time_us) for stream_id in stream_ids)

    def finish(self) -> None:
        """The source has ended for good: where this is read in all its segments, its watermark is the end of time. What
        it sends later is stored, and late. As `append`.
        """
        count = len(self.segments)
        self.append([Batch(route, [Mark(route, MarkKind.FINISHED, "", count)]) for route in range(count)])

    # The worker's clock.

    @property
    def has_arrival_times(self) -> bool:
        """Whether the worker gives every event its time, so that none can come that is older than the clock. Where
        events may also bring their own, only an event without one shows it: a mark cannot be taken back.
        """
        if self.settings.arrival_time:
            return not self.has_own_times
        may_have = self.settings.event_time_ingest or self.settings.arrival_time is None
        return may_have and self.has_own_times is False

    def brings_own_times(self) -> None:
        """An event is about to be stored whose time is not that of its arrival: from now on the clock says nothing. As
        `append`.
        """
        if not self.has_own_times:
            self._record_own_times(True)

    def brings_no_times(self) -> None:
        """An event is about to be stored with the time of its arrival. As `append`."""
        if self.has_own_times is None and not self.settings.arrival_time:
            self._record_own_times(False)

    def _record_own_times(self, has_own_times: bool) -> None:
        self._store.update_attributes([AttributeUpdate(streams_segment(self.name), OWN_TIMES, int(has_own_times))])
        self.has_own_times = has_own_times

    def mark_clock(self, kind: MarkKind, time_us: int) -> None:
        """Say how far the clock has come, in all segments: CLOCK or IDLE_CLOCK. As `append`."""
        count = len(self.segments)
        self.append([Batch(route, [Mark(route, kind, "", time_us, count)]) for route in range(count)])
        self.clock.promised(time_us)

    def mark(self, marks: Iterable[Mark]) -> None:
        """In records of their own, many at once."""
        by_route: dict[int, list[Mark]] = {}
        for mark in marks:
            by_route.setdefault(self.streams[mark.stream_id].route, []).append(mark)
        while by_route:
            self.append([Batch(route, waiting[:_MARKS_PER_RECORD]) for route, waiting in by_route.items()])
            left = {route: waiting[_MARKS_PER_RECORD:] for route, waiting in by_route.items()}
            by_route = {route: waiting for route, waiting in left.items() if waiting}

    def _addition(self, batch: Batch) -> Addition:
        head = encode_head(batch.streams, batch.marks, batch.events)
        return Addition(self.segments[batch.route], [batch.data], head)

    def _events_end_before(self, batch: Batch, end: Offset) -> Offset:
        before = self._events_end[batch.route]
        if batch.events:
            self._events_end[batch.route] = end
        return before

    def snapshot_if_due(self) -> None:
        """Write the table down if much was stored since. Not in the middle of a run: the ids that a session has
        accepted count as stored, and a part of them is not yet.
        """
        if self._appended > max(self._snapshot_bytes, _SNAPSHOT_BYTES_PER_STREAM * len(self.streams)):
            self._appended = 0
            try:
                self.snapshot()
            except PenstockError as error:  # the table can be made from the heads as well, only more slowly
                log.warning("the table of streams of %r is not written down: %s", self.name, error)

    def snapshot(self) -> None:
        """Write the table of streams down."""
        self.current_ids()
        self._log.write(self.streams, has_finished=self.has_finished, clock_us=self.clock_us)
        self._appended = 0

    def has_room(self) -> bool:
        """Whether sources may send more: within the quota, and on a disk that has room."""
        quota = self.settings.quota_bytes
        if quota is not None and self.unfinished_bytes >= quota:
            return False
        try:
            self._store.journal.room_for(0, draining=False)
        except (NoRoom, StoreFailed):
            return False
        return True

    @property
    def held_bytes(self) -> int:
        there = filter(self._store.exists, self.segments)  # somebody may delete one over the segment protocol
        return sum(info.length - info.start for info in map(self._store.info, there))

    @property
    def unfinished_bytes(self) -> int:
        """What was appended, durable or not, without what every pipeline has completed and is kept only because Spark
        may read it again: that goes when more has come, so a quota which counted it could stand in its own way for
        ever.
        """
        return sum(self._unfinished(route, name) for route, name in enumerate(self.segments))

    def _unfinished(self, route: int, segment: str) -> int:
        if not self._store.exists(segment):
            return 0
        length = self._store.length(segment)
        return int(length - max(self._store.info(segment).start, min(self.finished(route), length)))


def started(stream_id: int, stream: KnownStream) -> Mark:
    return Mark(stream_id, MarkKind.STARTED, stream.name, 1 if stream.standing is Standing.ACTIVE else None)


def active_again(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.ACTIVE_AGAIN)


def ended(stream_id: int) -> Mark:
    return Mark(stream_id, MarkKind.ENDED)
