"""The streams of one session: opened by NOTIFY, ended by EOS_MESSAGE, released when the session ends."""

import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import ProtocolError
from penstock.core.types import Position
from penstock.gateway.connector import Connector, ended, started
from penstock.gateway.head import Mark
from penstock.gateway.registry import StreamKey
from penstock.protocol.connector import NOTHING_YET, Notify, NotifyAck, Side, Stream, StreamState
from penstock.protocol.connector.bulk import Admission, Columns, Streams, StreamTable

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.session import SourceSession


STREAM_NAME_MAX = 200
"""Characters of a stream's name that are kept: it is for people, and there may be very many of them."""

# Streams that one session opens or ends before the loop gets its turn: some milliseconds.
_STREAMS_PER_TURN = 200


class Waiting(NamedTuple):
    """Marks that are to be stored, and the streams that open and end with them."""

    marks: list[Mark]
    opening: list[int]
    ending: list[int]


class OpenedStreams:
    """The session's side of the registry, and its table of last message ids."""

    def __init__(self, gateway: "Gateway", connector: Connector, session: "SourceSession") -> None:
        self._gateway = gateway
        self._connector = connector
        self._session = session
        self._table = StreamTable(secrets.randbits(64))
        self._streams: dict[int, Stream] = {}
        self._marks: defaultdict[int, list[Mark]] = defaultdict(list)
        self._opening: defaultdict[int, list[int]] = defaultdict(list)
        self._ending: defaultdict[int, list[int]] = defaultdict(list)
        self._not_stored: dict[int, int] = {}
        self._is_working = False
        self._due: deque[tuple[Callable[[int], None], int]] = deque()

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
        self._marks[known.route].append(started(stream_id, known.name))
        self._opening[known.route].append(stream_id)

    def _check_known(self, stream_id: int) -> None:
        limit = self._gateway.settings.streams_per_connector_max
        if len(self._connector.streams) >= limit and stream_id not in self._connector.streams:
            raise ProtocolError(f"NOTIFY: this source has had {limit} streams already (streams_per_connector_max)")

    def _refuse(self, stream: Stream) -> None:
        stream.notify_ack(False, 0, Side.OURS)
        self._gateway.counters.streams_refused += 1
        self._session.answer(NotifyAck(False, stream.stream_id, 0))

    def _open(self, stream_id: int) -> None:
        """Everything that was stored of the stream before is durable now: say how far it goes."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.state is not StreamState.NOTIFIED:
            return
        known = self._connector.streams[stream_id]
        stream.notify_ack(True, known.last_id, Side.OURS)
        self._table.open(stream_id, known.last_id, known.route)
        self._gateway.counters.streams_opened += 1
        self._session.answer(NotifyAck(True, stream_id, known.last_id))

    # Messages.

    def admit(self, columns: Columns) -> Admission:
        settings = self._connector.settings
        arrival = time.time_ns() // 1000 if settings.event_time_ingest else None
        return self._table.admit(columns, settings.event_time_unit, arrival)

    def not_stored(self, streams: Streams, from_route: int) -> None:
        """The table counts as stored what was not: remember where these streams go back to."""
        for stream_id, route, previous_id in zip(streams.stream_ids, streams.routes, streams.previous_ids, strict=True):
            if route >= from_route:
                self._not_stored[int(stream_id)] = int(previous_id)

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

    def _end(self, stream_id: int) -> None:
        """All of the stream is durable: acknowledge its last message, and let it be opened again."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self._gateway.registry.release(self._key(stream_id), self._session)
        self._gateway.counters.streams_ended += 1
        if stream.last_id != NOTHING_YET:
            self._session.acknowledge(stream_id, stream.last_id)

    # Marks.

    def take_marks(self, route: int) -> Waiting:
        """What waits for this route's next record; say when it is stored with `marked`."""
        return Waiting(self._marks.pop(route, []), self._opening.pop(route, []), self._ending.pop(route, []))

    def marked(self, waiting: Waiting, position: Position) -> None:
        """The marks are stored: what they announce happens when they are durable."""
        if waiting.opening or waiting.ending:
            self._gateway.durability.after(position, partial(self._durable, waiting))

    def _durable(self, waiting: Waiting) -> None:
        self._due.extend((self._open, stream_id) for stream_id in waiting.opening)
        self._due.extend((self._end, stream_id) for stream_id in waiting.ending)
        if not self._is_working:
            self._work_off()

    def _work_off(self) -> None:
        """Open and end what is due, a little at a time: the other sessions must get their turn."""
        for _ in range(min(len(self._due), _STREAMS_PER_TURN)):
            action, stream_id = self._due.popleft()
            action(stream_id)
        self._is_working = bool(self._due)
        if self._is_working:
            self._gateway.loop.call_soon(self._work_off)

    def flush_marks(self) -> None:
        """Store the marks that no message came for."""
        for route in list(self._marks):
            waiting = self.take_marks(route)
            self.marked(waiting, self._connector.mark(route, waiting.marks))

    # The end of the session.

    def update_known(self) -> None:
        """Bring the connector's table up to what this session has stored."""
        for stream_id in self._streams:
            if stream_id in self._table:
                last_id = self._not_stored.get(stream_id, self._table.last_id(stream_id))
                self._connector.streams[stream_id].last_id = last_id

    def release_all(self) -> None:
        """Make all streams inactive, their positions kept."""
        self.update_known()
        for stream_id in self._streams:
            self._gateway.registry.release(self._key(stream_id), self._session)
        self._streams.clear()
