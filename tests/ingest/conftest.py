"""A program server on a real socket and real files, in the test's own event loop, and sources that send raw frames."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from penstock.access.file import AccessControl
from penstock.core.errors import StoreFailed
from penstock.core.types import Buffer, Position
from penstock.ingest.catalog import SourceCatalog
from penstock.ingest.gate import Gate
from penstock.ingest.sessions.connection import Connection
from penstock.ingest.sessions.program_server import ProgramServer
from penstock.ingest.sessions.session import SourceSession
from penstock.ingest.settings import ProgramServerSettings
from penstock.protocol.connector import Decoder, Frame, Hello, Notify, NotifyAck, Ok, Use, announce_window, encode
from penstock.store.chapters import file_offset
from penstock.store.file_journal import Committer, FileJournal, WriteStep
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from tests.ingest.stored_events import StoredEvent, parse
from tests.support.waiting import SECONDS_MAX

SMALL = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)


def _crashed(*_: object, **__: object) -> None:
    raise StoreFailed("crashed")


class CrashingJournal(FileJournal):
    """Can crash between any two records: what was queued after the last one is then not on disk."""

    _records_left: int | None = None

    def crash_after(self, records: int) -> None:
        """Crash after this many more records. The last one is written, but nobody is notified."""
        with self._changed:
            self._records_left = records

    def _queue(self, buffers: list[Buffer], end: Position) -> None:
        """Each record on its own, not as part of a group."""
        self._steps.append(WriteStep(self._file, file_offset(self.chapter, self.end), buffers, end))
        self._changed.notify_all()
        self._records += 1
        self.end = end

    def _publish(self, end: Position) -> None:
        if self._records_left is not None:
            self._records_left -= 1
            if self._records_left <= 0:
                raise StoreFailed("crashed")
        super()._publish(end)


@dataclass
class RunningServer:
    programs: ProgramServer
    sources: SourceCatalog
    store: SegmentStore
    port: int
    committer: Committer
    journal: CrashingJournal
    crashed: bool = False

    @property
    def sessions(self) -> list[SourceSession]:
        return [*self.programs.sessions]

    @property
    def connections(self) -> list[Connection]:
        return [cast("Connection", session._outlet) for session in self.sessions]

    async def stop(self) -> None:
        if self.crashed:
            return
        await self.programs.stop()
        self.committer.stop()
        self.journal.close()

    async def crash(self) -> None:
        """Stop writing: the next program server finds what is on disk now."""
        self.committer.stop()
        self.sources.store.append = _crashed  # type: ignore[method-assign,assignment]
        self.sources.store.append_all = _crashed  # type: ignore[method-assign,assignment]
        await self.programs.stop()
        self.journal.close()
        self.crashed = True

    def events(self, connector: str = "source") -> list[StoredEvent]:
        return list(parse(self.stored(connector)))

    def stored(self, connector: str = "source") -> bytes:
        """The bytes of all segments of the connector, concatenated."""
        parts = []
        for name in self.sources.log(connector).segments:
            offset = self.store.info(name).start
            while data := self.store.read(name, offset, 1 << 20):
                parts.append(data)
                offset += len(data)
        return b"".join(parts)


@dataclass
class Peer:
    """A source that sends raw frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    decoder: Decoder = field(default_factory=lambda: Decoder(Use.SOURCE))
    received: list[Frame] = field(default_factory=list)

    def send(self, *frames: Frame | bytes) -> None:
        for frame in frames:
            self.writer.write(frame if isinstance(frame, bytes) else encode(frame))

    async def frame(self, seconds: float = SECONDS_MAX) -> Frame:
        """The first one may have to wait until kernels are compiled."""
        async with asyncio.timeout(seconds):
            while not self.received:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self.received.extend(self.decoder.feed(data))
        return self.received.pop(0)

    async def frames_until_closed(self) -> list[Frame]:
        frames = []
        with suppress(EOFError, ConnectionError):
            while True:
                frames.append(await self.frame())
        return frames

    async def open(self, stream_id: int, name: str = "stream") -> int:
        """NOTIFY; returns the point of reference."""
        self.send(Notify(stream_id, name))
        while not isinstance(answer := await self.frame(), NotifyAck):
            pass
        assert answer.success
        assert answer.stream_id == stream_id
        return answer.point_of_reference

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


Serve = Callable[..., Awaitable[RunningServer]]
Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts a program server on the test's data directory. A later one finds what the last one stored."""
    started: list[RunningServer] = []

    async def start(
        store_settings: StoreSettings = SMALL,
        gate: Gate | None = None,
        files: type[RealFiles] = RealFiles,
        access: AccessControl | None = None,
        **settings: object,
    ) -> RunningServer:
        """`gate` is used from the start, so it is also notified of the streams that ended with the last server."""
        if started:
            await started.pop().stop()
        journal = CrashingJournal(files(tmp_path / "journal"), store_settings)
        store = SegmentStore(journal, store_settings)
        committer = Committer(journal, store_settings.idle_proof_seconds)
        committer.start()
        durability = Durability(journal, asyncio.get_running_loop(), lambda: None)
        sources = SourceCatalog(store, durability, replace(ProgramServerSettings(port=0), **settings))  # type: ignore[arg-type]
        if gate is not None:
            sources.guard(gate)
        programs = ProgramServer(sources, access)
        started.append(RunningServer(programs, sources, store, await programs.start(), committer, journal))
        return started[-1]

    yield start
    for running in started:
        await running.stop()


@pytest.fixture
async def running(serve: Serve) -> RunningServer:
    return await serve()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects, and sends HELLO unless `hello` is false."""
    peers: list[Peer] = []

    async def open_peer(
        running: RunningServer, source: str = "source", *, hello: bool = True, address: str = "127.0.0.1"
    ) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, local_addr=(address, 0))
        peer = Peer(reader, writer)
        peers.append(peer)
        if hello:
            peer.send(Hello("0.0.1", b"", announce_window("test"), source))
            assert isinstance(await peer.frame(), Ok)
        return peer

    yield open_peer
    for peer in peers:
        await peer.close()
