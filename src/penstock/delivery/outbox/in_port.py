"""The `in` port of a connector: one call of `deliver` at a time, and what its outcome means for the breakers.

port = InPort(spec, connector, signals, chain=…, clock=loop.time)     # the Contraflow of the connector's Host
sinks.attach(port, its Host)                                          # OutboxSinks, one for the worker
Delivery(deliveries, sinks.make)                                      # a pipeline's sinks that lead to a connector
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.connectors.api import Connector, Host, Lost, Outgoing, StreamGone, StreamLost, StreamRef
from penstock.connectors.sink_api import SinkLost
from penstock.core.errors import PenstockError
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.rows import MakeChain, ReadyRows, metadata_of, times_of
from penstock.protocol.api.deployment import ConnectorSpec

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
"""How long to wait for a probe to start. If no sink has rows for it, the breaker passes without one."""


class PortUser(Protocol):
    """A pipeline's sink that sends through the port, as the port sees it."""

    @property
    def outbox_bytes(self) -> int:
        """Retained on disk for tripped streams."""

    @property
    def buffered(self) -> int:
        """Rows that interceptors buffer."""

    @property
    def can_drain(self) -> bool:
        """Whether a stream with retained rows passes."""

    def has_rows(self, stream: StreamRef) -> bool: ...

    def forget(self, stream: StreamRef) -> None:
        """The stream has ended."""

    def breaker_changed(self, stream: StreamRef | None) -> None:
        """The port's breaker for this stream may have changed; None: any of them."""

    def probe(self, stream: StreamRef | None) -> bool:
        """A probe is due. Return whether there are rows for it."""

    async def flush(self) -> None:
        """Send what interceptors buffer."""


class Refusal(NamedTuple):
    """Nothing was sent: it can never be sent (`is_final`), or it must be retained. With `places`, only the values at
    these indexes were refused, and the others were sent.
    """

    reason: str
    is_final: bool
    places: Sequence[int] | None = None


