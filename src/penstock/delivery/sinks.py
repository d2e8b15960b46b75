"""Creates sinks from what they are bound to: a URL, or the name of a deployed connector."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from penstock.connectors.api import Connector, Host, Lost, NoPipelines, Outgoing, SegmentPort, StreamRef
from penstock.connectors.permissions import UNLIMITED, Permissions
from penstock.connectors.secrets import Mask
from penstock.connectors.sink_api import (
    Block,
    CheckReport,
    Epoch,
    NonVotingSink,
    Settling,
    SinkLost,
    Transaction,
    Vote,
    VotingSink,
    accept_any,
    rows_of,
)
from penstock.connectors.tables import SchemaOf
from penstock.connectors.threaded import Blocks
from penstock.connectors.urls import is_url, named, parse_sink
from penstock.coordinator.machine.state import Sink
from penstock.core.errors import PenstockError, RequestError

AnySink = VotingSink | NonVotingSink

_APPLY = "Deploy its application: penstock apply"


class Deployed(Protocol):
    """The connectors of the application that the worker runs."""

    def connector(self, name: str) -> Connector[Any] | None:
        """As it is deployed now."""

    def make_outbox_sink(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> NonVotingSink:
        """A sink that passes each stream's events to `Connector.deliver`. `wake` is called when it can accept again
        what it has refused.
        """

    def segment_port(self) -> SegmentPort:
        """The worker's own segment port."""


