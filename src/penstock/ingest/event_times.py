"""Event times: the worker's arrival clock, and whether a source's events carry times of their own."""

import time
from collections.abc import Callable

from penstock.core.types import OWN_TIMES
from penstock.ingest.extraction import Extraction
from penstock.ingest.settings import SourceSettings
from penstock.protocol.stored.event import NO_TIME
from penstock.store.plan import AttributeUpdate
from penstock.store.store import SegmentStore


def wall_clock_us() -> int:
    return time.time_ns() // 1000


class ArrivalClock:
    """Microseconds since 1970; one clock for all sources of a worker.

    It never goes back. When the wall clock is set back, this one stops until the wall clock has caught up: a
    time in the past would put an event before a watermark that is already in the journal.
    """

    def __init__(self, wall_us: Callable[[], int] = wall_clock_us) -> None:
        self._wall_us = wall_us
        self._floor = NO_TIME

    def now(self) -> int:
        self._floor = max(self._floor, self._wall_us())
        return self._floor

    def promised(self, time_us: int) -> None:
        """A mark in the journal has promised that no event before this time will follow."""
        self._floor = max(self._floor, time_us)


def extraction_of(settings: SourceSettings) -> Extraction | None:
    return None if settings.event_time is None else Extraction(settings.event_time)


class EventTimes:
    """Where the event times of one source come from, as recorded in an attribute of its segment `streams`."""

    def __init__(self, store: SegmentStore, segment: str, clock: ArrivalClock, settings: SourceSettings) -> None:
        self._store = store
        self._segment = segment
        self.clock = clock
        self.settings = settings
        own_times = store.attribute(segment, OWN_TIMES)
        self.has_own_times = None if own_times is None else bool(own_times)
        """Whether any event arrived with its own time; None: unknown, because there was no event yet, or all of them
        were stored by a version that did not record it.
        """
        self.extraction = extraction_of(settings)
        """What finds event times in the data; None if they do not come from there."""
        self.last_event_us: int | None = None
        """When the last event was stored; None: no event since the worker started."""

    def configure(self, settings: SourceSettings) -> None:
        """Raises RequestError if a codec's plugin cannot be loaded."""
        if settings.event_time != self.settings.event_time:
            self.extraction = extraction_of(settings)
        self.settings = settings

    @property
    def are_arrival_times(self) -> bool:
        """Whether the worker stamps every event, so that none can be older than the clock. If events may also carry
        their own times, this needs an event without one as proof, because a clock mark cannot be revoked.
        """
        if self.settings.event_time is not None:
            return False
        if self.settings.arrival_time:
            return not self.has_own_times
        may_have = self.settings.event_time_ingest or self.settings.arrival_time is None
        return may_have and self.has_own_times is False

    def stamp(self) -> int | None:
        """The time for events that carry none; None if such events stay without a time."""
        return self.clock.now() if self.settings.event_time_ingest else None

    @property
    def are_undecided(self) -> bool:
        """Whether the next messages of a session can change `are_arrival_times`."""
        return self.has_own_times is False or (self.has_own_times is None and self.settings.event_time_ingest)

    def record(self, *, own_times: bool) -> None:
        """Call it before storing events that carry their own times, or get their time of arrival. From the first own
        time on, the clock says nothing about later events. Raises like `SourceLog.append`.
        """
        if own_times and not self.has_own_times:
            self._write(own_times=True)
        elif not own_times and self.has_own_times is None and not self.settings.arrival_time:
            self._write(own_times=False)

    def _write(self, *, own_times: bool) -> None:
        self._store.update_attributes([AttributeUpdate(self._segment, OWN_TIMES, int(own_times))])
        self.has_own_times = own_times
