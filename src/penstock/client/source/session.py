"""One connection of a source, without I/O: pass received bytes to `receive`, get bytes to send from `take`."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from penstock.client.credentials import read_token
from penstock.client.source.failures import Lost, Refused, Restarted, circle, no_answer, parse_address
from penstock.client.source.message import Entry, SourceStream
from penstock.core.address import Address
from penstock.core.errors import ProtocolError, RequestError, Unavailable
from penstock.core.retry import Pauses, RetryPolicy
from penstock.core.types import Buffer
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
    Allowance,
    Decoder,
    EndOfStream,
    Error,
    Frame,
    Hello,
    Migrate,
    MigrateAck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    Session,
    Side,
    State,
    Stream,
    StreamState,
    Use,
    encode_messages,
    error_frame,
)

# Where to connect next, and when.

RECONNECTS = RetryPolicy(first_seconds=0.05, max_seconds=5.0, jitter=1.0)
"""Full jitter: many sources lose a worker at once."""

RESTARTS_MAX = 16
"""Consecutive RESTARTs or MIGRATEs without progress that do not count as failures; more mean that workers redirect in a
circle.
"""

MIGRATE_SECONDS_MAX = 15.0
"""From MIGRATE until we go to the new address, even if the worker has not acknowledged what it could: longer than a
worker takes to move a shard.
"""

STEADY_SECONDS = 10.0
"""A connection that lasted this long counts as good, even if there was nothing to send."""


class Reconnecting:
    """The address to use, and the time since the first failure.

    The seeds are tried in order. The address in a RESTART or a MIGRATE comes before them, and before the address from
    where we were sent there.
    """

    def __init__(
        self,
        seeds: Sequence[Address],
        retry_seconds: float,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._seeds = tuple(seeds)
        self._addresses = deque(seeds)
        self._retry_seconds = retry_seconds
        self._uniform = uniform
        self.progressed()

    @property
    def address(self) -> Address:
        return self._addresses[0]

    def progressed(self) -> None:
        """The last connection was useful: earlier failures no longer count."""
        self._pauses = Pauses(RECONNECTS, self._uniform)
        self._failing_since: float | None = None
        self._restarts = 0

    def not_connected(self) -> None:
        """Nothing answers at this address, or nothing was acknowledged there: the next one comes first."""
        self._addresses.rotate(-1)

    def moved(self, target: Address) -> None:
        """MIGRATE: if it fails, the address from where we come is the next one. Raises Lost after too many of them
        without progress.
        """
        self._addresses = deque(dict.fromkeys((target, self.address, *self._seeds)))
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise circle(target)

    def remember(self, target: Address) -> None:
        """We were sent there, and the connection was lost before we went: either may be the right one."""
        if target not in self._addresses:
            self._addresses.appendleft(target)

    def pause(self, error: Lost, now: float) -> float:
        """Seconds to wait before the next connection. Raises the error when the time for retries is over."""
        if isinstance(error, Restarted):
            self._move(error.address)
            self._restarts += 1
            if self._restarts <= RESTARTS_MAX:
                return self._pauses.next()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._retry_seconds:
            raise error
        return self._pauses.next()

    def _move(self, text: str) -> None:
        if not text:
            return
        try:
            target = parse_address(text)
        except RequestError:
            raise ProtocolError(
                f"RESTART: the worker at {self.address} redirects to {text!r:.100}, which is not an address"
            ) from None
        self._addresses = deque(dict.fromkeys((target, *self._seeds)))


_NOT_A_WORKER = "Is this the connector port of a penstock worker, and do both sides use TLS, or neither?"
_REFUSED_HELLO = "Check the name of the source, the cookie or token, and that both sides have the same version."
_REFUSED_LATER = "Look at the worker's log: the worker refused what the connector sent."


@dataclass(slots=True, eq=False)
class _Track:
    """A stream in this connection. A refused one is requested again after a pause."""

    stream: SourceStream
    machine: Stream
    notify_at: float
    pauses: Pauses = field(default_factory=lambda: Pauses(RECONNECTS))
    refused_at: float | None = None
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What is the same for all connections."""

    hello: Hello
    frame_size_max: int
    timeout_seconds: float
    retry_seconds: float

    def with_token(self) -> "Terms":
        """For one connection: without a cookie, the token of PENSTOCK_TOKEN_FILE, read now, is sent in its place."""
        return self if self.hello.cookie else replace(self, hello=replace(self.hello, cookie=read_token().encode()))