class InPort:
    """The port of one connector that pipelines are linked to. A Contraflow, for the connector's Host.

    `chain` creates the outgoing interceptors of one stream; None: there are none, or the connector has them itself.
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
        """The connector's host; set when it is attached."""
        self.users: set[PortUser] = set()
        self.events_out = 0
        """Events that were sent."""
        self.dead_letters = 0
        """Events that became dead letters."""
        self._calling = asyncio.Lock()
        """`deliver` is called once at a time, whichever pipeline it is for."""
        self._call: asyncio.Timeout | None = None
        self._probes = 0
        self.breakers.configure(spec.name, spec.breaker)

    # Sending.

    async def send(self, stream: StreamRef | None, ready: ReadyRows) -> Refusal | None:
        """Send values; None if all were sent. Raises SinkLost if the whole connector accepts nothing now."""
        outgoing = outgoing_of(stream, ready)
        async with self._calling:
            # Checked here, under the lock: signals that arrived while waiting for it count.
            if not self.breakers.admits(self.name, stream):
                return self._refusal(stream)
            try:
                await self._deliver(outgoing)
            except StreamGone as error:
                self.breakers.delivered(self.name, None)  # the connector works
                self.events_out += len(ready.rows) - len(ready.rows_at(error.places))
                return Refusal(str(error), is_final=True, places=error.places)
            except StreamLost as error:
                return self._stream_lost(stream, str(error))
            except Exception as error:
                raise self._lost(error) from error
            self.breakers.delivered(self.name, stream)
        self.events_out += len(ready.rows)
        return None

    async def _deliver(self, outgoing: Outgoing) -> None:
        """Call the connector, for as long as it takes or until `cancel_call`. Raises what the connector raises."""
        assert self.host is not None, "it is attached"
        try:
            async with asyncio.timeout(None) as self._call:
                with self.connector.mask.errors():
                    await self.connector.deliver(outgoing, self.host)
        except TimeoutError:
            if self._call is None or not self._call.expired():
                raise
            raise Lost("it was replaced or removed during a call that did not end") from None
        finally:
            self._call = None

    def _refusal(self, stream: StreamRef | None) -> Refusal:
        """Raises SinkLost if the error does not concern this stream alone."""
        reason = self.breakers.sink_refusal(self.name)
        if reason is not None:
            raise SinkLost(f"connector {self.name}: {reason}")
        return Refusal(self.breakers.stream_refusal(self.name, stream) or "the stream is closed", is_final=False)

    def _stream_lost(self, stream: StreamRef | None, reason: str) -> Refusal:
        is_probe = self.breakers.probe(self.name) == (None,)
        if stream is None or is_probe:
            self.breakers.lost(self.name, reason, self.clock())
        if stream is None:
            raise SinkLost(f"connector {self.name}: {reason}")
        self.breakers.failed(self.name, stream, reason, self.clock())
        return Refusal(reason, is_final=False)

    def _lost(self, error: Exception) -> SinkLost:
        if not isinstance(error, PenstockError | OSError):
            log.error("connector %s failed", self.name, exc_info=error)
        reason = str(error) or type(error).__name__
        self.breakers.lost(self.name, reason, self.clock())
        return SinkLost(f"connector {self.name}: {reason}")

    async def stop_sending(self) -> None:
        """Prevent further calls, and return when the current one has ended."""
        self.breakers.unavailable(self.name, "it is being stopped")
        async with self._calling:
            return

    def cancel_call(self) -> None:
        """Cancel a hanging call: it must not outlive the connector. The next connector sends its rows again."""
        if self._call is not None:
            self._call.reschedule(0)

    # Contraflow: takes effect at once, before anything else is sent.

    def connected(self) -> None:
        self.breakers.available(self.name)

    def disconnected(self, reason: str) -> None:
        self.breakers.unavailable(self.name, reason)

    def opened(self, stream: StreamRef) -> None:
        self.breakers.opened(self.name, stream)

    def closed(self, stream: StreamRef, reason: str) -> None:
        """Counts as a failing stream in the policy. There is no probe: the connector opens the stream again."""
        self.breakers.failed(self.name, stream, reason, self.clock(), probe=False)

    # For the status, and for a drain.

    @property
    def outbox_bytes(self) -> int:
        """Retained on disk for tripped streams."""
        return sum(user.outbox_bytes for user in self.users)

    @property
    def buffered(self) -> int:
        """Events that interceptors buffer in memory; their epochs are not complete."""
        return sum(user.buffered for user in self.users)

    @property
    def is_idle(self) -> bool:
        """Whether interceptors buffer nothing, and nothing retained could be sent now."""
        return not self.buffered and not any(user.can_drain for user in self.users)

    async def flush(self) -> None:
        """Send what interceptors buffer, as far as possible."""
        for user in [*self.users]:
            await user.flush()

    # Breakers and probes.

    def breaker_changed(self, stream: StreamRef | None) -> None:
        """The breaker of this stream has changed; None: that of any stream."""
        for user in self.users:
            user.breaker_changed(stream)

    def probe(self, stream: StreamRef | None) -> None:
        """A probe is due: a sink that has rows may send one block."""
        if stream is not None and self.signals.announce_again(self.name, stream):
            return
        if not any(user.probe(stream) for user in self.users):
            self.breakers.nothing_to_probe(self.name, stream)
        else:
            self._probes += 1
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._end_probe, stream, self._probes)

    def probe_again(self) -> None:
        """Repeat the current probe: the sink that was to send it may have had nothing to send."""
        probe = self.breakers.probe(self.name)
        if probe is not None and not self._calling.locked():
            self.probe(probe[0])

    def _end_probe(self, stream: StreamRef | None, number: int) -> None:
        """No sink has started it in time."""
        if number == self._probes and not self._calling.locked():
            self.breakers.nothing_to_probe(self.name, stream)

    # Streams.

    def has_rows(self, stream: StreamRef) -> bool:
        return any(user.has_rows(stream) for user in self.users)

    def forget(self, stream: StreamRef) -> None:
        """The stream has ended, and the connector gets `stream-closed`."""
        for user in self.users:
            user.forget(stream)


def outgoing_of(stream: StreamRef | None, ready: ReadyRows) -> Outgoing:
    """The outgoing value, named after its last row. The name is the same after a crash even if more or fewer rows are
    joined then: a connector that has accepted the name before has accepted all its rows.
    """
    last, end, is_joined = ready.last_rows, ready.rows[-1], ready.is_joined
    return Outgoing(
        stream=stream,
        values=ready.values,
        ids=[0] * len(last) if stream is None else last.event_ids,
        keys=() if is_joined else last.keys,
        event_times_us=() if is_joined else times_of(last),
        metadata=() if is_joined else metadata_of(last),
        name=f"{end.epoch}/{end.row.number}",
    )
