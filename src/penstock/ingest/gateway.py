"""Listens for sources and keeps what their sessions share: connectors, the registry of streams, counters."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from penstock.connectors.api import StreamRef
from penstock.coordinator.settings import SourceTimes
from penstock.core.errors import Damaged, NoRoom, PenstockError, RequestError
from penstock.ingest.arrival_clock import ArrivalClock
from penstock.ingest.clock_marks import ClockMarks
from penstock.ingest.completion import Completion
from penstock.ingest.connector import PREFIX, Connector
from penstock.ingest.counters import ConnectorCounters, Counters
from penstock.ingest.declaring import Declaring
from penstock.ingest.endings import Endings
from penstock.ingest.gate import Gate, OpenGate
from penstock.ingest.idling import Idling
from penstock.ingest.opened_streams import OpenedStreams
from penstock.ingest.registry import LocalRegistry, StreamKey, StreamRegistry, Use
from penstock.ingest.session import SourceSession
from penstock.ingest.settings import ConnectorSettings, GatewaySettings, WhenAllIdle
from penstock.ingest.stream_log import Standing
from penstock.ingest.system_streams import SystemStreams
from penstock.protocol.stored.names import SYSTEM_PREFIX
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

log = logging.getLogger(__name__)

_ERRORS_KEPT = 20
_TICK_SECONDS = 0.2
_NAME_MAX = 200


class Gateway:
    """Serves one store, in one event loop. A point of reference is acknowledged only when it is durable, and, where
    `completion` is held, complete.
    """

    def __init__(self, store: SegmentStore, durability: Durability, settings: GatewaySettings) -> None:
        self.store = store
        self.durability = durability
        self.settings = settings
        self.counters = Counters()
        self.registry: StreamRegistry = LocalRegistry()
        self.clock = ArrivalClock()
        self.clock_marks = ClockMarks(self.clock)
        self.loop = asyncio.get_running_loop()
        self._sessions: set[SourceSession] = set()
        self._half_closed: dict[SourceSession, None] = {}
        self._to_flush: set[SourceSession] = set()
        self._flush_called = False
        self._errors: deque[dict[str, str]] = deque(maxlen=_ERRORS_KEPT)
        self._connectors: dict[str, Connector] = {}
        self._completions: dict[str, Completion] = {}
        self._damaged: dict[str, str] = {}
        self._configured: dict[str, ConnectorSettings] = {}
        self._hosted: set[str] = set()
        self.gate: Gate = OpenGate()
        self.completed_goes = True
        """Whether what pipelines have completed is removed by itself; else it counts against quotas like the rest."""
        self.is_guarded = False
        """Whether somebody may keep streams from sending: otherwise nobody is asked."""
        self._kept_back: set[StreamRef] = set()
        self.system_streams = SystemStreams(self)
        for name in self._known_names():
            self._open_again(name)
        self._idling = Idling(self.loop.time)
        self.declaring = Declaring(self)
        self.endings = Endings(self)
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
        self._recover_endings()
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

    def _recover_endings(self) -> None:
        for connector in self._connectors.values():
            with suppress(NoRoom):  # their host tries again, when there is room
                self.endings.recover(connector)
            if self.is_guarded:
                self.endings.recover_ended(connector)

    async def stop(self) -> None:
        """Acknowledge what was received, as far as no pipeline holds it; take nothing new. Sources resume elsewhere or
        later.
        """
        self._listener.close()
        self._ticking.cancel()
        for completion in self._completions.values():
            completion.stop()
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

    def end_sessions(self) -> None:
        """In order: what can be acknowledged is, and the sources come back when they like."""
        for session in list(self._sessions):
            session.flush()
            session.close()

    def connector(self, name: str) -> Connector:
        """The connector of this name, made at first use. Raises RequestError when it may not be."""
        connector = self._connectors.get(name)
        if connector is not None:
            return connector
        if name in self._damaged:
            raise Damaged(f"source {name!r} is refused: {self._damaged[name]}")
        if not self.settings.auto_create:
            raise RequestError(f"there is no source {name!r} here, and none is made (--no-auto-create)")
        return self._make(name)

    def _make(self, name: str) -> Connector:
        if not 0 < len(name) <= _NAME_MAX or "/" in name or not name.isprintable():
            raise RequestError(f"{name[:_NAME_MAX]!r} is no name for a source: 1 to {_NAME_MAX} characters, no '/'")
        if len(self._connectors) >= self.settings.connectors_max:
            raise RequestError(f"there are {len(self._connectors)} sources already (connectors_max)")
        return self._open(name)

    def joined_by_program(self, name: str) -> Connector:
        """As `connector`, for a program that says HELLO: not every source is for these."""
        if name.startswith(SYSTEM_PREFIX):
            raise RequestError(f"source {name!r} is the worker's own", f"Choose a name without {SYSTEM_PREFIX!r}.")
        if name in self._hosted:
            raise RequestError(f"the events of source {name!r} come from a connector of the application")
        return self.connector(name)

    def configure(self, name: str, settings: ConnectorSettings) -> None:
        """Set a connector up, whether it is there already or will be; from now on, and until the worker ends."""
        self._configured[name] = settings
        if name in self._connectors:
            self._connectors[name].reconfigure(settings)
            self.completion(name).grown()

    def settings_of(self, name: str) -> ConnectorSettings:
        return self._configured.get(name) or self.settings.of(name)

    def made(self, name: str) -> Connector:
        """The connector of this name, made at first use, as it is configured. Raises Damaged, RequestError."""
        if name not in self._connectors and name not in self._damaged:
            self._make(name)
        return self.connector(name)

    def hosted(self, name: str) -> Connector:
        """As `made`, whose events come from the worker itself: no program joins it any more."""
        connector = self.made(name)
        if name not in self._hosted:
            self._hosted.add(name)
            self.completion(name).has_sessions = bool(self.streams_of(name))
        return connector

    def left_alone(self, name: str) -> None:
        """What `hosted` began is over: its events come from programs again, if from anybody."""
        if name in self._hosted:
            self._hosted.discard(name)
            self.completion(name).has_sessions = True
            self.completion(name).attach(self._connectors[name])

    def guard(self, gate: Gate) -> None:
        """From now on it says which streams may send. Once, and before sources are let in."""
        self.gate, self.is_guarded = gate, True
        gate.subscribe(self._gate_changed)
        for connector in self._connectors.values():
            self._ask_gate(connector)

    def knows(self, stream: StreamRef) -> bool:
        """Whether there is more to come of the stream: it goes on, or its end is not complete yet."""
        known = self._connectors.get(stream.connector)
        found = None if known is None else known.streams.get(stream.stream_id)
        return found is not None and (found.standing is not Standing.ENDED or self.endings.has(stream))

    def _ask_gate(self, connector: Connector) -> None:
        connector.may_send = lambda stream_id: StreamRef(connector.name, stream_id) not in self._kept_back

    def keep_back(self, stream: StreamRef, *, is_kept: bool) -> None:
        """What the gate says of one that has started; of others it says nothing, and they count as they did before."""
        (self._kept_back.add if is_kept else self._kept_back.discard)(stream)

    def _gate_changed(self, stream: StreamRef, may_send: bool) -> None:
        self.keep_back(stream, is_kept=not may_send)
        key = StreamKey(stream.connector, stream.stream_id)
        connector, owner = self._connectors.get(key.connector), self.registry.owner(key)
        if isinstance(owner, SourceSession):
            owner.streams.gate_changed(key.stream_id, may_send)
        elif connector is not None and may_send:
            connector.stays_away(key.stream_id)
        elif connector is not None:
            connector.away.remove(key.stream_id)

    def known(self, name: str) -> Connector:
        """The connector of this name, if it was made. Raises RequestError."""
        if name not in self._connectors and name not in self._damaged:
            raise RequestError(f"there is no source {name!r} here", "Look which there are: penstock status")
        return self.connector(name)

    def stream_names(self, connector: str, ids: Iterable[int]) -> list[str]:
        """In the order of the ids; "" for a stream, or a connector, that is not known."""
        known = self._connectors.get(connector)
        found = [known.streams.get(stream_id) if known is not None else None for stream_id in ids]
        return ["" if stream is None else stream.name for stream in found]

    def open_streams(self, connector: str) -> set[int]:
        """Those that hold back the watermark of whoever reads it; none of a connector that is not known."""
        known = self._connectors.get(connector)
        streams = known.streams if known is not None else {}
        return {stream_id for stream_id, stream in streams.items() if stream.standing is Standing.ACTIVE}

    def has_finished(self, connector: str) -> bool:
        known = self._connectors.get(connector)
        return known is not None and known.has_finished

    def times(self, connector: str) -> SourceTimes:
        """How its events get their times; also of one that is not known yet."""
        known, settings = self._connectors.get(connector), self.settings_of(connector)
        timeout = settings.idle_timeout_seconds
        return SourceTimes(
            known.has_arrival_times if known is not None else bool(settings.arrival_time),
            timeout is not None and settings.when_all_idle is WhenAllIdle.CLOCK,
            timeout,
            settings.max_disorder_us,
            known.last_event_us if known is not None else None,
            known.active_count if known is not None else 0,
        )

    def full_sources(self) -> dict[str, int]:
        """The connectors that are at their quota, and the bytes they hold."""
        held = {name: (c.unfinished_bytes, c.settings.quota_bytes) for name, c in self._connectors.items()}
        return {name: size for name, (size, quota) in held.items() if quota is not None and size >= quota}

    def _open(self, name: str) -> Connector:
        settings = self.settings_of(name)
        connector = Connector(name, self.store, settings, self.settings.snapshot_bytes, self.clock)
        if self.is_guarded:
            self._ask_gate(connector)
        connector.signals = self.system_streams
        connector.current_ids = lambda: self._update_known(connector)
        connector.finished = partial(self._finished, name)
        self._connectors[name] = connector
        self.completion(name).attach(connector)
        return connector

    def _finished(self, name: str, route: int) -> float:
        completion = self.completion(name)
        return completion.completed(route) if completion.is_held and self.completed_goes else 0

    def completion(self, name: str) -> Completion:
        """What decides when this connector's messages are acknowledged; also before there is such a connector."""
        if name not in self._completions:
            self._completions[name] = Completion(self, name)
        return self._completions[name]

    def _update_known(self, connector: Connector) -> None:
        for streams in self.streams_of(connector.name):
            streams.update_known()

    def streams_of(self, connector: str) -> list[OpenedStreams]:
        """Of all sessions of this connector."""
        return [session.streams for session in self._sessions if session.connector_name == connector]

    def owner_of(self, key: StreamKey) -> OpenedStreams | None:
        """The streams of the session that has this one; None where none has."""
        owner = self.registry.owner(key)
        return owner.streams if isinstance(owner, SourceSession) else None

    def _before_truncate(self, segment: str) -> None:
        """The heads below the truncation are lost to the fold: write the table of streams down first."""
        for connector in self._connectors.values():
            if segment in connector.segments:
                connector.snapshot()

    # What sessions report.

    def opened(self, session: SourceSession) -> bool:
        """False when there are too many."""
        if len(self._sessions) >= self.settings.sessions_max and self._half_closed:
            self._give_up(next(iter(self._half_closed)))
        if len(self._sessions) >= self.settings.sessions_max:
            self.counters.sessions_refused += 1
            return False
        self._sessions.add(session)
        return True

    def half_closed(self, session: SourceSession) -> None:
        """It only waits for acknowledgements: the first to go when there are too many sessions."""
        self._half_closed[session] = None

    def _give_up(self, session: SourceSession) -> None:
        session.close()
        self.closed(session)

    def joined(self, _: SourceSession) -> None:
        self.counters.sessions_joined += 1

    def closed(self, session: SourceSession) -> None:
        self._sessions.discard(session)
        self._half_closed.pop(session, None)
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
        """Grant what a quota or a full disk has held back, when there is room again; take out what is silent, and say
        how far the clock has come.
        """
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for session in list(self._sessions):
                session.flush()
            self._idling.tick(self._connectors.values(), self._sessions)
            self.clock_marks.tick([*self._connectors.values()])

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
            "idle_streams": sum(len(c.idle) for c in self._connectors.values()),
            "in_flight_bytes": sum(session.in_flight_bytes for session in sessions),
            "credits": sum(session.credits for session in sessions),
            "ack_lag_seconds": max((session.ack_lag_seconds for session in sessions), default=0.0),
        }

    def source_counters(self) -> dict[str, ConnectorCounters]:
        """Of every source, whether programs feed it or a connector of the application does."""
        return {name: connector.counters for name, connector in self._connectors.items()}

    def status(self) -> dict[str, object]:
        return {
            **self.gauges(),
            **self.counters.as_dict(),
            "damaged_sources": self._damaged,
            "event_time_unit": self.settings.connector.event_time_unit.name.lower(),
            "event_time_ingest": self.settings.connector.event_time_ingest,
            "sources": {name: self._connector_status(c) for name, c in sorted(self._connectors.items())},
            "sessions": [asdict(session.status()) for session in self._sessions],
            "errors": list(self._errors),
        }

    def _connector_status(self, connector: Connector) -> dict[str, object]:
        return {
            **connector.counters.as_dict(),
            **asdict(self.completion(connector.name).status()),
            "segments": connector.segments,
            "streams": len(connector.streams),
            "held_bytes": connector.held_bytes,
            "has_room": connector.has_room(),
            "ack": connector.settings.ack.value,
            "idle_streams": len(connector.idle),
            "has_finished": connector.has_finished,
            "max_disorder_seconds": connector.settings.max_disorder_us / 1e6,
            "idle_timeout_seconds": connector.settings.idle_timeout_seconds,
            "event_time_unit": connector.settings.event_time_unit.name.lower(),
            "event_time_ingest": connector.settings.event_time_ingest,
            "when_all_idle": connector.settings.when_all_idle.value,
            "has_arrival_times": connector.has_arrival_times,
            "last_event_us": connector.last_event_us,
        }
