"""Listens for programs on the connector protocol."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import CERT_REQUIRED

from penstock.access.file import AccessControl, Open
from penstock.access.refusals import Refusals
from penstock.core.address import Address
from penstock.core.errors import RequestError
from penstock.core.tls_handshakes import with_tls
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.sessions.connection import Connection
from penstock.ingest.sessions.migration import SessionEvent
from penstock.ingest.sessions.session import SessionTable
from penstock.ingest.settings import PORT
from penstock.ingest.source_view import SourceView
from penstock.protocol.api.status import SessionTotals

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_TICKS_PER_ACCESS_CHECK = 5
_BACKLOG = 1024


_PROBE_SECONDS = 2.0
"""For a successor to accept a connection."""

_LOOK_SECONDS = 0.005
"""Between two looks whether all programs have ended their streams: a hundredth of a round trip across an ocean."""


Front = Callable[[Callable[[], asyncio.BaseProtocol]], Callable[[], asyncio.BaseProtocol]]


async def _check_successor(text: str) -> None:
    """Raises RequestError if a worker is already running there: our data are locked while we run, so it must use other
    data. The right successor is started on our data after we have stopped.
    """
    if await _listens(Address.parse(text, PORT)):
        hint = "Start it on this worker's data once this worker has stopped, or leave --successor out."
        raise RequestError(f"--successor: {_other_data(text)}", hint)
    log.warning(
        "when this worker stops, sources are sent to %s: start the worker there on the same data directory; "
        "on any other, sources would send everything again",
        text,
    )


def _other_data(successor: str) -> str:
    return (
        f"the worker at {successor} is running, so it cannot have this worker's data: sources would send everything "
        "again."
    )


async def _listens(address: Address) -> bool:
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class ProgramServer:
    """Serves programs for the sources of one store, in one event loop. A message is acknowledged only when it is
    durable and, if acknowledgements wait for pipelines, completed.
    """

    def __init__(
        self, sources: SourceCatalog, access: AccessControl | None = None, refusals: Refusals | None = None
    ) -> None:
        """Without access control the cookie alone decides who is let in."""
        self.sources = sources
        self._access = access or Open()
        self._refusals = refusals or Refusals()
        self.view = SourceView(sources)
        self.settings = sources.settings
        self.sessions = SessionTable(self.settings, sources.counters)
        self._ticks = itertools.count()

    async def start(self, listener: socket.socket | None = None, front: Front = lambda serve: serve) -> int:
        """Listen, on this socket if there is one; returns the port. `front` makes the protocol of a new connection from
        that of a session.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        if settings.successor:
            await _check_successor(settings.successor)
        self.sources.recover_ended()

        def connection() -> Connection:
            return Connection(self.sources, self.sessions, self._access, self._refusals)

        factory = with_tls(front(connection), settings.ssl, settings.handshake_seconds)
        if listener is None:
            self._listener = await loop.create_server(factory, settings.host, settings.port, backlog=_BACKLOG)
        else:
            self._listener = await loop.create_server(factory, sock=listener, backlog=_BACKLOG)
        self._ticking = self.sources.supervisor.every("credits and marks of time", _TICK_SECONDS, self._tick)
        if not settings.cookie and not (settings.ssl is not None and settings.ssl.verify_mode is CERT_REQUIRED):
            log.warning("sources: no cookie is set, so any program may connect, whatever cookie it sends (--cookie)")
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def _tick(self) -> None:
        """Grant credits that a quota or a full disk has blocked, if there is room again; write clock and idle marks;
        end sessions whose access was revoked.
        """
        is_check_due = next(self._ticks) % _TICKS_PER_ACCESS_CHECK == 0
        for session in self.sessions:
            session.flush()
            if is_check_due:
                session.close_if_revoked()
        self.sources.tick()

    async def stop(self) -> None:
        """Stop accepting data, and acknowledge what was received unless it waits for pipelines. Programs resume
        elsewhere or later.
        """
        self._listener.close()
        await self._ticking.stop()
        self.sources.stop_acknowledging()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.sources.durability.caught_up(), self.settings.drain_seconds)
        successor = await self._usable_successor()
        for session in self.sessions:
            session.flush()
            if successor:
                session.restart(successor)
            else:
                session.close()
        self.sources.close()
        await asyncio.sleep(0)

    # The shard moves to another worker.

    async def send_away(self, successor: Address, seconds_max: float) -> None:
        """Accept no more programs, ask all of them to continue there, and return when they have ended their streams or
        the time is up.
        """
        self._listener.close()
        self.sessions.close()
        for session in self.sessions:
            session.send_to(successor)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while not all(session.has_ended_streams for session in self.sessions):  # noqa: ASYNC110  bounded
                    await asyncio.sleep(_LOOK_SECONDS)

    async def seal(self) -> None:
        """Store what was received, and nothing more. Connections stay open, until `tell` closes them."""
        await self._ticking.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.sources.durability.caught_up(), self.settings.drain_seconds)
        for session in self.sessions:
            session.flush()
        self.sources.stop_acknowledging()
        self.tell(SessionEvent.SEAL)
        self.sources.close()

    def tell(self, event: SessionEvent) -> None:
        """What happens to the shard, for all sessions."""
        for session in self.sessions:
            session.move(event)

    async def _usable_successor(self) -> str:
        """Where to send programs now; "" if they must not go anywhere."""
        successor = self.settings.successor
        if successor and await _listens(Address.parse(successor, PORT)):
            log.error(
                "sources are not sent to the successor: %s They are closed, and reconnect.", _other_data(successor)
            )
            return ""
        return successor

    def restart(self, address: str) -> None:
        """Send every program to the worker at "host:port"."""
        for session in self.sessions:
            session.restart(address)

    def end_sessions(self) -> None:
        """Acknowledge what is possible, and close all sessions; programs may reconnect."""
        for session in self.sessions:
            session.flush()
            session.close()

    def session_totals(self) -> SessionTotals:
        sessions, counters = [session.status() for session in self.sessions], self.sources.counters
        return SessionTotals(
            open=len(sessions),
            credits=sum(session.credits for session in sessions),
            in_flight_bytes=sum(session.in_flight_bytes for session in sessions),
            ack_lag_seconds=max((session.ack_lag_seconds for session in sessions), default=0.0),
            joined=counters.sessions_joined,
            refused=counters.sessions_refused,
            frames_sent=counters.frames_sent,
            protocol_errors=counters.protocol_errors,
            errors_from_sources=counters.errors_from_sources,
            closed_for_room=counters.closed_for_room,
        )
