"""The sessions of a gateway: how many there are, which of them to flush, and the last errors."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from penstock.ingest.catalog import Counters

_ERRORS_KEPT = 20


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """For /status. Before its HELLO there is not much."""

    peer: str
    program: str
    connector: str | None
    state: str
    streams: int = 0
    credits: int = 0
    in_flight_bytes: int = 0
    ack_lag_seconds: float = 0.0


class OpenSession(Protocol):
    """One connection of a program."""

    def flush(self) -> None:
        """Send what can be acknowledged and granted."""
        ...

    def close(self) -> None:
        """End the session; the program may connect again and resume."""
        ...

    def restart(self, address: str) -> None:
        """Send the program to another worker."""
        ...

    def status(self) -> SessionStatus: ...


class SessionTable:
    """In one event loop."""

    def __init__(self, sessions_max: int, counters: Counters) -> None:
        self._sessions_max = sessions_max
        self._counters = counters
        self._sessions: set[OpenSession] = set()
        self._half_closed: dict[OpenSession, None] = {}
        self._to_flush: set[OpenSession] = set()
        self._flush_called = False
        self.errors: deque[dict[str, str]] = deque(maxlen=_ERRORS_KEPT)

    def __iter__(self) -> Iterator[OpenSession]:
        """Sessions may end meanwhile."""
        return iter(list(self._sessions))

    def __len__(self) -> int:
        return len(self._sessions)

    def opened(self, session: OpenSession) -> bool:
        """False when there are too many."""
        if len(self._sessions) >= self._sessions_max and self._half_closed:
            first = next(iter(self._half_closed))
            first.close()
            self.closed(first)
        if len(self._sessions) >= self._sessions_max:
            self._counters.sessions_refused += 1
            return False
        self._sessions.add(session)
        return True

    def half_closed(self, session: OpenSession) -> None:
        """It only waits for acknowledgements: the first to go when there are too many sessions."""
        self._half_closed[session] = None

    def closed(self, session: OpenSession) -> None:
        self._sessions.discard(session)
        self._half_closed.pop(session, None)
        self._to_flush.discard(session)

    def remember_error(self, peer: str, text: str) -> None:
        self.errors.append({"peer": peer, "error": text})

    def flush_soon(self, session: OpenSession) -> None:
        """At the end of this turn of the loop, once."""
        self._to_flush.add(session)
        if not self._flush_called:
            self._flush_called = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_called = False
        flushing, self._to_flush = self._to_flush, set()
        for session in flushing:
            session.flush()
