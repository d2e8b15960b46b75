"""The streams of one session: opened by NOTIFY, fed by MESSAGE, ended by EOS_MESSAGE, released with the session."""

import asyncio
import secrets
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from penstock.connectors.api import StreamRef
from penstock.core.address import Address
from penstock.core.errors import NoRoom, PenstockError, ProtocolError, StoreFailed
from penstock.core.types import Offset
from penstock.ingest.batch import Batch, Placed
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.extraction import Times
from penstock.ingest.known_streams import STREAM_NAME_MAX, active_again, ended, started
from penstock.ingest.owners import StreamKey
from penstock.ingest.sessions.acks import PendingAcks, Replies, Run
from penstock.ingest.source_log import SourceLog
from penstock.ingest.stream_claims import later
from penstock.ingest.worker_sources import Untimed
from penstock.protocol.connector import NOTHING_YET, Notify, NotifyAck, Side, Stream, StreamState
from penstock.protocol.connector.bulk import (
    NOTHING_STORED,
    Admission,
    Columns,
    Stored,
    Streams,
    StreamTable,
    rewrite,
)
from penstock.protocol.connector.frames import EventTimeUnit
from penstock.protocol.stored.head import Mark

# Streams that one session opens or ends before yielding to the loop: a few milliseconds.
_STREAMS_PER_TURN = 200
# Marks per record, if many have waited for room: a head of about 100 KiB.
_MARKS_PER_RECORD = 5000


class PendingMarks(NamedTuple):
    """Marks to be stored in the segment of this route, and the streams that open and end with them."""

    route: int
    marks: Sequence[Mark] = ()
    opening: Sequence[int] = ()
    ending: Sequence[int] = ()


def _too_many(limit: int) -> ProtocolError:
    return ProtocolError(f"NOTIFY: this source has had {limit} streams already (streams_per_source_max)")


