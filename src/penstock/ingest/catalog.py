"""The catalog of a worker's sources: their logs, completions and settings, and what all of them share."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.access.principals import Principal
from penstock.connectors.api import StreamRef
from penstock.core.errors import Damaged, NoRoom, PenstockError, QuotaReached, RequestError
from penstock.core.supervisor import Supervisor
from penstock.ingest.completion import Completion
from penstock.ingest.ended_streams import EndedStreams
from penstock.ingest.event_times import ArrivalClock
from penstock.ingest.gate import Gate, GuardedStreams
from penstock.ingest.in_flight import InFlightBudget
from penstock.ingest.known_streams import Standing
from penstock.ingest.owners import LocalRegistry, StreamKey, StreamRegistry
from penstock.ingest.settings import ProgramServerSettings, SourceSettings
from penstock.ingest.source_log import SourceLog, TotalQuota
from penstock.ingest.time_marks import ClockMarks, IdleMarks
from penstock.ingest.worker_sources import DeadLetters, SystemStreams
from penstock.protocol.stored.names import (
    CONNECTOR_PREFIX,
    DEAD_LETTERS_SUFFIX,
    SYSTEM_PREFIX,
    InputOf,
    check_source_name,
    partition_of,
)
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore
from penstock.store.table import Measure

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Counters of all sources, since the worker started."""

    sessions_joined: int = 0
    sessions_refused: int = 0
    messages: int = 0
    message_bytes: int = 0
    duplicates: int = 0
    streams_opened: int = 0
    streams_refused: int = 0
    streams_ended: int = 0
    frames_sent: int = 0
    protocol_errors: int = 0
    errors_from_sources: int = 0
    closed_for_room: int = 0


