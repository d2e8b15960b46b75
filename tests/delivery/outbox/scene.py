"""A pipeline that delivers to scripted connectors, with a real store, coordinator and delivery, in the test's loop."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, Outgoing, SegmentPort, StreamRef
from penstock.connectors.sink_api import NonVotingSink
from penstock.core.types import Guarantee
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.breakers.table import Breakers
from penstock.delivery.outbox.in_port import InPort
from penstock.delivery.outbox.rows import MakeChain
from penstock.delivery.outbox.sink import OutboxSinks
from penstock.delivery.service import Delivery
from penstock.protocol.api.deployment import BreakerSpec, ConnectorSpec
from penstock.protocol.api.pipelines import Staged
from penstock.protocol.stored.bulk import encode
from penstock.protocol.stored.dead_letters import StoredDeadLetter, dead_letters_in
from penstock.store.files import Files
from penstock.store.journal import Durability
from tests.coordinator.scene import Scene
from tests.delivery.fake_epoch import column

PIPELINE = "p"
A, B, C = StreamRef("src", 1), StreamRef("src", 2), StreamRef("src", 2**63 + 3)

Happened = tuple[str, StreamRef | None, bytes]


@dataclass
class Outside:
    """What a connector's peer has received, and how it behaves. It survives the worker."""

    seen: list[Happened] = field(default_factory=list)
    given: list[Outgoing] = field(default_factory=list)
    shy: set[StreamRef] = field(default_factory=set)
    """Streams that it does not open when it is notified of their start."""
    is_down: bool = False
    """Whether a connector that is made now says that it is not connected."""
    trouble: Callable[[Outgoing], Exception | None] = lambda outgoing: None
    """Raised by `deliver`, before anything has left."""
    before: Callable[[Outgoing], object] = lambda outgoing: None
    after: Callable[[Outgoing], object] = lambda outgoing: None
    on_started: Callable[[StreamRef], Exception | None] = lambda stream: None

    def values(self, stream: StreamRef | None = None) -> list[bytes]:
        return [value for what, ref, value in self.seen if what == "event" and ref == stream]

    @property
    def all_values(self) -> list[bytes]:
        return [value for what, _, value in self.seen if what == "event"]

    def what(self, stream: StreamRef) -> list[str]:
        return [what for what, ref, _ in self.seen if ref == stream]


class Scripted(Connector[Options]):
    about = About("scripted", "Of a test.", Options, Capabilities(sink=Guarantee.AT_LEAST_ONCE))

    def __init__(self, outside: Outside) -> None:
        super().__init__(Options())
        self.outside = outside

    async def stream_started(self, stream: StreamRef, host: Host) -> None:
        self.outside.seen.append(("started", stream, b""))
        error = self.outside.on_started(stream)
        if error is not None:
            raise error
        if stream not in self.outside.shy:
            host.opened(stream)

    async def stream_closed(self, stream: StreamRef, host: Host) -> None:
        self.outside.seen.append(("closed", stream, b""))

    async def deliver(self, outgoing: Outgoing, host: Host) -> None:
        self.outside.before(outgoing)
        await asyncio.sleep(0)
        error = self.outside.trouble(outgoing)
        if error is not None:
            raise error
        self.outside.given.append(outgoing)
        self.outside.seen += [("event", outgoing.stream, value) for value in outgoing.values]
        self.outside.after(outgoing)


