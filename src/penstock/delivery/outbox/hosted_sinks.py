"""The hosted sinks of a worker: who serves `hosted:NAME`, and when half-open breakers are probed."""

import asyncio
from collections.abc import Callable

from penstock.connectors.api import Host, StreamRef
from penstock.coordinator.records import Records
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.host import SinkHost
from penstock.delivery.outbox.outflow import Outflow
from penstock.delivery.outbox.storage import Storage
from penstock.store.journal import Durability
from penstock.store.store import SegmentStore


class HostedSinks:
    """Pipelines' sinks outlive the connectors that they lead to: one that is not deployed now makes them wait."""

    def __init__(
        self,
        store: SegmentStore,
        durability: Durability,
        signals: Signals,
        clock: Callable[[], float],
        records: Records | None = None,
    ) -> None:
        self._storage = Storage(store, records or Records(store), durability)
        self._signals = signals
        self._clock = clock
        self._hosts: dict[str, SinkHost] = {}
        self._outflows: dict[str, set[Outflow]] = {}
        """By the connector's name."""
        self._timer: asyncio.TimerHandle | None = None
        signals.breakers.sink_watchers.append(self._changed)

    def make(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> Outflow:
        """A sink of a pipeline, for Delivery."""
        outflow = Outflow(pipeline, sink, connector, self._storage, wake, self._left)
        self._outflows.setdefault(connector, set()).add(outflow)
        host = self._hosts.get(connector)
        if host is not None:
            outflow.join(host)
        return outflow

    def attach(self, sink: SinkHost, host: Host) -> None:
        """The connector is deployed: it is told of streams, and given what waits."""
        sink.host = host
        self._hosts[sink.name] = sink
        told = self._signals.attach(sink.name, sink.connector, host)
        told.has_rows, told.forget = sink.has_rows, sink.forget
        for outflow in self._outflows.get(sink.name, ()):
            outflow.join(sink)

    async def detach(self, name: str) -> None:
        """It is there no more, or made anew. What it has not taken waits."""
        sink = self._hosts.pop(name, None)
        if sink is None:
            return
        sink.cut_off()
        for outflow in [*sink.outflows]:
            await outflow.leave()
        self._signals.breakers.remove(name)
        await self._signals.detach(name)

    def get(self, name: str) -> SinkHost | None:
        return self._hosts.get(name)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        watchers = self._signals.breakers.sink_watchers
        if self._changed in watchers:
            watchers.remove(self._changed)

    def _left(self, outflow: Outflow) -> None:
        """Delivery is done with it."""
        self._outflows.get(outflow.connector, set()).discard(outflow)

    # Time.

    def _changed(self, name: str, stream: StreamRef | None) -> None:
        host = self._hosts.get(name)
        if host is not None:
            host.changed(stream)
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
            host = self._hosts.get(name)
            if host is not None:
                host.probe(stream)
        self._set_timer()