class SourceSession:
    """Guarantees: no MESSAGE without a credit, none of a stream that is not open, and acknowledgements never go
    backwards. Time, in seconds on any monotonic clock, is an argument.

    The caller empties `opened` and `acked`, which have at most one entry per stream.

    MIGRATE sets `target`: the streams are ended, and nothing more is sent. When `may_leave`, the caller connects there;
    when that worker has answered, `migrated` reports it here.
    """

    def __init__(self, terms: Terms, address: Address, now: float) -> None:
        self.address = address
        self.opened: list[SourceStream] = []
        """Streams that may be sent now, each after its `stored`."""
        self.acked: dict[SourceStream, int] = {}
        """The ids up to which streams were acknowledged."""
        self.offered = 0
        """How many of the source's streams were added or are done."""
        self.target: Address | None = None
        """Where the worker has sent us."""
        self._leave_at = inf
        self._terms = terms
        self._started_at = now
        self._opened_at: float | None = None
        self._moved = False
        self._session = Session(Use.SOURCE, Role.INITIATOR)
        self._decoder = Decoder(Use.SOURCE)
        self._allowance = Allowance()
        self._tracks: dict[int, _Track] = {}
        self._to_notify: dict[int, _Track] = {}
        self._out: list[bytes] = [self._session.send(terms.hello)]

    @property
    def is_over(self) -> bool:
        return self._session.is_over

    @property
    def is_open(self) -> bool:
        """Whether the worker has answered HELLO with OK."""
        return self._opened_at is not None

    @property
    def credits(self) -> int:
        """How many messages may be sent now."""
        return self._allowance.available if self.target is None else 0

    def must_leave(self, now: float) -> bool:
        """Whether the worker has had all the time that it may take."""
        return self.target is not None and now >= self._leave_at

    def may_leave(self, now: float) -> bool:
        """Whether it is time to connect to `target`: the worker has answered every NOTIFY, and has acknowledged all
        streams or reported that it will not acknowledge more. Or it takes too long.
        """
        if self.target is None or self._out:
            return False
        return now >= self._leave_at or not any(map(_awaits_worker, self._tracks.values()))

    def migrated(self) -> None:
        """MIGRATE_ACK, the last frame: the worker at the new address has answered."""
        if not self._session.is_over:
            self._out.append(self._session.send(MigrateAck()))

    @property
    def has_moved(self) -> bool:
        """Whether the worker has acknowledged anything, or reported another position than we knew."""
        return self._moved

    def was_useful(self, now: float) -> bool:
        """Whether the next connection counts as a fresh start, not as another attempt."""
        return self._moved or (self._opened_at is not None and now - self._opened_at >= STEADY_SECONDS)

    def add(self, stream: SourceStream, now: float) -> None:
        """Ask for this stream at the next `poll`, unless it is done."""
        if not stream.is_done:
            track = _Track(stream, Stream(stream.stream_id), now)
            self._tracks[stream.stream_id] = self._to_notify[stream.stream_id] = track

    def poll(self, now: float) -> float:
        """Do what is due; returns when something is due again. Raises Lost if the worker's OK does not arrive in
        time.
        """
        if self._session.state is State.HANDSHAKE:
            return self._check_answer(now)
        if self.target is not None:
            return self._leave_at
        for stream_id, track in list(self._to_notify.items()):
            if track.notify_at <= now:
                del self._to_notify[stream_id]
                self._notify(track)
        return min((track.notify_at for track in self._to_notify.values()), default=inf)

    def take(self) -> list[bytes]:
        """The bytes to send; each is returned once."""
        out, self._out = self._out, []
        return out

    def receive(self, data: Buffer, now: float) -> None:
        """Raises Refused for an ERROR, Restarted for a RESTART, ProtocolError for a violation of the protocol: all
        final.
        """
        try:
            for frame in self._decoder.feed(data):
                if self._session.is_over:
                    return
                self._session.receive(frame)
                self._handle(frame, now)
        except ProtocolError as error:
            hint = _NOT_A_WORKER if self._opened_at is None else "Look at the worker's log."
            raise ProtocolError(f"the worker at {self.address}: {error}", error.hint or hint) from None

    def send(self, stream: SourceStream, entries: list[Entry]) -> int:
        """Send MESSAGE frames; the caller has checked that there are `credits` for them. Returns their size in bytes.

        Raises LimitExceeded or RequestError for a message that does not fit; then none is sent.
        """
        data = encode_messages(stream.stream_id, entries, frame_size_max=self._terms.frame_size_max)
        assert len(entries) <= self._allowance.available
        self._tracks[stream.stream_id].machine.messages(entries[-1][0], Side.OURS)
        self._allowance.spend(len(entries))
        self._out.append(data)
        stream.sent += len(entries)
        return len(data)

    def end(self, stream: SourceStream) -> None:
        """EOS_MESSAGE: the stream is done when its last message is acknowledged."""
        track = self._tracks[stream.stream_id]
        track.machine.end(Side.OURS)
        track.has_ended = True
        self._out.append(self._session.send(EndOfStream(stream.stream_id)))
        self._check_done(track)

    def fail(self, reason: str) -> None:
        """Send an ERROR, the last frame."""
        if not self._session.is_over:
            self._out.append(self._session.send(error_frame(ProtocolError(reason))))

    def close(self) -> None:
        """The connection is gone."""
        self._session.close()

    def _check_answer(self, now: float) -> float:
        deadline = self._started_at + self._terms.timeout_seconds
        if now >= deadline:
            raise no_answer(self.address, self._terms.timeout_seconds)
        return deadline

    def _notify(self, track: _Track) -> None:
        """NOTIFY spends a credit but does not wait for one."""
        stored = track.stream.stored or 0
        track.machine.notify(Side.OURS)
        self._allowance.spend()
        self._out.append(self._session.send(Notify(track.stream.stream_id, track.stream.name, stored)))

    def _handle(self, frame: Frame, now: float) -> None:
        match frame:
            case Ok():
                self._opened_at = now
                self._allowance.add(frame.credits)
            case NotifyAck():
                self._answered(self._track(frame, frame.stream_id), frame, now)
            case Ack():
                self._allowance.add(frame.credits)
                for acked in frame.acked:
                    self._acknowledged(self._track(frame, acked.stream_id), acked)
                if self.target is not None and not frame.credits and not frame.acked:
                    self._leave_at = now
            case Migrate():
                self._migrate(frame, now)
            case Restart():
                raise Restarted(self.address, frame.address)
            case Error():
                hint = _REFUSED_HELLO if self._opened_at is None else _REFUSED_LATER
                raise Refused(f"the worker at {self.address} refused: {frame.text}", hint)

    def _track(self, frame: Frame, stream_id: int) -> _Track:
        track = self._tracks.get(stream_id)
        if track is None:
            raise ProtocolError(f"{frame.wire_name}: stream {stream_id} was not opened by this program")
        return track

    def _answered(self, track: _Track, answer: NotifyAck, now: float) -> None:
        track.machine.notify_ack(answer.success, answer.point_of_reference, Side.THEIRS)
        if self.target is not None:
            self._relinquish(track)
        elif answer.success:
            track.refused_at = None
            self._moved |= track.stream.opened(answer.point_of_reference)
            self.opened.append(track.stream)
        else:
            self._postpone(track, now)

    def _migrate(self, frame: Migrate, now: float) -> None:
        """End all streams, and send nothing more. What is not acknowledged is sent again at the new address, also an
        end: the worker may have taken it for an answer to MIGRATE.
        """
        self.target, self._leave_at = Address(frame.host, frame.port), now + MIGRATE_SECONDS_MAX
        self.opened.clear()
        self._to_notify.clear()
        for track in self._tracks.values():
            track.has_ended = track.stream.is_done
            self._relinquish(track)

    def _relinquish(self, track: _Track) -> None:
        if track.machine.state is StreamState.ACTIVE:
            track.machine.end(Side.OURS)
            self._out.append(self._session.send(EndOfStream(track.stream.stream_id)))

    def _postpone(self, track: _Track, now: float) -> None:
        """Waits before asking again: asking at once would loop at the speed of the network."""
        if track.refused_at is None:
            track.refused_at = now
        if now - track.refused_at >= self._terms.retry_seconds:
            raise Unavailable(
                f"stream {track.stream.name!r} is in use by another connection, or not closed yet",
                "Stop the other one, or wait until what it sent is complete.",
            )
        track.notify_at = now + track.pauses.next()
        self._to_notify[track.stream.stream_id] = track

    def _acknowledged(self, track: _Track, acked: Acked) -> None:
        last = track.machine.last_id
        if last == NOTHING_YET or acked.point_of_reference > last:
            raise ProtocolError(
                f"ACK: stream {track.stream.name!r} is acknowledged up to {acked.point_of_reference}, but was "
                + ("never sent" if last == NOTHING_YET else f"sent only up to {last}")
            )
        track.machine.ack(acked.point_of_reference, Side.THEIRS)
        if track.stream.acked(acked.point_of_reference):
            self._moved = True
            self.acked[track.stream] = acked.point_of_reference
        self._check_done(track)

    def _check_done(self, track: _Track) -> None:
        if track.has_ended and track.machine.state is StreamState.INACTIVE:
            track.stream.is_done = True