class NothingDeployed:
    """For a worker in which no application can be deployed."""

    def connector(self, name: str) -> Connector[Any] | None:  # noqa: ARG002
        return None

    def make_outbox_sink(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> NonVotingSink:
        del pipeline, sink, wake
        return Unusable(_not_deployed(connector))

    def segment_port(self) -> SegmentPort:
        return SegmentPort("")


class Found(NamedTuple):
    """What a sink is bound to."""

    connector: Connector[Any]
    shown: str
    """The target without secrets."""

    @property
    def votes(self) -> bool:
        return self.connector.capabilities(self.connector.options).votes

    @property
    def guarantee(self) -> str:
        promised = self.connector.capabilities(self.connector.options).sink
        return "unknown" if promised is None else promised.value


class Sinks:
    """Finds and creates the sinks of pipelines."""

    def __init__(self, deployed: Deployed, permissions: Permissions = UNLIMITED) -> None:
        self._deployed = deployed
        self._permissions = permissions

    def find(self, to: str) -> Found:
        """Raises RequestError."""
        if is_url(to):
            parsed = parse_sink(to, self._permissions)
            return Found(parsed.connector, parsed.shown)
        connector = self._deployed.connector(to)
        if connector is None:
            raise _not_deployed(to)
        return Found(connector, to)

    def check(self, to: str) -> Found:
        """Like `find`; also raises NotInstalled, a RequestError, if the type needs a missing package."""
        if is_url(to):
            parse_sink(to, self._permissions).check_installed()
        found = self.find(to)
        if found.guarantee == "unknown":
            raise RequestError(f"the connector {to} has no port `in`", "See: penstock connectors")
        return found

    def describe(self, to: str) -> tuple[str, str]:
        """Its name in the status, and its guarantee."""
        try:
            found = self.find(to)
        except PenstockError:  # it is not deployed now, or its type is unknown to this version
            return named(to), "unknown"
        return found.shown, found.guarantee

    def make(self, pipeline: str, name: str, sink: Sink, schema: SchemaOf, wake: Callable[[], None]) -> AnySink:
        """A VotingSink if the sink votes according to the ledger."""
        try:
            if not is_url(sink.url):
                return self._of_connector(pipeline, name, sink, schema, wake)
            parsed = parse_sink(sink.url, self._permissions)
            parsed.check_installed()
            if parsed.votes is not sink.votes:
                raise RequestError("this version of Penstock treats such a sink differently", "Bind it again.")
            if parsed.capabilities.takes_epochs:
                return parsed.connector.make_sink(f"{pipeline}/{name}", schema)
            return UrlNonVotingSink(parsed.connector, f"{pipeline}/{name}", self._deployed.segment_port)
        except PenstockError as error:
            return Unusable(error)

    def _of_connector(
        self, pipeline: str, name: str, sink: Sink, schema: SchemaOf, wake: Callable[[], None]
    ) -> AnySink:
        to = sink.url

        def make(connector: Connector[Any]) -> AnySink:
            return connector.make_sink(f"{pipeline}/{name}", schema)

        if sink.votes:
            return DeployedVoter(to, self._deployed, make)
        return DeployedNonVotingSink(
            to, self._deployed, make, self._deployed.make_outbox_sink(pipeline, name, to, wake)
        )


def _not_deployed(name: str) -> RequestError:
    return RequestError(
        f"no connector {name!r} is deployed",
        f"Write a URL, such as file:{name}; or deploy the connector: penstock apply",
    )


class _Current:
    """The sink of a connector as it is deployed now; replaced when its options change."""

    def __init__(self, name: str, deployed: Deployed, make: Callable[[Connector[Any]], AnySink]) -> None:
        self._name = name
        self._deployed = deployed
        self._make = make
        self._connector: Connector[Any] | None = None
        self.sink: Any = None

    def wanted(self) -> Connector[Any] | None:
        """The last one stays while none is deployed: data in transit may still be delivered."""
        return self._deployed.connector(self._name) or self._connector

    @property
    def is_current(self) -> bool:
        wanted, has = self.wanted(), self._connector
        return wanted is not None and has is not None and _key(wanted) == _key(has)

    async def get(self) -> Any:
        """Raises SinkLost."""
        connector = self.wanted()
        if connector is None:
            raise SinkLost(f"connector {self._name} is not deployed", _APPLY)
        if not self.is_current:
            await self.close()
            with connector.mask.errors():
                self._connector, self.sink = connector, self._make(connector)
        return self.sink

    @property
    def mask(self) -> Mask:
        """Hides the secrets of the connector whose sink this is, or will be."""
        connector = self._connector or self.wanted()
        return Mask() if connector is None else connector.mask

    async def close(self) -> None:
        if self.sink is not None:
            with self.mask.errors():
                await self.sink.close()


def _key(connector: Connector[Any]) -> tuple[object, object]:
    return type(connector), connector.options


class DeployedVoter:
    """A VotingSink: the port `in` of a connector that votes, as it is deployed when the sink is opened."""

    def __init__(self, name: str, deployed: Deployed, make: Callable[[Connector[Any]], AnySink]) -> None:
        self._name = name
        self._current = _Current(name, deployed, make)

    @property
    def is_open(self) -> bool:
        return self._current.is_current and self._current.sink.is_open

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:
        connector = self._current.wanted()
        if connector is not None and not connector.capabilities(connector.options).votes:
            raise SinkLost(f"connector {self._name} no longer votes", "Bind it again.")
        sink = await self._current.get()
        with self._current.mask.errors():
            await sink.open(decided, check)

    async def prepare(self, epoch: Epoch) -> Vote:
        mask = self._current.mask
        with mask.errors():
            vote = await self._opened().prepare(epoch)
        return vote._replace(reason=mask.text(vote.reason))

    async def commit(self, transaction: Transaction) -> None:
        with self._current.mask.errors():
            await self._opened().commit(transaction)

    async def abort(self, transaction_id: bytes) -> None:
        with self._current.mask.errors():
            await self._opened().abort(transaction_id)

    async def end(self) -> None:
        with self._current.mask.errors():
            await self._opened().end()

    async def close(self) -> None:
        await self._current.close()

    def _opened(self) -> VotingSink:
        if self._current.sink is None:
            raise SinkLost(f"connector {self._name} is not deployed", _APPLY)
        return cast("VotingSink", self._current.sink)


class DeployedNonVotingSink:
    """A NonVotingSink: the port `in` of a connector that does not vote. Whole epochs go to its sink. A connector that
    accepts events per stream has an outbox sink instead, which exists before the connector.
    """

    def __init__(
        self, name: str, deployed: Deployed, make: Callable[[Connector[Any]], AnySink], outbox_sink: NonVotingSink
    ) -> None:
        self._current = _Current(name, deployed, make)
        self._outbox_sink = outbox_sink

    async def deliver(self, epoch: Epoch) -> Settling | None:
        connector = self._current.wanted()
        if connector is None or not connector.capabilities(connector.options).takes_epochs:
            return await self._outbox_sink.deliver(epoch)
        sink: NonVotingSink = await self._current.get()
        with self._current.mask.errors():
            return await sink.deliver(epoch)

    async def close(self) -> None:
        await self._current.close()
        await self._outbox_sink.close()


class UrlNonVotingSink:
    """A NonVotingSink for a URL whose type accepts events per stream: `Connector.deliver` gets whole blocks, in the
    order of the output. The connector's `run` starts with the first block, and again after each failure.
    """

    def __init__(self, connector: Connector[Any], name: str, segment_port: Callable[[], SegmentPort]) -> None:
        self._connector = connector
        self._host = _BareHost(name, segment_port)
        self._blocks = Blocks()
        self._running: asyncio.Task[None] | None = None

    async def deliver(self, epoch: Epoch) -> None:
        await self._blocks.deliver(epoch, self._take)

    async def _take(self, name: str, block: Block) -> None:
        try:
            with self._connector.mask.errors():
                await self._connect()
                await self._connector.deliver(_outgoing(name, block), cast("Host", self._host))
        except (PenstockError, OSError) as error:
            raise SinkLost(str(error) or type(error).__name__, getattr(error, "hint", None)) from error

    async def _connect(self) -> None:
        """Return when the connector reports that it is connected. Raises what its `run` raises."""
        if self._running is None or self._running.done():
            self._host.is_connected.clear()
            self._running = asyncio.create_task(self._connector.run(cast("Host", self._host)))
        connected = asyncio.create_task(self._host.is_connected.wait())
        try:
            await asyncio.wait({connected, self._running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connected.cancel()
        if self._running.done():
            self._running.result()
            raise Lost(f"{self._connector.about.name} has ended")

    async def close(self) -> None:
        self._host.is_draining = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None


def _outgoing(name: str, block: Block) -> Outgoing:
    rows = rows_of(block)
    return Outgoing(
        None,
        [row.value for row in rows],
        [row.id for row in rows],
        [row.key for row in rows],
        [row.event_time_us for row in rows],
        name=name,
    )


class _BareHost:
    """A Host with no source, streams or interceptors."""

    has_in, has_out, has_interceptors, takes_messages, shares_port = True, False, False, False, False
    downstream = NoPipelines()

    def __init__(self, name: str, segment_port: Callable[[], SegmentPort]) -> None:
        self.name = name
        self._segment_port = segment_port
        self.is_connected = asyncio.Event()
        self.is_draining = False

    @property
    def segment_port(self) -> SegmentPort:
        return self._segment_port()

    async def draining(self) -> None:
        """Its sink ends by cancelling `run`."""
        await asyncio.Event().wait()

    async def open_stream(self, name: str, **_: Any) -> Any:
        raise RequestError(f"{self.name} is a sink: it cannot open the stream {name!r}", "Use it in an application.")

    def outgoing_chain(self) -> Any:
        raise RequestError(f"{self.name} has no interceptors", "Use it in an application.")

    def connected(self) -> None:
        self.is_connected.set()

    def disconnected(self, reason: str) -> None:  # noqa: ARG002
        self.is_connected.clear()

    def finished(self) -> None: ...

    def opened(self, stream: StreamRef) -> None: ...

    def closed(self, stream: StreamRef, reason: str) -> None: ...

    def count(self, what: str, amount: int = 1) -> None: ...


class Unusable:
    """Replaces a sink that cannot be created here: every call fails with the reason. If the cause is fixed later, bind
    the sink again or restart the worker.
    """

    is_open = False

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    async def open(self, decided: bytes, check: CheckReport = accept_any) -> None:  # noqa: ARG002
        raise self._lost()

    async def prepare(self, epoch: Epoch) -> Vote:  # noqa: ARG002
        raise self._lost()

    async def commit(self, transaction: Transaction) -> None:  # noqa: ARG002
        raise self._lost()

    async def abort(self, transaction_id: bytes) -> None: ...

    async def end(self) -> None: ...

    async def deliver(self, epoch: Epoch) -> Settling | None:  # noqa: ARG002
        raise self._lost()

    async def close(self) -> None: ...

    def _lost(self) -> SinkLost:
        return SinkLost(f"{self._error} {self._error.hint}".rstrip())
