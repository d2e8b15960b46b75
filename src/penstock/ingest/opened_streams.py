"""The streams of one session: opened by NOTIFY, ended by EOS_MESSAGE, released when the session ends."""

import secrets
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.connectors.api import StreamRef
from penstock.core.errors import ProtocolError
from penstock.core.types import Offset, Position
from penstock.ingest.connector import Batch, Connector, Placed, active_again, ended, started
from penstock.ingest.idle_clocks import SessionClock
from penstock.ingest.registry import StreamKey
from penstock.ingest.waiting_streams import WaitingStreams
from penstock.protocol.connector import NOTHING_YET, Notify, NotifyAck, Side, Stream, StreamState
from penstock.protocol.connector.bulk import Admission, Columns, Streams, StreamTable
from penstock.protocol.stored.head import Mark

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway
    from penstock.ingest.session import SourceSession


STREAM_NAME_MAX = 200
"""Characters of a stream's name that are kept: it is for people, and there may be very many of them."""

# Streams that one session opens or ends before the loop gets its turn: some milliseconds.
_STREAMS_PER_TURN = 200
# Streams whose point of reference is released before the loop gets its turn: about a microsecond each.
_RELEASED_PER_TURN = 2000


class Waiting(NamedTuple):
    """Marks that are to be stored in the segment of this route, and the streams that open and end with them."""

    route: int
    marks: Sequence[Mark] = ()
    opening: Sequence[int] = ()
    ending: Sequence[int] = ()


