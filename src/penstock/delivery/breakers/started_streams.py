"""Decides which streams may send, from the started streams and the sinks that each of them leads to.

started(stream) ──▶ every sink downstream ──opened──▶ may_send       a stream that one sink closes is stopped alone

Pure, like the breakers that it watches.
"""

from collections.abc import Callable, Iterable, Iterator

from penstock.connectors.api import StreamRef
from penstock.delivery.breakers.table import Breakers

StreamWatcher = Callable[[StreamRef, bool], None]
"""The stream, and whether it may send now."""


class StartedStreams:
    """A stream may send exactly while it is started, every sink downstream passes as a whole and for this stream, and
    neither is paused. Watchers are called after the change, once for each stream that may send now or no longer may.
    """

    def __init__(self, breakers: Breakers) -> None:
        self.watchers: list[StreamWatcher] = []
        self._breakers = breakers
        self._downstream: dict[StreamRef, frozenset[str]] = {}
        """The sinks of all started streams."""
        self._sending: set[StreamRef] = set()
        breakers.watchers.append(self._breaker_changed)

    # Signals of sources.

    def started(self, stream: StreamRef, sinks: Iterable[str]) -> None:
        """A stream that continues, or starts again before it was forgotten, keeps the state of its breakers."""
        self._link(stream, frozenset(sinks))
        self._update([stream])

    def ended(self, stream: StreamRef) -> None:
        """It sends no more. Its sinks still accept its stored rows, until it is `forgotten`."""
        self._downstream.pop(stream, None)
        self._update([stream])

    def forgotten(self, sink: str, stream: StreamRef) -> None:
        """The sink gets `stream-closed`: its breaker for the stream is removed."""
        self._breakers.forget(sink, stream)
        self._update([stream])

    def relinked(
        self,
        connector: str,
        sinks: Iterable[str],
        stays: Callable[[str, StreamRef], bool] = lambda sink, stream: False,  # noqa: ARG005
    ) -> None:
        """Its streams lead to these sinks now: new sinks must open them, and former sinks no longer block them. If
        `stays` is true, the former sink's breaker stays, because rows of the stream still have to be delivered to it.
        """
        downstream = frozenset(sinks)
        mine = self.streams_of(connector)
        for stream in mine:
            for gone in self._downstream[stream] - downstream:
                if not stays(gone, stream):
                    self._breakers.forget(gone, stream)
            self._link(stream, downstream)
        self._update(mine)

    def _link(self, stream: StreamRef, sinks: frozenset[str]) -> None:
        self._downstream[stream] = sinks
        for sink in sinks:
            self._breakers.add(sink, stream)

    # Queries.

    def is_started(self, stream: StreamRef) -> bool:
        return stream in self._downstream

    def downstream(self, stream: StreamRef) -> frozenset[str]:
        """The sinks of a started stream."""
        return self._downstream.get(stream, frozenset())

    def streams_of(self, connector: str) -> list[StreamRef]:
        """Its started streams."""
        return [stream for stream in self._downstream if stream.connector == connector]

    def streams_to(self, sink: str) -> list[StreamRef]:
        """The started streams that lead there."""
        return [stream for stream, sinks in self._downstream.items() if sink in sinks]

    def may_send(self, stream: StreamRef) -> bool:
        return stream in self._sending

    def why(self, stream: StreamRef) -> str:
        """What blocks it, in one sentence; empty if nothing does."""
        return "; ".join(self._reasons(stream))

    def _reasons(self, stream: StreamRef) -> Iterator[str]:
        if stream not in self._downstream:
            yield "it is not started"
            return
        pauses = self._breakers.pauses
        if pauses.is_paused(stream.connector):
            yield f"an operator has paused {stream.connector}"
        if pauses.is_paused(stream.connector, stream.stream_id):
            yield "an operator has paused the stream"
        for sink in sorted(self._downstream[stream]):
            refusal = self._breakers.refusal(sink, stream)
            if refusal is not None and not (sink == stream.connector and pauses.is_paused(sink)):
                yield f"sink {sink}: {refusal}"

    # Changes.

    def _breaker_changed(self, connector: str, stream: StreamRef | None) -> None:
        """A breaker has changed. Without a stream, the connector may be a new sink without breakers, or an operator has
        paused or resumed it, which affects the streams from it and to it.
        """
        if stream is not None:
            self._update([stream])
            return
        incoming = self.streams_to(connector)
        for one in incoming:
            self._breakers.add(connector, one)
        self._update([*self.streams_of(connector), *incoming])

    def _update(self, streams: Iterable[StreamRef]) -> None:
        changed = []
        for stream in streams:
            may_send = next(self._reasons(stream), None) is None
            if may_send != (stream in self._sending):
                (self._sending.add if may_send else self._sending.discard)(stream)
                changed.append((stream, may_send))
        for stream, may_send in changed:
            for watcher in self.watchers:
                watcher(stream, may_send)
