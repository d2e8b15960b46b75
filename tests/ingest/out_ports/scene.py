"""A program server, connectors driven by the test, and what they have stored."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.api import About, Capabilities, Connector, Host, Options, Pause, StreamRef
from penstock.connectors.registry import make_chains
from penstock.core.types import Guarantee
from penstock.ingest.gate import Changed
from penstock.ingest.out_ports.host import SourceHost
from penstock.protocol.api.deployment import ConnectorSpec, InterceptorSpec
from penstock.protocol.stored.event import StoredEvent, parse_event
from penstock.protocol.stored.head import Mark
from penstock.store.file_journal import FileJournal
from penstock.store.store import SegmentStore
from tests.ingest.conftest import RunningServer, Serve
from tests.support.heads import Head, decode_head
from tests.support.waiting import eventually

SPLIT = (InterceptorSpec(type="split", config={"delimiter": "\n"}),)
PREFIXED = (InterceptorSpec(type="length-prefixed"),)

Run = Callable[[Host], Awaitable[None]]


async def until_drained(host: Host) -> None:
    host.connected()
    await host.draining()


class Driven(Connector[Options]):
    """A connector whose `run` is the test's."""

    about = About("driven", "Of a test.", Options, Capabilities(source=Guarantee.AT_LEAST_ONCE, resumes=True))

    def __init__(self, run: Run = until_drained, pauses: Pause = Pause.STREAM) -> None:
        super().__init__(Options())
        self._run = run
        self.pauses = pauses

    def capabilities(self, options: Options) -> Capabilities:  # type: ignore[override]
        return Capabilities(source=Guarantee.AT_LEAST_ONCE, resumes=True, pauses=self.pauses)

    async def run(self, host: Host) -> None:
        await self._run(host)


@dataclass
class ScriptedGate:
    """Streams may send unless the test has closed them. Records what was reported to the gate, in order."""

    closed: set[StreamRef] = field(default_factory=set)
    is_shut: bool = False
    """Also streams that nobody has closed."""
    reports: list[tuple[str, StreamRef]] = field(default_factory=list)
    _subscribers: list[Changed] = field(default_factory=list)

    def started(self, stream: StreamRef) -> None:
        self.reports.append(("started", stream))

    def ended(self, stream: StreamRef) -> None:
        self.reports.append(("ended", stream))

    def completed(self, stream: StreamRef) -> None:
        self.reports.append(("completed", stream))

    def may_send(self, stream: StreamRef) -> bool:
        return stream not in self.closed and not self.is_shut

    def why(self, stream: StreamRef) -> str:
        return "" if self.may_send(stream) else "the test keeps it"

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def set(self, stream: StreamRef, *, is_open: bool) -> None:
        (self.closed.discard if is_open else self.closed.add)(stream)
        for changed in [*self._subscribers]:
            changed(stream, self.may_send(stream))

    def open_all(self, streams: Iterable[StreamRef]) -> None:
        self.is_shut = False
        for stream in streams:
            self.set(stream, is_open=True)

    def of(self, stream: StreamRef) -> list[str]:
        return [what for what, whose in self.reports if whose == stream]


class Scene:
    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.hosts: list[SourceHost] = []
        self.gate = ScriptedGate()

    async def open(self, **settings: object) -> RunningServer:
        """Start a program server on what is on disk."""
        await self.leave()
        self.gate = ScriptedGate()
        self.running = await self._serve(gate=self.gate, **settings)
        return self.running

    async def leave(self) -> None:
        hosts, self.hosts = self.hosts, []
        for host in hosts:
            await host.stop()

    async def crash(self) -> RunningServer:
        """The next program server finds what is durable now."""
        self.running.sources.store.journal.check()
        await self.running.crash()
        await self.leave()
        return await self.open()

    async def host(
        self,
        run: Run = until_drained,
        *,
        name: str = "source",
        interceptors: tuple[InterceptorSpec, ...] = (),
        pauses: Pause = Pause.STREAM,
        **spec: Any,
    ) -> SourceHost:
        """A host that has started."""
        described = ConnectorSpec(
            **{"name": name, "id": name, "instance": "01", "type": "driven", "interceptors_in": interceptors, **spec}
        )
        chains = make_chains(described.interceptors_in, ())
        host = SourceHost(described, Driven(run, pauses), self.running.sources, gate=self.gate, chains=chains)
        self.hosts.append(host)
        host.start()
        await eventually(lambda: host.log.streams.incarnation > 0 and host.status().state != "starting")
        return host

    # What is stored, durably.

    async def heads(self, connector: str = "source") -> list[Head]:
        await self.running.sources.durability.caught_up()
        found = []
        for name in self.running.sources.log(connector).segments:
            info = self.running.store.info(name)
            found += [decode_head(data) for _, data in self.running.store.heads(name, info.start, info.length)]
        return [head for head in found if head is not None]

    async def marks(self, connector: str = "source") -> list[Mark]:
        return [mark for head in await self.heads(connector) for mark in head.marks]

    async def events(self, connector: str = "source") -> list[StoredEvent]:
        await self.running.sources.durability.caught_up()
        return read_events(self.running.store, self.running.sources.log(connector).segments)

    async def values(self, connector: str = "source") -> list[bytes]:
        return [event.payload for event in await self.events(connector)]

    def ends(self, connector: str = "source") -> dict[str, int]:
        names = self.running.sources.log(connector).segments
        return {name: self.running.store.info(name).length for name in names}


def read_events(store: SegmentStore, segments: Iterable[str]) -> list[StoredEvent]:
    """All durable events, segment by segment."""
    found: list[StoredEvent] = []
    for name in segments:
        offset, parts = store.info(name).start, []
        while data := store.read(name, offset, 1 << 20):
            parts.append(data)
            offset += len(data)
        found += _events(b"".join(parts))
    return found


def _events(data: bytes) -> Iterator[StoredEvent]:
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        event = parse_event(data[at + 8 : end])
        if event is not None:
            yield event
        at = end


async def is_waiting(task: "asyncio.Task[Any]", seconds: float = 0.2) -> bool:
    """Whether it is still not done after this many seconds."""
    done, _ = await asyncio.wait([task], timeout=seconds)
    return not done


@contextmanager
def full_disk(journal: FileJournal) -> Iterator[None]:
    """The disk has no room for ingest."""
    journal._is_full = True
    fill, journal._spares.fill = journal._spares.fill, lambda: None  # type: ignore[method-assign]
    has_one = type(journal._spares).has_one_for_ingest
    type(journal._spares).has_one_for_ingest = property(lambda _: False)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        type(journal._spares).has_one_for_ingest = has_one  # type: ignore[method-assign]
        journal._spares.fill = fill  # type: ignore[method-assign]
