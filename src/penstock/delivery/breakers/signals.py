"""Signals between sources and sinks: `stream-started`, `stream-closed`, and open and close of a stream.

source ──started──▶ each sink downstream, in a task of its own ──opened──▶ Breakers ──▶ the source may send
source ──ended, completed──▶ `stream-closed`, when the sink has taken the stream's last event
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from penstock.connectors.api import Connector, Host, StreamRef
from penstock.coordinator.deliveries import Deliveries
from penstock.core.errors import PenstockError
from penstock.core.supervisor import Supervised, Supervisor
from penstock.delivery.breakers.started_streams import StartedStreams
from penstock.delivery.breakers.table import Breakers
from penstock.ingest.gate import Changed, Gate
from penstock.protocol.stored.names import Form, Source

log = logging.getLogger(__name__)

END_SECONDS = 3.0
"""How long a connector's signal handlers may take to end when it is detached."""

LOOK_SECONDS = 60.0
"""A safeguard: progress is reported, so nothing should ever wait this long without looking again."""

_STOPPED = "the application is being stopped, or started"

Passed = Callable[[str], Awaitable[None]]
"""Returns when all output from the source's events up to now has reached the sinks, through all pipelines."""

Knows = Callable[[StreamRef], bool]
"""Whether the source still has the stream: it continues, may be resumed, or its end is not complete yet."""


class AttachedSink:
    """A connector's `in` port, and the streams that were announced to it in this process."""

    def __init__(self, name: str, connector: Connector[Any], host: Host) -> None:
        self.name = name
        self.connector = connector
        self.host = host
        self.starting: dict[StreamRef, asyncio.Task[None]] = {}
        """The last `stream-started`, done or not, of every stream that was announced and is not closed."""
        self.closing: dict[StreamRef, asyncio.Task[None]] = {}
        self.failed: set[StreamRef] = set()
        """Streams whose `stream-started` failed: it is repeated instead of a probe."""
        self.has_rows: Callable[[StreamRef], bool] = lambda stream: False  # noqa: ARG005
        """Whether rows of the stream wait for this sink: then its `stream-closed` waits too."""
        self.forget: Callable[[StreamRef], None] = lambda stream: None  # noqa: ARG005
        """Called when the sink gets `stream-closed`."""


