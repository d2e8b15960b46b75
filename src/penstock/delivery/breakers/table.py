"""The breakers of every sink, each sink as a whole and by stream, and the pauses by operators.

opened · available · delivered ───────────▶ passing: the sink takes rows
closed · unavailable · lost · failed ─────▶ tripped; after a back-off probing: the sink gets one block

Pure: time is an argument. Watchers are called after each change.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from penstock.connectors.api import StreamRef
from penstock.core.retry import RetryPolicy
from penstock.protocol.api.deployment import BreakerSpec

# One breaker, and the breakers of one sink: its own, and one for each stream that leads to it.
#
#     passing ──trip──▶ tripped ──due, begin_probe──▶ probing ──delivered──▶ passing
#                          ▲                             │
#                          └──────────── trip ◀──────────┘

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


# The breakers of every sink, and pauses.

Pause = tuple[str, int | None]
"""The connector, and the id of its stream; None: the whole connector."""

SinkWatcher = Callable[[str, StreamRef | None], object]
"""The sink, and the stream whose breaker may have changed there; None: any of them, or a pause of the connector."""


class Pauses:
    """What operators have paused. Only `resume` ends a pause: no breaker does, and no change of the deployment."""

    def __init__(self, changed: Callable[[str], object]) -> None:
        self._changed = changed
        """Called with the connector."""
        self._paused: set[Pause] = set()

    def pause(self, connector: str, stream_id: int | None = None) -> None:
        """Pause one stream, or the whole connector: then nothing goes in or out. The connector may be
        deployed later.
        """
        self._paused.add((connector, stream_id))
        self._changed(connector)

    def resume(self, connector: str, stream_id: int | None = None) -> None:
        """End the same pause: resuming the whole connector does not resume streams that were paused individually."""
        self._paused.discard((connector, stream_id))
        self._changed(connector)

    def is_paused(self, connector: str, stream_id: int | None = None) -> bool:
        """Whether exactly this pause is set: a stream of a paused connector need not be paused itself."""
        return (connector, stream_id) in self._paused

    def all(self) -> list[Pause]:
        """Whole connectors first."""
        return sorted(self._paused, key=lambda pause: (pause[1] is not None, pause[0], pause[1] or 0))


class Breakers:
    """Decides which rows each sink accepts, as a whole and for each stream that leads to it. Signals of a sink that is
    not deployed have no effect.
    """

    def __init__(self) -> None:
        self.pauses = Pauses(lambda connector: self._notify(connector, None))
        self.watchers: list[SinkWatcher] = []
        self._sinks: dict[str, SinkBreakers] = {}

    # Sinks that are deployed, and their streams.

    def configure(self, sink: str, spec: BreakerSpec, *, per_stream: bool = True, is_passing: bool = False) -> None:
        """Add a sink, or change the policy of one. Without `per_stream`, all streams pass unless the whole sink is
        tripped.
        """
        known = self._sinks.get(sink)
        if known is None:
            self._sinks[sink] = SinkBreakers(
                spec, per_stream, Breaker(None if is_passing else "it is not connected yet")
            )
        else:
            known.spec, known.per_stream = spec, per_stream
        self._notify(sink, None)

    def remove(self, sink: str) -> None:
        """Remove a sink that is no longer deployed. Streams that lead to it wait until they are linked elsewhere."""
        self._sinks.pop(sink, None)
        self._notify(sink, None)

    def add(self, sink: str, stream: StreamRef) -> None:
        """The stream leads to this sink, which has to open it. An existing breaker keeps its state."""
        found = self._sinks.get(sink)
        if found is not None:
            found.add(stream)

    def forget(self, sink: str, stream: StreamRef) -> None:
        """The sink gets nothing more of the stream. Watchers are not called."""
        found = self._sinks.get(sink)
        if found is not None:
            found.forget(stream)

    # Signals of sinks.

    def opened(self, sink: str, stream: StreamRef) -> None:
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.reset()
            self._notify(sink, stream)

    def closed(self, sink: str, stream: StreamRef, reason: str) -> None:
        """Trip the stream until it is `opened`, without a probe."""
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.trip(reason)
            self._notify(sink, stream)

    def available(self, sink: str) -> None:
        """The sink as a whole passes. A stream that it has closed, or not opened yet, stays tripped."""
        found = self._sinks.get(sink)
        if found is not None:
            found.reset_whole()
            self._notify(sink, None)

    def unavailable(self, sink: str, reason: str) -> None:
        """Trip the whole sink until it is `available`, without a probe."""
        found = self._sinks.get(sink)
        if found is not None:
            found.trip_whole(reason)
            self._notify(sink, None)

    def lost(self, sink: str, reason: str, now: float) -> None:
        """Trip the whole sink, with a probe after the back-off unless it was tripped before."""
        found = self._sinks.get(sink)
        if found is not None:
            found.trip_whole_after_failure(reason, now)
            self._notify(sink, None)

    def failed(self, sink: str, stream: StreamRef, reason: str, now: float, *, probe: bool = True) -> bool:
        """Trip the stream's breaker; with `probe`, a probe is due after the back-off. More failing streams than the
        sink's policy allows trip the whole sink; then return True.
        """
        found = self._sinks.get(sink)
        if found is None:
            return False
        if probe:
            found.trip_stream(stream, reason, now)
            self._notify(sink, stream)
        else:
            self.closed(sink, stream, reason)
        too_often = found.fails_too_often(stream, now)
        if too_often is None:
            return False
        self.lost(sink, f"{too_often}, the last one: {reason}", now)
        return True

    def delivered(self, sink: str, stream: StreamRef | None) -> None:
        """The sink has accepted something of this stream; if that was a probe, it has succeeded."""
        found = self._sinks.get(sink)
        if found is None:
            return
        was_tripped = found.stream_refusal(stream) is not None
        if found.delivered(stream):
            self._notify(sink, None)
        if stream is not None and was_tripped and found.stream_refusal(stream) is None:
            self._notify(sink, stream)

    def nothing_to_probe(self, sink: str, stream: StreamRef | None) -> None:
        """There are no rows for the probe: the breaker passes, and the back-off continues with the next failure."""
        found = self._sinks.get(sink)
        breaker = None if found is None else found.whole if stream is None else found.streams.get(stream)
        if breaker is not None and breaker.state is State.PROBING:
            breaker.reset()
            self._notify(sink, None)

    # Probes.

    def tick(self, now: float) -> list[tuple[str, StreamRef | None]]:
        """The probes that begin now: the sink, and the stream or None for the whole sink. Each sink has one at a time,
        until `delivered`, `lost`, `failed` or `nothing_to_probe`.
        """
        begun = [(name, sink.begin_probe(now)) for name, sink in self._sinks.items() if not self.pauses.is_paused(name)]
        found = [(name, probe[0]) for name, probe in begun if probe is not None]
        for name, stream in found:
            self._notify(name, stream)
        return found

    def due(self) -> float | None:
        """When `tick` is needed next, if nothing else happens."""
        dues = (sink.due() for name, sink in self._sinks.items() if not self.pauses.is_paused(name))
        return min((at for at in dues if at is not None), default=None)

    def probe(self, sink: str) -> Probe | None:
        """The current probe."""
        found = self._sinks.get(sink)
        return None if found is None else found.probe()

    # Queries.

    def takes(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may get rows of the stream, or rows without a stream, regardless of probes."""
        return self.refusal(sink, stream) is None

    def refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why the sink accepts no rows of the stream; None if it does."""
        return self.sink_refusal(sink) or self.stream_refusal(sink, stream)

    def sink_refusal(self, sink: str) -> str | None:
        """Why the sink accepts nothing at all; None if it passes."""
        found = self._sinks.get(sink)
        if found is None:
            return "it is not deployed"
        return "an operator has paused it" if self.pauses.is_paused(sink) else found.whole.reason

    def stream_refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why the sink does not accept this stream, regardless of the state of the whole sink."""
        found = self._sinks.get(sink)
        return None if found is None else found.stream_refusal(stream)

    def admits(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may get one block of the stream now: it passes, or this is the probe."""
        if self.takes(sink, stream):
            return True
        probe = None if self.pauses.is_paused(sink) else self.probe(sink)
        if probe is None:
            return False
        return self.stream_refusal(sink, stream) is None if probe == (None,) else probe == (stream,)

    def state(self, sink: str) -> str:
        """The state of the whole sink: passing, tripped or probing; "" if there is no such sink."""
        found = self._sinks.get(sink)
        return "" if found is None else found.whole.state.value

    def tripped_streams(self, sink: str) -> dict[StreamRef, str]:
        """The streams whose breaker at this sink does not pass, and why."""
        found = self._sinks.get(sink)
        breakers = {} if found is None else found.streams
        return {stream: breaker.reason for stream, breaker in breakers.items() if breaker.reason is not None}

    def _breaker(self, sink: str, stream: StreamRef) -> Breaker | None:
        found = self._sinks.get(sink)
        return None if found is None else found.streams.get(stream)

    def _notify(self, sink: str, stream: StreamRef | None) -> None:
        for watcher in self.watchers:
            watcher(sink, stream)
