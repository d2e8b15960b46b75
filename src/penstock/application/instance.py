"""A connector of the application: built and checked first, then run with its `out` and `in` ports."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.connectors.api import Capabilities, Connector, Downstream, NoPipelines, SegmentPort
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.registry import Chains, make_chains, make_connector
from penstock.connectors.secrets import Mask
from penstock.core.errors import PenstockError, RequestError
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.in_port import InPort
from penstock.delivery.outbox.sink import OutboxSinks
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.out_ports.host import SourceHost
from penstock.ingest.source_view import SourceView
from penstock.protocol.api.deployment import ConnectorSpec, Deployment
from penstock.protocol.api.status import BlockedStream, ConnectorStatus, TrippedStream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltConnector:
    """A connector that does not run yet. All are built before anything that runs is changed."""

    spec: ConnectorSpec
    connector: Connector[Any]
    chains: Chains

    @property
    def capabilities(self) -> Capabilities:
        return self.connector.capabilities(self.connector.options)

    @property
    def delivers(self) -> bool:
        """Whether it receives the events of streams; otherwise delivery passes whole epochs to its sink, or it has no
        `in`.
        """
        return self.capabilities.sink is not None and not self.capabilities.takes_epochs

    @property
    def guarantee(self) -> dict[str, str]:
        """By port."""
        promised = {"out": self.capabilities.source, "in": self.capabilities.sink}
        return {port: promise.value for port, promise in promised.items() if promise is not None}


def build(spec: ConnectorSpec, permissions: Permissions = UNLIMITED) -> BuiltConnector:
    """Resolves its secrets as they are now. Raises RequestError, which does not name the connector."""
    mask = Mask()
    try:
        with mask.errors():
            connector = make_connector(spec.type, spec.config, permissions, mask)
            messages = connector.capabilities(connector.options).sends_messages
            chains = make_chains(spec.interceptors_in, spec.interceptors_out, permissions, mask, messages=messages)
    except RequestError:
        raise
    except Exception as error:  # a type of another package can raise anything
        log.exception("connector %s cannot be built", spec.name)
        raise RequestError(f"it cannot be built: {type(error).__name__}") from None
    return BuiltConnector(spec, connector, chains)


def build_all(specs: Iterable[ConnectorSpec], permissions: Permissions) -> dict[str, BuiltConnector]:
    """By name. Raises RequestError with everything that is wrong."""
    built, mistakes = {}, {}
    for spec in specs:
        try:
            built[spec.name] = build(spec, permissions)
        except PenstockError as error:
            mistakes[spec.name] = error
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes.values() if error.hint)
        texts = (f"connector {name}: {error}" for name, error in mistakes.items())
        raise RequestError("\n".join(texts), " ".join(hints))
    return built


STORE_SECONDS = 15.0
"""The limit for storing what a connector has read, when it is removed or replaced. Only a full disk takes longer; then
it is as after a crash.
"""

FLUSH_SECONDS = 5.0
"""The limit for sending what outgoing interceptors buffer, and for the last call, when a connector is removed or
replaced; after that its epochs wait.
"""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts of the worker that connectors use."""

    sources: SourceCatalog
    signals: Signals
    sinks: OutboxSinks
    segment_port: Callable[[], SegmentPort]
    downstream: Callable[[str], Downstream] = lambda _: NoPipelines()
    """The pipelines that read a connector, by the connector's name."""
    is_elsewhere: Callable[[str], bool] = lambda _: False
    """Whether another shard has the source of this connector's name."""