class Signals:
    """The Gate for programs and for every connector's `out` port. A sink that handles a signal slowly does not delay
    others.

    Every sink gets `stream-started` before the stream's first event and `stream-closed` after its last one; also for
    streams that started before this process did.
    """

    def __init__(
        self,
        breakers: Breakers,
        clock: Callable[[], float],
        knows: Knows = lambda stream: False,  # noqa: ARG005
        supervisor: Supervisor | None = None,
    ) -> None:
        self.breakers = breakers
        self.streams = StartedStreams(breakers)
        self.knows = knows
        """Called for streams that were not started in this process."""
        self.passed: Passed | None = None
        """Awaited before `stream-closed`; None: what a source's pipelines have completed has reached the sinks."""
        self._completed: dict[str, list[StreamRef]] = {}
        """By connector: streams whose end is complete, but may not have reached all sinks."""
        self._closing: dict[str, Supervised] = {}
        self._supervisor = supervisor or Supervisor()
        self._clock = clock
        self._links: dict[str, frozenset[str]] = {}
        self._sinks: dict[str, AttachedSink] = {}
        self._ended: set[StreamRef] = set()
        """Streams whose end is not complete yet."""
        self._waiting: dict[str, dict[tuple[str, str], str]] = {}
        """For each sink that delivery serves without an `in` port: where delivery waits for it (pipeline and sink), and
        why.
        """

    # Sinks and links that are deployed.

    def attach(self, name: str, connector: Connector[Any], host: Host) -> AttachedSink:
        """Announce the streams that lead to the sink, now and when they start. Configure its breakers first."""
        sink = self._sinks[name] = AttachedSink(name, connector, host)
        for stream in self.streams.streams_to(name):
            self.announce(name, stream)
        return sink

    async def detach(self, name: str) -> None:
        sink = self._sinks.pop(name, None)
        if sink is not None:
            tasks = [*sink.starting.values(), *sink.closing.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=END_SECONDS)

    def relink(self, connector: str, sinks: Iterable[str]) -> None:
        """Change where the connector's streams lead, including those that are started."""
        self._links[connector] = frozenset(sinks)
        for name in self._sinks.keys() - self._links[connector]:
            sink = self._sinks[name]
            mine = [one for one in sink.starting if one.connector == connector and self.streams.is_started(one)]
            for stream in mine:
                if not sink.has_rows(stream):  # otherwise it is closed after these rows, when the stream has ended
                    self._close_stream(sink, stream)
        self.streams.relinked(connector, self._links[connector], self.is_announced)
        for stream in self.streams.streams_of(connector):
            self._announce_to_all(stream)

    def set_waiting(self, sink: str, pipeline: str, name: str, waiting: str | None) -> None:
        """Set why delivery waits for this sink of a pipeline, or None. While it waits, the breaker of the whole sink is
        tripped.
        """
        reasons = self._waiting.setdefault(sink, {})
        had_some = bool(reasons)
        if waiting is None:
            reasons.pop((pipeline, name), None)
        else:
            reasons[pipeline, name] = waiting
        if reasons:
            self.trip_if_waiting(sink)
        elif had_some:
            self.breakers.available(sink)

    def trip_if_waiting(self, sink: str) -> None:
        """Trip the sink if delivery waits for it: a replaced sink passes only after it has accepted the
        waiting rows.
        """
        reason = next(iter(self._waiting.get(sink, {}).values()), None)
        if reason is not None:
            self.breakers.unavailable(sink, reason)

    # Gate, for sources.

    def started(self, stream: StreamRef) -> None:
        self._ended.discard(stream)
        self.streams.started(stream, self._links.get(stream.connector, frozenset()))
        self._announce_to_all(stream)

    def ended(self, stream: StreamRef) -> None:
        self._ended.add(stream)
        self.streams.ended(stream)

    def completed(self, stream: StreamRef) -> None:
        if self.passed is None:
            self._close_everywhere(stream)
            return
        self._ended.add(stream)
        self._completed.setdefault(stream.connector, []).append(stream)
        if stream.connector not in self._closing:
            close = partial(self._close_passed, stream.connector, self.passed)
            self._closing[stream.connector] = self._supervisor.run(f"ended streams of {stream.connector}", close)

    async def _close_passed(self, connector: str, passed: Passed) -> None:
        while streams := self._completed.pop(connector, None):
            try:
                await passed(connector)
            except BaseException:  # if this task is restarted, they still have to be closed
                self._completed[connector] = streams + self._completed.get(connector, [])
                raise
            for stream in streams:
                if stream in self._ended:  # otherwise it has started again
                    self._close_everywhere(stream)
        del self._closing[connector]

    def _close_everywhere(self, stream: StreamRef) -> None:
        self._ended.discard(stream)
        for name in self._sinks:
            self._close_if_ended(name, stream)

    async def stop(self) -> None:
        """Send no more `stream-closed`."""
        for task in [*self._closing.values()]:
            await task.stop()
        self._closing.clear()

    def may_send(self, stream: StreamRef) -> bool:
        return self.streams.may_send(stream)

    def why(self, stream: StreamRef) -> str:
        return self.streams.why(stream)

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        watchers = self.streams.watchers
        watchers.append(changed)
        return lambda: watchers.remove(changed) if changed in watchers else None

    # To sinks.

    def _announce_to_all(self, stream: StreamRef) -> None:
        for sink in self.streams.downstream(stream):
            self.announce(sink, stream)

    def announce(self, name: str, stream: StreamRef, *, again: bool = False) -> "asyncio.Task[None] | None":
        """Send `stream-started`, before the stream's first event: once, unless `again`. Returns the task
        that sends it.
        """
        sink = self._sinks.get(name)
        if sink is None:
            return None
        task = sink.starting.get(stream)
        if task is None or (again and task.done()):
            self.breakers.add(name, stream)
            task = sink.starting[stream] = asyncio.create_task(self._start(sink, stream))
        return task

    def announce_again(self, name: str, stream: StreamRef) -> bool:
        """If `stream-started` has failed, repeat it instead of a probe; otherwise return False."""
        sink = self._sinks.get(name)
        if sink is None or stream not in sink.failed:
            return False
        self.breakers.closed(name, stream, "stream-started is sent again")
        self.announce(name, stream, again=True)
        return True

    def is_announced(self, name: str, stream: StreamRef) -> bool:
        sink = self._sinks.get(name)
        return sink is not None and stream in sink.starting

    async def _start(self, sink: AttachedSink, stream: StreamRef) -> None:
        closing = sink.closing.get(stream)
        if closing is not None:  # the stream has ended before and starts again
            await asyncio.wait([closing])
        try:
            with sink.connector.mask.errors():
                await sink.connector.stream_started(stream, sink.host)
            sink.failed.discard(stream)
        except Exception as error:
            if not isinstance(error, PenstockError | OSError):
                log.exception("connector %s failed on stream-started", sink.name)
            sink.failed.add(stream)
            self.breakers.failed(sink.name, stream, str(error) or type(error).__name__, self._clock())

    def close_if_ended(self, name: str, stream: StreamRef) -> None:
        """Send `stream-closed` if the stream was announced to the sink and has no events left."""
        if self.is_announced(name, stream) and self._has_ended(stream):
            self.completed(stream)

    def _close_if_ended(self, name: str, stream: StreamRef) -> None:
        sink = self._sinks.get(name)
        if sink is None or stream not in sink.starting or not self._has_ended(stream) or sink.has_rows(stream):
            return
        self._close_stream(sink, stream)

    def _close_stream(self, sink: AttachedSink, stream: StreamRef) -> None:
        sink.failed.discard(stream)
        sink.forget(stream)
        self.streams.forgotten(sink.name, stream)
        task = asyncio.create_task(self._close(sink, stream, sink.starting.pop(stream)))
        sink.closing[stream] = task
        task.add_done_callback(lambda done: sink.closing.pop(stream) if sink.closing.get(stream) is done else None)

    def _has_ended(self, stream: StreamRef) -> bool:
        return not self.streams.is_started(stream) and stream not in self._ended and not self.knows(stream)

    async def _close(self, sink: AttachedSink, stream: StreamRef, starting: "asyncio.Task[None]") -> None:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        try:
            with sink.connector.mask.errors():
                await sink.connector.stream_closed(stream, sink.host)
        except Exception as error:  # the stream has ended in any case
            log.warning("connector %s failed on stream-closed: %r", sink.name, error)


