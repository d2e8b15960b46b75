"""One program's session: frames to streams, runs of messages to the source log, credits and acknowledgements back."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

from penstock.access.principals import Principal
from penstock.core.address import Address
from penstock.core.connection_limits import ConnectionLimits
from penstock.core.errors import Forbidden, NoRoom, PenstockError, ProtocolError, StoreFailed
from penstock.core.logs import QUOTED_CHARS_MAX, one_line, quoted
from penstock.core.retry import Pauses, RetryPolicy
from penstock.core.types import Offset
from penstock.ingest.catalog import Counters, SourceCatalog
from penstock.ingest.completion import Completion
from penstock.ingest.sessions.acks import AckLag, Run
from penstock.ingest.sessions.migration import LEAVE_SECONDS_MAX, Effect, SessionEvent, SessionMove
from penstock.ingest.sessions.program_access import ProgramAccess
from penstock.ingest.sessions.streams import SessionStreams
from penstock.ingest.settings import ProgramServerSettings
from penstock.ingest.source_log import SourceLog
from penstock.protocol.api.status import SessionError, SessionStatus
from penstock.protocol.connector import (
    NOTHING_YET,
    Ack,
    Acked,
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
    Use,
    announced_window,
)
from penstock.protocol.connector.bulk import Column, Columns, encode_acks
from penstock.protocol.connector.credits import WINDOWS_MAX, Credits

log = logging.getLogger(__name__)

REFUSALS = RetryPolicy(first_seconds=0.05, max_seconds=1.0)
"""From a refused NOTIFY to the ACK on which existing programs retry: without a pause they would loop."""

_ERROR_TEXT_MAX = 1000
_ERRORS_KEPT = 20

_ACKED_PER_FRAME = 10_000
"""160 KB: other programs may have a limit on frames as well."""


class Outlet(Protocol):
    """The connection of a session."""

    @property
    def peer(self) -> str: ...

    @property
    def is_blocked(self) -> bool:
        """Whether the peer does not read what is sent to it."""
        ...

    def write(self, data: bytes) -> bool:
        """False: nothing is sent any more."""
        ...

    def set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        """Call this function at that time, instead of any set before."""
        ...

    def cancel_deadline(self) -> None: ...

    def end(self, *, lingers: bool = False) -> None:
        """Send what was written, and close; with `lingers`, wait until the peer has closed."""
        ...


class Gathering(Protocol):
    """A connection that may have messages which are not stored yet."""

    def store_gathered(self) -> bool: ...


class SessionTable:
    """The sessions of a worker: their number, which of them to flush, and the last errors."""

    def __init__(self, settings: ProgramServerSettings, counters: Counters) -> None:
        self._joining = ConnectionLimits(settings.joining_max, settings.address_joining_max)
        self._limits = ConnectionLimits(settings.sessions_max, settings.address_max)
        self._counters = counters
        self._sessions: set[SourceSession] = set()
        self._to_flush: set[SourceSession] = set()
        self._flush_called = False
        self._is_closed = False
        self.errors: deque[SessionError] = deque(maxlen=_ERRORS_KEPT)
        self.gathering: set[Gathering] = set()
        """Those that store what comes in now a little later."""

    def __iter__(self) -> Iterator["SourceSession"]:
        """Iterates over a copy: sessions may end in the meantime."""
        return iter(list(self._sessions))

    def __len__(self) -> int:
        return len(self._sessions)

    def close(self) -> None:
        """No more sessions: one whose TLS handshake has begun may still come."""
        self._is_closed = True

    def opened(self, session: "SourceSession", address: str) -> bool:
        """False if there are too many and all of them are busy. Otherwise an idle one is closed to make room: first
        those that have not sent HELLO or have closed their side, then those without a stream.
        """
        if self._is_closed:
            return False
        if self._joining.admit(session, address) and self._limits.admit(session, address):
            self._sessions.add(session)
            return True
        self._joining.leave(session)
        self._counters.sessions_refused += 1
        return False

    def joined(self, session: "SourceSession", principal: Principal | None) -> None:
        """It has sent its HELLO. Raises NoRoom if this principal has too many, and all of them are busy."""
        self._joining.leave(session)
        if principal is not None and not self._limits.identify(session, principal.name):
            raise NoRoom(f"{principal.name!r} has too many sessions already (address_sessions_max)")

    def closed(self, session: "SourceSession") -> None:
        self._joining.leave(session)
        self._limits.leave(session)
        self._sessions.discard(session)
        self._to_flush.discard(session)

    def remember_error(self, peer: str, text: str) -> None:
        self.errors.append(SessionError(peer=peer, error=one_line(text, _ERROR_TEXT_MAX)))

    def flush_soon(self, session: "SourceSession") -> None:
        """Flush the session at the end of this turn of the loop, once."""
        self._to_flush.add(session)
        if not self._flush_called:
            self._flush_called = True
            asyncio.get_running_loop().call_soon(self._flush)

    def store_gathered(self) -> bool:
        """Store what has come in; False if all of it was. It is durable when the journal's end is."""
        stored = [one.store_gathered() for one in [*self.gathering]]
        return any(stored)

    def _flush(self) -> None:
        self._flush_called = False
        flushing, self._to_flush = self._to_flush, set()
        for session in flushing:
            session.flush()


