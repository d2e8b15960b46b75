"""Takes silent streams out of the watermark: looks now and then which have been silent for their connector's timeout,
and stores a mark for them.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.core.errors import PenstockError
from penstock.ingest.connector import Connector
from penstock.ingest.opened_streams import OpenedStreams

log = logging.getLogger(__name__)

TICK_SECONDS_MAX = 1.0
"""What counts of the time between two ticks, and no more than half a timeout: the sockets of a worker that was busy for
longer are full of messages.
"""

SWEEPS = 20
"""In the time of a timeout: a stream is taken out a twentieth of it too late at most."""

STREAMS_PER_SWEEP = 10_000
"""Of a connector, that are taken out at once: some ten milliseconds. The others have their turn at the next tick."""


class Session(Protocol):
    """A source that is connected; without a connector before its HELLO."""

    streams: OpenedStreams

    @property
    def connector_name(self) -> str | None: ...

    @property
    def can_send(self) -> bool: ...


class Idling:
    """Of all connectors. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()
        self._since_sweep: dict[str, float] = {}

    def tick(self, connectors: Iterable[Connector], sessions: Iterable[Session]) -> None:
        """To be called several times a second, with all there are."""
        now = self._clock()
        seconds, self._ticked_at = min(now - self._ticked_at, TICK_SECONDS_MAX), now
        by_name: dict[str | None, list[Session]] = {}
        for session in sessions:
            by_name.setdefault(session.connector_name, []).append(session)
        for connector in connectors:
            timeout, there = connector.settings.idle_timeout_seconds, by_name.get(connector.name, [])
            if timeout is not None and (there or connector.away):
                self._tick(connector, there, min(seconds, timeout / 2), timeout / SWEEPS)

    def _tick(self, connector: Connector, sessions: Sequence[Session], seconds: float, interval: float) -> None:
        connector.away.tick(seconds, can_send=connector.has_room())
        for session in sessions:
            if session.streams.clock is not None:
                session.streams.clock.tick(seconds, can_send=session.can_send)
        since = self._since_sweep.get(connector.name, 0.0) + seconds
        if since >= interval:
            since = 0.0 if self._sweep(connector, sessions) < STREAMS_PER_SWEEP else interval
        self._since_sweep[connector.name] = since

    def _sweep(self, connector: Connector, sessions: Iterable[Session]) -> int:
        """How many streams were taken out. One that could not be marked is looked at again by the next sweep."""
        count = 0
        try:
            for clock in (connector.away, *(session.streams.clock for session in sessions)):
                silent = clock.lapsed(STREAMS_PER_SWEEP - count) if clock is not None else []
                if clock is not None and silent:
                    connector.rest(silent)
                    clock.rest(silent)
                    count += len(silent)
        except PenstockError as error:
            log.warning("silent streams of %r are not marked as idle: %s", connector.name, error)
        return count
