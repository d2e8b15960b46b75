"""The breakers of one sink: of itself as a whole, and of each stream that it was told of."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.config.deployment import BreakerSpec
from penstock.connectors.api import StreamRef
from penstock.hosting.breaker import Breaker

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
    _tripped: dict[StreamRef, Breaker] = field(default_factory=dict)
    """Those that may have a probe before them: few of many."""
    _failures: dict[StreamRef, float] = field(default_factory=dict)
    """When a stream has failed last."""

    def await_stream(self, stream: StreamRef) -> None:
        if self.per_stream:
            self.streams.setdefault(stream, Breaker(UNOPENED))

    def forget(self, stream: StreamRef) -> None:
        for known in (self.streams, self._tripped, self._failures):
            known.pop(stream, None)

    def open_whole(self) -> None:
        self.whole.open()
        self.whole.proved()
        self._failures.clear()

    def close_whole(self, reason: str) -> None:
        self.whole.close(reason)
        self._defer_probes()

    def trip_whole(self, reason: str, now: float) -> None:
        self.whole.trip(reason, now, self.spec)
        self._defer_probes()

    def _defer_probes(self) -> None:
        """Of streams: nothing goes out as long as the whole is closed."""
        for breaker in self._tripped.values():
            breaker.defer_probe()

    def trip_stream(self, stream: StreamRef, reason: str, now: float) -> None:
        breaker = self.streams.get(stream)
        if breaker is not None:
            breaker.trip(reason, now, self.spec, is_told=True)
            self._tripped[stream] = breaker

    def fails_too_often(self, stream: StreamRef, now: float) -> str | None:
        """With this stream that has failed now. In words, when it is one too many; then the count begins anew."""
        limit, within = self.spec.failing_streams, self.spec.within_seconds
        self._failures[stream] = now
        self._failures = {one: at for one, at in self._failures.items() if now - at <= within}
        count = len(self._failures)
        if limit is None or count < limit:
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
        return next(((stream,) for stream, breaker in self._tripped.items() if breaker.is_half_open), None)

    def begin_probe(self, now: float) -> Probe | None:
        """The one that is due, if none goes on."""
        if self.probe() is not None:
            return None
        if not self.whole.is_open:
            return (None,) if self.whole.begin_probe(now) else None
        return next(((stream,) for stream, breaker in self._tripped.items() if breaker.begin_probe(now)), None)

    def dues(self) -> Iterator[float]:
        """When a probe is due, if nothing else happens."""
        if self.probe() is not None:
            return
        self._tripped = {stream: breaker for stream, breaker in self._tripped.items() if breaker.due is not None}
        breakers = [*self._tripped.values()] if self.whole.is_open else [self.whole]
        yield from (breaker.due for breaker in breakers if breaker.due is not None)
