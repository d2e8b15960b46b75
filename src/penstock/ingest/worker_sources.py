"""Sources that the worker itself writes: `system/streams`, and the dead letters of connectors.

`system/streams` has a row for each stream that starts or ends, stored in the record with that mark:

    {"signal": "stream-started", "connector": "sensors", "stream": "lab-1", "stream_id": 17, "at": 1767225600000000}

`at` is in microseconds since 1970, and the row's event time. The mark of the stream and its row are stored together or
not at all. A program that reconnects to a stream that has not ended does not start it again.

`NAME.err` has what arrived through the connector NAME and could not become an event, and events of the source NAME that
have no usable event time, if its settings require one.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import msgpack

from penstock.connectors.api import StreamRef
from penstock.core.errors import NoRoom
from penstock.ingest.batch import Batch, Values, stored_batch
from penstock.ingest.completion import Completion
from penstock.ingest.event_times import ArrivalClock
from penstock.ingest.known_streams import Standing, active_again, started
from penstock.ingest.settings import AckMode, SourceSettings
from penstock.ingest.source_log import Companion, SourceLog, streams_segment
from penstock.protocol.connector import NOTHING_YET, stream_id_of
from penstock.protocol.stored.dead_letters import MESSAGE_ID, REASON
from penstock.protocol.stored.event import SHORT_MAX, SOURCE, STREAM
from penstock.protocol.stored.head import Mark, MarkKind
from penstock.protocol.stored.metadata import known_metadata
from penstock.protocol.stored.names import DEAD_LETTERS_SUFFIX, SYSTEM_PREFIX, SYSTEM_STREAMS, partition_of
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

DEAD_LETTER_BYTES_MAX = 8 << 20
"""Limit for one dead letter: half of the largest append. The metadata `cut_from` has its original size."""

SIGNALS_UNREAD_BYTES_MAX = 16 << 20
"""Bytes retained while no pipeline reads them: about a hundred thousand signals, for later inspection."""

DEAD_LETTERS_UNREAD_BYTES_MAX = 64 << 20
"""Bytes retained while no pipeline reads them: peers that send nothing but garbage must not fill the disk."""

DEAD_LETTERS_METADATA_BYTES = 4 << 20
"""What the dead letters of one record may have as additional metadata: with the events of a record (8 MiB) they fit
into one append."""

IDLE_SECONDS = 1.0
"""Silence means that nothing happened, so a pipeline that also reads other sources does not wait for these."""

ROOM_SECONDS = 0.05
"""Between two checks for room on the disk."""

_REASON_MAX = 1000
_SIGNALS = {MarkKind.STARTED: "stream-started", MarkKind.ENDED: "stream-closed"}
_SETTINGS = SourceSettings(segments=1, ack=AckMode.DURABLE, idle_timeout_seconds=IDLE_SECONDS, arrival_time=True)


class Catalog(Protocol):
    """What these sources need from the catalog."""

    @property
    def store(self) -> SegmentStore: ...

    @property
    def clock(self) -> ArrivalClock: ...

    def configure(self, name: str, settings: SourceSettings) -> None: ...

    def settings_of(self, name: str) -> SourceSettings: ...

    def reserve(self, name: str) -> SourceLog: ...

    def completion(self, name: str) -> Completion: ...


class WorkerSource:
    """A source with one stream in one segment, created when something is first stored. While no pipeline reads it, only
    the newest bytes are retained.
    """

    def __init__(self, catalog: Catalog, name: str, stream: str, unread_bytes_max: int) -> None:
        self._catalog = catalog
        self.name = name
        self._stream = stream
        self.stream_id = stream_id_of(stream)
        self._unread_bytes_max = unread_bytes_max

    @property
    def is_read(self) -> bool:
        return self._catalog.completion(self.name).has_pipelines

    def open(self, *, keeps_all: bool = False) -> SourceLog:
        """Make room for more, unless everything is kept, and return its log."""
        found = self._catalog.reserve(self.name)
        if not self.is_read and not keeps_all:
            keep_newest(self._catalog.store, found.segments[0], self._unread_bytes_max)
        return found

    def next_ids(self, own: SourceLog, count: int) -> range:
        """The next ids. They count as used when the last of them is the stream's `last_id`."""
        last_id = own.find(self.stream_id, self._stream).last_id
        first = 1 if last_id == NOTHING_YET else last_id + 1
        return range(first, first + count)

    def batch(self, own: SourceLog, values: Values, stream_ids: Sequence[int]) -> Batch:
        """These events, which name `stream_ids` as their streams, with the mark that its own stream needs."""
        known = own.find(self.stream_id, self._stream)
        marks = {
            Standing.ENDED: [started(self.stream_id, known)],
            Standing.IDLE: [active_again(self.stream_id)],
            Standing.ACTIVE: [],
        }[known.standing]
        return stored_batch(0, self.stream_id, values, marks, stream_ids=stream_ids)