class ApplicationGate:
    """A Gate in front of another one, for programs on the connector protocol: while it is shut, none of their streams
    may send (connectors are drained one by one). It is initially shut, because until the deployment runs it is unknown
    where streams lead.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._is_shut = True
        self._started: set[StreamRef] = set()
        self._subscribers: list[Changed] = []
        gate.subscribe(self._changed)

    def shut(self) -> None:
        self._set(is_shut=True)

    def open(self) -> None:
        self._set(is_shut=False)

    def _set(self, *, is_shut: bool) -> None:
        if is_shut == self._is_shut:
            return
        self._is_shut = is_shut
        for stream in [stream for stream in self._started if self._gate.may_send(stream)]:
            self._notify(stream, not is_shut)

    def started(self, stream: StreamRef) -> None:
        self._started.add(stream)
        self._gate.started(stream)

    def ended(self, stream: StreamRef) -> None:
        self._started.discard(stream)
        self._gate.ended(stream)

    def completed(self, stream: StreamRef) -> None:
        self._gate.completed(stream)

    def may_send(self, stream: StreamRef) -> bool:
        return not self._is_shut and self._gate.may_send(stream)

    def why(self, stream: StreamRef) -> str:
        return _STOPPED if self._is_shut else self._gate.why(stream)

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed) if changed in self._subscribers else None

    def _changed(self, stream: StreamRef, may_send: bool) -> None:
        """Also called for streams of connectors, which ask the other gate themselves."""
        if not (self._is_shut and stream in self._started):
            self._notify(stream, may_send)

    def _notify(self, stream: StreamRef, may_send: bool) -> None:
        for subscriber in [*self._subscribers]:
            subscriber(stream, may_send)


class PipelineChains:
    """Determines whether the output of a source's pipelines has also passed through the pipelines that read it.

    source ──▶ first ──▶ second ──▶ sink          `first` completes a stream's end before `second` has seen it
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def passed(self, source: str) -> None:
        """Return when all pipelines downstream of the source's readers have completed the output that these had when
        they completed the source. Returns at once if no pipeline reads another one's output.
        """
        sources, seen = {source}, set[str]()
        while sources:
            readers = self._readers(sources) - seen
            seen |= readers
            sources = self._outputs(readers)
            await self._completed(sources)

    def _readers(self, sources: Iterable[str]) -> set[str]:
        read = frozenset(sources)
        return {name for name, pipeline in self._deliveries.state.pipelines.items() if pipeline.sources & read}

    def _outputs(self, pipelines: Iterable[str]) -> set[str]:
        """The outputs that another pipeline reads."""
        names = frozenset(pipelines)
        return {source for source in self._deliveries.state.released if _pipeline_of(source) in names}

    async def _completed(self, sources: Iterable[str]) -> None:
        ends = {source: self._deliveries.records.end(_segment(source)) for source in sources}
        while True:
            seen = self._deliveries.news.count
            if all(self._is_completed(source, end) for source, end in ends.items()):
                return
            if self._deliveries.news.is_over:
                return
            await self._deliveries.news.wait(seen, LOOK_SECONDS)

    def _is_completed(self, source: str, end: int) -> bool:
        """True also if no pipeline reads it any more."""
        released = self._deliveries.state.released.get(source)
        return released is None or released.get(_segment(source), 0) >= end


def _pipeline_of(source: str) -> str | None:
    parsed = Source.parse(source)
    return parsed.name.partition("/")[0] if parsed.form is Form.OUTPUT else None


def _segment(source: str) -> str:
    segment = Source.parse(source).segment
    assert segment is not None, "outputs have one"
    return segment
