"""A connector in a real frame, on a real store, without pipelines: the test acts as these."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from penstock.connectors.api import Connector, Outgoing, SegmentPort, StreamRef
from penstock.connectors.registry import make_chains, make_connector
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.out_ports.host import SourceHost
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.api.deployment import ConnectorSpec, InterceptorSpec
from penstock.protocol.stored.names import connector_segment
from penstock.segment_server.server import SegmentServer
from penstock.segment_server.settings import ServerSettings
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from tests.ingest.stored_events import parse
from tests.support.waiting import eventually

NAME = "mine"
LINES = (InterceptorSpec(type="split", config={"delimiter": "\n"}),)
SMALL = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)


class Event(NamedTuple):
    stream_id: int
    event_id: int
    value: bytes
    metadata: Mapping[str, Any]


class Hosted:
    def __init__(
        self,
        store: SegmentStore,
        programs: ProgramServer,
        connector: Connector[Any],
        host: SourceHost,
        connector_address: str,
    ) -> None:
        self.connector_address = connector_address
        self.store = store
        self.programs = programs
        self.sources = programs.sources
        self.connector = connector
        self.host = host

    def events(self, name: str = NAME) -> list[Event]:
        found = []
        for segment in _segments(self.store, name):
            for event in parse(self._data(segment)):
                metadata = msgpack.unpackb(event.metadata) if event.metadata else {}
                found.append(Event(event.stream_id, event.event_id, event.payload, metadata))
        return found

    def dead_letters(self) -> list[Event]:
        return self.events(f"{NAME}.err")

    def values(self) -> list[bytes]:
        return [event.value for event in self.events()]

    def _data(self, segment: str) -> bytes:
        offset, parts = self.store.info(segment).start, []
        while data := self.store.read(segment, offset, 1 << 20):
            parts.append(data)
            offset += len(data)
        return b"".join(parts)

    def hold(self) -> None:
        """From now on a pipeline reads the connector."""
        self.sources.completion(NAME).hold({})

    def complete(self) -> None:
        """The pipeline has completed all that is stored."""
        ends = {segment: int(self.store.length(segment)) for segment in _segments(self.store, NAME)}
        self.sources.completion(NAME).advance(ends)

    async def deliver(
        self, values: list[bytes], ids: list[int], stream_id: int | None = None, name: str = "p:1:1/0", **more: Any
    ) -> None:
        stream = None if stream_id is None else StreamRef(NAME, stream_id)
        await self.connector.deliver(Outgoing(stream, values, ids, name=name, **more), self.host)

    async def ended(self) -> None:
        """The source has ended, and everything that it has stored can be read."""
        await eventually(lambda: self.host.status().state == "ended", lambda: str(self.host.status()))
        await self.sources.durability.caught_up()

    async def connected(self) -> None:
        await eventually(lambda: self.host.status().state == "connected", lambda: str(self.host.status()))


def _segments(store: SegmentStore, name: str) -> list[str]:
    return [found for number in range(2) if store.exists(found := connector_segment(name, number))]


@asynccontextmanager
async def hosting(
    folder: Path,
    type_name: str,
    config: Mapping[str, Any],
    *,
    interceptors_in: tuple[InterceptorSpec, ...] = (),
    interceptors_out: tuple[InterceptorSpec, ...] = (),
    has_in: bool = False,
    has_out: bool = True,
    **spec: Any,
) -> AsyncIterator[Hosted]:
    """The connector of this type and config, running. A later one in the same folder finds what this one has stored."""
    journal = FileJournal(RealFiles(folder / "journal"), SMALL)
    store = SegmentStore(journal, SMALL)
    committer = Committer(journal, SMALL.idle_proof_seconds)
    committer.start()
    durability = Durability(journal, asyncio.get_running_loop(), lambda: None)
    sources = SourceCatalog(store, durability, ProgramServerSettings(port=0))
    programs = ProgramServer(sources)
    connector_address = f"127.0.0.1:{await programs.start()}"
    segments = SegmentServer(store, durability, ServerSettings(port=0))
    segment_port = SegmentPort(f"127.0.0.1:{await segments.start()}")
    connector = make_connector(type_name, config)
    host = SourceHost(
        ConnectorSpec(name=NAME, id=NAME, instance="01", type=type_name, config=dict(config), **spec),
        connector,
        sources,
        chains=make_chains(
            interceptors_in,
            interceptors_out,
            messages=connector.capabilities(connector.options).sends_messages,
        ),
        has_in=has_in,
        has_out=has_out,
        segment_port=segment_port,
    )
    host.start()
    try:
        yield Hosted(store, programs, connector, host, connector_address)
    finally:
        await host.stop()
        await programs.stop()
        await segments.stop()
        committer.stop()
        journal.close()
