"""Marks that depend on time: streams that have become idle, and the time of the worker's clock.

A clock mark costs an epoch of every pipeline that reads the source, so one is written when the clock has reached a time
that a window waits for: its end. For operators that do not report what they wait for, marks are written regularly, less
often the longer the source has been silent.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from penstock.coordinator.open_windows import Demand
from penstock.core.errors import NoRoom, PenstockError
from penstock.ingest.event_times import ArrivalClock
from penstock.ingest.settings import WhenAllIdle
from penstock.ingest.source_log import SourceLog
from penstock.protocol.stored.head import MarkKind

log = logging.getLogger(__name__)

TICK_SECONDS_MAX = 1.0
"""How much of the time between two ticks counts, and at most half a timeout: if the worker was busy for longer, its
sockets are full of messages.
"""

SWEEPS = 20
"""Sweeps per timeout: a stream is marked at most a twentieth of it too late."""

STREAMS_PER_SWEEP = 10_000
"""Streams of a source to mark at once: about ten milliseconds. The others follow at the next tick."""

SECOND_US = 1_000_000

MARK_US_MIN = SECOND_US
"""Between two clock marks of a source: an epoch without data costs Spark as much as one with some."""

MARK_US_MAX = 60 * SECOND_US
"""Between two clock marks for operators that do not report what they wait for: one epoch per minute, and no window
waits longer than that after its end.
"""

SILENCE_PARTS = 4
"""Before that: a quarter of the time for which the source has been silent."""


class IdleMarks:
    """Excludes streams from the watermark that were silent for their source's idle timeout. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ticked_at = clock()
        self._since_sweep: dict[str, float] = {}

    def tick(self, logs: Iterable[SourceLog]) -> None:
        """Call it several times a second, with all sources."""
        now = self._clock()
        seconds, self._ticked_at = min(now - self._ticked_at, TICK_SECONDS_MAX), now
        for source in logs:
            timeout = source.settings.idle_timeout_seconds
            if timeout is not None and (source.sessions or source.streams.away):
                self._tick(source, min(seconds, timeout / 2), timeout / SWEEPS)

    def _tick(self, source: SourceLog, seconds: float, interval: float) -> None:
        source.streams.away.tick(seconds, can_send=source.has_room())
        for session in source.sessions:
            if session.clock is not None:
                session.clock.tick(seconds, can_send=session.can_send)
        since = self._since_sweep.get(source.name, 0.0) + seconds
        if since >= interval:
            since = 0.0 if self._sweep(source) < STREAMS_PER_SWEEP else interval
        self._since_sweep[source.name] = since

    def _sweep(self, source: SourceLog) -> int:
        """Returns how many streams were marked. The next sweep finds those that could not be marked."""
        count = 0
        try:
            for clock in (source.streams.away, *(session.clock for session in source.sessions)):
                silent = clock.lapsed(STREAMS_PER_SWEEP - count) if clock is not None else []
                if clock is not None and silent:
                    source.mark_idle(silent)
                    clock.rest(silent)
                    count += len(silent)
        except PenstockError as error:
            log.warning("cannot mark silent streams of source %r as idle: %s", source.name, error)
        return count


class ClockMarks:
    """Records the time of the worker's clock in the journal, for sources whose watermark follows it."""

    def __init__(self, clock: ArrivalClock) -> None:
        self._clock = clock
        self._started_us = clock.now()
        self.demand: Callable[[], Mapping[str, Demand]] = dict
        """By source, what the pipelines that read it wait for."""

    def tick(self, logs: Iterable[SourceLog]) -> None:
        """Call it several times a second, with all sources."""
        demands = self.demand()
        for source in logs if demands else ():
            demand = demands.get(source.name)
            if demand is not None and not source.has_finished:
                self._tick(source, demand)

    def _tick(self, source: SourceLog, demand: Demand) -> None:
        now = self._clock.now()
        silent_us = now - max(source.times.last_event_us or self._started_us, self._started_us)
        kind = kind_of(source, silent_us)
        if kind is None:
            return
        time = now if kind is MarkKind.CLOCK else now - source.settings.max_disorder_us
        if is_due(time, source.clock_us, silent_us, demand):
            try:
                source.mark_clock(kind, time)
            except NoRoom:
                pass  # the next tick tries again
            except PenstockError as error:
                log.warning("cannot record the clock of source %r: %s", source.name, error)


def kind_of(source: SourceLog, silent_us: int) -> MarkKind | None:
    """Which clock the source's watermark follows now; None: only that of its events."""
    if source.times.are_arrival_times:
        return MarkKind.CLOCK
    settings = source.settings
    if settings.when_all_idle is WhenAllIdle.WAIT or settings.idle_timeout_seconds is None:
        return None
    # When streams end, none may be active for a moment although the next one is about to be opened.
    is_silent = silent_us >= settings.idle_timeout_seconds * SECOND_US
    return MarkKind.IDLE_CLOCK if source.streams and not source.streams.active_count and is_silent else None


def is_due(now_us: int, marked_us: int, silent_us: int, demand: Demand) -> bool:
    """Whether it is time for a clock mark; the last one was at `marked_us`."""
    since_us = now_us - marked_us
    if since_us < MARK_US_MIN:
        return False
    if any(marked_us < time <= now_us for time in demand.next_times):
        return True
    interval_us = min(max(silent_us // SILENCE_PARTS, MARK_US_MIN), MARK_US_MAX)
    return demand.is_unknown and since_us >= interval_us
