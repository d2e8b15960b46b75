"""The sinks of pipelines that lead to a connector's `in` port: epochs leave stream by stream, each stream in order.

epoch ──▶ rows of each stream ──▶ interceptors ──▶ connector.deliver ──▶ sent
                   │ tripped at this sink                 │ StreamLost       │ StreamGone
                   └──────────▶ outbox, durable ◀─────────┘                  └──▶ dead letters
"""

import asyncio
from collections.abc import Callable, Iterable

from penstock.connectors.api import Host, StreamRef
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.sink_api import Epoch, SinkLost
from penstock.coordinator.records import Records
from penstock.core.errors import PenstockError
from penstock.core.supervisor import Supervised, Supervisor
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.epochs import EpochProgress, EpochsInProgress
from penstock.delivery.outbox.in_port import InPort
from penstock.delivery.outbox.outbox import Outbox, Storage
from penstock.delivery.outbox.rows import (
    WANTED,
    EpochRow,
    EpochRows,
    ReadyRows,
    Rows,
    StreamBuffer,
    by_stream,
    unjoined,
)
from penstock.delivery.outbox.sender import OutboxDrain, Sender
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore

ANNOUNCE_SECONDS = 0.05
"""How long to wait for the answers to `stream-started`, for all streams of a block together: most connectors answer at
once, and rows of streams that are not open by then are retained.
"""


