"""A program's socket: bytes to frames for its session, the session's replies to bytes.

The socket is always read: a program is slowed down by withholding credits, and by nothing else. Messages that trickle
in while their acknowledgements wait for pipelines are gathered for some milliseconds, or until a pipeline asks for its
next epoch, and stored together.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from penstock.access.file import AccessControl
from penstock.access.principals import certificate_names
from penstock.access.refusals import Refusals
from penstock.core.address import Address
from penstock.core.connection_limits import address_of, find_dead_peers
from penstock.core.errors import NoRoom, PenstockError, ProtocolError, StoreFailed
from penstock.core.tls_handshakes import close_once
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.sessions.program_access import ProgramAccess
from penstock.ingest.sessions.session import SessionTable, SourceSession
from penstock.protocol.connector import HelloCheck, Use
from penstock.protocol.connector.bulk import Columns, Receiver

log = logging.getLogger(__name__)

# How long a peer may take to fetch the last bytes sent to it.
_LAST_WORDS_SECONDS = 5.0
# Messages are handled a buffer at a time, other frames one by one, and fewer of them at once: a program that opens
# 100,000 streams must not keep others waiting.
_RECEIVE_BYTES = 1 << 24
_RECEIVE_BYTES_CONTROL = 16 * 1024
# How long messages are gathered at most. An append and its fsync take a third of a millisecond of CPU time, for one
# message as for a hundred: a program that sends one every millisecond would take a third of a core away from its
# pipelines, which begin an epoch every 50 ms or so. Those of this worker have everything stored before they do; those
# of others wait so long.
_GATHER_SECONDS = 0.01
# What has gathered is stored at once if it is more than this: then it does not trickle.
_GATHER_BYTES_MAX = 64 * 1024
# Receives bytes that arrive after the session has ended.
_IGNORED = bytearray(64 * 1024)


class Connection(asyncio.BufferedProtocol):
    """The session's Outlet."""

    def __init__(self, sources: SourceCatalog, table: SessionTable, access: AccessControl, refusals: Refusals) -> None:
        self._settings = sources.settings
        self._table = table
        self._access = ProgramAccess(access, self._settings.cookie, refusals)
        self._session = SourceSession(sources, table, self._access, self)
        check = HelloCheck(Use.SOURCE, check_cookie=self._access.check_cookie)
        self._receiver = Receiver(hello=check, frame_size_max=self._settings.frame_bytes_max)
        self._receive_bytes = _RECEIVE_BYTES_CONTROL
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered_bytes = self._gather_bytes_max = self._room_bytes = 0
        self._out: list[bytes] = []
        self.is_blocked = False
        self.peer = ""

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=settings.write_buffer_bytes_max)
        peer = self._transport.get_extra_info("peername")
        self.peer = str(Address(*peer[:2])) if isinstance(peer, tuple) else str(peer)
        self._access.certificate_names = certificate_names(self._transport.get_extra_info("peercert"))
        find_dead_peers(self._transport, settings.dead_peer_seconds)
        self._deadline = self._loop.call_later(settings.handshake_seconds, self._too_late)
        if not self._table.opened(self._session, address_of(peer)):
            # Without an ERROR, which programs treat as final: there may be room soon.
            log.warning(
                "%s: refused, it will try again: there may be %s sessions, %s from one address; all are busy",
                self.peer,
                settings.sessions_max,
                settings.address_max,
            )
            self._session.close()

    def _too_late(self) -> None:
        self._session.fail(ProtocolError(f"no HELLO within {self._settings.handshake_seconds:g} s"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._end_gathering()
        self._stop_gathering()
        self._deadline.cancel()
        self._session.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._session.is_over():
            return memoryview(_IGNORED)
        buffer = self._receiver.get_buffer(sizehint)[: self._receive_bytes]
        self._room_bytes = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._session.is_over():
            return
        self._gathered_bytes += nbytes
        has_room = nbytes < self._room_bytes and self._gathered_bytes <= self._gather_bytes_max
        if self._gathering is not None and has_room:
            self._receiver.received(nbytes)  # and looked at with what follows
        else:
            self._receive(nbytes)

    def _receive(self, nbytes: int) -> None:
        """Handle everything in the receive buffer, to which `nbytes` were added."""
        session, size, self._gathered_bytes = self._session, self._gathered_bytes, 0
        messages = 0
        try:
            self._receive_bytes = _RECEIVE_BYTES
            for incoming in self._receiver.received(nbytes):
                if isinstance(incoming, Columns):
                    messages += len(incoming)
                else:
                    self._receive_bytes = _RECEIVE_BYTES_CONTROL
                session.receive(incoming)
                if session.is_over():
                    return
            session.received_all()
            self._gather(size, messages)
        except NoRoom as error:
            session.close_for_room(error)
        except StoreFailed:
            session.close()  # the worker ends and logs why; the program resumes at the next one
        except PenstockError as error:
            session.fail(error)

    def _gather(self, size: int, messages: int) -> None:
        """Gather what comes next, if these messages trickled in and the program has credits left."""
        self._stop_gathering()
        if not messages or size > _GATHER_BYTES_MAX or not self._session.awaits_pipelines:
            return
        self._gather_bytes_max = min(_GATHER_BYTES_MAX, self._session.credits // 2 * size // messages)
        self._gathering = self._loop.call_later(_GATHER_SECONDS, self._end_gathering)
        self._table.gathering.add(self)

    def store_gathered(self) -> bool:
        """Called before a pipeline's epoch is decided. False if nothing was gathered."""
        has_gathered = self._gathering is not None and bool(self._gathered_bytes)
        if has_gathered:
            self._end_gathering()
        return has_gathered

    def _end_gathering(self) -> None:
        if self._gathering is not None:
            self._stop_gathering()
            if self._gathered_bytes and not self._session.is_over():
                self._receive(0)

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
            self._table.gathering.discard(self)

    def eof_received(self) -> bool:
        """True: the session continues. (TLS closes both sides at once.)"""
        self._end_gathering()
        self._stop_gathering()
        return self._transport.can_write_eof() and self._session.half_close()

    def pause_writing(self) -> None:
        self.is_blocked = True

    def resume_writing(self) -> None:
        self.is_blocked = False
        self._session.flush()

    # The session calls these.

    def write(self, data: bytes) -> bool:
        """Everything written in one turn of the loop is sent at once. False: the connection is closing."""
        if self._transport.is_closing():
            return False
        if not self._out:
            self._loop.call_soon(self._write_out)
        self._out.append(data)
        return True

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if not out or self._transport.is_closing():
            return
        self._transport.write(b"".join(out))
        if self._transport.get_write_buffer_size() > self._settings.unread_bytes_max:
            self._session.close_for_room(NoRoom("it does not read what is sent to it (unread_bytes_max)"))
            self._transport.abort()

    def set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, action)

    def cancel_deadline(self) -> None:
        self._deadline.cancel()

    def end(self, *, lingers: bool = False) -> None:
        """Close, leaving the peer some time to read what was sent. Closing a connection while bytes arrive resets it,
        which may lose an ERROR: in that case linger until the peer closes.
        """
        self._write_out()
        if lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            close_once(self._transport)
        self.set_deadline(_LAST_WORDS_SECONDS, self._transport.abort)
