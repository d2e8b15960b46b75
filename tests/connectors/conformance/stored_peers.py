"""Real peers that store: files, and the segments of a worker."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.protocol.segment import split_events
from penstock.segment_server.server import SegmentServer
from penstock.segment_server.settings import ServerSettings
from penstock.store.file_journal import Committer, FileJournal
from penstock.store.files import RealFiles
from penstock.store.journal import Durability
from penstock.store.settings import StoreSettings
from penstock.store.store import SegmentStore
from penstock.testing.frame import Frame
from penstock.testing.peer import Line, Peer


class FileLine:
    """A file that grows; it is removed when its writer is done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self._append, data)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)

    async def end(self) -> None:
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def break_off(self) -> None:
        """Files do not."""

    def received(self) -> bytes:
        return b""

    def stop_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...


class GrowingFiles(Peer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def config(self) -> Mapping[str, Any]:
        path = str(self._folder / "*.log")
        return {"mode": "tail", "path": path, "poll": "10ms", "linger": "50ms", "chunk": "16KiB"}

    async def line(self, frame: Frame) -> Line:
        self._count += 1
        return FileLine(self._folder / f"{self._count}.log")


class AppendedFile(Peer):
    def __init__(self, folder: Path) -> None:
        self._path = folder / "out"

    def config(self) -> Mapping[str, Any]:
        return {"mode": "append", "path": str(self._path), "format": "raw"}

    def received(self) -> bytes:
        return self._path.read_bytes() if self._path.exists() else b""


class AnotherWorker(Peer):
    """With its segment port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._store: SegmentStore | None = None
        self._kept = b""

    def config(self) -> Mapping[str, Any]:
        return {"segment": "numbers", "worker": f"127.0.0.1:{self._port}", "timeout": "200ms"}

    async def start(self) -> None:
        settings = StoreSettings(chapter_bytes=1 << 20, reserve_bytes=1 << 20)
        self._journal = FileJournal(RealFiles(self._folder / "journal"), settings)
        self._store = SegmentStore(self._journal, settings)
        self._committer = Committer(self._journal, settings.idle_proof_seconds)
        self._committer.start()
        durability = Durability(self._journal, asyncio.get_running_loop(), lambda: None)
        self._server = SegmentServer(self._store, durability, ServerSettings(port=self._port))
        self._port = await self._server.start()

    async def stop(self) -> None:
        if self._store is None:
            return
        self._kept = self.received()
        self._store = None
        await self._server.stop()
        self._committer.stop()
        self._journal.close()

    def received(self) -> bytes:
        if self._store is None:
            return self._kept
        if not self._store.exists("numbers"):
            return b""
        data, at = b"", 0
        while part := self._store.read("numbers", at, 1 << 20):
            data += part
            at += len(part)
        return b"".join(map(bytes, split_events(data)))