def _awaits_worker(track: _Track) -> bool:
    """Whether the worker may still open it, or acknowledge its last message."""
    return track.machine.state in (StreamState.NOTIFIED, StreamState.CLOSING, StreamState.REOPENING)


# Which stream sends next: they take turns, and a turn is at most one batch.

BATCH_BYTES = 256 * 1024
"""Frames per write: large enough that the cost of the call is negligible, small enough to take turns."""

BATCH_MESSAGES = 2048
"""Per turn, so that a stream of tiny messages does not starve the others."""

TURN_SECONDS = 0.01
"""After this time, the batch is sent and the socket is read, even if the batch is small."""


class Feed(Protocol):
    """The messages of an open stream."""

    stream: SourceStream

    @property
    def is_ended(self) -> bool:
        """Whether there is nothing more to take."""

    def take(self, messages_max: int, bytes_max: int) -> list[Entry]:
        """The messages available now, up to the limits; at least one if there is any, even a large one."""

    def due(self, has_credit: bool) -> float:
        """The time from which a turn is useful; inf: not until something changes."""

    def close(self) -> None:
        """Nothing more is taken. Idempotent."""


class Outflow:
    """The feeds of one connection, in the order of their last turns, least recent first."""

    def __init__(self, session: SourceSession, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock
        self._feeds: dict[Feed, None] = {}

    def add(self, feed: Feed) -> None:
        self._feeds[feed] = None

    def fill(self, room_bytes: int) -> None:
        """Give each stream with something to send at most one turn, until the room, the credits or the time of a turn
        are used up.
        """
        until = self._clock() + TURN_SECONDS
        for feed in list(self._feeds):
            now = self._clock()
            if room_bytes <= 0 or now >= until:
                return
            if feed.due(self._session.credits > 0) <= now:
                room_bytes -= self._turn(feed, room_bytes)

    def due(self) -> float:
        """When `fill` is useful again."""
        has_credit = self._session.credits > 0
        return min((feed.due(has_credit) for feed in self._feeds), default=inf)

    def close(self) -> None:
        while self._feeds:
            self._feeds.popitem()[0].close()

    def _turn(self, feed: Feed, room_bytes: int) -> int:
        entries = feed.take(min(self._session.credits, BATCH_MESSAGES), min(room_bytes, BATCH_BYTES))
        size = self._session.send(feed.stream, entries) if entries else 0
        del self._feeds[feed]
        if feed.is_ended:
            feed.close()
            self._session.end(feed.stream)
        else:
            self._feeds[feed] = None
        return size