class SessionStreams:
    """The open streams of a session, with the table of last message ids. Implements StreamOwner, StreamWaiter,
    ClaimingOwner and the log's AttachedStreams.
    """

    def __init__(self, sources: SourceCatalog, log: SourceLog, replies: Replies) -> None:
        self._sources = sources
        self._log = log
        self._replies = replies
        self._completion = sources.completion(log.name)
        self._acks = PendingAcks(self._completion, replies, self._ended)
        self._table = StreamTable(secrets.randbits(64))
        timeout = log.settings.idle_timeout_seconds
        self.clock = None if timeout is None else SessionClock(self._table, timeout)
        """Measures the streams' silence; None without an idle timeout."""
        self._streams: dict[int, Stream] = {}
        self._marks: defaultdict[int, list[Mark]] = defaultdict(list)
        self._opening: defaultdict[int, list[int]] = defaultdict(list)
        self._ending: defaultdict[int, list[int]] = defaultdict(list)
        self.waits_for_room = False
        """Whether marks could not be stored on a full disk: `flush_marks` is to be called again."""
        self._not_stored: dict[int, int] = {}
        """Streams whose last run could not be stored, although the table counts it: the ids to which they are reset."""
        self._due: deque[tuple[Callable[[int, Offset], None], int, Offset]] = deque()
        self._is_working = False
        self._left: list[tuple[int, int]] = []
        self._unopened: dict[int, Offset] = {}
        """Streams that not all sinks have opened: their NOTIFYs are not answered yet."""
        self._blocked: set[int] = set()
        self._refused: set[int] = set()
        """Streams that other owners have, or that are closing: the registry reports when they are free."""
        self._claiming: dict[int, str] = {}
        """Of a source with several partitions: streams whose registry has not answered, and their names."""
        self._ends_at: dict[int, Offset] = {}
        """Of such a source: where the events of streams end that have ended."""

    def __len__(self) -> int:
        return len(self._streams)

    def _key(self, stream_id: int) -> StreamKey:
        return StreamKey(self._log.name, stream_id)

    # Opening.

    def notify(self, notify: Notify) -> None:
        """Open the stream, or refuse it if it is open elsewhere or still closing."""
        stream_id = notify.stream_id
        stream = self._streams.get(stream_id) or Stream(stream_id)
        stream.notify(Side.THEIRS)
        is_new = stream.state is StreamState.NOTIFIED
        if not is_new or not self._sources.registry.claim(self._key(stream_id), self):
            self._refuse(stream)
            return
        self._streams[stream_id] = stream
        self._check_known(stream_id)
        partition, name = self._log.partition, notify.name[:STREAM_NAME_MAX]
        if partition is None:
            self._start(stream_id, name)
            return
        self._claiming[stream_id] = name
        if not partition.claim(stream_id, self):
            self.claim_refused(stream_id, None)

    def _start(self, stream_id: int, name: str, last_id: int = NOTHING_YET) -> None:
        """The stream may be opened, once its start is stored. `last_id`: what is stored of it in other partitions."""
        self._ends_at.pop(stream_id, None)
        known = self._log.find(stream_id, name)
        known.last_id = later(known.last_id, last_id)
        self._marks[known.route].append(started(stream_id, known))
        self._opening[known.route].append(stream_id)

    # The registry of a source with several partitions answers.

    def claimed(self, stream_id: int, last_id: int) -> None:
        """A program that leaves does not get it: the stream would be bound to this partition, where nothing is sent."""
        name = self._claiming.pop(stream_id, None)
        if name is None:
            return
        if self._replies.is_leaving:
            self._take_back(stream_id)
        else:
            self._start(stream_id, name, last_id)

    def claim_refused(self, stream_id: int, elsewhere: Address | None) -> None:
        """A program whose other streams are open here stays: it would not find them there."""
        if self._claiming.pop(stream_id, None) is None:
            return
        stream = self._streams.pop(stream_id)
        self._sources.registry.release(self._key(stream_id), self)
        if elsewhere is not None and not self._has_claims:
            self._replies.send_elsewhere(elsewhere)
        self._refuse(stream)

    def claim_exceeds(self, limit: int) -> None:
        self._replies.fail(_too_many(limit))

    @property
    def _has_claims(self) -> bool:
        return len(self._streams) > len(self._claiming)

    def claims_answered(self) -> None:
        with suppress(StoreFailed):  # the worker ends and logs why
            self.flush_marks()

    def _check_known(self, stream_id: int) -> None:
        if stream_id in self._log.streams:
            return
        limit = self._sources.settings.streams_per_source_max
        if len(self._log.streams) >= limit:
            raise _too_many(limit)
        if self._log.total_quota is not None:
            self._log.total_quota.count_stream()

    def _refuse(self, stream: Stream) -> None:
        stream.notify_ack(False, 0, Side.OURS)
        self._sources.counters.streams_refused += 1
        self._refused.add(stream.stream_id)
        self._sources.registry.wait(self._key(stream.stream_id), self)
        self._replies.refuse(NotifyAck(False, stream.stream_id, 0))

    def refuse_waiting(self) -> None:
        """The shard moves: nobody answers claims any more, or opens streams of sinks. Refuse every NOTIFY that waits
        for that, or for room; what is stored is answered when it is durable.
        """
        not_stored = [stream_id for opening in self._opening.values() for stream_id in opening]
        for stream_id in {*self._claiming, *self._unopened, *not_stored}:
            if stream_id in self._streams:
                self._take_back(stream_id)
        self._forget_openings()

    def _take_back(self, stream_id: int) -> None:
        """Refuse a NOTIFY that has waited. The stream is as before, but for its start, if that is stored."""
        stream = self._streams.pop(stream_id)
        self._claiming.pop(stream_id, None)
        self._unopened.pop(stream_id, None)
        self._release(stream_id)
        self._log.streams.detached(stream_id)
        self._refuse(stream)

    def stream_freed(self, stream_id: int) -> None:
        self._refused.discard(stream_id)
        self._replies.return_refused()

    def _open(self, stream_id: int, before: Offset) -> None:
        """Everything stored of the stream ends at `before` or earlier, and is durable: reply with its last
        message id.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is not StreamState.NOTIFIED:
            return
        if self._log.partition is not None and not self._log.partition.written(stream_id):
            return
        guarded = self._sources.guarded
        if guarded.is_guarded and not guarded.started(StreamRef(self._log.name, stream_id)):
            if self._replies.is_leaving:
                self._take_back(stream_id)
            else:
                self._unopened[stream_id] = before
            return
        known = self._log.streams[stream_id]
        stream.notify_ack(True, known.last_id, Side.OURS)
        self._table.open(stream_id, known.last_id, known.route)
        self._sources.counters.streams_opened += 1
        self._replies.accept(NotifyAck(True, stream_id, known.last_id))
        if self._completion.waits and known.last_id != NOTHING_YET:
            self._acks.add_at(known.route, before, stream_id, known.last_id)

    # Streams that may not send.

    @property
    def is_blocked(self) -> bool:
        """Whether one of its streams may not send: then the session gets no credits, because these are for any stream
        of it.
        """
        return bool(self._blocked)

    @property
    def can_send(self) -> bool:
        """Whether the program could send a message now."""
        return self.credits > 0 and not self._blocked

    @property
    def credits(self) -> int:
        return self._replies.credits

    def gate_changed(self, stream_id: int, may_send: bool) -> None:
        if may_send and stream_id in self._unopened:
            self._open(stream_id, self._unopened.pop(stream_id))
            self._acks.send()
        elif may_send:
            self._unblock(stream_id)
        elif stream_id in self._table:
            self._blocked.add(stream_id)

    def _unblock(self, stream_id: int) -> None:
        if stream_id in self._blocked:
            self._blocked.discard(stream_id)
            self._replies.flush_soon()

    # Messages.

    def store(self, columns: Columns, received_at: float) -> Run:
        """Append each route's events to its segment, all in one record. Raises NoRoom if they could not be stored: then
        the streams are reset to where they were.
        """
        if self.waits_for_room:
            self.flush_marks()
        admission, found = self._admit(columns)
        try:
            untimed = [] if found is None else [row for row in found.untimed if admission.is_new(row)]
            dead = [row for row in untimed if admission.dead[row]]
            dead_letters = [] if found is None else self._dead_letters(columns, found, dead)
            run = Run(columns, admission, received_at, self._sources.store.journal.end, len(dead_letters))
            self._append(run, rewrite(columns, admission, len(self._log.segments)), dead_letters)
        except PenstockError:
            streams = admission.streams
            self._not_stored |= zip(streams.stream_ids.tolist(), streams.previous_ids.tolist(), strict=True)
            raise
        if found is not None and untimed:
            self._log.count_untimed(len(untimed), found.why(untimed[0]))
        return run

    def _append(self, run: Run, rewritten: Iterable[Stored], untimed: Sequence[Untimed]) -> None:
        """Store the events of each route, with pending marks, and dead letters, which belong to no route."""
        stored = {route: events for route, events in enumerate(rewritten) if events is not NOTHING_STORED}
        if not stored:
            return
        dead_letters = self._sources.dead_letters(self._log.name)
        beside = dead_letters.beside(untimed) if untimed else None
        pending = [self._take_marks(route) for route in stored]
        placed = self._log.append([_batch(one, stored[one.route]) for one in pending], beside)
        for one, at in zip(pending, placed, strict=True):
            run.ends[one.route] = at.end
            self._marked(one, at)
        run.position = placed[0].position
        if beside is not None:
            dead_letters.stored(beside)

    def _admit(self, columns: Columns) -> tuple[Admission, Times | None]:
        """Also returns the event times in the messages' data, if they come from there."""
        times, found = self._log.times, None
        extraction = times.extraction
        if extraction is None:
            arrival = times.stamp()
            if times.are_undecided:
                times.record(own_times=columns.has_event_times)
            admission = self._table.admit(columns, times.settings.event_time_unit, arrival)
        else:
            times.record(own_times=True)
            found = extraction.of_messages(columns)
            timed = replace(columns, event_times=found.times)
            arrival = None if extraction.spec.is_dead_letter else times.clock.now()
            admission = self._table.admit(timed, EventTimeUnit.US, arrival, extracted=True)
        if self._log.streams.idle:
            self._wake(admission.streams)
        return admission, found

    def _dead_letters(self, columns: Columns, found: Times, rows: Iterable[int]) -> list[Untimed]:
        dead_letters = []
        for row in rows:
            one = columns.message(row)
            name, payload = self._log.streams[one.stream_id].name, bytes(one.payload)
            dead_letters.append(Untimed(one.stream_id, name, one.message_id, one.key, payload, b"", found.why(row)))
        return dead_letters

    def _wake(self, streams: Streams) -> None:
        """Mark idle streams as active again, in the record of their events."""
        idle, ids = self._log.streams.idle, streams.stream_ids.tolist()
        if not idle.isdisjoint(ids):
            for stream_id in idle.intersection(ids):
                self._marks[self._log.streams[stream_id].route].append(active_again(stream_id))

    def touch(self, stream_id: int) -> None:
        self._table.touch(stream_id)

    def stored_id(self, stream_id: int) -> int:
        known = self._log.streams[stream_id]
        return self._table.last_id(stream_id) if stream_id in self._table else known.last_id

    # Ending.

    def end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream_id not in self._table:
            raise ProtocolError(f"EOS_MESSAGE is not legal for stream {stream_id}: it is not open in this session")
        last_id = self._table.last_id(stream_id)
        if last_id != NOTHING_YET:
            stream.messages(last_id, Side.THEIRS)
        stream.end(Side.THEIRS)
        known = self._log.streams[stream_id]
        known.last_id = last_id
        self._table.close(stream_id)
        self._sources.registry.close(self._key(stream_id), self)
        self._marks[known.route].append(ended(stream_id))
        self._ending[known.route].append(stream_id)

    def relinquish(self, stream_id: int) -> None:
        """EOS_MESSAGE while the shard moves: the stream is released, and has not ended. It keeps its position, and
        stays in the watermark.
        """
        if stream_id not in self._streams or stream_id not in self._table:
            raise ProtocolError(f"EOS_MESSAGE is not legal for stream {stream_id}: it is not open in this session")
        known = self._log.streams[stream_id]
        known.last_id = self._not_stored.get(stream_id, self._table.last_id(stream_id))
        self._table.close(stream_id)
        del self._streams[stream_id]
        self._unblock(stream_id)
        self._release(stream_id)
        self._log.streams.detached(stream_id)

    def _release(self, stream_id: int) -> None:
        """Does nothing to a stream that another session has by now."""
        registry, key = self._sources.registry, self._key(stream_id)
        is_own = registry.owner(key) is self
        registry.release(key, self)
        if self._log.partition is None or not is_own:
            return
        self._claiming.pop(stream_id, None)
        before = self._ends_at.pop(stream_id, None)
        if before is None:
            self._log.partition.release(stream_id)
        else:
            self._log.partition.end(stream_id, before)

    @property
    def has_open(self) -> bool:
        """Whether the program can still send, or is about to."""
        open_yet = (StreamState.NOTIFIED, StreamState.ACTIVE)
        return any(stream.state in open_yet for stream in self._streams.values())

    def _end(self, stream_id: int, before: Offset) -> None:
        """The stream's data end at `before` or earlier, and are durable: it has ended once they are released."""
        stream = self._streams.get(stream_id)
        route = self._log.streams[stream_id].route
        if self._log.partition is not None and stream is not None:
            self._ends_at[stream_id] = before
        if self._sources.guarded.is_guarded:
            self._unblock(stream_id)
            self._sources.guarded.gate.ended(StreamRef(self._log.name, stream_id))
            self._sources.ended(self._log.name).add(stream_id, before)
        if stream is None or stream.last_id == NOTHING_YET or before <= self._completion.passed(route):
            self._ended(stream_id)
        else:
            self._acks.await_end(route, before, stream_id)

    def _ended(self, stream_id: int) -> None:
        """Acknowledge the last message, and let the stream be opened again."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self._release(stream_id)
        self._sources.counters.streams_ended += 1
        if stream.last_id != NOTHING_YET:
            self._acks.add(stream_id, stream.last_id)

    # Acknowledgements that have waited for pipelines.

    def acknowledge(self, stream_ids: "array[int]", last_ids: "array[int]") -> None:
        """The last message of an ending stream is acknowledged with its end. Nothing is sent below the id in
        NOTIFY_ACK: "real clients would rewind".
        """
        for stream_id, last_id in zip(stream_ids, last_ids, strict=True):
            stream = self._streams.get(stream_id)
            if stream is None or stream.state is StreamState.NOTIFIED:
                continue
            is_last = stream.state is not StreamState.ACTIVE and last_id == stream.last_id
            if self._acks.passes(stream_id, last_id) and not is_last:
                self._acks.add(stream_id, last_id)
        self._acks.send()

    def resync(self, route: int, end: Offset) -> None:
        for stream_id in self._streams:
            if stream_id in self._table and self._log.streams[stream_id].route == route:
                last_id = self._table.last_id(stream_id)
                if last_id != NOTHING_YET:
                    self._acks.await_point(route, end, stream_id, last_id)

    # Marks.

    def _take_marks(self, route: int) -> PendingMarks:
        """The marks for this route's next record; call `_marked` when it is stored."""
        if route not in self._marks:
            return PendingMarks(route)
        return PendingMarks(route, self._marks.pop(route), self._opening.pop(route, ()), self._ending.pop(route, ()))

    def _put_back(self, pending: PendingMarks) -> None:
        """Queue marks again that could not be stored."""
        self._marks[pending.route].extend(pending.marks)
        self._opening[pending.route].extend(pending.opening)
        self._ending[pending.route].extend(pending.ending)

    def _marked(self, pending: PendingMarks, placed: Placed) -> None:
        """The marks are stored: streams open and end when they are durable."""
        if pending.opening or pending.ending:
            self._sources.durability.after(placed.position, partial(self._durable, pending, placed))

    def _durable(self, pending: PendingMarks, placed: Placed) -> None:
        self._completion.durable(pending.route, placed.end)
        self._due.extend((self._open, stream_id, placed.before) for stream_id in pending.opening)
        self._due.extend((self._end, stream_id, placed.before) for stream_id in pending.ending)
        if not self._is_working:
            self._work_off()

    def _work_off(self) -> None:
        """Open and end streams that are due, a few at a time, so that other sessions get their turn."""
        for _ in range(min(len(self._due), _STREAMS_PER_TURN)):
            action, stream_id, before = self._due.popleft()
            action(stream_id, before)
        self._acks.send()
        self._is_working = bool(self._due)
        if self._is_working:
            asyncio.get_running_loop().call_soon(self._work_off)

    def flush_marks(self) -> None:
        """Store the marks that arrived without a message. On a full disk they wait, and with them the answers to NOTIFY
        and EOS_MESSAGE: if the program were closed instead, it would only reconnect and repeat them.
        """
        for route in list(self._marks):
            for pending in _split(self._take_marks(route)):
                if not self._store_marks(pending):
                    self._put_back(pending)
        self.waits_for_room = bool(self._marks)

    def _store_marks(self, pending: PendingMarks) -> bool:
        try:
            (placed,) = self._log.append([Batch(pending.route, pending.marks)])
        except NoRoom:
            return False
        self._marked(pending, placed)
        return True

    # The end of the session.

    def leave(self) -> None:
        """The program stops sending, and may still wait for acknowledgements: release all streams, keep their
        positions, and remember how far each is.
        """
        self.update_known()
        self._release_streams()
        active = [stream_id for stream_id in self._streams if stream_id in self._table]
        self._left = [(stream_id, self._table.last_id(stream_id)) for stream_id in active]
        open_yet = (StreamState.NOTIFIED, StreamState.ACTIVE)
        self._streams = {s: stream for s, stream in self._streams.items() if stream.state not in open_yet}
        self._forget_openings()
        self._acks.keep_ends()

    def _forget_openings(self) -> None:
        """Forget streams that wait for room to be opened, because others may open them now. Those that wait to end
        stay.
        """
        self._opening.clear()
        left = {route: [one for one in marks if one.stream_id in self._streams] for route, marks in self._marks.items()}
        self._marks.clear()
        self._marks.update({route: marks for route, marks in left.items() if marks})
        self.waits_for_room = bool(self._marks)

    def _release_streams(self) -> None:
        for stream_id in self._streams:
            self._release(stream_id)
            self._log.streams.detached(stream_id)
        for stream_id in self._refused:
            self._sources.registry.stop_waiting(self._key(stream_id), self)
        self._refused.clear()
        self._unopened.clear()
        self._blocked.clear()

    def await_release(self, ends: Mapping[int, Offset]) -> None:
        """After `leave`, while acknowledgements wait for pipelines: acknowledge the streams of these routes when the
        segments are released up to these ends.
        """
        for stream_id, last_id in self._left:
            route = self._log.streams[stream_id].route
            if last_id != NOTHING_YET and ends.get(route, 0) > self._completion.passed(route):
                self._acks.await_point(route, ends[route], stream_id, last_id)

    @property
    def is_settled(self) -> bool:
        """After `leave`: whether there is nothing more to acknowledge."""
        return not self._streams and not self._acks

    def update_known(self) -> None:
        for stream_id in self._streams:
            if stream_id in self._table:
                last_id = self._not_stored.get(stream_id, self._table.last_id(stream_id))
                self._log.streams[stream_id].last_id = last_id

    def release_all(self) -> None:
        """Release all streams, and keep their positions."""
        self.update_known()
        self._release_streams()
        self._streams.clear()
        self._forget_openings()
        self._acks.clear()


