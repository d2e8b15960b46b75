"""Says in the journal how far the worker's clock has come, for sources whose watermark follows it.

A mark costs an epoch of every pipeline that reads the source, so it is written when the clock has reached what somebody
waits for: the end of a window that is open. Of operators that do not report what they hold, nobody knows that: for them
marks come regularly, and the more rarely the longer the source has been silent.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from penstock.coordinator.open_windows import Demand
from penstock.core.errors import NoRoom, PenstockError
from penstock.ingest.arrival_clock import ArrivalClock
from penstock.ingest.connector import Connector
from penstock.ingest.settings import WhenAllIdle
from penstock.protocol.stored.head import MarkKind

log = logging.getLogger(__name__)

SECOND_US = 1_000_000

MARK_US_MIN = SECOND_US
"""Between two marks of a source: an epoch without data costs Spark as much as one with some."""

MARK_US_MAX = 60 * SECOND_US
"""Between two marks for operators of which nobody knows what they hold: an epoch a minute, and no window that waits for
longer than that when it has ended."""

SILENCE_PARTS = 4
"""Until then: a quarter of the time for which the source has been silent."""


class ClockMarks:
    """Of all connectors of a worker."""

    def __init__(self, clock: ArrivalClock) -> None:
        self._clock = clock
        self._started_us = clock.now()
        self.demand: Callable[[], Mapping[str, Demand]] = dict
        """By source, what the pipelines that read it wait for."""

    def tick(self, connectors: Iterable[Connector]) -> None:
        """To be called several times a second, with all there are."""
        demands = self.demand()
        for connector in connectors if demands else ():
            demand = demands.get(connector.name)
            if demand is not None and not connector.has_finished:
                self._tick(connector, demand)

    def _tick(self, connector: Connector, demand: Demand) -> None:
        now = self._clock.now()
        silent_us = now - max(connector.last_event_us or self._started_us, self._started_us)
        kind = kind_of(connector, silent_us)
        if kind is None:
            return
        time = now if kind is MarkKind.CLOCK else now - connector.settings.max_disorder_us
        if is_due(time, connector.clock_us, silent_us, demand):
            try:
                connector.mark_clock(kind, time)
            except NoRoom:
                pass  # the next tick tries again
            except PenstockError as error:
                log.warning("the clock of source %r is not marked: %s", connector.name, error)


def kind_of(connector: Connector, silent_us: int) -> MarkKind | None:
    """Which clock the source's watermark follows now; None: that of its events alone."""
    if connector.has_arrival_times:
        return MarkKind.CLOCK
    settings = connector.settings
    if settings.when_all_idle is WhenAllIdle.WAIT or settings.idle_timeout_seconds is None:
        return None
    # Streams that have ended leave none active at once: the next one may be about to be opened.
    is_silent = silent_us >= settings.idle_timeout_seconds * SECOND_US
    return MarkKind.IDLE_CLOCK if connector.streams and not connector.active_count and is_silent else None


def is_due(now_us: int, marked_us: int, silent_us: int, demand: Demand) -> bool:
    """Whether a mark is to be written: the last one was at `marked_us`."""
    since_us = now_us - marked_us
    if since_us < MARK_US_MIN:
        return False
    if any(marked_us < time <= now_us for time in demand.next_times):
        return True
    interval_us = min(max(silent_us // SILENCE_PARTS, MARK_US_MIN), MARK_US_MAX)
    return demand.is_unknown and since_us >= interval_us