class SourceSession:
    """One session; it has no log before its HELLO. Its connection closes on errors that `receive` raises."""

    def __init__(self, sources: SourceCatalog, table: SessionTable, access: ProgramAccess, outlet: Outlet) -> None:
        self._sources = sources
        self._settings = sources.settings
        self._counters = sources.counters
        self._table = table
        self._access = access
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._session = Session(Use.SOURCE, Role.ACCEPTOR)
        self._log: SourceLog | None = None
        self._unsettled: deque[Run] = deque()
        self._to_ack: list[Run] = []
        self._ends: dict[int, Offset] = {}
        self._lag = AckLag()
        self._is_half_closed = self._awaits_release = self._is_sent_away = False
        self._unpaid_bytes = 0
        self._refusals = Pauses(REFUSALS)
        self._refused_until: asyncio.TimerHandle | None = None
        self._program = ""
        self._move = SessionMove(can_migrate=False)
        self._successor = Address("", 0)
        self._withheld: dict[int, int] = {}
        """Acknowledgements while the shard moves: at most one for each stream."""
        self._has_left = False

    # Frames.

    def receive(self, incoming: Frame | Columns) -> None:
        if self._move.is_sealed:
            self._receive_sealed(incoming)
        elif isinstance(incoming, Columns):
            self._session.check_messages()
            self._messages(incoming)
        else:
            self._session.receive(incoming)
            self._handle(incoming)

    def _handle(self, incoming: Frame) -> None:
        match incoming:
            case Hello():
                self._hello(incoming)
            case Notify():
                self._notify(incoming)
            case EndOfStream() if self._move.is_moving and self._session.can_migrate:  # it repeats a real one elsewhere
                self._streams.relinquish(incoming.stream_id)
            case EndOfStream():
                self._streams.end(incoming.stream_id)
            case MigrateAck():
                self.move(SessionEvent.MIGRATE_ACK)
            case Error():
                self._error(incoming)
            case _:
                raise AssertionError(f"the session machine lets {incoming} through")

    def _receive_sealed(self, incoming: Frame | Columns) -> None:
        """Nothing is stored any more: what still arrives is sent again elsewhere."""
        if isinstance(incoming, MigrateAck | Error):
            self._session.receive(incoming)
            self._handle(incoming)
        elif isinstance(incoming, EndOfStream):
            self._withheld.pop(incoming.stream_id, None)  # an acknowledgement would mean that the end is stored

    def received_all(self) -> None:
        """Everything in the receive buffer was received."""
        if self._log is not None and not self._move.is_sealed:
            self._received_at = self._loop.time()
            self._flush_marks()
            self._log.snapshot_if_due()

    def _flush_marks(self) -> None:
        """Store pending marks. On a full disk they wait, and so does the program for its answers. Raises
        StoreFailed.
        """
        waited = self._streams.waits_for_room
        self._streams.flush_marks()
        if self._streams.waits_for_room and not waited:
            log.warning(
                "%s (%s): the disk is full: it waits for answers to NOTIFY or EOS_MESSAGE, and continues automatically",
                self._outlet.peer,
                quoted(self._program),
            )

    def _hello(self, hello: Hello) -> None:
        self._access.check_source(hello.instance)
        self._table.joined(self, self._access.principal)
        log = self._sources.joined_by_program(hello.instance, self._access.principal)
        self._completion: Completion = self._sources.completion(log.name)
        program, announced = announced_window(hello.program)
        self._program = one_line(program, QUOTED_CHARS_MAX)
        self._outlet.cancel_deadline()
        self._move = SessionMove(can_migrate=self._session.can_migrate)
        largest_window = self._settings.window_bytes
        window = min(max(log.settings.window_bytes, announced), largest_window)
        self._credits = Credits(log.largest_frame, window, WINDOWS_MAX * largest_window)
        self._share = self._sources.in_flight.share()
        self._streams = SessionStreams(self._sources, log, self)
        self._log = log  # last: from here on the rest is there
        log.join(self._streams)
        self._counters.sessions_joined += 1
        self._send(Ok(self._grant()))

    def _notify(self, notify: Notify) -> None:
        self._credits.notify()
        if len(self._streams) >= self._settings.streams_per_session_max:
            raise ProtocolError(f"NOTIFY: {len(self._streams)} streams are open already (streams_per_session_max)")
        if self._move.is_moving:
            self.refuse(NotifyAck(False, notify.stream_id, 0))
            return
        self._streams.notify(notify)

    def _messages(self, columns: Columns) -> None:
        assert self._log is not None
        now, size = self._loop.time(), columns.size
        self._credits.messages(len(columns), size, columns.largest_frame, now)
        if self._credits.is_over:
            self.close_for_room(NoRoom("its frames are larger than its credits allow for"))
            return
        self._unpaid_bytes = self._unpaid_bytes + size if self._credits.stopped else 0
        if self._unpaid_bytes > self._settings.window_bytes:
            self.close_for_room(NoRoom("the quota is reached, and it has sent a whole window since"))
            return
        self._share.check(size)
        run = self._streams.store(columns, now)
        self._share.received(size)
        self._unsettled.append(run)
        self._ends.update(run.ends)
        for counters in (self._counters, self._log.counters):
            counters.messages += run.accepted
            counters.message_bytes += size
            counters.duplicates += run.duplicates
        self._sources.durability.after(run.position, partial(self._durable, run))
        if run.admission.problem:
            raise run.admission.error(columns)

    def _durable(self, run: Run) -> None:
        self._unsettled.popleft()
        self._credits.settled(run.count, run.size)
        self._share.settled(run.size)
        for route, end in run.ends.items():
            self._completion.durable(route, end)
        if not self._completion.waits:
            self._to_ack.append(run)
        elif run.ends:
            self._lag.add(run.received_at, run.ends)
            if self._is_half_closed and not self._awaits_release:
                self._await_release()
        self.flush_soon()

    def _error(self, error: Error) -> None:
        self._counters.errors_from_sources += 1
        self._table.remember_error(self._outlet.peer, error.text)
        log.warning("%s (%s) reports: %s", self._outlet.peer, quoted(self._program), quoted(error.text))
        self._finish()

    # Replies.

    def accept(self, reply: NotifyAck) -> None:
        if not self._session.is_over:
            self._refusals.reset()
            self._credits.answered()
            self._send(reply)
            self.flush_soon()

    def refuse(self, reply: NotifyAck) -> None:
        if self._session.is_over:
            return
        self._credits.refused()
        self._send(reply)
        if self._refused_until is None:
            self._refused_until = self._loop.call_later(self._refusals.next(), self.return_refused)

    def return_refused(self) -> None:
        self._forget_refusals()
        self._credits.return_refused()
        self.flush_soon()

    def _forget_refusals(self) -> None:
        if self._refused_until is not None:
            self._refused_until.cancel()
            self._refused_until = None

    def acknowledge(self, stream_ids: Column, last_ids: Column) -> None:
        if self._move.is_moving:
            self._withheld.update(zip(stream_ids, last_ids, strict=True))
        elif not self._session.is_over:
            self._flush()
            self._write(encode_acks(0, stream_ids, last_ids))

    @property
    def credits(self) -> int:
        """How many messages the program may send."""
        return (
            0
            if self._move.is_moving or self._session.is_over or self._is_half_closed
            else max(0, self._credits.available)
        )

    @property
    def awaits_pipelines(self) -> bool:
        """Whether acknowledgements of its messages wait for pipelines: then it has no hurry to store them."""
        return self._log is not None and self._completion.waits

    def flush_soon(self) -> None:
        self._table.flush_soon(self)

    def flush(self) -> None:
        """Send what can be acknowledged, and the credits that are free; no credits to a peer that does not read."""
        if self._log is None or self._session.is_over or self._move.is_sealed:
            return
        if self._streams.waits_for_room and self._log.data_segments.disk_has_room:
            with suppress(StoreFailed):  # the worker ends and logs why
                self._flush_marks()
        self._flush()
        if self._is_half_closed and self._owes_nothing:
            self.close()

    def _flush(self) -> None:
        runs, self._to_ack = self._to_ack, []
        if self._move.is_moving:
            self._withhold(runs)
            return
        granted = 0 if self._outlet.is_blocked or self._is_half_closed else self._grant(sends_ack=bool(runs))
        if runs:
            self._write(b"".join([runs[0].ack(granted), *(run.ack(0) for run in runs[1:])]))
        elif granted:
            self._send(Ack(granted))

    def _withhold(self, runs: Iterable[Run]) -> None:
        for run in runs:
            streams = run.admission.streams
            self._withheld.update(zip(streams.stream_ids.tolist(), streams.last_ids.tolist(), strict=True))

    def _grant(self, *, sends_ack: bool = False) -> int:
        assert self._log is not None
        self._credits.stopped = self._streams.is_blocked or not self._log.has_room()
        if sends_ack:
            self._credits.return_refused()  # programs retry on any ACK
        now = self._loop.time()
        granted = self._credits.grant(now, self._share.limit_for(self._credits.frame_bytes(now)))
        self._share.promise(self._credits.promised_bytes(now))
        return granted

    def _send(self, frame: Frame) -> None:
        if not self._session.is_over:
            self._write(self._session.send(frame))

    def _write(self, data: bytes) -> None:
        if self._outlet.write(data):
            self._counters.frames_sent += 1

    # The shard moves to another worker.

    @property
    def has_ended_streams(self) -> bool:
        """Whether there is nothing to wait for: the program has ended its streams, or cannot know that it should."""
        is_waited_for = self._log is not None and self._session.can_migrate and not self._session.is_over
        return not (is_waited_for and self._streams.has_open)

    def send_to(self, successor: Address) -> None:
        """The shard is about to move there."""
        self._successor = successor
        if self._log is None or self._is_half_closed:
            self.close()
        else:
            self.move(SessionEvent.MOVE)

    def send_elsewhere(self, address: Address) -> None:
        """No stream is open here."""
        if self._session.is_over or self._move.is_moving or self._is_half_closed:
            return
        if self._session.can_migrate:
            self._outlet.set_deadline(LEAVE_SECONDS_MAX, self.close)
            self._successor = address
            self.move(SessionEvent.MOVE)
        else:
            self._is_sent_away = True
            self._loop.call_soon(self.restart, str(address))  # not while its streams are handled

    @property
    def is_leaving(self) -> bool:
        return self._is_sent_away or self._move.is_moving or self._session.is_over

    def move(self, event: SessionEvent) -> None:
        """Does nothing to a session that is over."""
        for effect in self._move.on(event):
            if not self._session.is_over or effect is Effect.CLOSE:
                self._apply(effect)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Effect.SEND_MIGRATE:
                self._send(Migrate(self._successor.host, self._successor.port))
            case Effect.WITHHOLD:
                self._streams.refuse_waiting()
                self._forget_refusals()
            case Effect.RELEASE_STREAMS:
                self._withhold(self._to_ack)
                self._leave()
            case Effect.SEND_ACKS:
                self._send_withheld()
            case Effect.INVITE:
                self._send(Ack(0))
            case Effect.SEND_RESTART:
                self._send(Restart(str(self._successor)))
                self._outlet.end()
            case Effect.CLOSE:
                self._session.close()
                self._outlet.end()

    def _send_withheld(self) -> None:
        """In frames of a limited size."""
        acked = [Acked(*pair) for pair in self._withheld.items() if pair[1] != NOTHING_YET]
        for first in range(0, len(acked), _ACKED_PER_FRAME):
            self._send(Ack(0, tuple(acked[first : first + _ACKED_PER_FRAME])))
        self._withheld.clear()

    def _leave(self) -> None:
        """Give everything back that it has of the source. Idempotent."""
        if self._log is not None and not self._has_left:
            self._has_left = True
            self._streams.release_all()
            self._log.leave(self._streams)
            self._share.close()

    # The end.

    def is_over(self) -> bool:
        return self._session.is_over

    def half_close(self) -> bool:
        """The program stops sending: its streams are released at once, and keep their positions. Returns True if it
        still waits for acknowledgements; the session then ends with the last one.
        """
        if self._log is None or self._session.is_over:
            return False
        self._is_half_closed = True
        self._streams.leave()
        if self._completion.waits:
            self._await_release()
        if self._owes_nothing:
            return False
        self._outlet.set_deadline(self._settings.half_closed_seconds, self.close)
        return True

    def _await_release(self) -> None:
        self._awaits_release = True
        self._streams.await_release(self._ends)

    @property
    def _owes_nothing(self) -> bool:
        return not self._unsettled and not self._to_ack and self._streams.is_settled

    def restart(self, address: str) -> None:
        """Send the program to another worker."""
        if not self._session.is_over and self._log is not None:
            self._send(Restart(address))
        self._finish()

    def close(self) -> None:
        """Close without an ERROR: the program reconnects and resumes."""
        self._session.close()
        self._finish()

    def close_if_revoked(self) -> None:
        if not self._session.is_over and not self._access.is_current():
            self.fail(Forbidden("its access was revoked or changed"))

    def close_for_room(self, reason: NoRoom) -> None:
        """Close because there is no room. Only stored messages were acknowledged, so the program can resume later."""
        self._counters.closed_for_room += 1
        log.warning("%s (%s): closed, it will resume: %s", self._outlet.peer, quoted(self._program), reason)
        self.close()

    def fail(self, error: PenstockError) -> None:
        """End only this session, with an ERROR that contains the reason."""
        if self._session.is_over:
            return
        self._counters.protocol_errors += 1
        state = self._session.state.value
        text = str(error) if f"state {state}" in str(error) else f"{error} (state {state})"
        log.warning("%s (%s): %s", self._outlet.peer, quoted(self._program), one_line(text))
        self._table.remember_error(self._outlet.peer, text)
        self.flush()
        self._send(Error(text[:_ERROR_TEXT_MAX]))
        self._finish(lingers=True)

    def _finish(self, *, lingers: bool = False) -> None:
        """End the session and release its streams at once."""
        if self._log is not None and not self._has_left:
            self._streams.release_all()
        self._outlet.end(lingers=lingers)

    # Implements core.connection_limits.Guest.

    @property
    def idle_since(self) -> float | None:
        """None for a program that has a stream open, or waits for an acknowledgement and could still send."""
        is_busy = self.is_authenticated and not self._owes_nothing
        return None if is_busy else self._received_at

    @property
    def is_authenticated(self) -> bool:
        """False before its HELLO, and while it only waits for its last acknowledgements or to be closed."""
        return self._log is not None and not self._is_half_closed and not self._session.is_over

    def evict(self) -> None:
        """Close without an ERROR, which programs treat as final: they reconnect."""
        self._table.closed(self)
        if self._log is None:
            self._counters.sessions_refused += 1
            self.close()
        else:
            self.close_for_room(NoRoom("it has no stream open, and another program needs its place (sessions_max)"))

    def lost(self) -> None:
        """The connection is gone."""
        self._session.close()
        self._forget_refusals()
        self._leave()
        self._table.closed(self)

    def _shown_state(self) -> str:
        if self._log is not None and self._streams.waits_for_room:
            return "Waiting for room"
        if self._move.is_moving:
            return "Migrating"
        return "Half-closed" if self._is_half_closed else self._session.state.value

    def status(self) -> SessionStatus:
        if self._log is None:
            state = self._shown_state()
            return SessionStatus(peer=self._outlet.peer, program=self._program, source=None, state=state)
        now = self._loop.time()
        oldest = self._lag.oldest(self._completion.passed)
        if oldest is None:
            oldest = self._unsettled[0].received_at if self._unsettled else now
        return SessionStatus(
            peer=self._outlet.peer,
            program=self._program,
            source=self._log.name,
            state=self._shown_state(),
            streams=len(self._streams),
            credits=self._credits.available,
            in_flight_bytes=self._credits.in_flight_bytes,
            ack_lag_seconds=round(now - oldest, 3),
        )