class Instance:
    """Owned by the runtime. Started, perhaps drained, and closed: once each. Raises Damaged if the stored state of its
    streams cannot be read.
    """

    def __init__(self, built: BuiltConnector, deployment: Deployment, around: WorkerParts) -> None:
        self.built = built
        self.name = built.spec.name
        self._around = around
        self.sink = self._in_port() if built.delivers else None
        self.host = SourceHost(
            built.spec,
            built.connector,
            around.sources,
            gate=around.signals,
            contraflow=self.sink,
            chains=built.chains,
            has_in=deployment.has_in(self.name),
            has_out=deployment.has_out(self.name),
            segment_port=around.segment_port(),
            downstream=around.downstream(self.name),
            is_elsewhere=around.is_elsewhere(self.name),
        )
        if built.capabilities.sink is not None and self.sink is None:
            around.signals.breakers.configure(self.name, built.spec.breaker, per_stream=False, is_passing=True)
            around.signals.trip_if_waiting(self.name)

    def _in_port(self) -> InPort:
        built = self.built
        has_own = built.capabilities.own_interceptors or not built.spec.interceptors_out
        clock = asyncio.get_running_loop().time
        chain = None if has_own else built.chains.outgoing
        return InPort(built.spec, built.connector, self._around.signals, chain=chain, clock=clock)

    def start(self) -> None:
        """Streams are announced to it before it can signal anything about them."""
        if self.sink is not None:
            self._around.sinks.attach(self.sink, self.host)
        self.host.start()

    def configure(self, spec: ConnectorSpec) -> None:
        """Changes quota, acknowledgement, watermark or breaker policy; nothing is interrupted."""
        self.host.configure(spec)
        if self.sink is not None:
            self.sink.spec = spec
        if self.built.capabilities.sink is not None:
            self._around.signals.breakers.configure(self.name, spec.breaker, per_stream=self.sink is not None)

    def relink(self, deployment: Deployment) -> None:
        self.host.has_in = deployment.has_in(self.name)
        self.host.has_out = deployment.has_out(self.name)

    async def drain(self) -> None:
        """Stops reading; what was read is stored. Its `in` port continues."""
        await self.host.drain()

    async def close(self) -> None:
        """Stores what was read and sends what interceptors buffer, if possible; then closes the connections."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self.host.drain()
        except TimeoutError:
            log.error("connector %s: not everything that it has read could be stored", self.name)
        if self.sink is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.sink.flush()
                    await self.sink.stop_sending()
        await self.leave()

    async def leave(self) -> None:
        """Close its connections now."""
        await self.host.stop()
        if self.sink is not None:
            await self._around.sinks.detach(self.name)
        else:
            self._around.signals.breakers.remove(self.name)


# The status of a connector.

_SHOWN = 20
"""The number of streams of each kind that a status lists; the counts cover all of them."""


def report(instance: Instance, signals: Signals, sources: SourceView) -> ConnectorStatus:
    status, spec, sink = instance.host.status(), instance.built.spec, instance.sink
    breakers, streams = signals.breakers, signals.streams
    blocked, blocked_count = status.blocked, status.blocked_count
    if not status.streams:  # programs send, not the connector
        waiting = [stream for stream in streams.streams_of(spec.name) if not streams.may_send(stream)]
        blocked = {stream.stream_id: streams.why(stream) for stream in waiting[:_SHOWN]}
        blocked_count = len(waiting)
    paused = [stream_id for name, stream_id in breakers.pauses.all() if name == spec.name]
    tripped = breakers.tripped_streams(spec.name)
    refusal = breakers.sink_refusal(spec.name) if instance.built.capabilities.sink is not None else None
    open_streams = sources.open_streams(spec.name) if not status.streams else ()
    return ConnectorStatus(
        name=spec.name,
        id=spec.id,
        instance=spec.instance,
        type=spec.type,
        state=status.state,
        reason=status.reason,
        streams=status.streams or len(open_streams),
        blocked_count=blocked_count,
        blocked_streams=[_blocked(sources, spec.name, stream_id, why) for stream_id, why in blocked.items()],
        paused=None in paused,
        paused_streams=[stream_id for stream_id in paused if stream_id is not None],
        breaker=breakers.state(spec.name),
        breaker_reason=refusal or "",
        tripped_streams=[
            TrippedStream(connector=stream.connector, stream_id=stream.stream_id, why=why)
            for stream, why in [*tripped.items()][:_SHOWN]
        ],
        tripped_count=len(tripped),
        events_in=status.events,
        bytes_in=status.bytes,
        events_out=0 if sink is None else sink.events_out,
        dead_letters=status.dead_letters + (0 if sink is None else sink.dead_letters),
        outbox_bytes=0 if sink is None else sink.outbox_bytes,
        guarantee=instance.built.guarantee,
        reached_at=instance.built.connector.mask.text(instance.built.connector.reached_at),
        counts=status.counts,
    )


def _blocked(sources: SourceView, connector: str, stream_id: int, why: str) -> BlockedStream:
    name = sources.stream_names(connector, [stream_id])[0]
    return BlockedStream(stream_id=stream_id, stream=f"{name!r} (#{stream_id})" if name else f"#{stream_id}", why=why)
