"""One connector in the real frame and store: streams, admission, segments, breakers, interceptors, dead letters.

    async with Frame(folder, MyConnector, config) as frame:
        …                                # a peer sends something
        await frame.until(lambda: …)
        events = await frame.events()    # what is stored, durably

The test plays the role of the pipelines: `take` completes what is stored, `give` passes an epoch to the port `in`.
Besides the connector, another sink is downstream of its streams: `frame.other`, which opens every stream unless it is
set not to.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgpack

from penstock.application.instance import BuiltConnector, Instance, WorkerParts
from penstock.connectors.api import About, Capabilities, Connector, Host, Options, SegmentPort, StreamRef
from penstock.connectors.registry import make_chains, parse_options
from penstock.connectors.sink_api import PLAIN, Block, NonVotingSink, SinkLost, Transaction, VotingSink
from penstock.connectors.tables import no_schema
from penstock.coordinator.machine.state import Sink
from penstock.core.types import NO_EPOCH, Guarantee
from penstock.delivery.breakers.signals import Signals
from penstock.delivery.breakers.table import Breakers
from penstock.delivery.outbox.rows import Row, encode_rows
from penstock.delivery.outbox.sink import OutboxSinks
from penstock.delivery.sinks import AnySink, Sinks
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.deployment import (
    BreakerSpec,
    ConnectorSpec,
    Deployment,
    End,
    InterceptorSpec,
    Link,
    PipelineSpec,
)
from penstock.protocol.stored.bulk import Wanted, decode
from penstock.protocol.stored.event import NO_TIME, parse_event
from penstock.protocol.stored.names import Kind, connector_segment
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

# Epochs that a test passes to the port `in`, as delivery does: in order, each until the sink has accepted it.

_AGAIN_SECONDS = 0.1
"""Between two attempts, unless something wakes it."""


@dataclass(frozen=True, slots=True)
class GivenEpoch:
    """An Epoch."""

    number: int
    pipeline: str
    data: bytes
    start: int = 0
    """Payload bytes before it."""
    payload_bytes: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """Why the sink can never accept rows, by their numbers."""

    @property
    def name(self) -> str:
        return f"{self.pipeline}:1:{self.number}"

    @property
    def transaction_id(self) -> bytes:
        return self.name.encode()

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.transaction_id, self.number, self.start, self.start + self.payload_bytes)

    def refuse(self, row: int, reason: str) -> None:
        self.refused[row] = reason

    async def journalled(self) -> None: ...

    async def blocks(self, wanted: Wanted = PLAIN) -> AsyncIterator[Block]:
        yield Block(decode(self.data, 0, Kind.STORED, wanted), self.start)


class GivenEpochs:
    """The epochs of one pipeline, for one connector."""

    def __init__(self, pipeline: str, make: Callable[[Callable[[], None]], AnySink]) -> None:
        self._pipeline = pipeline
        self._woken = asyncio.Event()
        self._sink: Any = make(self._woken.set)
        self._votes = hasattr(self._sink, "prepare")
        self._decided = b""
        self._waiting: asyncio.Queue[GivenEpoch] = asyncio.Queue()
        self._ids: dict[StreamRef | None, int] = {}
        self._count = self._sent = 0
        self.done = NO_EPOCH
        """The number of the last epoch that is settled together with all before it."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._sink.close()

    def add(self, stream: StreamRef | None, values: Sequence[bytes], ids: Sequence[int] | None) -> int:
        epoch = self.epoch(stream, values, ids)
        self.take(epoch)
        return epoch.number

    def take(self, epoch: GivenEpoch) -> None:
        self._count = epoch.number + 1
        self.sent(epoch)
        self._waiting.put_nowait(epoch)

    def epoch(self, stream: StreamRef | None, values: Sequence[bytes], ids: Sequence[int] | None) -> GivenEpoch:
        """The next epoch, of which nothing has been sent yet."""
        if ids is None:
            first = self._ids.get(stream, 0) + 1
            ids = range(first, first + len(values))
        self._ids[stream] = ids[-1]
        stream_id = 0 if stream is None else stream.stream_id
        metadata = b"" if stream is None else msgpack.packb({"source": stream.connector})
        rows = [
            Row(number, stream_id, event_id, NO_TIME, b"", metadata, value)
            for number, (event_id, value) in enumerate(zip(ids, values, strict=True))
        ]
        number, self._count = self._count, self._count + 1
        return GivenEpoch(number, self._pipeline, encode_rows(rows), self._sent, sum(map(len, values)))

    def sent(self, epoch: GivenEpoch) -> None:
        """Later epochs start where this one ends."""
        self._sent = epoch.transaction.end

    async def _run(self) -> None:
        while True:
            epoch = await self._waiting.get()
            while not await self._taken(epoch):
                self._woken.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _AGAIN_SECONDS)
            self.done = epoch.number

    async def _taken(self, epoch: GivenEpoch) -> bool:
        try:
            return await (self._committed(epoch) if self._votes else self._followed(epoch))
        except SinkLost:
            if self._votes:
                await self._sink.close()
            return False

    async def _committed(self, epoch: GivenEpoch) -> bool:
        if not self._sink.is_open:
            await self._sink.open(self._decided)
        if not (await self._sink.prepare(epoch)).yes:
            return False
        self._decided = epoch.transaction_id
        await self._sink.commit(epoch.transaction)
        return True

    async def _followed(self, epoch: GivenEpoch) -> bool:
        settling = await self._sink.deliver(epoch)
        if settling is not None:
            settled = asyncio.Event()
            settling.when_done(settled.set)
            await settled.wait()
            settling.result()
        return True


