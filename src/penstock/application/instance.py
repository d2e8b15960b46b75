"""A connector of the application at work: its `run` and its streams, its port `in`, and how it stands."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.application.diff import has_in, has_out
from penstock.connectors.api import Capabilities, Connector, Downstream, NoPipelines
from penstock.connectors.registry import Chains, make_chains, make_connector
from penstock.core.errors import PenstockError, RequestError
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.outbox.in_port import InPort
from penstock.delivery.outbox.sink import OutboxSinks
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.out_ports.host import SourceHost
from penstock.protocol.api.deployment import ConnectorSpec, Deployment

# A deployment's connectors as objects: made and checked before anything that runs is touched.


@dataclass(frozen=True, slots=True)
class Made:
    """A connector that does nothing yet."""

    spec: ConnectorSpec
    connector: Connector[Any]
    chains: Chains

    @property
    def capabilities(self) -> Capabilities:
        return self.connector.capabilities(self.connector.options)

    @property
    def delivers(self) -> bool:
        """Whether it is given the events of streams; else delivery gives its sink whole epochs, or it has no `in`."""
        return self.capabilities.sink is not None and not self.capabilities.takes_epochs

    @property
    def guarantee(self) -> dict[str, str]:
        """By port."""
        promised = {"out": self.capabilities.source, "in": self.capabilities.sink}
        return {port: promise.value for port, promise in promised.items() if promise is not None}


def make(spec: ConnectorSpec) -> Made:
    """With what its secrets' files hold now. Raises RequestError."""
    try:
        connector = make_connector(spec.type, spec.config)
        chains = make_chains(spec.interceptors_in, spec.interceptors_out)
    except RequestError as error:
        raise RequestError(f"connector {spec.name}: {error}", error.hint) from None
    return Made(spec, connector, chains)


def make_all(specs: Iterable[ConnectorSpec]) -> dict[str, Made]:
    """By name. Raises RequestError with what is wrong with any of them."""
    made, mistakes = {}, []
    for spec in specs:
        try:
            made[spec.name] = make(spec)
        except PenstockError as error:
            mistakes.append(error)
    if mistakes:
        hints = dict.fromkeys(error.hint for error in mistakes if error.hint)
        raise RequestError("\n".join(map(str, mistakes)), " ".join(hints))
    return made


log = logging.getLogger(__name__)

STORE_SECONDS = 15.0
"""For what was read to be stored, when a connector is removed or made anew: it takes longer only where the disk is
full, and then it is as after a crash.
"""

FLUSH_SECONDS = 5.0
"""For what interceptors of the way out hold and for what it was given last, when a connector is removed or made anew;
then its epochs wait.
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every connector of a worker is given."""

    sources: SourceCatalog
    signals: Signals
    sinks: OutboxSinks
    segment_address: Callable[[], str]
    downstream: Callable[[str], Downstream] = lambda _: NoPipelines()
    """Of a connector, by its name."""


class Instance:
    """Owned by the service. Made, started, perhaps drained, and closed: once each. Raises Damaged where what is stored
    of its streams cannot be read.
    """

    def __init__(self, made: Made, deployment: Deployment, around: Surroundings) -> None:
        self.made = made
        self.name = made.spec.name
        self._around = around
        self.sink = self._in_port() if made.delivers else None
        self.host = SourceHost(
            made.spec,
            made.connector,
            around.sources,
            gate=around.signals,
            contraflow=self.sink,
            chains=made.chains,
            has_in=has_in(deployment, self.name),
            has_out=has_out(deployment, self.name),
            segment_address=around.segment_address(),
            downstream=around.downstream(self.name),
        )
        if made.capabilities.sink is not None and self.sink is None:
            around.signals.breakers.configure(self.name, made.spec.breaker, per_stream=False, is_passing=True)
            around.signals.trip_if_waiting(self.name)

    def _in_port(self) -> InPort:
        made = self.made
        has_own = made.capabilities.own_interceptors or not made.spec.interceptors_out
        clock = asyncio.get_running_loop().time
        chain = None if has_own else made.chains.outgoing
        return InPort(made.spec, made.connector, self._around.signals, chain=chain, clock=clock)

    def start(self) -> None:
        """It hears of streams before it can say anything of them."""
        if self.sink is not None:
            self._around.sinks.attach(self.sink, self.host)
        self.host.start()

    def configure(self, spec: ConnectorSpec) -> None:
        """Another quota, acknowledgement, watermark, or policy of its breakers; nothing is interrupted."""
        self.host.configure(spec)
        if self.sink is not None:
            self.sink.spec = spec
        if self.made.capabilities.sink is not None:
            self._around.signals.breakers.configure(self.name, spec.breaker, per_stream=self.sink is not None)

    def relink(self, deployment: Deployment) -> None:
        self.host.has_in = has_in(deployment, self.name)
        self.host.has_out = has_out(deployment, self.name)

    async def drain(self) -> None:
        """It reads no more, and what it has read is stored. Its port `in` goes on."""
        await self.host.drain()

    async def close(self) -> None:
        """What it has read is stored, what interceptors hold leaves if it can; then its connections end."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self.host.drain()
        except TimeoutError:
            log.error("connector %s: not all that it has read could be stored", self.name)
        if self.sink is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.sink.flush()
                    await self.sink.stop_sending()
        await self.leave()

    async def leave(self) -> None:
        """Its connections end now."""
        await self.host.stop()
        if self.sink is not None:
            await self._around.sinks.detach(self.name)
        else:
            self._around.signals.breakers.remove(self.name)