class OutboxSink:
    """An at-least-once NonVotingSink: rows are sent again only after a crash, or if the connector has not accepted
    them. An epoch is settled when each of its rows was sent, is retained, or is a dead letter.

    `wake` is called when it may accept again what it has refused, `closed` when it is no longer used.
    """

    def __init__(
        self,
        pipeline: str,
        sink: str,
        connector: str,
        storage: Storage,
        wake: Callable[[], None],
        closed: Callable[["OutboxSink"], None] = lambda sink: None,  # noqa: ARG005
        supervisor: Supervisor | None = None,
    ) -> None:
        self.connector = connector
        self._outbox = Outbox(storage, pipeline, sink)
        self._wake = wake
        self._closed = closed
        self._port: InPort | None = None
        self._lock = asyncio.Lock()
        """Taken while one stream is handled: its retained rows are sent before newer ones."""
        task = f"outbox of {pipeline} to {sink}"
        self._drain = OutboxDrain(self._outbox, self._lock, wake, supervisor or Supervisor(), task)
        self._epochs = EpochsInProgress(self._flush_soon, self._void)
        self._sender = Sender(self._outbox, self._epochs)
        self._buffers: dict[StreamRef | None, StreamBuffer] = {}
        self._is_refused = False
        """Whether an epoch waits because the connector accepts nothing at all."""
        self._is_woken = False
        """Whether the epoch is about to be delivered again, as a probe."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: set[Supervised] = set()
        self._supervisor = supervisor or Supervisor()
        self._flush_name = f"interceptors of {pipeline} to {sink}"

    # Which port it uses.

    def join(self, port: InPort) -> None:
        self._port = port
        port.users.add(self)
        for stream in self._outbox.streams:
            port.signals.announce(port.name, stream)
        self.breaker_changed(None)
        self._wake()

    async def leave(self) -> None:
        """The connector is gone: the next one sends what it has not accepted."""
        port, self._port = self._port, None
        if port is not None:
            port.users.discard(self)
            port.probe_again()
        self._fail(SinkLost(f"connector {self.connector} is no longer deployed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._drain.stop()
        for task in [*self._flushing]:
            await task.stop()

    async def close(self) -> None:
        await self.leave()
        self._closed(self)

    # What the port asks.

    @property
    def outbox_bytes(self) -> int:
        return self._outbox.bytes

    @property
    def buffered(self) -> int:
        """Rows that interceptors buffer."""
        return sum(len(buffer.rows) for buffer in self._buffers.values())

    @property
    def can_drain(self) -> bool:
        return any(self._admits(stream) for stream in self._outbox.streams)

    def _admits(self, stream: StreamRef) -> bool:
        port = self._port
        return port is not None and port.breakers.admits(port.name, stream)

    def has_rows(self, stream: StreamRef) -> bool:
        return stream in self._outbox or (stream in self._buffers and bool(self._buffers[stream].rows))

    def forget(self, stream: StreamRef) -> None:
        """The stream has ended, and its interceptors are no longer needed."""
        if not self.has_rows(stream):
            self._buffers.pop(stream, None)

    def breaker_changed(self, stream: StreamRef | None) -> None:
        port = self._port
        if port is None:
            return
        if self._is_refused and port.breakers.sink_refusal(port.name) is None:
            self._is_refused = False
            self._wake()
        if stream is None or stream in self._outbox:
            self._drain.start(port, stream)

    def probe(self, stream: StreamRef | None) -> bool:
        if stream is None and (self._is_refused or self._is_woken):
            self._is_refused, self._is_woken = False, True
            self._wake()
            return True
        can_probe = self.can_drain if stream is None else stream in self._outbox and self._admits(stream)
        if self._port is None or not can_probe:
            return False
        self._drain.start(self._port, stream)
        return True

    # Epochs.

    async def deliver(self, epoch: Epoch) -> EpochProgress | None:
        progress = self._epochs.begin(epoch.name, self._outbox.settled)
        self._outbox.compact(self._epochs.oldest)
        streams: set[StreamRef | None] = set()
        first = 0
        try:
            async for block in epoch.blocks(WANTED):
                found = by_stream(block.events, first)
                await self._announce(found)
                for stream, rows in found.items():
                    async with self._lock:
                        await self._route(progress, stream, progress.unsettled(stream, rows))
                    streams.add(stream)
                first += len(block)
            self._epochs.raise_failure()
        except BaseException:
            self._void()
            raise
        finally:
            self._is_woken = False
            self._after(streams)
        progress.is_complete = True
        return None if progress.is_done else progress

    def _after(self, streams: Iterable[StreamRef | None]) -> None:
        port = self._port
        if port is None:
            return
        for stream in streams:
            if stream is not None:
                port.signals.close_if_ended(port.name, stream)
        port.probe_again()

    async def _route(self, progress: EpochProgress, stream: StreamRef | None, rows: Rows) -> None:
        """To the connector or into the outbox."""
        if not rows:
            return
        port = self._joined()
        if stream is not None:
            port.signals.announce(port.name, stream)
        await asyncio.sleep(0)  # handle signals of the connector that have arrived before sending more
        self._check_port(port)
        progress.receive(stream, rows)
        if stream is not None and stream in self._outbox:
            await self._drain.drain(port, stream)
        self._epochs.raise_failure()
        if stream is not None and (stream in self._outbox or not port.breakers.admits(port.name, stream)):
            self._sender.retain(port, stream, [*self._taken(stream), *EpochRows(progress.name, rows)])
        else:
            await self._send(port, progress.name, stream, rows)

    async def _announce(self, streams: Iterable[StreamRef | None]) -> None:
        port = self._joined()
        new = [one for one in streams if one is not None and not port.signals.is_announced(port.name, one)]
        tasks = [task for one in new if (task := port.signals.announce(port.name, one)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=ANNOUNCE_SECONDS)

    def _joined(self) -> InPort:
        if self._port is None:
            raise SinkLost(f"connector {self.connector} is not deployed", "Deploy its application: penstock apply")
        return self._port

    def _check_port(self, port: InPort) -> None:
        """Raises SinkLost while the connector accepts nothing at all and no probe is due."""
        reason = port.breakers.sink_refusal(port.name)
        if reason is not None and (
            port.breakers.probe(port.name) != (None,) or port.breakers.pauses.is_paused(port.name)
        ):
            self._is_refused = True
            raise SinkLost(f"connector {port.name}: {reason}")

    # Sending.

    async def _send(self, port: InPort, epoch: str, stream: StreamRef | None, rows: Rows) -> None:
        """Send as many rows as the interceptors let through now."""
        if port.chain is None:
            await self._sender.send(port, stream, unjoined(epoch, rows), [])
            return
        buffer = self._buffers.get(stream)
        if buffer is None:
            buffer = self._buffers[stream] = StreamBuffer(port.chain())
        try:
            ready = buffer.feed(epoch, rows, port.clock())
        except BadBytes:
            await self._sender.send_valid(port, stream, self._taken(stream))
        else:
            await self._send_ready(port, stream, ready)
        self._set_timer(port)

    async def _send_ready(self, port: InPort, stream: StreamRef | None, ready: ReadyRows | None) -> None:
        if ready is None:
            return
        buffer = self._buffers.get(stream)
        following = [] if buffer is None else [*buffer.rows]
        if not await self._sender.send(port, stream, ready, following):
            self._buffers.pop(stream, None)

    def _taken(self, stream: StreamRef | None) -> list[EpochRow]:
        """Remove and return what interceptors buffer of the stream; they are not used again."""
        buffer = self._buffers.pop(stream, None)
        return [] if buffer is None else [*buffer.rows]

    # Time.

    def _set_timer(self, port: InPort) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = min((buffer.due for buffer in self._buffers.values() if buffer.due is not None), default=None)
        delay = None if due is None else max(0.0, due - port.clock())
        loop = asyncio.get_running_loop()
        self._timer = None if delay is None else loop.call_later(delay, self._flush_soon, port.clock)

    def _flush_soon(self, clock: Callable[[], float] | None = None) -> None:
        """Flush the buffers that are due; without a clock, all of them."""

        def ended() -> None:
            self._flushing.discard(task)

        task = self._supervisor.run(self._flush_name, lambda: self.flush(clock), ended=ended)
        self._flushing.add(task)

    async def flush(self, clock: Callable[[], float] | None = None) -> None:
        """Send what interceptors buffer, as far as possible: what fails is delivered again."""
        for stream, buffer in [*self._buffers.items()]:
            async with self._lock:
                is_due = clock is None or (buffer.due is not None and buffer.due <= clock())
                if self._port is not None and self._buffers.get(stream) is buffer and is_due:
                    await self._flush(self._port, stream, buffer)
        if self._port is not None:
            self._set_timer(self._port)

    async def _flush(self, port: InPort, stream: StreamRef | None, buffer: StreamBuffer) -> None:
        try:
            await self._send_ready(port, stream, buffer.flush())
        except PenstockError as error:
            self._is_refused = True
            self._fail(error)
        if stream is not None:
            port.signals.close_if_ended(port.name, stream)

    def _fail(self, error: PenstockError) -> None:
        """All epochs with buffered rows must be delivered again."""
        self._buffers.clear()
        self._epochs.fail(error)

    def _void(self) -> None:
        self._buffers.clear()
        self._epochs.void()


class OutboxSinks:
    """All outbox sinks of a worker, and the clock of their probes. A pipeline's sink outlives the connector that it
    leads to: while that is not deployed, the sink waits.
    """

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        signals: Signals,
        clock: Callable[[], float],
        records: Records | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._storage = Storage(store, records or Records(store), durability)
        self._signals = signals
        self._clock = clock
        self._supervisor = supervisor
        self._ports: dict[str, InPort] = {}
        self._sinks: dict[str, set[OutboxSink]] = {}
        """By the connector's name."""
        self._timer: asyncio.TimerHandle | None = None
        signals.breakers.watchers.append(self._changed)

    def make(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> OutboxSink:
        """A sink of a pipeline, for Delivery."""
        outbox_sink = OutboxSink(pipeline, sink, connector, self._storage, wake, self._closed, self._supervisor)
        self._sinks.setdefault(connector, set()).add(outbox_sink)
        port = self._ports.get(connector)
        if port is not None:
            outbox_sink.join(port)
        return outbox_sink

    def attach(self, port: InPort, host: Host) -> None:
        """The connector is deployed: streams are announced to it, and it gets what waits."""
        port.host = host
        self._ports[port.name] = port
        attached = self._signals.attach(port.name, port.connector, host)
        attached.has_rows, attached.forget = port.has_rows, port.forget
        for sink in self._sinks.get(port.name, ()):
            sink.join(port)

    async def detach(self, name: str) -> None:
        """The connector is removed or replaced. Rows that it has not accepted wait."""
        port = self._ports.pop(name, None)
        if port is None:
            return
        port.cancel_call()
        for sink in [*self._sinks.get(name, ())]:
            await sink.leave()
        self._signals.breakers.remove(name)
        await self._signals.detach(name)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        watchers = self._signals.breakers.watchers
        if self._changed in watchers:
            watchers.remove(self._changed)

    def _closed(self, sink: OutboxSink) -> None:
        self._sinks.get(sink.connector, set()).discard(sink)

    # Time.

    def _changed(self, name: str, stream: StreamRef | None) -> None:
        port = self._ports.get(name)
        if port is not None:
            port.breaker_changed(stream)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._signals.breakers.due()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        for name, stream in self._signals.breakers.tick(self._clock()):
            port = self._ports.get(name)
            if port is not None:
                port.probe(stream)
        self._set_timer()
