"""Which stream may send: a set of breakers for each sink and stream, the sink's as a whole, and an operator's pauses.

started(stream) ──▶ every sink downstream ──opened──▶ may_send        a stream that one sink closes is kept back alone
closed · all_closed · lost · failed ──────────────▶ not               half-open after a back-off: one block as a probe

Pure: time is an argument, and what has changed is told to whoever watches.
"""

from collections.abc import Callable, Iterable, Iterator

from penstock.config.deployment import BreakerSpec
from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.breaker import Breaker
from penstock.delivery.breakers.sink_breakers import Probe, SinkBreakers

StreamWatcher = Callable[[StreamRef, bool], None]
"""The stream, and whether it may send now."""

SinkWatcher = Callable[[str, StreamRef | None], object]
"""The sink, and the stream whose breaker may have changed there, or None: what it takes, or that a probe is due."""


class Breakers:
    """A stream may send exactly while it is started, every sink downstream is open as a whole and has opened this
    stream, and neither is paused. A pause ends by `resume` alone. Watchers are called after the change, each once.
    """

    def __init__(self) -> None:
        self.stream_watchers: list[StreamWatcher] = []
        self.sink_watchers: list[SinkWatcher] = []
        self._sinks: dict[str, SinkBreakers] = {}
        self._downstream: dict[StreamRef, frozenset[str]] = {}
        """Of all streams that are started."""
        self._paused: set[str] = set()
        self._paused_streams: set[StreamRef] = set()
        self._sending: set[StreamRef] = set()

    # The sinks there are.

    def configure(self, sink: str, spec: BreakerSpec, *, per_stream: bool = True, is_open: bool = False) -> None:
        """A sink, or another policy for one. Without `per_stream` it has opened every stream there will be."""
        known = self._sinks.get(sink)
        if known is None:
            self._sinks[sink] = SinkBreakers(spec, per_stream, Breaker(None if is_open else "it is not connected yet"))
        else:
            known.spec, known.per_stream = spec, per_stream
        for stream in self.streams_to(sink):
            self._await(sink, stream)
        self._sink_changed(sink)

    def remove(self, sink: str) -> None:
        """It is deployed no more; streams that need it wait, until they are linked otherwise."""
        self._sinks.pop(sink, None)
        self._sink_changed(sink)

    # What sources say.

    def started(self, stream: StreamRef, sinks: Iterable[str]) -> None:
        """Of one that goes on, or begins again before it was forgotten: what sinks have said of it stays."""
        self._downstream[stream] = frozenset(sinks)
        for sink in self._downstream[stream]:
            self._await(sink, stream)
        self._streams_changed([stream])

    def ended(self, stream: StreamRef) -> None:
        """It sends no more. Its sinks go on to take what is stored of it, until it is `forgotten`."""
        self._downstream.pop(stream, None)
        self._streams_changed([stream])

    def relinked(
        self,
        connector: str,
        sinks: Iterable[str],
        stays: Callable[[str, StreamRef], bool] = lambda sink, stream: False,  # noqa: ARG005
    ) -> None:
        """Its streams lead there now: new sinks have to open them, and those that are none any more hold nothing.
        What such a sink has said of a stream `stays`, where it is still to be given something of it.
        """
        downstream = frozenset(sinks)
        mine = self.streams_of(connector)
        for stream in mine:
            for gone in self._downstream[stream] - downstream:
                if not stays(gone, stream):
                    self._forget(gone, stream)
            self._downstream[stream] = downstream
            for sink in downstream:
                self._await(sink, stream)
        self._streams_changed(mine)

    def downstream(self, stream: StreamRef) -> frozenset[str]:
        """The sinks of a stream that is started."""
        return self._downstream.get(stream, frozenset())

    def streams_of(self, connector: str) -> list[StreamRef]:
        """Those that are started."""
        return [stream for stream in self._downstream if stream.connector == connector]

    def streams_to(self, sink: str) -> list[StreamRef]:
        """Those that are started and lead there."""
        return [stream for stream, sinks in self._downstream.items() if sink in sinks]

    def is_started(self, stream: StreamRef) -> bool:
        return stream in self._downstream

    # What sinks say.

    def awaited(self, sink: str, stream: StreamRef) -> None:
        """The sink is about to be told of a stream, which need not be started: it may have ended before a restart."""
        self._await(sink, stream)

    def forgotten(self, sink: str, stream: StreamRef) -> None:
        """The sink was told of its end."""
        self._forget(sink, stream)
        self._streams_changed([stream])

    def opened(self, sink: str, stream: StreamRef) -> None:
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.open()
            self._stream_changed(sink, stream)

    def closed(self, sink: str, stream: StreamRef, reason: str) -> None:
        """Until it is opened; there is no probe."""
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.close(reason)
            self._stream_changed(sink, stream)

    def all_opened(self, sink: str) -> None:
        """As a whole: a stream that it has closed, or not opened yet, stays so."""
        found = self._sinks.get(sink)
        if found is not None:
            found.open_whole()
            self._sink_changed(sink)

    def all_closed(self, sink: str, reason: str) -> None:
        """Until `all_opened`; there is no probe."""
        found = self._sinks.get(sink)
        if found is not None:
            found.close_whole(reason)
            self._sink_changed(sink)

    def lost(self, sink: str, reason: str, now: float) -> None:
        """As `all_closed`, by itself: a probe is due after the back-off, unless it was closed before."""
        found = self._sinks.get(sink)
        if found is not None:
            found.trip_whole(reason, now)
            self._sink_changed(sink)

    def failed(self, sink: str, stream: StreamRef, reason: str, now: float, *, probe: bool = True) -> bool:
        """As `closed`, by itself, with a probe. So many of them within so many seconds close the whole sink, as its
        policy says; then True.
        """
        found = self._sinks.get(sink)
        if found is None:
            return False
        if probe:
            found.trip_stream(stream, reason, now)
            self._stream_changed(sink, stream)
        else:
            self.closed(sink, stream, reason)
        too_often = found.fails_too_often(stream, now)
        if too_often is None:
            return False
        self.lost(sink, f"{too_often}, at last: {reason}", now)
        return True

    def delivered(self, sink: str, stream: StreamRef | None) -> None:
        """It has taken something of this stream: a probe has succeeded, if it was one."""
        found = self._sinks.get(sink)
        if found is None:
            return
        is_closed = found.refusal(stream) is not None
        if found.delivered(stream):
            self._sink_changed(sink)
        if stream is not None and is_closed and found.refusal(stream) is None:
            self._stream_changed(sink, stream)

    def unproved(self, sink: str, stream: StreamRef | None) -> None:
        """There is nothing that a probe could be made with: it is opened, and the next failure waits as long as one
        after a probe.
        """
        found = self._sinks.get(sink)
        breaker = None if found is None else found.whole if stream is None else found.streams.get(stream)
        if breaker is not None and breaker.is_half_open:
            breaker.open()
            self._sink_changed(sink)

    # Probes.

    def tick(self, now: float) -> list[tuple[str, StreamRef | None]]:
        """The probes that begin now: the sink, and the stream if it is not for the whole. One at a time for each sink:
        until it was `delivered`, `lost`, `failed` or found `unproved`.
        """
        begun = [(name, sink.begin_probe(now)) for name, sink in self._sinks.items() if name not in self._paused]
        found = [(name, probe[0]) for name, probe in begun if probe is not None]
        for name, stream in found:
            self._tell(name, stream)
        return found

    def due(self) -> float | None:
        """When `tick` has something to do next, if nothing else happens."""
        dues = (sink.due() for name, sink in self._sinks.items() if name not in self._paused)
        return min((at for at in dues if at is not None), default=None)

    def probe(self, sink: str) -> Probe | None:
        """The probe that goes on, if there is one."""
        found = self._sinks.get(sink)
        return None if found is None else found.probe()

    # What operators say.

    def pause(self, connector: str, stream_id: int | None = None) -> None:
        """A stream of it; or the whole: nothing goes in through it, and nothing out. Also one that comes later."""
        if stream_id is None:
            self._paused.add(connector)
        else:
            self._paused_streams.add(StreamRef(connector, stream_id))
        self._pause_changed(connector)

    def resume(self, connector: str, stream_id: int | None = None) -> None:
        """Each pause by its own resume: that of the whole leaves those of streams."""
        if stream_id is None:
            self._paused.discard(connector)
        else:
            self._paused_streams.discard(StreamRef(connector, stream_id))
        self._pause_changed(connector)

    def _pause_changed(self, connector: str) -> None:
        self._streams_changed(self.streams_of(connector))
        self._sink_changed(connector)

    @property
    def pauses(self) -> list[tuple[str, int | None]]:
        """All of them, for whoever keeps them."""
        whole: list[tuple[str, int | None]] = [(name, None) for name in sorted(self._paused)]
        return whole + [(ref.connector, ref.stream_id) for ref in sorted(self._paused_streams)]

    def is_paused(self, connector: str) -> bool:
        return connector in self._paused

    # Questions.

    def may_send(self, stream: StreamRef) -> bool:
        return stream in self._sending

    def why(self, stream: StreamRef) -> str:
        """Who keeps it from sending, in one sentence; empty if nobody does."""
        return "; ".join(self._reasons(stream))

    def takes(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may be given events of the stream, or of none; a probe is another question."""
        return self.refusal(sink, stream) is None

    def refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why not."""
        return self.whole(sink) or self.own_refusal(sink, stream)

    def whole(self, sink: str) -> str | None:
        """Why the sink takes nothing at all; None if it is open."""
        found = self._sinks.get(sink)
        if found is None:
            return "it is not deployed"
        return "an operator has paused it" if sink in self._paused else found.whole.reason

    def own_refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why it does not take this stream's events, though it may be open as a whole."""
        found = self._sinks.get(sink)
        return None if found is None else found.refusal(stream)

    def admits(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may be given one block of the stream now: it takes it, or this is the probe."""
        if self.takes(sink, stream):
            return True
        probe = None if sink in self._paused else self.probe(sink)
        if probe is None:
            return False
        return self.own_refusal(sink, stream) is None if probe == (None,) else probe == (stream,)

    def closed_streams(self, sink: str) -> dict[StreamRef, str]:
        """Those that this sink alone keeps back, and why."""
        found = self._sinks.get(sink)
        breakers = {} if found is None else found.streams
        return {stream: breaker.reason for stream, breaker in breakers.items() if breaker.reason is not None}

    def _reasons(self, stream: StreamRef) -> Iterator[str]:
        if stream not in self._downstream:
            yield "it is not started"
            return
        if stream.connector in self._paused:
            yield f"an operator has paused {stream.connector}"
        if stream in self._paused_streams:
            yield "an operator has paused the stream"
        for sink in sorted(self._downstream[stream]):
            refusal = self.refusal(sink, stream)
            if refusal is not None and not (sink == stream.connector and sink in self._paused):
                yield f"sink {sink}: {refusal}"

    # Changes.

    def _breaker(self, sink: str, stream: StreamRef) -> Breaker | None:
        found = self._sinks.get(sink)
        return None if found is None else found.streams.get(stream)

    def _await(self, sink: str, stream: StreamRef) -> None:
        found = self._sinks.get(sink)
        if found is not None:
            found.await_stream(stream)

    def _forget(self, sink: str, stream: StreamRef) -> None:
        found = self._sinks.get(sink)
        if found is not None:
            found.forget(stream)

    def _stream_changed(self, sink: str, stream: StreamRef) -> None:
        self._streams_changed([stream])
        self._tell(sink, stream)

    def _sink_changed(self, sink: str) -> None:
        self._streams_changed(self.streams_to(sink))
        self._tell(sink, None)

    def _tell(self, sink: str, stream: StreamRef | None) -> None:
        for watcher in self.sink_watchers:
            watcher(sink, stream)

    def _streams_changed(self, streams: Iterable[StreamRef]) -> None:
        changed = []
        for stream in streams:
            may_send = next(self._reasons(stream), None) is None
            if may_send != (stream in self._sending):
                (self._sending.add if may_send else self._sending.discard)(stream)
                changed.append((stream, may_send))
        for stream, may_send in changed:
            for watcher in self.stream_watchers:
                watcher(stream, may_send)