def keep_newest(store: SegmentStore, segment: str, bytes_max: int) -> None:
    """If there is more than the limit, drop the older half, up to the start of a record."""
    info = store.info(segment)
    if info.length - info.start > bytes_max:
        start = store.record(segment, info.length - bytes_max // 2).start
        store.truncate(segment, start)
        log.info("segment %r: no pipeline reads it; dropped the oldest %s bytes", segment, start - info.start)


class SystemStreams:
    """Signals, for the source `system/streams`: written once an application is deployed, or some pipeline reads it."""

    def __init__(self, catalog: Catalog) -> None:
        self._clock = catalog.clock
        self._source = WorkerSource(catalog, SYSTEM_STREAMS, "streams", SIGNALS_UNREAD_BYTES_MAX)
        self.is_enabled = catalog.store.exists(streams_segment(SYSTEM_STREAMS))
        catalog.configure(SYSTEM_STREAMS, _SETTINGS)

    def enable(self) -> None:
        """Write rows from now on, whether they are read or not."""
        self.is_enabled = True

    def rows(self, log: SourceLog, marks: Iterable[Mark]) -> Companion | None:
        """Implements `source_log.Signals`."""
        if log.name.startswith(SYSTEM_PREFIX) or not (self.is_enabled or self._source.is_read):
            return None
        signals = [mark for mark in marks if mark.kind in _SIGNALS and not mark.was_open]
        if not signals:
            return None
        own, now = self._source.open(), self._clock.now()
        stream_id, ids = self._source.stream_id, self._source.next_ids(own, len(signals))
        rows = Values([_row(log, mark, now) for mark in signals], ids, now)
        batch = self._source.batch(own, rows, [stream_id] * len(ids))
        own.streams[stream_id].last_id = ids[-1]
        return Companion(own, stream_id, batch)


def _row(log: SourceLog, mark: Mark, now: int) -> bytes:
    stream = log.streams.get(mark.stream_id)
    row = {
        "signal": _SIGNALS[mark.kind],
        "connector": partition_of(log.name).source,
        "stream": mark.name or (stream.name if stream is not None else ""),
        "stream_id": mark.stream_id,
        "at": now,
    }
    return json.dumps(row, separators=(",", ":")).encode()


class Untimed(NamedTuple):
    """An event without a usable event time."""

    stream_id: int
    stream: str
    event_id: int
    key: bytes
    value: bytes
    metadata: bytes
    """A MessagePack map, or empty."""
    reason: str


class DeadLetters:
    """The dead letters of one source. Each has the origin that an event of its stream would have had:
    the connector, the name and the id of the stream.
    """

    def __init__(self, catalog: Catalog, connector: str) -> None:
        self._catalog = catalog
        self._connector = connector
        self._source = WorkerSource(catalog, connector + DEAD_LETTERS_SUFFIX, "letters", DEAD_LETTERS_UNREAD_BYTES_MAX)
        self.count = 0

    async def write(self, data: bytes, reason: str, stream: StreamRef, name: str, metadata: Mapping[str, Any]) -> None:
        """Store the bytes, with the reason and the metadata of their stream. Waits for room on the disk."""
        more = {SOURCE: stream.connector, STREAM: name, REASON: reason[:_REASON_MAX], **metadata}
        if len(data) > DEAD_LETTER_BYTES_MAX:
            more["cut_from"] = len(data)
        while True:
            try:
                self._append(data[:DEAD_LETTER_BYTES_MAX], stream, msgpack.packb(more))
            except NoRoom:
                await asyncio.sleep(ROOM_SECONDS)
            else:
                self.count += 1
                return

    def beside(self, events: Sequence[Untimed]) -> Companion:
        """What must be stored together with the ids of these events, so that each becomes a dead letter once. Call
        `stored` afterwards.
        """
        own, stream_id = self._open(), self._source.stream_id
        ids, most = self._source.next_ids(own, len(events)), DEAD_LETTERS_METADATA_BYTES // len(events)
        values = Values(
            [event.value for event in events],
            ids,
            self._catalog.clock.now(),
            [event.key for event in events],
            [self._metadata(event, most) for event in events],
        )
        own.streams[stream_id].last_id = ids[-1]
        return Companion(own, stream_id, self._source.batch(own, values, [event.stream_id for event in events]))

    def stored(self, companion: Companion) -> None:
        """Count what `beside` has returned and is stored now."""
        self.count += companion.batch.events
        companion.log.snapshot_if_due()

    def _metadata(self, event: Untimed, most: int) -> bytes:
        """The event's own, and at most this many bytes more: then names give way, which the stream's id identifies."""
        own = known_metadata(event.metadata)
        more = {SOURCE: self._connector, STREAM: event.stream, MESSAGE_ID: event.event_id, REASON: event.reason}
        for added in (own | more, own | {REASON: event.reason}, {REASON: "no event time"}):
            data: bytes = msgpack.packb(added)
            if len(data) <= min(len(event.metadata) + most, SHORT_MAX):
                break
        return data

    def _open(self) -> SourceLog:
        """If events without a time are dead letters, none is dropped: at the quota, the source gets no more credits."""
        settings = self._catalog.settings_of(self._connector)
        keeps_all = settings.event_time is not None and settings.event_time.is_dead_letter
        quota = settings.quota_bytes if keeps_all else _SETTINGS.quota_bytes
        self._catalog.configure(self._source.name, replace(_SETTINGS, quota_bytes=quota))
        own = self._source.open(keeps_all=keeps_all)
        own.signals = None  # no owner has opened its stream
        return own

    def _append(self, data: bytes, stream: StreamRef, metadata: bytes) -> None:
        own = self._open()
        stream_id, ids = self._source.stream_id, self._source.next_ids(own, 1)
        values = Values([data], ids, self._catalog.clock.now(), metadata=metadata)
        own.append([self._source.batch(own, values, [stream.stream_id])])
        own.streams[stream_id].last_id = ids[-1]
        own.streams.detached(stream_id)
        own.snapshot_if_due()