class SourceCatalog:
    """The sources of one store, in one event loop. Opens every source in the store. If the table of streams of a source
    cannot be read, that source is refused, and the others continue.
    """

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        settings: ProgramServerSettings,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.store = store
        self.durability = durability
        self.settings = settings
        self.supervisor = supervisor or Supervisor()
        self.counters = Counters()
        self.in_flight = InFlightBudget(settings.in_flight_bytes_max, settings.sessions_max)
        self.registry: StreamRegistry = LocalRegistry()
        self.guarded = GuardedStreams()
        self.clock = ArrivalClock()
        self.clock_marks = ClockMarks(self.clock)
        self.idle_marks = IdleMarks(asyncio.get_running_loop().time)
        self.damaged: dict[str, str] = {}
        """Sources that are refused, and why."""
        self.removes_completed = True
        """Whether what pipelines have completed is removed automatically; otherwise it counts against quotas."""
        self._logs: dict[str, SourceLog] = {}
        self._ended: dict[str, EndedStreams] = {}
        self._completions: dict[str, Completion] = {}
        self._dead_letters: dict[str, DeadLetters] = {}
        self._configured: dict[str, SourceSettings] = {}
        self._quotas: dict[str, int] = {}
        """The quotas of principals, for the sources that their programs have joined."""
        self._total_quotas: dict[tuple[tuple[str, ...], int], TotalQuota] = {}
        """The total quotas of principals, by prefixes and size."""
        self._reserved: set[str] = set()
        self.join_as: dict[str, str] = {}
        """Sources with several partitions → the name of the partition here."""
        self.system_streams = SystemStreams(self)
        for name in self._stored_names():
            self._reopen(name)
        store.before_truncate(self._before_truncate)

    def _stored_names(self) -> set[str]:
        suffix = "/streams"
        names = (info.name for info in self.store.segments(CONNECTOR_PREFIX))
        return {name.removeprefix(CONNECTOR_PREFIX).removesuffix(suffix) for name in names if name.endswith(suffix)}

    def _reopen(self, name: str) -> None:
        try:
            self._open(name)
        except (PenstockError, ValueError, TypeError, LookupError) as error:
            log.error("source %r is refused: %s", name, error)
            self.damaged[name] = str(error)

    def _open(self, name: str) -> SourceLog:
        source = SourceLog(name, self.store, self.settings_of(name), self.settings.snapshot_bytes, self.clock)
        source.signals = self.system_streams
        if self.settings.stamps_arrivals:
            source.stamp = self.clock.now
        source.data_segments.finished = partial(self._finished, name)
        source.dead_letters_fit = partial(self._dead_letters_fit, name)
        if self.guarded.is_guarded:
            self._ask_gate(source)
        completion = self.completion(name)
        self._logs[name] = source
        self._ended[name] = EndedStreams(source, completion, self.guarded, self.registry, self.store, self.durability)
        completion.attach(source)
        return source

    def _finished(self, name: str, route: int) -> float:
        completion = self.completion(name)
        return completion.completed(route) if completion.has_pipelines and self.removes_completed else 0

    def _dead_letters_fit(self, name: str) -> bool:
        """Dead letters of events without a time are never dropped, so their source waits when there are too many."""
        times = self.settings_of(name).event_time
        err = self._logs.get(name + DEAD_LETTERS_SUFFIX) if times is not None and times.is_dead_letter else None
        return err is None or not err.is_at_quota()

    def dead_letters(self, name: str) -> DeadLetters:
        """What could not become an event of this source."""
        if name not in self._dead_letters:
            self._dead_letters[name] = DeadLetters(self, name)
        return self._dead_letters[name]

    def _before_truncate(self, segment: str) -> None:
        """A truncation removes heads: write a snapshot of the streams first."""
        for source in self._logs.values():
            if segment in source.segments:
                source.snapshot()

    def recover_ended(self) -> None:
        """Find streams that ended with an earlier process, or whose peers are gone. Call it before sources
        may connect.
        """
        for ended in self._ended.values():
            with suppress(NoRoom):  # their connector's host tries again, when there is room
                ended.recover()
            if self.guarded.is_guarded:
                ended.recover_ended()

    def tick(self) -> None:
        """Call it several times a second: writes the marks that depend on time."""
        for quota in self._total_quotas.values():
            quota.tick()
        self.idle_marks.tick(self._logs.values())
        self.clock_marks.tick([*self._logs.values()])

    def stop_acknowledging(self) -> None:
        """From now on, do not acknowledge what still waits for pipelines."""
        for completion in self._completions.values():
            completion.stop()

    def close(self) -> None:
        """Write the tables of streams."""
        for source in self._logs.values():
            with suppress(PenstockError):  # they can be recovered from the heads as well
                source.snapshot()

    # Sources.

    def __iter__(self) -> Iterator[SourceLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, name: str) -> SourceLog | None:
        """The source, if it exists and can be read."""
        return self._logs.get(name)

    def log(self, name: str) -> SourceLog:
        """The source's log, created at first use. Raises Damaged, or RequestError if it may not be created."""
        found = self._opened(name)
        if found is None and not self.settings.auto_create:
            raise RequestError(f"source {name!r} not found, and none is created (--no-auto-create)")
        return found or self._create(name)

    def _opened(self, name: str) -> SourceLog | None:
        if name in self.damaged:
            raise Damaged(f"source {name!r} is refused: {self.damaged[name]}")
        return self._logs.get(name)

    def _create(self, name: str) -> SourceLog:
        check_source_name(partition_of(name).source)
        if len(self._logs) >= self.settings.sources_max:
            raise RequestError(f"there are {len(self._logs)} sources already (sources_max)")
        return self._open(name)

    def existing(self, name: str) -> SourceLog:
        """Raises Damaged, RequestError if there is no such source."""
        found = self._opened(name)
        if found is None:
            raise RequestError(f"source {name!r} not found", "List the sources: penstock status")
        return found

    def configured(self, name: str) -> SourceLog:
        """Like `log`, regardless of `auto_create`: an application has configured the source."""
        return self._opened(name) or self._create(name)

    def joined_by_program(self, name: str, principal: Principal | None = None) -> SourceLog:
        """Like `log`, for a program's HELLO: not every source is open to programs. The quota of the program's principal
        applies to the source until the worker ends, and to everything stored under the principal's names.
        """
        if name.startswith(SYSTEM_PREFIX):
            raise RequestError(f"source {name!r} belongs to the worker", f"Choose a name without {SYSTEM_PREFIX!r}.")
        if self.join_as.get(name, name) in self._reserved:
            raise RequestError(f"source {name!r} belongs to a connector of the application")
        check_source_name(name)
        name = self.join_as.get(name, name)
        if principal is None or principal.quota_bytes is None:
            return self.log(name)
        stored = self.store.table.measure(InputOf(principal.prefixes))
        if self._opened(name) is None:
            _check_count(name, principal, stored.count)
        joined = self.log(name)
        joined.total_quota = self._total_quota(stored, principal.prefixes, principal.quota_bytes)
        if self._quotas.get(name) != principal.quota_bytes:
            self._quotas[name] = principal.quota_bytes
            joined.reconfigure(self.settings_of(name))
        return joined

    def _total_quota(self, stored: Measure, prefixes: tuple[str, ...], quota_bytes: int) -> TotalQuota:
        """The same for all sources of a principal."""
        key = (prefixes, quota_bytes)
        if key not in self._total_quotas:
            self._total_quotas[key] = TotalQuota(stored, quota_bytes, partial(self._under, prefixes))
        return self._total_quotas[key]

    def _under(self, prefixes: tuple[str, ...]) -> Iterator[SourceLog]:
        return (log for log in self._logs.values() if log.name.startswith(prefixes))

    def reserve(self, name: str) -> SourceLog:
        """Like `configured`, for a source that the worker itself writes: from now on programs are refused."""
        found = self.configured(name)
        if name not in self._reserved:
            self._reserved.add(name)
            self.completion(name).has_sessions = bool(found.sessions)
        return found

    def release(self, name: str) -> None:
        """Undo `reserve`: programs may write to the source again."""
        if name in self._reserved:
            self._reserved.discard(name)
            self.completion(name).has_sessions = True
            self.completion(name).attach(self._logs[name])

    def configure(self, name: str, settings: SourceSettings) -> None:
        """Configure a source, whether it exists already or not, until the worker ends."""
        self._configured[name] = settings
        if name in self._logs:
            self._logs[name].reconfigure(self.settings_of(name))
            self.completion(name).grown()
            self.completion(name).reconfigured()

    def settings_of(self, name: str) -> SourceSettings:
        found, limit = self._configured.get(name), self._quotas.get(name)
        found = found or self.settings.of(partition_of(name).source)
        if limit is None or (found.quota_bytes is not None and found.quota_bytes <= limit):
            return found
        return replace(found, quota_bytes=limit)

    def completion(self, name: str) -> Completion:
        """Decides when this source's messages are acknowledged; it exists before the source does."""
        if name not in self._completions:
            self._completions[name] = Completion(name, self.store, self.registry, self.supervisor)
        return self._completions[name]

    def ended(self, name: str) -> EndedStreams:
        """The ended streams of a source that exists."""
        return self._ended[name]

    # The gate.

    def guard(self, gate: Gate) -> None:
        """Set the gate that decides which streams may send. Call it once, before sources may connect."""
        self.guarded.guard(gate, self._gate_changed)
        for source in self._logs.values():
            self._ask_gate(source)

    def _ask_gate(self, source: SourceLog) -> None:
        source.streams.may_send = lambda stream_id: not self.guarded.is_blocked(StreamRef(source.name, stream_id))

    def _gate_changed(self, stream: StreamRef, may_send: bool) -> None:
        owner = self.registry.owner(StreamKey(stream.connector, stream.stream_id))
        source = self._logs.get(stream.connector)
        if owner is not None:
            owner.gate_changed(stream.stream_id, may_send)
        elif source is not None and may_send:
            source.streams.detached(stream.stream_id)
        elif source is not None:
            source.streams.away.remove(stream.stream_id)

    def knows(self, stream: StreamRef) -> bool:
        """Whether the stream is still in use: it has not ended, or pipelines have not completed its end."""
        source = self._logs.get(stream.connector)
        found = None if source is None else source.streams.get(stream.stream_id)
        if found is None:
            return False
        return found.standing is not Standing.ENDED or stream.stream_id in self._ended[stream.connector]


def _check_count(name: str, principal: Principal, count: int) -> None:
    """Raises RequestError at the limit, which ends a program: otherwise it would retry until there is room."""
    try:
        principal.check_count(count)
    except QuotaReached as error:
        raise RequestError(f"source {name!r} cannot be created: {error}", error.hint) from None