class OpenedStreams:
    """The session's side of the registry, and its table of last message ids."""

    def __init__(self, gateway: "Gateway", connector: Connector, session: "SourceSession") -> None:
        self._gateway = gateway
        self._connector = connector
        self._completion = gateway.completion(connector.name)
        self._session = session
        self._table = StreamTable(secrets.randbits(64))
        timeout = connector.settings.idle_timeout_seconds
        self.clock = None if timeout is None else SessionClock(self._table, timeout)
        """Of the streams' silence; None where nobody asks for it."""
        self._streams: dict[int, Stream] = {}
        self._marks: defaultdict[int, list[Mark]] = defaultdict(list)
        self._opening: defaultdict[int, list[int]] = defaultdict(list)
        self._ending: defaultdict[int, list[int]] = defaultdict(list)
        self._not_stored: dict[int, int] = {}
        self._is_working = False
        self._due: deque[tuple[Callable[[int, Offset], None], int, Offset]] = deque()
        self._waiting = WaitingStreams()
        self._acks: list[tuple[int, int]] = []
        self._left: list[tuple[int, int]] = []
        self._unopened: dict[int, Offset] = {}
        """Streams that not all sinks have opened: their NOTIFYs are not answered yet."""
        self._kept_back: set[int] = set()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def end_of_journal(self) -> Position:
        return self._gateway.store.journal.end

    def _key(self, stream_id: int) -> StreamKey:
        return StreamKey(self._connector.name, stream_id)

    # Opening.

    def notify(self, notify: Notify) -> None:
        """Open the stream, or refuse it: it is in use elsewhere, or still closing."""
        stream_id = notify.stream_id
        stream = self._streams.get(stream_id) or Stream(stream_id)
        stream.notify(Side.THEIRS)
        if stream.state is not StreamState.NOTIFIED or not self._gateway.registry.claim(
            self._key(stream_id), self._session
        ):
            self._refuse(stream)
            return
        self._streams[stream_id] = stream
        self._check_known(stream_id)
        known = self._connector.find(stream_id, notify.name[:STREAM_NAME_MAX])
        self._marks[known.route].append(started(stream_id, known))
        self._opening[known.route].append(stream_id)

    def _check_known(self, stream_id: int) -> None:
        limit = self._gateway.settings.streams_per_connector_max
        if len(self._connector.streams) >= limit and stream_id not in self._connector.streams:
            raise ProtocolError(f"NOTIFY: this source has had {limit} streams already (streams_per_connector_max)")

    def _refuse(self, stream: Stream) -> None:
        stream.notify_ack(False, 0, Side.OURS)
        self._gateway.counters.streams_refused += 1
        self._session.answer(NotifyAck(False, stream.stream_id, 0))

    def _open(self, stream_id: int, before: Offset) -> None:
        """All that was stored of the stream ends at `before` or earlier, and is durable: say how far it goes."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is not StreamState.NOTIFIED:
            return
        if self._gateway.is_guarded and not self._is_opened(stream_id):
            self._unopened[stream_id] = before
            return
        known = self._connector.streams[stream_id]
        stream.notify_ack(True, known.last_id, Side.OURS)
        self._table.open(stream_id, known.last_id, known.route)
        self._gateway.counters.streams_opened += 1
        self._session.answer(NotifyAck(True, stream_id, known.last_id))
        if self._completion.waits and known.last_id != NOTHING_YET:
            self._acknowledge_at(before, known.route, stream_id, known.last_id)

    # Streams that may not send now.

    def _is_opened(self, stream_id: int) -> bool:
        stream = StreamRef(self._connector.name, stream_id)
        self._gateway.gate.started(stream)
        may_send = self._gateway.gate.may_send(stream)
        self._gateway.keep_back(stream, is_kept=not may_send)
        return may_send

    @property
    def is_kept_back(self) -> bool:
        """Whether one of its streams is not to send: then the session gets no credits, for these are of no stream."""
        return bool(self._kept_back)

    def gate_changed(self, stream_id: int, may_send: bool) -> None:
        if may_send and stream_id in self._unopened:
            self._open(stream_id, self._unopened.pop(stream_id))
            self._send_acks()
        elif may_send:
            self._let_send(stream_id)
        elif stream_id in self._table:
            self._kept_back.add(stream_id)

    def _let_send(self, stream_id: int) -> None:
        if stream_id in self._kept_back:
            self._kept_back.discard(stream_id)
            self._gateway.flush_soon(self._session)

    # Messages.

    def admit(self, columns: Columns) -> Admission:
        settings = self._connector.settings
        arrival = self._gateway.clock.now() if settings.event_time_ingest else None
        has_own_times = self._connector.has_own_times
        if has_own_times is False or (has_own_times is None and settings.event_time_ingest):
            self._look_at_times(columns)
        admission = self._table.admit(columns, settings.event_time_unit, arrival)
        if self._connector.idle:
            self._wake(admission.streams)
        return admission

    def _look_at_times(self, columns: Columns) -> None:
        if columns.has_event_times:
            self._connector.brings_own_times()
        else:
            self._connector.brings_no_times()

    def _wake(self, streams: Streams) -> None:
        """Those that were idle are active again, in the record of their events."""
        ids = streams.stream_ids.tolist()
        if not self._connector.idle.isdisjoint(ids):
            for stream_id in self._connector.idle.intersection(ids):
                self._marks[self._connector.streams[stream_id].route].append(active_again(stream_id))

    def touch(self, stream_id: int) -> None:
        """The stream has given a sign of life that is no message."""
        self._table.touch(stream_id)

    def stored_id(self, stream_id: int) -> int:
        """The last message id of the stream that is stored, or NOTHING_YET."""
        known = self._connector.streams[stream_id]
        return self._table.last_id(stream_id) if stream_id in self._table else known.last_id

    def not_stored(self, streams: Streams) -> None:
        """The table counts as stored what was not: remember where these streams go back to."""
        self._not_stored |= zip(streams.stream_ids.tolist(), streams.previous_ids.tolist(), strict=True)

    # Ending.

    def end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream_id not in self._table:
            raise ProtocolError(f"EOS_MESSAGE is not legal for stream {stream_id}: it is not open in this session")
        last_id = self._table.last_id(stream_id)
        if last_id != NOTHING_YET:
            stream.messages(last_id, Side.THEIRS)
        stream.end(Side.THEIRS)
        known = self._connector.streams[stream_id]
        known.last_id = last_id
        self._table.close(stream_id)
        self._gateway.registry.close(self._key(stream_id), self._session)
        self._marks[known.route].append(ended(stream_id))
        self._ending[known.route].append(stream_id)

    def _end(self, stream_id: int, before: Offset) -> None:
        """All of the stream ends at `before` or earlier, and is durable: it has ended once that is released."""
        stream = self._streams.get(stream_id)
        route = self._connector.streams[stream_id].route
        if self._gateway.is_guarded:
            self._let_send(stream_id)
            self._gateway.gate.ended(StreamRef(self._connector.name, stream_id))
            self._gateway.endings.add(self._connector, stream_id, before)
        if stream is None or stream.last_id == NOTHING_YET or before <= self._completion.passed(route):
            self._ended(stream_id)
        else:
            self._waiting.add_end(route, before, stream_id)
            self._completion.wait(self)

    def _ended(self, stream_id: int) -> None:
        """Acknowledge the last message, and let the stream be opened again."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self._gateway.registry.release(self._key(stream_id), self._session)
        self._gateway.counters.streams_ended += 1
        if stream.last_id != NOTHING_YET:
            self._acks.append((stream_id, stream.last_id))

    # Acknowledgements that have waited for pipelines.

    def _acknowledge_at(self, offset: Offset, route: int, stream_id: int, last_id: int) -> None:
        """When the segment is released up to there; at once if it is."""
        if offset <= self._completion.passed(route):
            self._acks.append((stream_id, last_id))
        else:
            self._waiting.add_point(route, offset, stream_id, last_id)
            self._completion.wait(self)

    def acknowledge(self, stream_ids: "array[int]", last_ids: "array[int]") -> None:
        """These messages are complete. A stream's last one is left to its end, and nothing is sent that is below what
        NOTIFY_ACK said: "real clients would rewind".
        """
        for stream_id, last_id in zip(stream_ids, last_ids, strict=True):
            stream = self._streams.get(stream_id)
            if stream is None or stream.state is StreamState.NOTIFIED:
                continue
            is_last = stream.state is not StreamState.ACTIVE and last_id == stream.last_id
            if self._waiting.passes(stream_id, last_id) and not is_last:
                self._acks.append((stream_id, last_id))
        self._send_acks()

    def release(self, route: int, passed: float) -> bool:
        """The segment is released so far: acknowledge and end what has waited for it. False: call it again."""
        due = self._waiting.due(route, passed, _RELEASED_PER_TURN)
        self._acks += due.points
        for stream_id in due.ends:
            self._ended(stream_id)
        self._send_acks()
        if not self._waiting:
            self._completion.forget(self)
        if due.points or due.ends:
            self._gateway.flush_soon(self._session)
        return due.is_all

    def resync(self, route: int, end: Offset) -> None:
        """Acknowledge all that is stored now in the segment once it is released up to its end."""
        for stream_id in self._streams:
            if stream_id in self._table and self._connector.streams[stream_id].route == route:
                last_id = self._table.last_id(stream_id)
                if last_id != NOTHING_YET:
                    self._waiting.add_point(route, end, stream_id, last_id)
                    self._completion.wait(self)

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            self._session.acknowledge(*(array("Q", column) for column in zip(*acks, strict=True)))

    # Marks.

    def take_marks(self, route: int) -> Waiting:
        """What waits for this route's next record; say when it is stored with `marked`."""
        if route not in self._marks:
            return Waiting(route)
        return Waiting(route, self._marks.pop(route), self._opening.pop(route, ()), self._ending.pop(route, ()))

    def marked(self, waiting: Waiting, placed: Placed) -> None:
        """The marks are stored: what they announce happens when they are durable."""
        if waiting.opening or waiting.ending:
            self._gateway.durability.after(placed.position, partial(self._durable, waiting, placed))

    def _durable(self, waiting: Waiting, placed: Placed) -> None:
        self._completion.durable(waiting.route, placed.end)
        self._due.extend((self._open, stream_id, placed.before) for stream_id in waiting.opening)
        self._due.extend((self._end, stream_id, placed.before) for stream_id in waiting.ending)
        if not self._is_working:
            self._work_off()

    def _work_off(self) -> None:
        """Open and end what is due, a little at a time: the other sessions must get their turn."""
        for _ in range(min(len(self._due), _STREAMS_PER_TURN)):
            action, stream_id, before = self._due.popleft()
            action(stream_id, before)
        self._send_acks()
        self._is_working = bool(self._due)
        if self._is_working:
            self._gateway.loop.call_soon(self._work_off)

    def flush_marks(self) -> None:
        """Store the marks that no message came for."""
        for route in list(self._marks):
            waiting = self.take_marks(route)
            (placed,) = self._connector.append([Batch(route, waiting.marks)])
            self.marked(waiting, placed)

    # The end of the session.

    def leave(self) -> None:
        """The source sends nothing more, and may still wait for acknowledgements: make all streams inactive, their
        positions kept, and remember how far each has come.
        """
        self.update_known()
        self._release_streams()
        active = [stream_id for stream_id in self._streams if stream_id in self._table]
        self._left = [(stream_id, self._table.last_id(stream_id)) for stream_id in active]
        open_yet = (StreamState.NOTIFIED, StreamState.ACTIVE)
        self._streams = {s: stream for s, stream in self._streams.items() if stream.state not in open_yet}
        self._waiting.keep_ends()

    def _release_streams(self) -> None:
        for stream_id in self._streams:
            self._gateway.registry.release(self._key(stream_id), self._session)
            self._connector.stays_away(stream_id)
        self._unopened.clear()
        self._kept_back.clear()

    def await_release(self, ends: Mapping[int, Offset]) -> None:
        """After `leave`, where pipelines hold: acknowledge the streams of these routes when that is released."""
        for stream_id, last_id in self._left:
            route = self._connector.streams[stream_id].route
            if last_id != NOTHING_YET and ends.get(route, 0) > self._completion.passed(route):
                self._waiting.add_point(route, ends[route], stream_id, last_id)
                self._completion.wait(self)

    @property
    def is_settled(self) -> bool:
        """After `leave`: whether there is nothing more to acknowledge."""
        return not self._streams and not self._waiting

    def update_known(self) -> None:
        """Bring the connector's table up to what this session has stored."""
        for stream_id in self._streams:
            if stream_id in self._table:
                last_id = self._not_stored.get(stream_id, self._table.last_id(stream_id))
                self._connector.streams[stream_id].last_id = last_id

    def release_all(self) -> None:
        """Make all streams inactive, their positions kept."""
        self.update_known()
        self._release_streams()
        self._streams.clear()
        self._waiting.clear()
        self._completion.forget(self)
