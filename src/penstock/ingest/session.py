"""One source's session: frames to streams, streams to segments, credits and acknowledgements back.

The socket is always read: a source is slowed down by withholding credits, and by nothing else.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.errors import NoRoom, PenstockError, ProtocolError, StoreFailed
from penstock.core.keepalive import find_dead_peers
from penstock.core.types import Offset
from penstock.ingest.ack_lag import AckLag
from penstock.ingest.completion import Completion
from penstock.ingest.connector import Connector
from penstock.ingest.opened_streams import OpenedStreams
from penstock.ingest.run import Run
from penstock.ingest.session_status import SessionStatus
from penstock.protocol.connector import (
    Ack,
    EndOfStream,
    Error,
    Frame,
    Hello,
    HelloCheck,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    Role,
    Session,
    Use,
)
from penstock.protocol.connector.bulk import Column, Columns, Receiver, encode_acks
from penstock.protocol.connector.credits import Credits

if TYPE_CHECKING:
    from penstock.ingest.gateway import Gateway

log = logging.getLogger(__name__)

_ERROR_TEXT_MAX = 1000
# How long a peer may take to fetch what was said to it last.
_LAST_WORDS_SECONDS = 5.0
# Messages are handled by the buffer, other frames one by one: of these fewer are taken at a time, so that a source
# that opens 100,000 streams at once does not keep the others waiting.
_RECEIVE_BYTES = 1 << 24
_RECEIVE_BYTES_CONTROL = 16 * 1024
# Where bytes go that come after the session has ended.
_IGNORED = bytearray(64 * 1024)


class SourceSession(asyncio.BufferedProtocol):
    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._session = Session(Use.SOURCE, Role.ACCEPTOR)
        check = HelloCheck(Use.SOURCE, gateway.settings.cookie)
        self._receiver = Receiver(hello=check, frame_size_max=gateway.settings.frame_bytes_max)
        self._connector: Connector | None = None
        self._unsettled: deque[Run] = deque()
        self._to_ack: list[Run] = []
        self._ends: dict[int, Offset] = {}
        self._lag = AckLag()
        self._is_half_closed = self._awaits_release = False
        self._out: list[bytes] = []
        self._receive_bytes = _RECEIVE_BYTES_CONTROL
        self._write_blocked = False
        self._unpaid_bytes = 0
        self.program = ""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes_max)
        self.peer = str(self._transport.get_extra_info("peername"))
        find_dead_peers(self._transport, self._settings.dead_peer_seconds)
        seconds = self._settings.handshake_seconds
        self._deadline = self._gateway.loop.call_later(seconds, self._too_late)
        if not self._gateway.opened(self):
            # Without a word: a source takes an ERROR for final, and there may be room for it soon.
            log.warning("%s: there are %s sessions already (sessions_max)", self.peer, self._settings.sessions_max)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._deadline.cancel()
        self._session.close()
        if self._connector is not None:
            self.streams.release_all()
        self._gateway.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._session.is_over:
            return memoryview(_IGNORED)
        return self._receiver.get_buffer(sizehint)[: self._receive_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over():
            return
        try:
            self._receive_bytes = _RECEIVE_BYTES
            for incoming in self._receiver.received(nbytes):
                if not isinstance(incoming, Columns):
                    self._receive_bytes = _RECEIVE_BYTES_CONTROL
                self._take(incoming)
                if self._is_over():
                    return
            if self._connector is not None:
                self.streams.flush_marks()
                self._connector.snapshot_if_due()
        except NoRoom as error:
            self._close_for_room(error)
        except StoreFailed:
            self.close()  # the worker ends, and says why; the source resumes at the next one
        except PenstockError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The source sends nothing more: its streams are free at once, their positions kept. It may still wait for the
        acknowledgement of what it has sent, so its session ends with that. (TLS closes both sides at once.)
        """
        if self._connector is None or self._session.is_over or not self._transport.can_write_eof():
            return False
        self._is_half_closed = True
        self.streams.leave()
        if self._completion.waits:
            self._await_release()
        if self._owes_nothing:
            return False
        self._gateway.half_closed(self)
        self._deadline = self._gateway.loop.call_later(self._settings.half_closed_seconds, self.close)
        return True

    def _await_release(self) -> None:
        self._awaits_release = True
        self.streams.await_release(self._ends)

    @property
    def _owes_nothing(self) -> bool:
        return not self._unsettled and not self._to_ack and self.streams.is_settled

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False
        self.flush()

    # Frames.

    def _take(self, incoming: Frame | Columns) -> None:
        if isinstance(incoming, Columns):
            self._session.check_messages()
            self._messages(incoming)
            return
        self._session.receive(incoming)
        match incoming:
            case Hello():
                self._hello(incoming)
            case Notify():
                self._notify(incoming)
            case EndOfStream():
                self.streams.end(incoming.stream_id)
            case Error():
                self._error(incoming)
            case _:
                raise AssertionError(f"the session machine lets {incoming} through")

    def _hello(self, hello: Hello) -> None:
        self._connector = self._gateway.joined_by_program(hello.instance)
        self._completion: Completion = self._gateway.completion(hello.instance)
        self.program = hello.program
        self._deadline.cancel()
        self._credits = Credits(self._connector.largest_frame, self._settings.window_bytes)
        self.streams = OpenedStreams(self._gateway, self._connector, self)
        self._gateway.joined(self)
        self._send(Ok(self._grant()))

    def _notify(self, notify: Notify) -> None:
        self._credits.notify()
        if len(self.streams) >= self._settings.streams_per_session_max:
            raise ProtocolError(f"NOTIFY: {len(self.streams)} streams are open already (streams_per_session_max)")
        self.streams.notify(notify)

    def answer(self, reply: NotifyAck) -> None:
        """Answer a NOTIFY; its credit goes back with the next ACK."""
        if not self._session.is_over:
            self._credits.answered()
            self._send(reply)
            self._gateway.flush_soon(self)

    def _messages(self, columns: Columns) -> None:
        assert self._connector is not None
        now, size = self._gateway.loop.time(), columns.size
        self._credits.messages(len(columns), size, columns.largest_frame, now)
        if self._credits.is_over:
            self._close_for_room(NoRoom("larger frames came than its credits were counted for"))
            return
        self._unpaid_bytes = self._unpaid_bytes + size if self._credits.stopped else 0
        if self._unpaid_bytes > self._settings.window_bytes:
            self._close_for_room(NoRoom("its quota is reached, and a whole window came since"))
            return
        run = Run(columns, self.streams.admit(columns), now)
        position = run.store(self._connector, self.streams)
        self._unsettled.append(run)
        self._ends.update(run.ends)
        for counters in (self._gateway.counters, self._connector.counters):
            counters.messages += run.kept
            counters.message_bytes += size
            counters.duplicates += run.duplicates
        self._gateway.durability.after(position, partial(self._durable, run))
        if run.admission.problem:
            raise run.admission.error(columns)

    def _durable(self, run: Run) -> None:
        self._unsettled.popleft()
        self._credits.settled(run.count, run.size)
        for route, end in run.ends.items():
            self._completion.durable(route, end)
        if not self._completion.waits:
            self._to_ack.append(run)
        elif run.ends:
            self._lag.add(run.received_at, run.ends)
            if self._is_half_closed and not self._awaits_release:
                self._await_release()
        self._gateway.flush_soon(self)

    def _error(self, error: Error) -> None:
        self._gateway.counters.errors_from_sources += 1
        self._gateway.remember_error(self.peer, error.text)
        log.warning("%s (%s) says: %s", self.peer, self.program, error.text)
        self._finish()

    # Back to the source.

    def acknowledge(self, stream_ids: Column, last_ids: Column) -> None:
        """Acknowledge these streams up to these messages, behind what could be acknowledged before."""
        if not self._session.is_over:
            self._flush()
            self._write(encode_acks(0, stream_ids, last_ids))

    def flush(self) -> None:
        """Send what can be acknowledged, and the credits that are free; no credits to a peer that does not read."""
        if self._connector is None or self._session.is_over:
            return
        self._flush()
        if self._is_half_closed and self._owes_nothing:
            self.close()

    def _flush(self) -> None:
        runs, self._to_ack = self._to_ack, []
        granted = 0 if self._write_blocked or self._is_half_closed else self._grant()
        if runs:
            self._write(b"".join([runs[0].ack(granted), *(run.ack(0) for run in runs[1:])]))
        elif granted:
            self._send(Ack(granted))

    def _grant(self) -> int:
        assert self._connector is not None
        self._credits.stopped = self.streams.is_kept_back or not self._connector.has_room()
        return self._credits.grant(self._gateway.loop.time())

    def restart(self, address: str) -> None:
        """Send the source to another worker."""
        if not self._session.is_over and self._connector is not None:
            self._send(Restart(address))
        self._finish()

    def close(self) -> None:
        """Without a word: the source connects again and resumes."""
        self._session.close()
        self._finish()

    def _finish(self, *, lingers: bool = False) -> None:
        """The session is over: its streams are free at once. The peer has a while to fetch what was said.
        To close a connection while bytes come in resets it, and an ERROR may be lost: then linger until the peer ends.
        """
        if self._connector is not None:
            self.streams.release_all()
        self._write_out()
        if lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._deadline.cancel()
        self._deadline = self._gateway.loop.call_later(_LAST_WORDS_SECONDS, self._transport.abort)

    def status(self) -> SessionStatus:
        state = self._session.state.value
        if self._connector is None:
            return SessionStatus(self.peer, self.program, None, state)
        now = self._gateway.loop.time()
        oldest = self._lag.oldest(self._completion.passed)
        if oldest is None:
            oldest = self._unsettled[0].received_at if self._unsettled else now
        return SessionStatus(
            peer=self.peer,
            program=self.program,
            connector=self._connector.name,
            state="Half-closed" if self._is_half_closed else state,
            streams=len(self.streams),
            credits=self._credits.available,
            in_flight_bytes=self._credits.in_flight_bytes,
            ack_lag_seconds=round(now - oldest, 3),
        )

    @property
    def can_send(self) -> bool:
        """Whether the source could send a message: it is there, has a credit, and none of its streams is closed."""
        is_there = not self._session.is_over and not self._is_half_closed
        return is_there and self._credits.available > 0 and not self.streams.is_kept_back

    def _is_over(self) -> bool:
        return self._session.is_over

    @property
    def connector_name(self) -> str | None:
        """None before the HELLO."""
        return None if self._connector is None else self._connector.name

    def _too_late(self) -> None:
        self._fail(ProtocolError(f"no HELLO within {self._settings.handshake_seconds:g} s"))

    def _close_for_room(self, reason: NoRoom) -> None:
        """Close plainly: nothing that is not stored was acknowledged, and the source resumes when there is room."""
        self._gateway.counters.closed_for_room += 1
        log.warning("%s (%s): %s; closed, it will resume", self.peer, self.program, reason)
        self.close()

    def _fail(self, error: PenstockError) -> None:
        """End this session with the reason, and no other."""
        if self._session.is_over:
            return
        self._gateway.counters.protocol_errors += 1
        state = self._session.state.value
        text = str(error) if f"state {state}" in str(error) else f"{error} (state {state})"
        log.warning("%s (%s): %s", self.peer, self.program, text)
        self._gateway.remember_error(self.peer, text)
        self.flush()
        self._send(Error(text[:_ERROR_TEXT_MAX]))
        self._finish(lingers=True)

    def _send(self, frame: Frame) -> None:
        if not self._session.is_over:
            self._write(self._session.send(frame))

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not self._out:
            self._gateway.loop.call_soon(self._write_out)
        self._out.append(data)
        self._gateway.counters.frames_sent += 1

    def _write_out(self) -> None:
        """All that was said in this turn of the loop, in one go."""
        out, self._out = self._out, []
        if not out or self._transport.is_closing():
            return
        self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > self._settings.unread_bytes_max:
            self._close_for_room(NoRoom("it does not read what is sent to it (unread_bytes_max)"))
            self._transport.abort()
