"""Listens for the segment protocol."""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from penstock.access.file import AccessControl, Open
from penstock.access.refusals import Refusals
from penstock.core.supervisor import Supervisor
from penstock.core.tls_handshakes import with_tls
from penstock.core.types import Position
from penstock.protocol.api.status import SegmentServerStatus
from penstock.segment_server.caller import CheckStaging
from penstock.segment_server.connection import SegmentConnection
from penstock.segment_server.settings import Counters, ServerSettings
from penstock.segment_server.state import Locate, ServerState
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

_SWEEP_SECONDS = 1.0
_BACKLOG = 1024


class SegmentServer:
    """Serves one store, in one event loop. Nothing is acknowledged before it is durable."""

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        settings: ServerSettings,
        access: AccessControl | None = None,
        supervisor: Supervisor | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Without access control everybody may do everything."""
        self._state = ServerState(store, durability, settings, access or Open(), refusals or Refusals())
        self._supervisor = supervisor or Supervisor()
        self._settings = settings

    @property
    def counters(self) -> Counters:
        return self._state.counters

    def guard_staging(self, check: CheckStaging) -> None:
        """From now on, for new connections."""
        self._state.check_staging = check

    def redirect(self, locate: Locate, claim: Locate) -> None:
        """Requests about segments that are not here are answered with the address of the process that has them. `claim`
        is asked before one is created: "" if it may be created here.
        """
        self._state.locate, self._state.claim = locate, claim

    def changed(self, segments: Iterable[str], position: Position) -> None:
        """Reads that wait at the tail of a segment look again once the journal is durable up to there."""
        for name in segments:
            self._state.durability.after(position, partial(self._state.tail.wake, name))

    async def start(self, listener: socket.socket | None = None) -> int:
        """Listen, on this socket if there is one; returns the port."""
        settings, loop = self._settings, self._state.loop
        factory = with_tls(lambda: SegmentConnection(self._state), settings.ssl, settings.handshake_seconds)
        if listener is None:
            self._listener = await loop.create_server(factory, settings.host, settings.port, backlog=_BACKLOG)
        else:
            self._listener = await loop.create_server(factory, sock=listener, backlog=_BACKLOG)
        self._sweep = self._supervisor.every("sweep of silent connections", _SWEEP_SECONDS, self._sweep_silent)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Accept nothing new, acknowledge what was accepted, and close."""
        state = self._state
        self._listener.close()
        await self._sweep.stop()
        state.tail.wake_all()
        for connection in list(state.connections):
            connection.stop_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds):
                await state.durability.caught_up()
                for connection in list(state.connections):
                    connection.flush()
                    connection.close()
                await state.all_closed()
        for connection in list(state.connections):
            connection.abort()
        await asyncio.sleep(0)
        for pool in (state.read_pool, state.fetch_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def status(self) -> SegmentServerStatus:
        return self._state.status()

    def _sweep_silent(self) -> None:
        for connection in list(self._state.connections):
            connection.end_if_silent(self._state.loop.time())
            connection.end_if_revoked()