class SinkScene:
    """Sinks are named after their connectors. `crash` keeps what is durable, and the peers."""

    def __init__(self, files: Files | None = None) -> None:
        self.scene = Scene(files)
        self.outsides: dict[str, Outside] = {}
        self.specs: dict[str, BreakerSpec] = {}
        self.chains: dict[str, MakeChain] = {}
        self.known = {A, B, C}
        """Streams that the source still has."""
        self.merged = 0

    async def open(self) -> None:
        await self.scene.open()
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.breakers = Breakers()
        self.signals = Signals(self.breakers, loop.time, knows=lambda stream: stream in self.known)
        durability = Durability(self.scene.journal, loop, lambda: None)
        self.sinks = OutboxSinks(self.scene.store, durability, self.signals, loop.time)
        self.hosts: dict[str, InPort] = {}
        for name in self.outsides:
            self.attach(name)
        self.delivery = Delivery(self.scene.coordinator.deliveries, self)
        self.delivery.start()

    # What delivery requires of an application.

    def connector(self, name: str) -> Scripted | None:
        return Scripted(self.outsides[name]) if name in self.outsides else None

    def make_outbox_sink(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> NonVotingSink:
        return self.sinks.make(pipeline, sink, connector, wake)

    def segment_port(self) -> SegmentPort:
        return SegmentPort("")

    def attach(self, name: str) -> InPort:
        spec = ConnectorSpec(name=name, id=name, instance="01", type="scripted", breaker=self.specs[name])
        connector = Scripted(self.outsides[name])
        host = InPort(spec, connector, self.signals, chain=self.chains.get(name), clock=self.clock)
        self.hosts[name] = host
        self.sinks.attach(host, cast("Host", host))  # a sink uses only the contraflow of a Host
        if not self.outsides[name].is_down:
            host.connected()
        return host

    async def add(self, name: str, chain: MakeChain | None = None, port: str = "out", **breaker: Any) -> Outside:
        """A sink of the pipeline."""
        outside = self.outsides[name] = Outside()
        self.specs[name] = BreakerSpec(**{"probe_after_seconds": 0.05, "probe_after_seconds_max": 0.2, **breaker})
        if chain is not None:
            self.chains[name] = chain
        self.attach(name)
        await self.scene.coordinator.deliveries.bind(PIPELINE, {name: (port, name, False)})
        return outside

    async def close(self) -> None:
        await self.delivery.stop()
        await self.end()
        await self.scene.close()

    async def end(self) -> None:
        for name in self.hosts:
            await self.sinks.detach(name)
        self.sinks.stop()

    async def crash(self, files: Files | None = None) -> None:
        """Kill the worker. What was written remains, or the given files."""
        assert self.delivery._watching is not None
        tasks = [*self.delivery._tasks.values(), self.delivery._watching]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.stop()
        await self.end()
        if files is None:
            await self.scene.close()
        else:
            await self._abandon(files)
        await self.open()

    async def _abandon(self, files: Files) -> None:
        self.scene.coordinator._shared.news.end()
        for task in self.scene.coordinator._tasks:
            await task.stop()
        self.scene._committing.cancel()
        await asyncio.gather(self.scene._committing, return_exceptions=True)
        self.scene.files = files
        self.scene.paused = False

    # Epochs.

    async def put_out(self, *rows: tuple[StreamRef | None, bytes], port: str = "out") -> None:
        """Output the next epoch."""
        encoded = encode_rows(rows, first_id=100 * self.merged + 1)
        segment = f"staging/{PIPELINE}/-/{self.merged}/0-0/{port}"
        staged = [Staged(port, segment, await self.scene.append(segment, encoded))]
        await self.scene.coordinator.merger.merge(PIPELINE, None, self.merged, staged)
        self.merged += 1

    async def delivered(self) -> None:
        """Wait until every sink has every epoch, and readers see what was retained: they see durable bytes only."""
        journal = self.scene.store.journal
        await self.scene.until(lambda: not self.delivery.epochs(PIPELINE) and journal.durable == journal.end)

    @property
    def waiting(self) -> int:
        """The epochs that wait."""
        return len(self.delivery.epochs(PIPELINE))

    async def until(self, condition: Callable[[], object]) -> None:
        await self.scene.until(condition)

    def retained_values(self, sink: str) -> list[bytes]:
        """The values in the segment, whether they were sent or not."""
        return [one.event.payload for one in self._events(f"pipeline/{PIPELINE}/held.{sink}")]

    def dead_letters(self, sink: str) -> list[StoredDeadLetter]:
        return self._events(f"pipeline/{PIPELINE}/parked.{sink}")

    def _events(self, segment: str) -> list[StoredDeadLetter]:
        if not self.scene.store.exists(segment):
            return []
        start = self.scene.store.info(segment).start
        return [*dead_letters_in(self.scene.store.read(segment, start, 1 << 24), start)]


def encode_rows(rows: Sequence[tuple[StreamRef | None, bytes]], first_id: int = 1) -> bytes:
    refs = [ref for ref, _ in rows]
    encoded = encode(
        column([value for _, value in rows]),
        keys=column([b"key"] * len(rows)),
        stream_ids=array("Q", [0 if ref is None else ref.stream_id for ref in refs]),
        event_ids=array("Q", [0 if ref is None else first_id + n for n, ref in enumerate(refs)]),
        sources=column([b"" if ref is None else ref.connector.encode() for ref in refs]),
        streams=column([b"" if ref is None else b"s%d" % ref.stream_id for ref in refs]),
    )
    return bytes(encoded.data)


def by_stream(rows: Sequence[tuple[StreamRef | None, bytes]]) -> Mapping[StreamRef | None, list[bytes]]:
    found: dict[StreamRef | None, list[bytes]] = {}
    for ref, value in rows:
        found.setdefault(ref, []).append(value)
    return found


@asynccontextmanager
async def sink_scene(files: Files | None = None) -> AsyncIterator[SinkScene]:
    scene = SinkScene(files)
    await scene.open()
    try:
        yield scene
    finally:
        await scene.close()
