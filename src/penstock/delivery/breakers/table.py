"""Which streams may send: the breakers of every sink, each sink as a whole and by stream, and an operator's pauses.

started(stream) ──▶ every sink downstream ──opened──▶ may_send       a stream that one sink closes is stopped alone
closed · unavailable · lost · failed ─────────────▶ may not          probing after a back-off: one block is sent

Pure: time is an argument, and watchers are called with what has changed.
"""

from collections.abc import Callable, Iterable, Iterator

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.breaker import Breaker, Probe, SinkBreakers, State
from penstock.protocol.api.deployment import BreakerSpec

StreamWatcher = Callable[[StreamRef, bool], None]
"""The stream, and whether it may send now."""

SinkWatcher = Callable[[str, StreamRef | None], object]
"""The sink, and the stream whose breaker may have changed there; None: that of the whole sink."""


class Breakers:
    """A stream may send exactly while it is started, every sink downstream passes as a whole and for this stream, and
    neither is paused. Only `resume` ends a pause. Watchers are called after the change, each once.
    """

    def __init__(self) -> None:
        self.stream_watchers: list[StreamWatcher] = []
        self.sink_watchers: list[SinkWatcher] = []
        self._sinks: dict[str, SinkBreakers] = {}
        self._downstream: dict[StreamRef, frozenset[str]] = {}
        """The sinks of all started streams."""
        self._paused: set[str] = set()
        self._paused_streams: set[StreamRef] = set()
        self._sending: set[StreamRef] = set()

    # Sinks that are deployed.

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
        for stream in self.streams_to(sink):
            self._add(sink, stream)
        self._sink_changed(sink)

    def remove(self, sink: str) -> None:
        """It is no longer deployed; streams that lead to it wait until they are linked elsewhere."""
        self._sinks.pop(sink, None)
        self._sink_changed(sink)

    # Signals of sources.

    def started(self, stream: StreamRef, sinks: Iterable[str]) -> None:
        """A stream that continues, or starts again before it was forgotten, keeps the state of its breakers."""
        self._downstream[stream] = frozenset(sinks)
        for sink in self._downstream[stream]:
            self._add(sink, stream)
        self._streams_changed([stream])

    def ended(self, stream: StreamRef) -> None:
        """It sends no more. Its sinks still take what is stored of it, until it is `forgotten`."""
        self._downstream.pop(stream, None)
        self._streams_changed([stream])

    def relinked(
        self,
        connector: str,
        sinks: Iterable[str],
        stays: Callable[[str, StreamRef], bool] = lambda sink, stream: False,  # noqa: ARG005
    ) -> None:
        """Its streams lead there now: new sinks must open them, and former sinks no longer block them. Where `stays`
        holds, the former sink's breaker is kept, because it has yet to get rows of the stream.
        """
        downstream = frozenset(sinks)
        mine = self.streams_of(connector)
        for stream in mine:
            for gone in self._downstream[stream] - downstream:
                if not stays(gone, stream):
                    self._forget(gone, stream)
            self._downstream[stream] = downstream
            for sink in downstream:
                self._add(sink, stream)
        self._streams_changed(mine)

    def downstream(self, stream: StreamRef) -> frozenset[str]:
        """The sinks of a started stream."""
        return self._downstream.get(stream, frozenset())

    def streams_of(self, connector: str) -> list[StreamRef]:
        """Its started streams."""
        return [stream for stream in self._downstream if stream.connector == connector]

    def streams_to(self, sink: str) -> list[StreamRef]:
        """The started streams that lead there."""
        return [stream for stream, sinks in self._downstream.items() if sink in sinks]

    def is_started(self, stream: StreamRef) -> bool:
        return stream in self._downstream

    # Signals of sinks.

    def announced(self, sink: str, stream: StreamRef) -> None:
        """The sink is about to get `stream-started`. The stream may have ended before a restart."""
        self._add(sink, stream)

    def forgotten(self, sink: str, stream: StreamRef) -> None:
        """The sink gets `stream-closed`."""
        self._forget(sink, stream)
        self._streams_changed([stream])

    def opened(self, sink: str, stream: StreamRef) -> None:
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.reset()
            self._stream_changed(sink, stream)

    def closed(self, sink: str, stream: StreamRef, reason: str) -> None:
        """Until it is `opened`, without a probe."""
        breaker = self._breaker(sink, stream)
        if breaker is not None:
            breaker.trip(reason)
            self._stream_changed(sink, stream)

    def available(self, sink: str) -> None:
        """As a whole: a stream that it has closed, or not opened yet, stays tripped."""
        found = self._sinks.get(sink)
        if found is not None:
            found.reset_whole()
            self._sink_changed(sink)

    def unavailable(self, sink: str, reason: str) -> None:
        """As a whole, until it is `available`, without a probe."""
        found = self._sinks.get(sink)
        if found is not None:
            found.trip_whole(reason)
            self._sink_changed(sink)

    def lost(self, sink: str, reason: str, now: float) -> None:
        """As a whole: a probe is due after the back-off, unless it was tripped before."""
        found = self._sinks.get(sink)
        if found is not None:
            found.trip_whole_after_failure(reason, now)
            self._sink_changed(sink)

    def failed(self, sink: str, stream: StreamRef, reason: str, now: float, *, probe: bool = True) -> bool:
        """Trip the stream's breaker; with `probe`, a probe is due after the back-off. More failing streams than the
        sink's policy allows trip the whole sink; then return True.
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
        self.lost(sink, f"{too_often}, the last one: {reason}", now)
        return True

    def delivered(self, sink: str, stream: StreamRef | None) -> None:
        """The sink has taken something of this stream; if that was a probe, it has succeeded."""
        found = self._sinks.get(sink)
        if found is None:
            return
        was_tripped = found.stream_refusal(stream) is not None
        if found.delivered(stream):
            self._sink_changed(sink)
        if stream is not None and was_tripped and found.stream_refusal(stream) is None:
            self._stream_changed(sink, stream)

    def nothing_to_probe(self, sink: str, stream: StreamRef | None) -> None:
        """There are no rows to make the probe with: the breaker passes, and the back-off continues with the next
        failure.
        """
        found = self._sinks.get(sink)
        breaker = None if found is None else found.whole if stream is None else found.streams.get(stream)
        if breaker is not None and breaker.state is State.PROBING:
            breaker.reset()
            self._sink_changed(sink)

    # Probes.

    def tick(self, now: float) -> list[tuple[str, StreamRef | None]]:
        """The probes that begin now: the sink, and the stream or None for the whole sink. Each sink has one at a time,
        until `delivered`, `lost`, `failed` or `nothing_to_probe`.
        """
        begun = [(name, sink.begin_probe(now)) for name, sink in self._sinks.items() if name not in self._paused]
        found = [(name, probe[0]) for name, probe in begun if probe is not None]
        for name, stream in found:
            self._notify(name, stream)
        return found

    def due(self) -> float | None:
        """When `tick` is needed next, if nothing else happens."""
        dues = (sink.due() for name, sink in self._sinks.items() if name not in self._paused)
        return min((at for at in dues if at is not None), default=None)

    def probe(self, sink: str) -> Probe | None:
        """The current probe."""
        found = self._sinks.get(sink)
        return None if found is None else found.probe()

    # Pauses by an operator.

    def pause(self, connector: str, stream_id: int | None = None) -> None:
        """One stream, or the whole connector: then nothing goes in or out. The connector may be deployed later."""
        if stream_id is None:
            self._paused.add(connector)
        else:
            self._paused_streams.add(StreamRef(connector, stream_id))
        self._pause_changed(connector)

    def resume(self, connector: str, stream_id: int | None = None) -> None:
        """Ends the same pause: resuming the whole connector leaves the pauses of its streams."""
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
        """All of them."""
        whole: list[tuple[str, int | None]] = [(name, None) for name in sorted(self._paused)]
        return whole + [(ref.connector, ref.stream_id) for ref in sorted(self._paused_streams)]

    def is_paused(self, connector: str) -> bool:
        return connector in self._paused

    # Questions.

    def may_send(self, stream: StreamRef) -> bool:
        return stream in self._sending

    def why(self, stream: StreamRef) -> str:
        """What blocks it, in one sentence; empty if nothing does."""
        return "; ".join(self._reasons(stream))

    def takes(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may get rows of the stream, or of none; without regard to probes."""
        return self.refusal(sink, stream) is None

    def refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why not."""
        return self.sink_refusal(sink) or self.stream_refusal(sink, stream)

    def sink_refusal(self, sink: str) -> str | None:
        """Why the sink takes nothing at all; None if it passes."""
        found = self._sinks.get(sink)
        if found is None:
            return "it is not deployed"
        return "an operator has paused it" if sink in self._paused else found.whole.reason

    def stream_refusal(self, sink: str, stream: StreamRef | None) -> str | None:
        """Why the sink does not take this stream, whatever the state of the whole sink."""
        found = self._sinks.get(sink)
        return None if found is None else found.stream_refusal(stream)

    def admits(self, sink: str, stream: StreamRef | None) -> bool:
        """Whether the sink may get one block of the stream now: it passes, or this is the probe."""
        if self.takes(sink, stream):
            return True
        probe = None if sink in self._paused else self.probe(sink)
        if probe is None:
            return False
        return self.stream_refusal(sink, stream) is None if probe == (None,) else probe == (stream,)

    def state(self, sink: str) -> str:
        """Of the sink as a whole: passing, tripped or probing; "" if there is no such sink."""
        found = self._sinks.get(sink)
        return "" if found is None else found.whole.state.value

    def tripped_streams(self, sink: str) -> dict[StreamRef, str]:
        """The streams whose breaker at this sink does not pass, and why."""
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

    def _add(self, sink: str, stream: StreamRef) -> None:
        found = self._sinks.get(sink)
        if found is not None:
            found.add(stream)

    def _forget(self, sink: str, stream: StreamRef) -> None:
        found = self._sinks.get(sink)
        if found is not None:
            found.forget(stream)

    def _stream_changed(self, sink: str, stream: StreamRef) -> None:
        self._streams_changed([stream])
        self._notify(sink, stream)

    def _sink_changed(self, sink: str) -> None:
        self._streams_changed(self.streams_to(sink))
        self._notify(sink, None)

    def _notify(self, sink: str, stream: StreamRef | None) -> None:
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
