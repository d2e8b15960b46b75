"""Read-only information about a worker's sources, for the coordinator, /status and /metrics."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import chain, islice
from typing import Final, Literal

from penstock.coordinator.settings import SourceTimes
from penstock.core.errors import RequestError
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.known_streams import KnownStream, Standing
from penstock.ingest.owners import Use
from penstock.ingest.settings import WhenAllIdle
from penstock.ingest.source_log import SourceCounters, SourceLog
from penstock.protocol.api.history import SourceStreams, StreamStatus
from penstock.protocol.api.status import SourceDefaults, SourceStatus, SourceTotals
from penstock.protocol.connector.frames import NOTHING_YET
from penstock.protocol.stored.event import NO_TIME

_STATES: Final[dict[Standing, Literal["active", "idle", "ended"]]] = {
    Standing.ACTIVE: "active",
    Standing.IDLE: "idle",
    Standing.ENDED: "ended",
}


class SourceView:
    """Also answers for sources that do not exist yet."""

    def __init__(self, sources: SourceCatalog) -> None:
        self._sources = sources

    def streams(self, source: str, times: Mapping[int, int], newest: int, limit: int) -> SourceStreams:
        """At most `limit` streams. `times` has the highest event time of each stream that counts for the watermark; the
        lowest come first. Raises RequestError.
        """
        log = self._sources.get(source)
        if log is None:
            raise RequestError(f"there is no source {source!r}", "List them: penstock status")
        for session in log.sessions:
            session.update_known()
        known = log.streams
        slowest = nsmallest(limit, (stream_id for stream_id in times if stream_id in known), key=times.__getitem__)
        others = (stream_id for stream_id in known if stream_id not in times)
        return SourceStreams(
            count=len(known),
            newest=_time(newest),
            streams=[
                _stream(stream_id, known[stream_id], times.get(stream_id, NO_TIME))
                for stream_id in islice(chain(slowest, others), limit)
            ],
        )

    # For the coordinator.

    def stream_names(self, source: str, ids: Iterable[int]) -> list[str]:
        """The names, in the order of the ids; "" for an unknown stream or source."""
        log = self._sources.get(source)
        found = [log.streams.get(stream_id) if log is not None else None for stream_id in ids]
        return ["" if stream is None else stream.name for stream in found]

    def stream_name(self, source: str, stream_id: int) -> str:
        return self.stream_names(source, [stream_id])[0]

    def open_streams(self, source: str) -> set[int]:
        """The streams that count for the watermark."""
        log = self._sources.get(source)
        streams = log.streams if log is not None else {}
        return {stream_id for stream_id, stream in streams.items() if stream.standing is Standing.ACTIVE}

    def has_finished(self, source: str) -> bool:
        log = self._sources.get(source)
        return log is not None and log.has_finished

    def disorder_us(self, source: str) -> int:
        return self._sources.settings_of(source).max_disorder_us

    def times(self, source: str) -> SourceTimes:
        """How its events get their times."""
        log, settings = self._sources.get(source), self._sources.settings_of(source)
        timeout = settings.idle_timeout_seconds
        return SourceTimes(
            log.times.are_arrival_times if log is not None else bool(settings.arrival_time),
            timeout is not None and settings.when_all_idle is WhenAllIdle.CLOCK,
            timeout,
            settings.max_disorder_us,
            log.times.last_event_us if log is not None else None,
            log.streams.active_count if log is not None else 0,
        )

    # For display.

    def full_sources(self) -> dict[str, int]:
        """The sources that are at their quota, or at that of their principal, and their unfinished bytes."""
        return {log.name: log.data_segments.unfinished_bytes for log in self._sources if log.is_at_quota()}

    def counters(self) -> dict[str, SourceCounters]:
        """The counters of every source, whichever front writes to it."""
        return {log.name: log.counters for log in self._sources}

    def totals(self) -> SourceTotals:
        uses, counters = self._sources.registry.counts(), self._sources.counters
        return SourceTotals(
            count=len(self._sources),
            active_streams=uses[Use.ACTIVE],
            closing_streams=uses[Use.CLOSING],
            known_streams=sum(len(log.streams) for log in self._sources),
            idle_streams=sum(len(log.streams.idle) for log in self._sources),
            messages=counters.messages,
            message_bytes=counters.message_bytes,
            duplicates=counters.duplicates,
            untimed=sum(log.counters.untimed for log in self._sources),
            streams_opened=counters.streams_opened,
            streams_refused=counters.streams_refused,
            streams_ended=counters.streams_ended,
        )

    def defaults(self) -> SourceDefaults:
        settings = self._sources.settings.source
        return SourceDefaults(
            event_time_unit=settings.event_time_unit.name.lower(), event_time_ingest=settings.event_time_ingest
        )

    def damaged(self) -> dict[str, str]:
        """The sources that are refused, and why."""
        return self._sources.damaged

    def status(self) -> dict[str, SourceStatus]:
        """By name, in its order."""
        return {log.name: self._status(log) for log in sorted(self._sources, key=lambda log: log.name)}

    def _status(self, log: SourceLog) -> SourceStatus:
        counters, settings, completion = log.counters, log.settings, self._sources.completion(log.name).status()
        return SourceStatus(
            messages=counters.messages,
            message_bytes=counters.message_bytes,
            duplicates=counters.duplicates,
            acks_await_pipelines=completion.awaits_pipelines,
            released=completion.released,
            acknowledged=completion.acknowledged,
            waiting_bytes=completion.waiting_bytes,
            segments=log.segments,
            sessions=len(log.sessions),
            credits=sum(session.credits for session in log.sessions),
            streams=len(log.streams),
            retained_bytes=log.data_segments.retained_bytes,
            has_room=log.has_room(),
            ack=settings.ack.value,
            idle_streams=len(log.streams.idle),
            has_finished=log.has_finished,
            max_disorder_seconds=settings.max_disorder_us / 1e6,
            idle_timeout_seconds=settings.idle_timeout_seconds,
            event_time_unit=settings.event_time_unit.name.lower(),
            event_time_ingest=settings.event_time_ingest,
            when_all_idle=settings.when_all_idle.value,
            has_arrival_times=log.times.are_arrival_times,
            last_event_us=log.times.last_event_us,
            silent_seconds=_silent_seconds(log),
            had_programs=log.programs_changed_us is not None,
            event_time_field=None if settings.event_time is None else settings.event_time.field,
            untimed=counters.untimed,
        )


def _stream(stream_id: int, known: KnownStream, time: int) -> StreamStatus:
    return StreamStatus(
        stream_id=stream_id,
        name=known.name,
        state=_STATES[known.standing],
        last_message_id=None if known.last_id == NOTHING_YET else known.last_id,
        event_time=_time(time),
    )


def _time(time: int) -> int | None:
    return None if time == NO_TIME else time


def _silent_seconds(log: SourceLog) -> float | None:
    times = [us for us in (log.times.last_event_us, log.programs_changed_us) if us is not None]
    return round(max(0, log.times.clock.now() - max(times)) / 1e6, 3) if times else None
