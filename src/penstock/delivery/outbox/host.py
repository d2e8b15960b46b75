"""The port `in` of a hosted connector: what the frame keeps of it, and what the connector says back.

host = SinkHost(spec, connector, signals, chain=…, clock=loop.time)      # contraflow of the connector's Host
sinks.attach(host, its Host)                                             # HostedSinks, one for the worker
Delivery(deliveries, hosted=sinks.make)                                  # a pipeline's sink `hosted:NAME`
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.config.deployment import ConnectorSpec
from penstock.connectors.api import Connector, Host, Lost, Outgoing, StreamRef
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.joining import MakeChain

if TYPE_CHECKING:
    from penstock.delivery.outbox.outflow import Outflow


PROBE_SECONDS = 5.0
"""For a probe to begin. If nobody has anything to make it with, the breaker opens without one."""


class SinkHost:
    """Of one connector that is linked on `in` and delivers by itself. A Contraflow: given to the connector's Host.

    `chain` makes the interceptors of the way out for one stream; None: there are none, or the connector has them.
    """

    def __init__(
        self,
        spec: ConnectorSpec,
        connector: Connector[Any],
        signals: Signals,
        *,
        chain: MakeChain | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.name = spec.name
        self.spec = spec
        self.connector = connector
        self.chain = chain
        self.clock = clock
        self.signals = signals
        self.breakers = signals.breakers
        self.host: Host | None = None
        """The connector's; there when it is attached."""
        self.calling = asyncio.Lock()
        """`deliver` is called once at a time, whichever pipeline it is for."""
        self._call: asyncio.Timeout | None = None
        self.outflows: set[Outflow] = set()
        self.events_out = 0
        """Events that have left."""
        self.letters = 0
        """Events that became dead letters."""
        self._probes = 0
        self.breakers.configure(spec.name, spec.breaker)

    # Forward flow.

    async def deliver(self, outgoing: Outgoing) -> None:
        """With `calling`. Takes as long as the connector does, or until `cut_off`. Raises what it raises."""
        assert self.host is not None, "it is attached"
        try:
            async with asyncio.timeout(None) as self._call:
                await self.connector.deliver(outgoing, self.host)
        except TimeoutError:
            if self._call is None or not self._call.expired():
                raise
            raise Lost("it was replaced, or removed, while it took its time") from None
        finally:
            self._call = None

    async def rest(self) -> None:
        """It is given nothing more. Return when it has taken what it was given last."""
        self.breakers.all_closed(self.name, "it is being stopped")
        async with self.calling:
            return

    def cut_off(self) -> None:
        """A call that hangs must not outlive the connector: what it was given is given to the next one."""
        if self._call is not None:
            self._call.reschedule(0)

    # Contraflow: it holds at once, so that it comes before whatever is delivered next.

    def connected(self) -> None:
        self.breakers.all_opened(self.name)

    def disconnected(self, reason: str) -> None:
        self.breakers.all_closed(self.name, reason)

    def opened(self, stream: StreamRef) -> None:
        self.breakers.opened(self.name, stream)

    def closed(self, stream: StreamRef, reason: str) -> None:
        """A stream that fails, as the policy counts them; it opens when the connector says so."""
        self.breakers.failed(self.name, stream, reason, self.clock(), probe=False)

    # What people are shown.

    @property
    def held_bytes(self) -> int:
        """Of closed streams, on disk."""
        return sum(outflow.held.bytes for outflow in self.outflows)

    @property
    def waiting(self) -> int:
        """Events that interceptors hold, in memory; their epochs are not complete."""
        return sum(outflow.waiting for outflow in self.outflows)

    @property
    def is_idle(self) -> bool:
        """Nothing waits in interceptors, and nothing is held that could leave."""
        return not self.waiting and not any(outflow.can_drain for outflow in self.outflows)

    async def flush(self) -> None:
        """What interceptors hold leaves now, as far as it can."""
        for outflow in [*self.outflows]:
            await outflow.flush()

    # Probes.

    def changed(self, stream: StreamRef | None) -> None:
        """Its breaker of this stream may have changed; None: any of them."""
        for outflow in self.outflows:
            outflow.changed(stream)

    def probe(self, stream: StreamRef | None) -> None:
        """One is due: whoever waits may give it one block."""
        if stream is not None and self.signals.retell(self.name, stream):
            return
        if not any(outflow.probe(stream) for outflow in self.outflows):
            self.breakers.unproved(self.name, stream)
        else:
            self._probes += 1
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._probe_late, stream, self._probes)

    def probe_again(self) -> None:
        """Somebody may have had nothing to make the probe with that goes on."""
        probe = self.breakers.probe(self.name)
        if probe is not None and not self.calling.locked():
            self.probe(probe[0])

    def _probe_late(self, stream: StreamRef | None, number: int) -> None:
        """Whoever was to make it has gone."""
        if number == self._probes and not self.calling.locked():
            self.breakers.unproved(self.name, stream)

    def has_rows(self, stream: StreamRef) -> bool:
        return any(outflow.has_rows(stream) for outflow in self.outflows)

    def forget(self, stream: StreamRef) -> None:
        """It was told of the stream's end."""
        for outflow in self.outflows:
            outflow.forget(stream)
