"""A server on a real socket and real files, in the test's own loop, and peers that speak bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from penstock.protocol.segment import DOCUMENT, VERSIONED, Decoder, Dialect, Hello, Incoming, Message, Role
from penstock.segment_server.server import SegmentServer
from penstock.segment_server.settings import ServerSettings
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import Files, RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore

SMALL = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)


@dataclass
class Running:
    server: SegmentServer
    store: SegmentStore
    port: int
    failed: asyncio.Event


@dataclass
class Peer:
    """A client made of bytes: sends what it is told, and says what came back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    dialect: Dialect
    decoder: Decoder = field(default_factory=lambda: Decoder(Role.CLIENT))
    received: list[Incoming] = field(default_factory=list)

    def send(self, *messages: Message | bytes) -> None:
        for message in messages:
            self.writer.write(message if isinstance(message, bytes) else self.dialect.encode(message))

    async def reply(self, seconds: float = 30) -> Incoming:
        async with asyncio.timeout(seconds):
            while not self.received:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self.received.extend(self.decoder.feed(data))
        return self.received.pop(0)

    async def is_closed(self) -> bool:
        """Whether the server ends the connection, after whatever it still says."""
        try:
            while True:
                await self.reply()
        except (EOFError, ConnectionResetError):
            return True

    async def close(self) -> None:
        await hang_up(self.writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


Serve = Callable[..., Awaitable[Running]]
Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    started: list[tuple[SegmentServer, Committer, FileJournal]] = []

    async def start(
        store_settings: StoreSettings = SMALL, files: Callable[[Path], Files] = RealFiles, **settings: object
    ) -> Running:
        journal = FileJournal(files(tmp_path / "journal"), store_settings)
        store = SegmentStore(journal, store_settings)
        committer = Committer(journal, store_settings.idle_proof_seconds)
        committer.start()
        failed = asyncio.Event()
        durability = Durability(journal, asyncio.get_running_loop(), failed.set)
        server = SegmentServer(store, durability, replace(ServerSettings(port=0), **settings))  # type: ignore[arg-type]
        started.append((server, committer, journal))
        return Running(server, store, await server.start(), failed)

    yield start
    for server, committer, journal in started:
        await server.stop()
        committer.stop()
        journal.close()


@pytest.fixture
async def running(serve: Serve) -> Running:
    return await serve()


@pytest.fixture
async def connect(running: Running) -> AsyncIterator[Connect]:
    peers: list[Peer] = []

    async def open_peer(dialect: Dialect = VERSIONED, port: int | None = None) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or running.port)
        peer = Peer(reader, writer, dialect)
        peers.append(peer)
        if dialect is VERSIONED:
            peer.send(Hello(17, 5))
            assert isinstance(await peer.reply(), Hello)
        return peer

    yield open_peer
    for peer in peers:
        await peer.close()


@pytest.fixture
async def versioned(connect: Connect) -> Peer:
    return await connect(VERSIONED)


@pytest.fixture
async def document(connect: Connect) -> Peer:
    return await connect(DOCUMENT)
