"""Signals on their way from sources to sinks, and back: `stream-started`, `stream-closed`, open and close.

source ──started──▶ each sink downstream, as a task of its own ──opened──▶ Breakers ──▶ the source may send
source ──ended, completed──▶ when the sink has taken the stream's last event: `stream-closed`
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.connectors.api import Connector, Host, StreamRef
from penstock.core.errors import PenstockError
from penstock.delivery.breakers.table import Breakers
from penstock.ingest.gate import Changed

log = logging.getLogger(__name__)

END_SECONDS = 3.0
"""For what a connector does on signals to end, when it is detached."""

Passed = Callable[[str], Awaitable[None]]
"""Of a source: returns when what was made of it until now has reached the sinks, also over several pipelines."""

Knows = Callable[[StreamRef], bool]
"""Whether the source has more to say of a stream: it goes on, may be resumed, or its end is not complete yet."""


class ToldSink:
    """A hosted sink, and which streams it was told of in this process."""

    def __init__(self, name: str, connector: Connector[Any], host: Host) -> None:
        self.name = name
        self.connector = connector
        self.host = host
        self.telling: dict[StreamRef, asyncio.Task[None]] = {}
        """The last signal to it, done or not, of every stream that it was told of and that is not closed."""
        self.closing: dict[StreamRef, asyncio.Task[None]] = {}
        self.failed: set[StreamRef] = set()
        """Streams of which it could not be told: it is tried again instead of a probe."""
        self.has_rows: Callable[[StreamRef], bool] = lambda stream: False  # noqa: ARG005
        """Whether events of the stream wait for this sink: then its `stream-closed` does too."""
        self.forget: Callable[[StreamRef], None] = lambda stream: None  # noqa: ARG005
        """Called when the sink is told of its end."""


class Signals:
    """A Gate: given to the gateway and to every source host. What a sink does on a signal holds up nobody else.

    At every sink `stream-started` comes before the stream's first event, `stream-closed` after its last; both also for
    streams that began before this process did.
    """

    def __init__(self, breakers: Breakers, clock: Callable[[], float], knows: Knows = lambda stream: False) -> None:  # noqa: ARG005
        self.breakers = breakers
        self.knows = knows
        """Asked of streams that were not started in this process."""
        self.passed: Passed | None = None
        """Waited for before `stream-closed`; None: where a source's pipelines are done, all has reached the sinks."""
        self._completed: dict[str, list[StreamRef]] = {}
        """By connector: streams whose end is complete, and may not have reached all sinks."""
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._clock = clock
        self._links: dict[str, frozenset[str]] = {}
        self._sinks: dict[str, ToldSink] = {}
        self._ended: set[StreamRef] = set()
        """Streams whose end is not complete yet."""
        self._waiting: dict[str, dict[tuple[str, str], str]] = {}
        """Of sinks that delivery serves by itself: where it waits for them, and why."""

    # What is deployed.

    def attach(self, name: str, connector: Connector[Any], host: Host) -> ToldSink:
        """A hosted sink: it is told of the streams that are started, and of all that start. Configure its breakers
        before.
        """
        sink = self._sinks[name] = ToldSink(name, connector, host)
        for stream in self.breakers.streams_to(name):
            self.tell(name, stream)
        return sink

    async def detach(self, name: str) -> None:
        sink = self._sinks.pop(name, None)
        if sink is not None:
            tasks = [*sink.telling.values(), *sink.closing.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=END_SECONDS)

    def relink(self, connector: str, sinks: Iterable[str]) -> None:
        """Where the connector's streams lead from now on; those that are started too."""
        self._links[connector] = frozenset(sinks)
        for name in self._sinks.keys() - self._links[connector]:
            told = self._sinks[name]
            mine = [one for one in told.telling if one.connector == connector and self.breakers.is_started(one)]
            for stream in mine:
                if not told.has_rows(stream):  # else it is told when these have left, and the stream is over
                    self._say_closed(told, stream)
        self.breakers.relinked(connector, self._links[connector], self.is_told)
        for stream in self.breakers.streams_of(connector):
            self._tell_all(stream)

    def stands(self, sink: str, pipeline: str, name: str, waiting: str | None) -> None:
        """Of a sink that delivery serves by itself: why it waits for it there, or None. Closed as a whole meanwhile."""
        reasons = self._waiting.setdefault(sink, {})
        had_some = bool(reasons)
        if waiting is None:
            reasons.pop((pipeline, name), None)
        else:
            reasons[pipeline, name] = waiting
        if reasons:
            self.wait_for(sink)
        elif had_some:
            self.breakers.all_opened(sink)

    def wait_for(self, sink: str) -> None:
        """Where delivery does: one that was made anew is not open before it has taken what waits."""
        reason = next(iter(self._waiting.get(sink, {}).values()), None)
        if reason is not None:
            self.breakers.all_closed(sink, reason)

    # Gate: what sources say and ask.

    def started(self, stream: StreamRef) -> None:
        self._ended.discard(stream)
        self.breakers.started(stream, self._links.get(stream.connector, frozenset()))
        self._tell_all(stream)

    def ended(self, stream: StreamRef) -> None:
        self._ended.add(stream)
        self.breakers.ended(stream)

    def completed(self, stream: StreamRef) -> None:
        if self.passed is None:
            self._over(stream)
            return
        self._ended.add(stream)
        self._completed.setdefault(stream.connector, []).append(stream)
        if stream.connector not in self._closing:
            task = asyncio.create_task(self._close_passed(stream.connector, self.passed))
            self._closing[stream.connector] = task

    async def _close_passed(self, connector: str, passed: Passed) -> None:
        try:
            while streams := self._completed.pop(connector, None):
                await passed(connector)
                for stream in streams:
                    if stream in self._ended:  # else it has started again
                        self._over(stream)
        finally:
            del self._closing[connector]

    def _over(self, stream: StreamRef) -> None:
        self._ended.discard(stream)
        for name in self._sinks:
            self._close_if_over(name, stream)

    async def stop(self) -> None:
        """Nothing more is said of ends."""
        tasks = [*self._closing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def may_send(self, stream: StreamRef) -> bool:
        return self.breakers.may_send(stream)

    def why(self, stream: StreamRef) -> str:
        return self.breakers.why(stream)

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        watchers = self.breakers.stream_watchers
        watchers.append(changed)
        return lambda: watchers.remove(changed) if changed in watchers else None

    # What goes to sinks.

    def _tell_all(self, stream: StreamRef) -> None:
        for sink in self.breakers.downstream(stream):
            self.tell(sink, stream)

    def tell(self, sink: str, stream: StreamRef, *, again: bool = False) -> "asyncio.Task[None] | None":
        """Of a stream, before its first event: once, but for `again`. The task in which it is told."""
        told = self._sinks.get(sink)
        if told is None:
            return None
        task = told.telling.get(stream)
        if task is None or (again and task.done()):
            self.breakers.awaited(sink, stream)
            task = told.telling[stream] = asyncio.create_task(self._start(told, stream))
        return task

    def retell(self, sink: str, stream: StreamRef) -> bool:
        """Instead of a probe, where it could not be told of the stream; False where it could."""
        told = self._sinks.get(sink)
        if told is None or stream not in told.failed:
            return False
        self.breakers.closed(sink, stream, "it is told of the stream once more")
        self.tell(sink, stream, again=True)
        return True

    def is_told(self, sink: str, stream: StreamRef) -> bool:
        told = self._sinks.get(sink)
        return told is not None and stream in told.telling

    async def _start(self, sink: ToldSink, stream: StreamRef) -> None:
        closing = sink.closing.get(stream)
        if closing is not None:  # of its life before
            await asyncio.wait([closing])
        try:
            await sink.connector.stream_started(stream, sink.host)
            sink.failed.discard(stream)
        except Exception as error:
            if not isinstance(error, PenstockError | OSError):
                log.exception("connector %s failed on stream-started", sink.name)
            sink.failed.add(stream)
            self.breakers.failed(sink.name, stream, str(error) or type(error).__name__, self._clock())

    def close_if_over(self, sink: str, stream: StreamRef) -> None:
        """`stream-closed`, if the sink was told of the stream, and nothing of it is to come any more."""
        if self.is_told(sink, stream) and self._is_over(stream):
            self.completed(stream)

    def _close_if_over(self, sink: str, stream: StreamRef) -> None:
        told = self._sinks.get(sink)
        if told is None or stream not in told.telling or not self._is_over(stream) or told.has_rows(stream):
            return
        self._say_closed(told, stream)

    def _say_closed(self, told: ToldSink, stream: StreamRef) -> None:
        told.failed.discard(stream)
        told.forget(stream)
        self.breakers.forgotten(told.name, stream)
        task = asyncio.create_task(self._close(told, stream, told.telling.pop(stream)))
        told.closing[stream] = task
        task.add_done_callback(lambda done: told.closing.pop(stream) if told.closing.get(stream) is done else None)

    def _is_over(self, stream: StreamRef) -> bool:
        return not self.breakers.is_started(stream) and stream not in self._ended and not self.knows(stream)

    async def _close(self, sink: ToldSink, stream: StreamRef, telling: "asyncio.Task[None]") -> None:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        try:
            await sink.connector.stream_closed(stream, sink.host)
        except Exception as error:  # the stream is over, whatever it says
            log.warning("connector %s failed on stream-closed: %r", sink.name, error)
