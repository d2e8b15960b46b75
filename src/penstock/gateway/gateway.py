"""Listens for sources and keeps what their sessions share: connectors, the registry of streams, counters."""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import asdict

from penstock.core.errors import Damaged, PenstockError, RequestError
from penstock.gateway.connector import PREFIX, Connector
from penstock.gateway.counters import Counters
from penstock.gateway.registry import LocalRegistry, StreamRegistry, Use
from penstock.gateway.session import SourceSession
from penstock.gateway.settings import GatewaySettings
from penstock.store.durability import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_ERRORS_KEPT = 20
_TICK_SECONDS = 0.2
_NAME_MAX = 200


class Gateway:
    """Serves one store, in one event loop. A point of reference is acknowledged only when it is durable."""

    def __init__(self, store: SegmentStore, durability: Durability, settings: GatewaySettings) -> None:
        self.store = store
        self.durability = durability
        self.settings = settings
        self.counters = Counters()
        self.registry: StreamRegistry = LocalRegistry()
        self.loop = asyncio.get_running_loop()
        self._sessions: set[SourceSession] = set()
        self._to_flush: set[SourceSession] = set()
        self._flush_called = False
        self._errors: deque[dict[str, str]] = deque(maxlen=_ERRORS_KEPT)
        self._connectors: dict[str, Connector] = {}
        self._damaged: dict[str, str] = {}
        for name in self._known_names():
            self._open_again(name)
        store.before_truncate(self._before_truncate)

    def _known_names(self) -> set[str]:
        suffix = "/streams"
        names = (info.name for info in self.store.segments(PREFIX))
        return {name.removeprefix(PREFIX).removesuffix(suffix) for name in names if name.endswith(suffix)}

    def _open_again(self, name: str) -> None:
        """One source whose table cannot be read is refused; the others go on."""
        try:
            self._open(name)
        except (PenstockError, ValueError, TypeError, LookupError) as error:
            log.error("source %r is refused: %s", name, error)
            self._damaged[name] = str(error)

    async def start(self) -> int:
        """Listen; returns the port."""
        settings = self.settings
        self._listener = await self.loop.create_server(
            lambda: SourceSession(self),
            settings.host,
            settings.port,
            ssl=settings.ssl,
            ssl_handshake_timeout=settings.handshake_seconds if settings.ssl else None,
            backlog=1024,
        )
        self._ticking = self.loop.create_task(self._tick())
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Acknowledge what was received, take nothing new; sources resume elsewhere or later."""
        self._listener.close()
        self._ticking.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.durability.caught_up(), self.settings.drain_seconds)
        for session in list(self._sessions):
            session.flush()
            if self.settings.successor:
                session.restart(self.settings.successor)
            else:
                session.close()
        for connector in self._connectors.values():
            with suppress(PenstockError):  # the table can be made from the heads as well
                connector.snapshot()
        await asyncio.sleep(0)

    def restart(self, address: str) -> None:
        """Send every source to the worker at "host:port"."""
        for session in list(self._sessions):
            session.restart(address)

    def connector(self, name: str) -> Connector:
        """The connector of this name, made at first use. Raises RequestError when it may not be."""
        connector = self._connectors.get(name)
        if connector is not None:
            return connector
        if name in self._damaged:
            raise Damaged(f"source {name!r} is refused: {self._damaged[name]}")
        if not self.settings.auto_create:
            raise RequestError(f"there is no source {name!r} here, and none is made (--no-auto-create)")
        if not 0 < len(name) <= _NAME_MAX or "/" in name or not name.isprintable():
            raise RequestError(f"{name[:_NAME_MAX]!r} is no name for a source: 1 to {_NAME_MAX} characters, no '/'")
        if len(self._connectors) >= self.settings.connectors_max:
            raise RequestError(f"there are {len(self._connectors)} sources already (connectors_max)")
        return self._open(name)

    def _open(self, name: str) -> Connector:
        connector = Connector(name, self.store, self.settings.connector, self.settings.snapshot_bytes)
        connector.current_ids = lambda: self._update_known(connector)
        self._connectors[name] = connector
        return connector

    def _update_known(self, connector: Connector) -> None:
        for session in self._sessions:
            if session.is_of(connector):
                session.streams.update_known()

    def _before_truncate(self, segment: str) -> None:
        """The heads below the truncation are lost to the fold: write the table of streams down first."""
        for connector in self._connectors.values():
            if segment in connector.segments:
                connector.snapshot()

    # What sessions report.

    def opened(self, session: SourceSession) -> bool:
        """False when there are too many."""
        if len(self._sessions) >= self.settings.sessions_max:
            self.counters.sessions_refused += 1
            return False
        self._sessions.add(session)
        return True

    def joined(self, _: SourceSession) -> None:
        self.counters.sessions_joined += 1

    def closed(self, session: SourceSession) -> None:
        self._sessions.discard(session)
        self._to_flush.discard(session)

    def remember_error(self, peer: str, text: str) -> None:
        self._errors.append({"peer": peer, "error": text})

    def flush_soon(self, session: SourceSession) -> None:
        self._to_flush.add(session)
        if not self._flush_called:
            self._flush_called = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_called = False
        flushing, self._to_flush = self._to_flush, set()
        for session in flushing:
            session.flush()

    async def _tick(self) -> None:
        """Grant what a quota or a full disk has held back, when there is room again."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for session in list(self._sessions):
                session.flush()

    # What /status and /metrics show.

    def gauges(self) -> dict[str, int | float]:
        counts = self.registry.counts()
        sessions = [session.status() for session in self._sessions]
        return {
            "open_sessions": len(sessions),
            "connectors": len(self._connectors),
            "active_streams": counts[Use.ACTIVE],
            "closing_streams": counts[Use.CLOSING],
            "known_streams": sum(len(c.streams) for c in self._connectors.values()),
            "in_flight_bytes": sum(session.in_flight_bytes for session in sessions),
            "credits": sum(session.credits for session in sessions),
            "ack_lag_seconds": max((session.ack_lag_seconds for session in sessions), default=0.0),
        }

    def status(self) -> dict[str, object]:
        return {
            **self.gauges(),
            **self.counters.as_dict(),
            "damaged_sources": self._damaged,
            "sources": {name: self._connector_status(c) for name, c in sorted(self._connectors.items())},
            "sessions": [asdict(session.status()) for session in self._sessions],
            "errors": list(self._errors),
        }

    def _connector_status(self, connector: Connector) -> dict[str, object]:
        return {
            "segments": connector.segments,
            "streams": len(connector.streams),
            "held_bytes": connector.held_bytes,
            "has_room": connector.has_room(),
            "ack": connector.settings.ack.value,
        }
