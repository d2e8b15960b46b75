"""One breaker, and the breakers of one sink: its own, and one for each stream that leads to it.

passing ──trip──▶ tripped ──due, begin_probe──▶ probing ──delivered──▶ passing
                     ▲                             │
                     └──────────── trip ◀──────────┘
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from penstock.connectors.api import StreamRef
from penstock.core.retry import RetryPolicy
from penstock.protocol.api.deployment import BreakerSpec

UNOPENED = "it has not opened the stream yet"

Probe = tuple[StreamRef | None]
"""`(None,)` for the breaker of the whole sink, `(stream,)` for that of a stream."""

_DUES_SLACK = 100
"""Outdated entries that the heap of probes may keep, beyond twice the number of streams."""


class State(Enum):
    PASSING = "passing"
    TRIPPED = "tripped"
    PROBING = "probing"
    """One block is sent to find out whether the sink accepts it."""


@dataclass(slots=True)
class Breaker:
    """Passing while there is no `reason`."""

    reason: str | None = None
    due: float | None = None
    """When a probe may begin. None: there is no probe, `reset` is called from outside."""
    is_probing: bool = False
    trips: int = 0
    """Failures since something was delivered: each doubles the back-off."""

    @property
    def state(self) -> State:
        if self.reason is None:
            return State.PASSING
        return State.PROBING if self.is_probing else State.TRIPPED

    @property
    def is_passing(self) -> bool:
        return self.reason is None

    def reset(self) -> None:
        self.reason, self.due, self.is_probing = None, None, False

    def trip(self, reason: str) -> None:
        """Trip until `reset`, without a probe: the caller knows when it may pass again."""
        self.reason, self.due, self.is_probing = reason, None, False

    def trip_after_failure(self, reason: str, now: float, spec: BreakerSpec, *, adds_probe: bool = False) -> None:
        """Trip, with a probe after the back-off. A breaker that is already tripped stays as it is; with `adds_probe`,
        it gets a probe if none is due.
        """
        if self.state is State.TRIPPED and not (adds_probe and self.due is None):
            return
        self.trips += 1
        wait = RetryPolicy(spec.probe_after_seconds, spec.probe_after_seconds_max, jitter=0.0).pause(self.trips)
        self.reason, self.due, self.is_probing = reason, now + wait, False

    def begin_probe(self, now: float) -> bool:
        """Return whether it was due."""
        if self.due is None or now < self.due:
            return False
        self.due, self.is_probing = None, True
        return True

    def defer_probe(self) -> None:
        """The probe cannot be made now; it is due as soon as it can be."""
        if self.is_probing:
            self.due, self.is_probing = 0.0, False

    def delivered(self) -> bool:
        """The sink has accepted something: the back-off starts over. Return whether that was the probe."""
        if self.is_probing:
            self.reset()
            self.trips = 0
            return True
        if self.is_passing:
            self.trips = 0
        return False


@dataclass(slots=True)
class SinkBreakers:
    spec: BreakerSpec
    per_stream: bool
    """Whether the sink opens each stream separately; otherwise all of them pass."""
    whole: Breaker
    streams: dict[StreamRef, Breaker] = field(default_factory=dict)
    """Breakers of all announced streams, until they are forgotten."""
    _probed: StreamRef | None = None
    """The stream whose probe began last."""
    _dues: list[tuple[float, StreamRef]] = field(default_factory=list)
    """A heap: when probes of streams are due. Outdated entries are skipped."""
    _failures: OrderedDict[StreamRef, float] = field(default_factory=OrderedDict)
    """When each stream failed last, oldest first."""

    def add(self, stream: StreamRef) -> None:
        if self.per_stream:
            self.streams.setdefault(stream, Breaker(UNOPENED))

    def forget(self, stream: StreamRef) -> None:
        self.streams.pop(stream, None)
        self._failures.pop(stream, None)

    def reset_whole(self) -> None:
        self.whole.reset()
        self.whole.trips = 0
        self._failures.clear()

    def trip_whole(self, reason: str) -> None:
        self.whole.trip(reason)
        self._defer_stream_probe()

    def trip_whole_after_failure(self, reason: str, now: float) -> None:
        self.whole.trip_after_failure(reason, now, self.spec)
        self._defer_stream_probe()

    def _defer_stream_probe(self) -> None:
        """Nothing can be sent while the whole sink's breaker is tripped."""
        if self._probed is not None and self._is_probing(self._probed):
            self.streams[self._probed].defer_probe()
            self._schedule(self._probed)

    def trip_stream(self, stream: StreamRef, reason: str, now: float) -> None:
        breaker = self.streams.get(stream)
        if breaker is not None:
            breaker.trip_after_failure(reason, now, self.spec, adds_probe=True)
            self._schedule(stream)

    def fails_too_often(self, stream: StreamRef, now: float) -> str | None:
        """Count a failure of this stream. Over the limit: return a sentence, and start counting from scratch."""
        limit, within = self.spec.failing_streams, self.spec.within_seconds
        if limit is None:
            return None
        self._failures[stream] = now
        self._failures.move_to_end(stream)
        while now - next(iter(self._failures.values())) > within:
            self._failures.popitem(last=False)
        count = len(self._failures)
        if count < limit:
            return None
        self._failures.clear()
        return f"{count} of its streams failed within {within:g} s"

    def delivered(self, stream: StreamRef | None) -> bool:
        """Return whether this was the probe of the whole sink, which now passes."""
        breaker = None if stream is None else self.streams.get(stream)
        if breaker is not None:
            breaker.delivered()
        if self.whole.delivered():
            self._failures.clear()
            return True
        return False

    def stream_refusal(self, stream: StreamRef | None) -> str | None:
        """Why the stream's own breaker does not pass."""
        if stream is None or not self.per_stream:
            return None
        breaker = self.streams.get(stream)
        return UNOPENED if breaker is None else breaker.reason

    # Probes.

    def probe(self) -> Probe | None:
        """The current probe."""
        if self.whole.is_probing:
            return (None,)
        return (self._probed,) if self._probed is not None and self._is_probing(self._probed) else None

    def begin_probe(self, now: float) -> Probe | None:
        """The probe that is due, if there is none at the moment."""
        if self.probe() is not None:
            return None
        if not self.whole.is_passing:
            return (None,) if self.whole.begin_probe(now) else None
        stream = self._next_due()
        if stream is None or not self.streams[stream].begin_probe(now):
            return None
        self._probed = stream
        return (stream,)

    def due(self) -> float | None:
        """When the next probe is due, if nothing else happens."""
        if self.probe() is not None:
            return None
        if not self.whole.is_passing:
            return self.whole.due
        stream = self._next_due()
        return None if stream is None else self.streams[stream].due

    def _is_probing(self, stream: StreamRef) -> bool:
        breaker = self.streams.get(stream)
        return breaker is not None and breaker.is_probing

    def _schedule(self, stream: StreamRef) -> None:
        at = self.streams[stream].due
        if at is not None:
            heappush(self._dues, (at, stream))
        if len(self._dues) > 2 * len(self.streams) + _DUES_SLACK:
            self._dues = [entry for entry in dict.fromkeys(self._dues) if self._is_due(*entry)]
            heapify(self._dues)

    def _next_due(self) -> StreamRef | None:
        """The stream whose probe is due first."""
        while self._dues and not self._is_due(*self._dues[0]):
            heappop(self._dues)
        return self._dues[0][1] if self._dues else None

    def _is_due(self, at: float, stream: StreamRef) -> bool:
        breaker = self.streams.get(stream)
        return breaker is not None and breaker.due == at
