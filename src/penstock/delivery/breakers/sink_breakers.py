"""The breakers of one sink: of itself as a whole, and of each stream that it was told of."""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from penstock.config.deployment import BreakerSpec
from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.breaker import Breaker

UNOPENED = "it has not opened the stream yet"

Probe = tuple[StreamRef | None]
"""Of the sink as a whole `(None,)`, of a stream `(stream,)`."""


@dataclass(slots=True)
class SinkBreakers:
    spec: BreakerSpec
    per_stream: bool
    """Else it has opened every stream there will be."""
    whole: Breaker
    streams: dict[StreamRef, Breaker] = field(default_factory=dict)
    """Of all that it was told of, until they are forgotten."""
    _probed: StreamRef | None = None
    """The stream whose probe began last."""
    _dues: list[tuple[float, StreamRef]] = field(default_factory=list)
    """A heap: when probes of streams are due. What is not due then any more is passed over."""
    _failures: OrderedDict[StreamRef, float] = field(default_factory=OrderedDict)
    """When a stream has failed last, in that order."""

    def await_stream(self, stream: StreamRef) -> None:
        if self.per_stream:
            self.streams.setdefault(stream, Breaker(UNOPENED))

    def forget(self, stream: StreamRef) -> None:
        self.streams.pop(stream, None)
        self._failures.pop(stream, None)

    def open_whole(self) -> None:
        self.whole.open()
        self.whole.proved()
        self._failures.clear()

    def close_whole(self, reason: str) -> None:
        self.whole.close(reason)
        self._defer_probe()

    def trip_whole(self, reason: str, now: float) -> None:
        self.whole.trip(reason, now, self.spec)
        self._defer_probe()

    def _defer_probe(self) -> None:
        """Of a stream: nothing goes out as long as the whole is closed."""
        if self._probed is not None and self._is_half_open(self._probed):
            self.streams[self._probed].defer_probe()
            self._await_due(self._probed)

    def trip_stream(self, stream: StreamRef, reason: str, now: float) -> None:
        breaker = self.streams.get(stream)
        if breaker is not None:
            breaker.trip(reason, now, self.spec, is_told=True)
            self._await_due(stream)

    def fails_too_often(self, stream: StreamRef, now: float) -> str | None:
        """With this stream that has failed now. In words, when it is one too many; then the count begins anew."""
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
        """Whether this was the probe of the whole, so that it is open now."""
        breaker = None if stream is None else self.streams.get(stream)
        if breaker is not None:
            breaker.delivered()
        if self.whole.delivered():
            self._failures.clear()
            return True
        return False

    def refusal(self, stream: StreamRef | None) -> str | None:
        """Of this stream, whatever the whole is."""
        if stream is None or not self.per_stream:
            return None
        breaker = self.streams.get(stream)
        return UNOPENED if breaker is None else breaker.reason

    # Probes.

    def probe(self) -> Probe | None:
        """The one that goes on."""
        if self.whole.is_half_open:
            return (None,)
        return (self._probed,) if self._probed is not None and self._is_half_open(self._probed) else None

    def begin_probe(self, now: float) -> Probe | None:
        """The one that is due, if none goes on."""
        if self.probe() is not None:
            return None
        if not self.whole.is_open:
            return (None,) if self.whole.begin_probe(now) else None
        stream = self._next_due()
        if stream is None or not self.streams[stream].begin_probe(now):
            return None
        self._probed = stream
        return (stream,)

    def due(self) -> float | None:
        """When a probe is due, if nothing else happens."""
        if self.probe() is not None:
            return None
        if not self.whole.is_open:
            return self.whole.due
        stream = self._next_due()
        return None if stream is None else self.streams[stream].due

    def _is_half_open(self, stream: StreamRef) -> bool:
        breaker = self.streams.get(stream)
        return breaker is not None and breaker.is_half_open

    def _await_due(self, stream: StreamRef) -> None:
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


_DUES_SLACK = 100
"""Probes that are not due any more, and are still remembered, whatever the number of streams."""