NAME = "tested"
_OTHER, _PIPELINE = "other", "pipeline"

_STORE = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)
"""Small, because tests create many."""

_READ_BYTES = 1 << 20
_SEGMENTS = 2

_QUICK = BreakerSpec(probe_after_seconds=0.1)
"""Probes follow quickly."""

WAIT_SECONDS = 20.0
"""For anything that a test waits for."""


class Event(NamedTuple):
    """As it is stored."""

    stream_id: int
    event_id: int
    value: bytes
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the connector is deployed."""

    interceptors_in: Sequence[InterceptorSpec] = ()
    interceptors_out: Sequence[InterceptorSpec] = ()
    quota_bytes: int | None = None
    ack: Literal["checkpoint", "durable"] = "checkpoint"
    breaker: BreakerSpec = _QUICK
    is_linked_in: bool = True
    """Whether a pipeline leads to its port `in`, if it has one."""


class Other(Connector[Options]):
    """The other sink: opens every stream, unless `opens` is false."""

    about = About("other", "Of a test.", Options, Capabilities(sink=Guarantee.AT_LEAST_ONCE))

    def __init__(self, breakers: Breakers) -> None:
        super().__init__(Options())
        self._breakers = breakers
        self.opens = True

    async def stream_started(self, stream: StreamRef, host: Host) -> None:  # noqa: ARG002
        if self.opens:
            self._breakers.opened(_OTHER, stream)

    def open(self, stream: StreamRef) -> None:
        self._breakers.opened(_OTHER, stream)

    def close(self, stream: StreamRef) -> None:
        self._breakers.closed(_OTHER, stream, "the test has closed it")


class Frame:
    """Call `start` and `stop` once each, or use `async with`. Owns the folder's journal in between."""

    def __init__(
        self,
        folder: Path,
        connector: type[Connector[Any]],
        config: Mapping[str, Any],
        setup: Setup | None = None,
    ) -> None:
        self.folder = folder
        self.type = connector
        self._config = config
        self.setup = setup or Setup()
        self.taken: list[Event] = []
        """What `take` has removed from this frame's store."""

    # Lifecycle.

    async def __aenter__(self) -> "Frame":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._journal = FileJournal(RealFiles(self.folder / "journal"), _STORE)
        self.store = SegmentStore(self._journal, _STORE)
        self._committer = Committer(self._journal, _STORE.idle_proof_seconds)
        self._committer.start()
        self._durability = Durability(self._journal, loop, lambda: None)
        self.sources = SourceCatalog(self.store, self._durability, ProgramServerSettings(port=0))
        self.programs = ProgramServer(self.sources)
        await self.programs.start()
        self.breakers = Breakers()
        self.signals = Signals(self.breakers, loop.time, self.sources.knows)
        self.sources.guard(self.signals)
        self._sinks = OutboxSinks(self.store, self._durability, self.signals, loop.time)
        self._begin()

    def _begin(self) -> None:
        built = self._build()
        self.connector = built.connector
        self.instance = Instance(
            built,
            self._deployment(built),
            WorkerParts(self.sources, self.signals, self._sinks, lambda: SegmentPort("")),
        )
        self.breakers.configure(_OTHER, BreakerSpec(), per_stream=True, is_passing=True)
        self.other = Other(self.breakers)
        self.signals.attach(_OTHER, self.other, self.instance.host)
        self.signals.relink(NAME, {_OTHER, NAME} if self.has_in else {_OTHER})
        self.sources.completion(NAME).hold({})
        self._given = GivenEpochs(_PIPELINE, self._make_sink)
        self.instance.start()

    def _make_sink(self, wake: Callable[[], None]) -> AnySink:
        bound = Sink(port="out", url=NAME, votes=self.instance.built.capabilities.votes, begun=0, at=0)
        return Sinks(_Deployed(self.connector, self._sinks)).make(_PIPELINE, NAME, bound, no_schema, wake)

    @property
    def has_in(self) -> bool:
        return self.instance.built.delivers and self.setup.is_linked_in

    def _build(self) -> BuiltConnector:
        options = parse_options(self.type.about.options, self._config, self.type.about.name)
        spec = ConnectorSpec(
            name=NAME,
            id=NAME,
            instance="01",
            type=self.type.about.name,
            config=dict(self._config),
            interceptors_in=tuple(self.setup.interceptors_in),
            interceptors_out=tuple(self.setup.interceptors_out),
            segments=_SEGMENTS,
            quota_bytes=self.setup.quota_bytes,
            ack=self.setup.ack,
            breaker=self.setup.breaker,
        )
        messages = self.type.capabilities(options).sends_messages
        chains = make_chains(spec.interceptors_in, spec.interceptors_out, messages=messages)
        return BuiltConnector(spec, self.type(options), chains)

    def _deployment(self, built: BuiltConnector) -> Deployment:
        links = []
        if built.capabilities.source is not None:
            links.append(Link(End("connector", NAME, "out"), End("pipeline", _PIPELINE, "in")))
        if built.capabilities.sink is not None and self.setup.is_linked_in:
            links.append(Link(End("pipeline", _PIPELINE, "out"), End("connector", NAME, "in")))
        pipeline = PipelineSpec(name=_PIPELINE, id=_PIPELINE, instance="01", spark="system::passthrough")
        return Deployment(connectors={NAME: built.spec}, pipelines={_PIPELINE: pipeline}, links=tuple(links))

    async def stop(self) -> None:
        """Stops immediately; what incoming interceptors buffer is stored."""
        await self._given.stop()
        await self.instance.leave()
        await self.signals.detach(_OTHER)
        self._sinks.stop()
        await self.programs.stop()
        self._committer.stop()
        self._journal.close()

    async def drain(self) -> None:
        """Like `penstock stop`: nothing more is read, what was read is stored, and what interceptors buffer leaves."""
        await self.instance.drain()
        if self.instance.sink is not None:
            await self.instance.sink.flush()

    def lift_quota(self) -> None:
        self.instance.configure(replace(self.instance.built.spec, quota_bytes=None))

    def image(self, folder: Path) -> None:
        """Copies what a crash now would leave: another frame can start from it. Without spare files, which are renamed
        meanwhile.
        """
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("spare-*"))

    # What is stored.

    async def events(self, name: str = NAME) -> list[Event]:
        """The durable events; each stream's are in order."""
        await self._durability.caught_up()
        return [event for segment in self._segments(name) for event in self._events(segment)]

    async def values(self) -> list[bytes]:
        return [event.value for event in await self.events()]

    async def dead_letter_events(self) -> list[Event]:
        """Input that could not become an event, with the reason in its metadata."""
        return await self.events(f"{NAME}.err")

    async def take(self) -> None:
        """Act as the pipelines: complete everything that is stored, and remove it to make room."""
        await self._durability.caught_up()
        for segment in self._segments(NAME):
            self.taken += self._events(segment)
            end = int(self.store.info(segment).length)
            self.sources.completion(NAME).advance({segment: end})
            self.store.truncate(segment, end)

    def _segments(self, name: str) -> list[str]:
        return [found for route in range(_SEGMENTS) if self.store.exists(found := connector_segment(name, route))]

    def _events(self, segment: str) -> list[Event]:
        at, data = self.store.info(segment).start, b""
        while part := self.store.read(segment, at, _READ_BYTES):
            data += part
            at += len(part)
        return _parsed(data)

    def streams(self) -> list[StreamRef]:
        """The open streams."""
        return [stream.ref for stream in self.instance.host.streams.values()]

    # Output.

    def give(self, stream: StreamRef | None, values: Sequence[bytes], ids: Sequence[int] | None = None) -> int:
        """Adds an epoch with these events of a stream for the port `in`, after earlier ones. Returns its number."""
        return self._given.add(stream, values, ids)

    def give_epoch(self, epoch: GivenEpoch) -> int:
        """Adds one that was made before, by the rules of `give`: it must be the next. Returns its number."""
        self._given.take(epoch)
        return epoch.number

    def epoch(self, values: Sequence[bytes]) -> GivenEpoch:
        """The next one, for a test that takes a voting sink through its phases; call `committed` with it at the end."""
        return self._given.epoch(None, values, None)

    def committed(self, epoch: GivenEpoch) -> None:
        self._given.sent(epoch)

    def voting_sink(self) -> VotingSink:
        """A new sink, as after a restart of the worker."""
        return cast("VotingSink", self.connector.make_sink(f"{_PIPELINE}/{NAME}", no_schema))

    def has_left(self, epoch: int) -> bool:
        """Whether all rows of the epoch, and of all before it, have been sent, are retained for a closed stream, or are
        dead letters.
        """
        return self._given.done >= epoch

    @property
    def dead_letters(self) -> int:
        sink = self.instance.sink
        return 0 if sink is None else sink.dead_letters

    # Waiting.

    async def until(self, is_so: Callable[[], object], what: str = "it", seconds: float = WAIT_SECONDS) -> None:
        """Raises AssertionError with the connector's status."""
        try:
            async with asyncio.timeout(seconds):
                while not is_so():  # noqa: ASYNC110  anything may make it true
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{what} did not arrive within {seconds:g} s: {self.instance.host.status()}") from None

    async def connected(self) -> None:
        await self.until(lambda: self.instance.host.status().state == "connected", "the connection")

    async def until_stored(self, count: int) -> list[Event]:
        """Returns when this many events are stored."""
        host = self.instance.host
        await self.until(lambda: host.counters.events >= count, f"{count} events")
        return await self.events()


@dataclass(frozen=True, slots=True)
class _Deployed:
    """What delivery asks an application for."""

    built: Connector[Any]
    sinks: OutboxSinks

    def connector(self, name: str) -> Connector[Any] | None:
        return self.built if name == NAME else None

    def make_outbox_sink(self, pipeline: str, sink: str, connector: str, wake: Callable[[], None]) -> NonVotingSink:
        return self.sinks.make(pipeline, sink, connector, wake)

    def segment_port(self) -> SegmentPort:
        return SegmentPort("")


def _parsed(data: bytes) -> list[Event]:
    found, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        event = parse_event(data[at + 8 : end])
        if event is not None:
            found.append(Event(event.stream_id, event.event_id, event.payload, event.metadata))
        at = end
    return found