def _split(pending: PendingMarks) -> Iterator[PendingMarks]:
    """Split into parts for one record each, with one mark per stream: it is opened or ended, not both."""
    for first in range(0, len(pending.marks), _MARKS_PER_RECORD):
        marks = pending.marks[first : first + _MARKS_PER_RECORD]
        ids = {mark.stream_id for mark in marks}
        opening = [stream_id for stream_id in pending.opening if stream_id in ids]
        yield PendingMarks(pending.route, marks, opening, [one for one in pending.ending if one in ids])


def _batch(pending: PendingMarks, stored: Stored) -> Batch:
    if not stored.count:  # all of its messages are dead letters
        return Batch(pending.route, pending.marks, streams=stored.streams)
    return Batch(pending.route, pending.marks, stored.count, stored.data, stored.streams)


class SilentStreams(Protocol):
    """The table of a session's open streams, which knows which of them each run of messages has touched."""

    def next_mark(self) -> int: ...

    def silent(self, mark: int, limit: int) -> list[int]: ...

    def rest(self, stream_ids: Iterable[int]) -> None: ...


class SessionClock:
    """Measures how long the streams of a session have been silent while they could have sent. It remembers marks of the
    table, and nothing about single streams: a sweep scans the table's columns, and a message costs nothing.
    """

    def __init__(self, table: SilentStreams, timeout_seconds: float) -> None:
        self._table = table
        self._timeout_seconds = timeout_seconds
        self._now = 0.0
        self._could_send = False
        self._marks: deque[tuple[float, int]] = deque()

    def tick(self, seconds: float, *, can_send: bool) -> None:
        """Count this much time if the program could send at its beginning and at its end."""
        if can_send and self._could_send:
            self._now += seconds
        self._could_send = can_send

    def lapsed(self, limit: int) -> list[int]:
        """Streams that have been silent for the timeout, or up to one sweep longer. Call it regularly: each call is a
        sweep, and what it remembers of earlier ones is bounded by how many of them fall into the timeout.
        """
        if self._marks and self._marks[-1][0] == self._now:
            self._marks.pop()  # the clock has not advanced: the newer mark replaces the last one
        self._marks.append((self._now, self._table.next_mark()))
        since = self._now - self._timeout_seconds
        while len(self._marks) > 1 and self._marks[1][0] <= since:
            self._marks.popleft()
        at, mark = self._marks[0]
        return self._table.silent(mark, limit) if at <= since else []

    def rest(self, stream_ids: Iterable[int]) -> None:
        """These are marked as idle."""
        self._table.rest(stream_ids)
