"""One sink of a pipeline, whose epochs leave through a hosted connector: stream by stream, each in order.

epoch ──▶ rows of each stream ──▶ interceptors ──▶ connector.deliver ──▶ left
                   │ closed at this sink                  │ StreamLost       │ StreamGone
                   └──────────▶ held, durable ◀───────────┘                  └──▶ dead letters
"""

import asyncio
from collections.abc import Callable, Iterable

from penstock.connectors.api import StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.core.errors import PenstockError
from penstock.delivery.outbox.departing import Departing
from penstock.delivery.outbox.draining import Draining
from penstock.delivery.outbox.given import Given, Givens
from penstock.delivery.outbox.held import Held
from penstock.delivery.outbox.host import SinkHost
from penstock.delivery.outbox.joining import Flow, Leaving, Waiting, plain
from penstock.delivery.outbox.rows import WANTED, Row, by_stream
from penstock.delivery.outbox.storage import Storage
from penstock.delivery.sink import Epoch, SinkLost

TELL_SECONDS = 0.05
"""For the answers to `stream-started` of streams whose rows are here already, all of a block's together: most answer at
once, and what comes of those that do not is held meanwhile.
"""


class Outflow:
    """A FollowingSink, at least once: rows are given again only after a crash, or when the connector has not taken
    them. An epoch is settled when each of its rows has left, is held, or is a dead letter.

    `wake` is called when it may take again what it has refused, `closed` when it is of no use any more.
    """

    def __init__(
        self,
        pipeline: str,
        sink: str,
        connector: str,
        storage: Storage,
        wake: Callable[[], None],
        closed: Callable[["Outflow"], None] = lambda outflow: None,  # noqa: ARG005
    ) -> None:
        self.connector = connector
        self.held = Held(storage.store, pipeline, sink)
        self.wake = wake
        self.lock = asyncio.Lock()
        """Around what is done with one stream: what is held of it goes before the rest."""
        self.host: SinkHost | None = None
        self._closed = closed
        self._draining = Draining(self, storage)
        self._givens = Givens(self._flush_soon, self._void)
        self._departing = Departing(self.held, self._givens)
        self._flows: dict[StreamRef | None, Flow] = {}
        self._is_refused = False
        """An epoch waits for the connector to take anything."""
        self._is_woken = False
        """It is about to be given again, as a probe."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: set[asyncio.Task[None]] = set()

    # Which connector it is.

    def join(self, host: SinkHost) -> None:
        self.host = host
        host.outflows.add(self)
        for stream in self.held.streams:
            host.signals.tell(host.name, stream)
        self.changed(None)
        self.wake()

    async def leave(self) -> None:
        """The connector is there no more: what it has not taken is given again to the next one."""
        host, self.host = self.host, None
        if host is not None:
            host.outflows.discard(self)
            host.probe_again()
        self._fail(SinkLost(f"connector {self.connector} is not deployed any more"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._draining.stop()
        for task in self._flushing:
            task.cancel()
        await asyncio.gather(*self._flushing, return_exceptions=True)

    async def close(self) -> None:
        await self.leave()
        self._closed(self)

    # What is known of it.

    @property
    def waiting(self) -> int:
        """Rows that interceptors hold."""
        return sum(len(flow.waiting) for flow in self._flows.values())

    @property
    def can_drain(self) -> bool:
        return any(self._admits(stream) for stream in self.held.streams)

    def _admits(self, stream: StreamRef) -> bool:
        host = self.host
        return host is not None and host.breakers.admits(host.name, stream)

    def has_rows(self, stream: StreamRef) -> bool:
        return stream in self.held or (stream in self._flows and bool(self._flows[stream].waiting))

    def forget(self, stream: StreamRef) -> None:
        """The stream is over: so are its interceptors."""
        if not self.has_rows(stream):
            self._flows.pop(stream, None)

    # Breakers.

    def changed(self, stream: StreamRef | None) -> None:
        """The connector's breaker of this stream has; None: any of them."""
        if self._is_refused and self.host is not None and self.host.breakers.whole(self.host.name) is None:
            self._is_refused = False
            self.wake()
        if stream is None or stream in self.held:
            self._draining.start(stream)

    def probe(self, stream: StreamRef | None) -> bool:
        """One is due. Whether there is something that it can be made with."""
        if stream is None and (self._is_refused or self._is_woken):
            self._is_refused, self._is_woken = False, True
            self.wake()
            return True
        if not (self.can_drain if stream is None else stream in self.held and self._admits(stream)):
            return False
        self._draining.start(stream)
        return True

    # Epochs.

    async def deliver(self, epoch: Epoch) -> Given | None:
        given = self._givens.begin(epoch.name, self.held.done)
        self.held.settle(self._givens.oldest)
        streams: set[StreamRef | None] = set()
        first = 0
        try:
            async for block in epoch.blocks(WANTED):
                found = by_stream(block.events, first)
                await self._tell(found)
                for stream, rows in found.items():
                    async with self.lock:
                        await self._route(given, stream, [row for row in rows if not given.has_done(stream, row)])
                    streams.add(stream)
                first += len(block)
        except BaseException:
            self._void()
            raise
        finally:
            self._is_woken = False
            self._after(streams)
        given.is_whole = True
        return None if given.is_done else given

    def _after(self, streams: Iterable[StreamRef | None]) -> None:
        host = self.host
        if host is None:
            return
        for stream in streams:
            if stream is not None:
                host.signals.close_if_over(host.name, stream)
        host.probe_again()

    async def _route(self, given: Given, stream: StreamRef | None, rows: list[Row]) -> None:
        """All of them, to where they go now."""
        if not rows:
            return
        host = self._hosted()
        if stream is not None:
            host.signals.tell(host.name, stream)
        await asyncio.sleep(0)  # contraflow that has come is handled before forward flow
        self._check_whole(host)
        given.waiting += len(rows)
        if stream is not None and stream in self.held:
            await self._draining.drain(host, stream)
        if stream is not None and (stream in self.held or not host.breakers.admits(host.name, stream)):
            self._departing.hold(host, stream, self._taken(stream) + [Waiting(given.name, row) for row in rows])
        else:
            await self._leave(host, given.name, stream, rows)

    async def _tell(self, streams: Iterable[StreamRef | None]) -> None:
        """Of those that it was not told of."""
        host = self._hosted()
        new = [one for one in streams if one is not None and not host.signals.is_told(host.name, one)]
        tasks = [task for one in new if (task := host.signals.tell(host.name, one)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=TELL_SECONDS)

    def _hosted(self) -> SinkHost:
        if self.host is None:
            raise SinkLost(f"connector {self.connector} is not deployed", "Deploy its application: penstock apply")
        return self.host

    def _check_whole(self, host: SinkHost) -> None:
        """Raises SinkLost while it takes nothing at all, and there is no probe to be made."""
        reason = host.breakers.whole(host.name)
        if reason is not None and (host.breakers.probe(host.name) != (None,) or host.breakers.is_paused(host.name)):
            self._is_refused = True
            raise SinkLost(f"connector {host.name}: {reason}")

    # Out.

    async def _leave(self, host: SinkHost, epoch: str, stream: StreamRef | None, rows: list[Row]) -> None:
        """As far as the interceptors let them out now."""
        if host.chain is None:
            await self._departing.depart(host, stream, plain(epoch, rows), [])
            return
        flow = self._flows.get(stream)
        if flow is None:
            flow = self._flows[stream] = Flow(host.chain())
        try:
            leaving = flow.feed(epoch, rows, host.clock())
        except BadBytes:
            await self._departing.depart_good(host, stream, self._taken(stream))
        else:
            await self._depart(host, stream, leaving)
        self._set_timer(host)

    async def _depart(self, host: SinkHost, stream: StreamRef | None, leaving: Leaving | None) -> None:
        if leaving is None:
            return
        flow = self._flows.get(stream)
        behind = [] if flow is None else [*flow.waiting]
        if not await self._departing.depart(host, stream, leaving, behind):
            self._flows.pop(stream, None)

    def _taken(self, stream: StreamRef | None) -> list[Waiting]:
        """What interceptors hold of the stream: they are not used again."""
        flow = self._flows.pop(stream, None)
        return [] if flow is None else [*flow.waiting]

    # Time.

    def _set_timer(self, host: SinkHost) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = min((flow.due for flow in self._flows.values() if flow.due is not None), default=None)
        delay = None if due is None else max(0.0, due - host.clock())
        loop = asyncio.get_running_loop()
        self._timer = None if delay is None else loop.call_later(delay, self._flush_soon, host.clock)

    def _flush_soon(self, clock: Callable[[], float] | None = None) -> None:
        """What is due; without a clock: all."""
        task = asyncio.create_task(self.flush(clock))
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def flush(self, clock: Callable[[], float] | None = None) -> None:
        """As far as it can: what fails is given again."""
        for stream, flow in [*self._flows.items()]:
            async with self.lock:
                is_due = clock is None or (flow.due is not None and flow.due <= clock())
                if self.host is not None and self._flows.get(stream) is flow and is_due:
                    await self._flush(self.host, stream, flow)
        if self.host is not None:
            self._set_timer(self.host)

    async def _flush(self, host: SinkHost, stream: StreamRef | None, flow: Flow) -> None:
        try:
            await self._depart(host, stream, flow.flush())
        except PenstockError as error:
            self._is_refused = True
            self._fail(error)
        if stream is not None:
            host.signals.close_if_over(host.name, stream)

    def _fail(self, error: PenstockError) -> None:
        """What is under way has to be given again."""
        oldest = self._givens.oldest_waiting()
        if oldest is not None:
            oldest.fail(error)
        self._void()

    def _void(self) -> None:
        self._flows.clear()
        self._givens.void()
